"""Packages import only from lower layers, and packages of one layer do not import each other; sizes, names, clocks."""

import ast
import re
import subprocess
from functools import cache
from pathlib import Path

import microrl

PACKAGE = Path(microrl.__file__).parent
ROOT = PACKAGE.parent
LAYERS = [
    {"errors", "types", "clock", "processes", "resident", "terminal", "limits", "answers", "plain", "pysource"},
    {"config", "files", "tables"},
    {"models", "algorithm", "diagnostics", "sandbox"},
    {"data", "rewards", "plan", "adapters"},
    {"rollout", "environments"},
    {"policy", "evaluation"},
    {"run"},
    {"quickstart", "guide", "report"},
    {"train"},
    {"commands", "sweep"},
    {"cli"},
]
LAYER_OF = {package: number for number, packages in enumerate(LAYERS) for package in packages}


@cache
def nodes(path: Path) -> tuple[ast.AST, ...]:
    """The whole syntax tree of a file."""
    return tuple(ast.walk(ast.parse(path.read_text())))


def imports(path: Path) -> set[str]:
    """Every microrl module that a file names in an import, inside functions too."""
    found = set()
    for node in nodes(path):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            assert node.level == 0, f"{path}: relative import"
            found |= {f"{node.module}.{alias.name}" if node.module == "microrl" else node.module for alias in node.names}
    return {name for name in found if name.startswith("microrl.")}


def package_of(path: Path) -> str:
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


def sources() -> list[Path]:
    return [path for path in PACKAGE.rglob("*.py") if package_of(path) not in ("__init__", "__main__")]


def test_every_package_has_a_layer():
    assert {package_of(path) for path in sources()} == set(LAYER_OF)


def test_imports_only_go_down():
    wrong = []
    for path in sources():
        own = package_of(path)
        for name in imports(path):
            other = name.split(".")[1]
            if other in LAYER_OF and other != own and LAYER_OF[other] >= LAYER_OF[own]:
                wrong.append(f"{path.relative_to(ROOT)} (layer {LAYER_OF[own]}) imports {name} (layer {LAYER_OF[other]})")
    assert not wrong, "\n".join(wrong)


def test_only_the_agreed_names_are_tracked_at_the_root():
    if not (ROOT / ".git").exists():
        return  # an installed package has no root
    tracked = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True).stdout.split("\n")
    visible = {name.split("/")[0] for name in tracked if name and not name.startswith(".")}
    assert visible == {"pyproject.toml", "microrl", "presets", "tests", "README.md", "LICENSE"}


def test_files_stay_small_enough_to_hold_in_mind():
    long = {str(path.relative_to(ROOT)): count for path in sources() if (count := len(path.read_text().splitlines())) > 400}
    assert not long


def test_no_name_says_only_that_something_was_looked_for():
    """What a name holds is its content."""
    places = []
    for path in sources():
        for node in nodes(path):
            name = node.id if isinstance(node, ast.Name) else node.arg if isinstance(node, ast.arg | ast.keyword) else None
            if name == "found" or (isinstance(node, ast.Attribute) and node.attr == "found"):
                places.append(f"{path.relative_to(ROOT)}:{node.lineno}")
    assert not places


def test_spans_are_measured_by_a_clock_that_cannot_be_set():
    """Time stamps of events may be the wall clock's; nothing else may, and `clock` alone knows which clock to read."""
    calls = re.compile(r"\btime\.(time|monotonic|perf_counter|clock_gettime)|from time import")
    wrong = [str(path.relative_to(ROOT)) for path in sources() if package_of(path) != "clock" and calls.search(path.read_text())]
    assert not wrong
