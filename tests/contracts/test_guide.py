"""README and guide: every command parses, every key and link leads somewhere, and the prose stays short."""

import re
import shlex
import subprocess
import sys
from typing import get_args

import pytest
from command_line import in_process
from guide_pages import COMMANDS, PAGES, TEXTS
from losses import DISTILL, LOSSES
from places import ROOT

from microrl import guide
from microrl.cli import app
from microrl.config import known_models, resolve
from microrl.errors import UserError

LONGEST_SENTENCE = 45


def sentences(text: str) -> list[str]:
    """The sentences of the prose: without code, tables, headings and images."""
    text = re.sub(r"```.*?```", "\n\n", text, flags=re.DOTALL)
    text = re.sub(r"`[^`]*`", "code", text)
    lines = [line for line in text.splitlines() if not re.match(r"\s*([|#!])", line)]
    blocks = re.split(r"\n\s*\n|\n(?=\s*(?:[-*]|\d\.) )", "\n".join(lines))
    return [part for block in blocks for part in re.split(r"(?<=[.?!])\s+", " ".join(block.split())) if part]


def test_there_are_commands_to_check():
    assert len(COMMANDS) >= 60 and {name for name, _ in COMMANDS} >= PAGES.keys() - {"reading"}


@pytest.mark.parametrize(("page", "command"), COMMANDS)
def test_every_command_parses_and_its_keys_resolve(page, command, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "my.toml").write_text(re.findall(r"```\n(# My.*?)```", TEXTS["configuration"], re.DOTALL)[0])
    _, *arguments = shlex.split(command)
    group = app
    while arguments and hasattr(group, "commands") and arguments[0] in group.commands:
        group = group.commands[arguments.pop(0)]
    given = group.make_context("microrl", arguments, resilient_parsing=False).params
    presets = [name for name in given.get("presets") or () if name != "quickstart" or group.name == "train"]
    named = {
        "data.name": "data", "adapter.kind": "adapter", "loss.kind": "loss", "adapter.rank": "rank", "distill.teacher": "teacher",
    }  # fmt: skip
    flags = {key: given.get(name) for key, name in named.items()}
    if group.name in ("train", "plan", "warmup", "eval"):
        resolve(presets, flags, given["sets"] or ())
    elif "names" in given:
        resolve(given["names"])


SHOWN = [
    ("README", "microrl plan --model Qwen2.5-1.5B-Instruct --rank 256"),
    ("budget", "microrl plan --model Qwen2.5-1.5B-Instruct --rank 256"),
    ("budget", "microrl plan --model Qwen2.5-7B-Instruct"),
    ("budget", "microrl plan micro-r64 --gpu a40 --detect"),
]
"""The page, and how the command begins whose output is the next block there."""


@pytest.mark.parametrize(("page", "begins"), SHOWN)
def test_the_plan_that_is_shown_is_the_commands(page, begins):
    """`...` stands for what is left out."""
    command = next(one for name, one in COMMANDS if name == page and one.startswith(begins))
    after = TEXTS[page].partition(begins)[2].partition("\n```\n")[2]
    printed = " ".join(in_process(*shlex.split(command)[1:]).stdout.split())
    for part in re.findall(r"```\n(.*?)```", after, re.DOTALL)[0].split("..."):
        wanted = " ".join(part.split())
        assert wanted and wanted in printed
        printed = printed.partition(wanted)[2]


@pytest.mark.parametrize("page", PAGES)
def test_every_key_that_is_named_exists(page):
    """Keys of the configuration in backquotes, such as `optim.lr` or `data.held_out=0.1`."""
    for key in re.findall(r"`([a-z_]+(?:\.[a-z_]+)+)(?:=[^`]*)?`", TEXTS[page]):
        section = key.split(".")[0]
        if section in type(resolve()).model_fields and not key.endswith((".json", ".jsonl")):
            assert exists(key), f"{page}: {key}"


def exists(key: str) -> bool:
    """Whether some kind of adapter, loss, engine or schedule has this key; an unknown one is named by the error."""
    bases = [[], ["adapter.kind=lora+"], ["adapter.kind=adalora"], ["loss.kind=dapo"], ["optim.schedule.kind=cosine"]]
    bases.append(["reward.overlong.buffer=8"])
    for base in bases:
        try:
            resolve((), {}, [*base, f"{key}=no such value"])
        except UserError as error:
            if "unknown key" not in error.message:
                return True
        else:
            return True
    return False


def test_a_wrong_key_does_not_exist():
    assert exists("optim.lr") and exists("loss.dynamic_sampling") and not exists("optim.rate")


@pytest.mark.parametrize("page", PAGES)
def test_every_link_leads_somewhere(page):
    for target in re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", TEXTS[page]):
        if not target.startswith("http"):
            assert (PAGES[page].parent / target).is_file(), f"{page}: {target}"
    for named in re.findall(r"`((?:tests|microrl|presets)/[\w/.-]+)`", TEXTS[page]):
        assert (ROOT / named).exists(), f"{page}: {named}"
    for named in re.findall(r"\b(tests/[\w/]+\.py)\b", TEXTS[page]):
        assert (ROOT / named).exists(), f"{page}: {named}"


def test_every_page_is_listed_and_linked_from_the_readme():
    assert {path.stem for path in guide.FOLDER.glob("*.md")} == set(guide.ORDER)
    for topic in guide.ORDER:
        assert f"(microrl/guide/{topic}.md)" in TEXTS["README"], topic


def test_every_adapter_loss_preset_metric_and_model_is_named():
    from microrl.config.adapters import KINDS
    from microrl.config.presets import available
    from microrl.config.schema import EngineConfig
    from microrl.run.metrics import METRICS

    assert "grpo" in LOSSES
    engines = {one.model_fields["kind"].default for one in get_args(get_args(EngineConfig)[0])} - {"auto"}
    rows = {"adapters": KINDS, "losses": (*LOSSES, DISTILL), "engine": engines}
    names = {"guard": METRICS, "configuration": available(), "data": known_models.MODELS}
    wanted = {page: [f"| `{kind}` |" for kind in kinds] for page, kinds in rows.items()}
    wanted |= {page: [f"`{name}`" for name in listed] for page, listed in names.items()}
    for page, words in wanted.items():
        missing = [word for word in words if word not in TEXTS[page]]
        assert not missing, f"add to microrl/guide/{page}.md: {', '.join(missing)}"
    listed, defined = TEXTS["adapters"].split("\n## How are the adapters defined?\n")
    for kind in KINDS:
        assert f"\n| `{kind}` | " in listed and f"`{kind}`" in re.split(r"\n#", defined)[0], f"a table of adapters lacks {kind}"


@pytest.mark.parametrize("page", PAGES)
def test_the_prose_is_short(page):
    lines = TEXTS[page].splitlines()
    assert len(lines) <= (150 if page == "README" else 250)
    assert not [line for line in lines if len(line) > 130 and not line.startswith("|")]
    assert not [text for text in sentences(TEXTS[page]) if len(text.split()) > LONGEST_SENTENCE]


def test_sentences_are_found():
    text = "# Head\n\nOne two. Three\nfour?\n\n- five `a b`\n- six\n\n| a | b |\n\n```\ncode. code\n```\n"
    assert sentences(text) == ["One two.", "Three four?", "- five code", "- six"]


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-m", *arguments], capture_output=True, text=True, timeout=60)


def test_the_guide_is_shown_without_torch():
    done = run("microrl", "guide")
    assert done.returncode == 0 and [line.split()[0] for line in done.stdout.splitlines()] == list(guide.ORDER)
    assert run("microrl", "guide", "budget").stdout == TEXTS["budget"]
    done = run("microrl", "guide", "bugdet")
    assert done.returncode == 2 and "did you mean `budget`?" in done.stderr and not done.stdout
    code = (
        "import sys; from microrl.cli import app; app(['guide', 'losses'], standalone_mode=False); print('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout.endswith("False\n")


def test_the_map_of_the_code_is_the_tree():
    named = set(re.findall(r"`(microrl/[\w/]+(?:\.py|/))`", TEXTS["reading"]))
    missing = [name for name in named if not (ROOT / name).exists()]
    assert named and not missing, missing
    rooms = {f"microrl/{path.name}{'/' if path.is_dir() else ''}" for path in (ROOT / "microrl").iterdir()}
    rooms = {room for room in rooms if not re.search(r"__|py\.typed|presets", room)}
    unnamed = [room for room in rooms if not any(name.startswith(room) for name in named)]
    assert not unnamed, unnamed


def defines(source: str, name: str) -> bool:
    """Whether a source defines this name, or each part of `Class.member`."""
    return all(
        re.search(rf"^\s*(?:(?:async )?def|class) {part}\b|^\s*{part}\b[^=\n(]*=|^\s*{part}: ", source, re.MULTILINE)
        for part in name.split(".")
    )


def test_the_map_of_the_code_sends_each_name_to_where_it_is_defined():
    """`A`, `B` and `C` in `microrl/...py`."""
    listed = re.findall(r"((?:`[A-Za-z_][\w.]*`(?:, then |, | and | or )?)+) in `(microrl/[\w/]+\.py)`", TEXTS["reading"])
    pairs = [(name, path) for names, path in listed for name in re.findall(r"`([^`]+)`", names)]
    assert len(pairs) > 25 and ("RewardConfig", "microrl/config/reward.py") in pairs
    assert not [pair for pair in pairs if not defines((ROOT / pair[1]).read_text(), pair[0])]
    assert not defines((ROOT / "microrl/config/schema.py").read_text(), "RewardConfig")
