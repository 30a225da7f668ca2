"""The page for coding agents: its commands run, one after the other, in an empty folder."""

import json
import os
import re
import subprocess
import sys

import pytest
from places import ROOT

PAGE = (ROOT / "microrl" / "guide" / "skill" / "SKILL.md").read_text()


@pytest.mark.slow
def test_the_commands_on_the_page_for_agents_run(tmp_path):
    blocks = re.findall(r"```sh\n(.*?)```", PAGE, re.DOTALL)
    assert len(blocks) >= 4
    binary = tmp_path / "bin" / "microrl"
    binary.parent.mkdir()
    binary.write_text(f'#!/bin/sh\nPYTHONPATH={ROOT} exec {sys.executable} -m microrl "$@"\n')
    binary.chmod(0o755)
    environment = {**os.environ, "PATH": f"{binary.parent}:{os.environ['PATH']}"}
    for line in "".join(blocks).splitlines():
        done = subprocess.run(["sh", "-c", line], cwd=tmp_path, env=environment, capture_output=True, text=True)
        assert done.returncode == 0 or (line.startswith("microrl doctor") and done.returncode == 1), (line, done.stderr[-1000:])
    assert json.loads((tmp_path / "plan.json").read_text()) and json.loads((tmp_path / "answers.json").read_text())
    assert json.loads((tmp_path / "result.json").read_text()) and (tmp_path / "report.html").stat().st_size > 100_000
    assert "ci95" in json.loads((tmp_path / "runs" / "try" / "summary.json").read_text())["eval"]["paired_gain"]


def test_the_page_begins_as_agents_read_it():
    front = re.match(r"---\nname: microrl\ndescription: (.+)\n---\n", PAGE)
    assert front is not None and len(front[1]) < 1024
    for page in re.findall(r"`microrl guide (\w+)`", PAGE):
        assert (ROOT / "microrl" / "guide" / f"{page}.md").is_file()
