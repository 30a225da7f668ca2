"""What would be published: a build that repeats byte for byte, complete metadata, and every file that the package reads."""

import email
import os
import re
import subprocess
import sys
import tarfile
import tomllib
import zipfile

import pytest
from places import ROOT

import microrl

EPOCH = "1700000000"


@pytest.fixture(scope="module")
def built(made_once):
    """Wheel and source archive, built twice, in two folders."""
    folder = made_once("built", build_twice)
    return [folder / "1", folder / "2"]


def build_twice(folder):
    """From a copy of what git tracks."""
    source = folder / "source"
    tracked = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    for name in filter(None, tracked.split("\0")):
        if (ROOT / name).is_file() and not name.startswith("tests/"):
            (source / name).parent.mkdir(parents=True, exist_ok=True)
            (source / name).write_bytes((ROOT / name).read_bytes())
    for number in ("1", "2"):
        words = [sys.executable, "-m", "build", "--outdir", folder / number, source]
        done = subprocess.run(words, capture_output=True, text=True, env={**os.environ, "SOURCE_DATE_EPOCH": EPOCH})
        assert done.returncode == 0, done.stderr[-2000:]


@pytest.mark.slow
@pytest.mark.one_of_each
def test_a_build_repeats_byte_for_byte_and_can_be_uploaded(built):
    first, second = ({path.name: path.read_bytes() for path in folder.iterdir()} for folder in built)
    assert first == second and len(first) == 2
    done = subprocess.run(
        [sys.executable, "-m", "twine", "check", "--strict", *built[0].iterdir()], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout


@pytest.mark.slow
@pytest.mark.one_of_each
def test_wheel_and_source_hold_what_they_need(built):
    wheel = zipfile.ZipFile(next(built[0].glob("*.whl")))
    names = set(wheel.namelist())
    read = ("guide/quickstart.md", "guide/quickstart.svg", "report/page.html", "presets/quickstart.toml")
    cheats = (f"commands/cheats/{module}.toml" for module in ("programs", "procedural", "text"))
    for name in ("py.typed", *read, *cheats):
        assert f"microrl/{name}" in names
    assert not [name for name in names if name.startswith(("tests/", "presets/"))]
    with tarfile.open(next(built[0].glob("*.tar.gz"))) as source:
        top = {name.split("/")[1] for name in source.getnames()}
    assert {"LICENSE", "README.md", "microrl", "presets", "pyproject.toml"} <= top
    metadata = email.message_from_bytes(wheel.read(f"microrl-{microrl.__version__}.dist-info/METADATA"))
    assert metadata["Version"] == microrl.__version__ and metadata["License-Expression"] == "Apache-2.0"
    assert metadata["Author"] == "microrl maintainers" and metadata["Keywords"]
    assert f"{metadata['Requires-Python']}" == ">=3.11"


def test_the_change_log_has_a_section_of_this_version():
    page = (ROOT / "microrl" / "guide" / "changes.md").read_text()
    sections = re.findall(r"^## (\d+\.\d+\.\d+) \((not released yet|\d{4}-\d{2}-\d{2})\)$", page, re.MULTILINE)
    assert sections[0][0] == microrl.__version__
    assert all(date != "not released yet" for _, date in sections[1:])


def test_the_licence_of_every_dependency_is_listed():
    page = (ROOT / "microrl" / "guide" / "changes.md").read_text().partition("## Which licences")[2]
    with (ROOT / "pyproject.toml").open("rb") as file:
        needed = tomllib.load(file)["project"]["dependencies"]
    assert not [name for name in map(lambda one: re.match(r"[\w-]+", one)[0], needed) if name not in page]
