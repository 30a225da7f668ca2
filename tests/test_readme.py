"""The README's commands parse, and its map of the code is the tree."""

import re
import shlex
from pathlib import Path

import pytest
from typer.main import get_command

from microrl.cli import app

README = (Path(__file__).parent.parent / "README.md").read_text()
BLOCKS = re.findall(r"```(?:sh|console|bash)\n(.*?)```", README, re.DOTALL)
COMMANDS = [
    line.strip().removeprefix("$ ").partition("#")[0].strip()
    for block in BLOCKS
    for line in re.sub(r"\\\n\s*", "", block).splitlines()
    if re.match(r"\s*(\$ )?microrl ", line)
]


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_parses(command):
    _, *arguments = shlex.split(command.replace("&&", ";").partition(";")[0])
    group = get_command(app)
    while arguments and hasattr(group, "commands") and arguments[0] in group.commands:
        group = group.commands[arguments.pop(0)]
    group.make_context("microrl", arguments, resilient_parsing=False)


def test_there_are_commands_to_check():
    assert len(COMMANDS) >= 5


def test_the_map_of_the_code_is_the_tree():
    section = README.partition("## Read the code")[2].partition("\n## ")[0]
    named = set(re.findall(r"`(microrl/[\w/]+(?:\.py|/))`", section))
    root = Path(__file__).parent.parent
    missing = [name for name in named if not (root / name).exists()]
    assert named and not missing, missing
    rooms = {f"microrl/{path.name}{'/' if path.is_dir() else ''}" for path in (root / "microrl").iterdir()}
    rooms = {room for room in rooms if not re.search(r"__|py\.typed|presets", room)}
    unnamed = [room for room in rooms if not any(name.startswith(room) for name in named)]
    assert not unnamed, unnamed
