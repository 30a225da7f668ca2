"""`microrl doctor`: is this machine ready to train? GPU, library versions, disk, hub, and one tiny training loop."""

from __future__ import annotations

import dataclasses
from typing import Annotated

import typer

from microrl.cli import options
from microrl.cli.output import OK, USAGE, emit, say

MARKS = {"ok": ("ok", "green"), "warning": ("warning", "yellow"), "problem": ("problem", "bold red")}


def register(app: typer.Typer) -> None:
    app.command()(doctor)


def doctor(
    self_test: Annotated[bool, typer.Option(metavar="", help="Run one training loop with a tiny model (30 s).")] = True,
    as_json: options.Json = False,
) -> int:
    """Check GPU, libraries, vLLM, disk and hub, and run one tiny training loop.

    Exit status 2 if there is a problem; warnings do not count.
    """
    from rich.console import Console

    words = Console(stderr=True)
    with words.status("loading"):
        from microrl.commands.doctor import examine
    if self_test and not words.is_terminal:
        say("checking this machine; the self-test takes half a minute")
    found = []
    out = Console(highlight=False, soft_wrap=True)
    with words.status("checking this machine; the self-test takes half a minute"):
        for finding in examine(self_test=self_test):
            found.append(finding)
            if not as_json:
                text, style = MARKS[finding.status]
                out.print(f"[{style}]{text:8}[/] {finding.about:18}", end="")
                out.print(finding.says, markup=False)
                if finding.do:
                    out.print(f"{'':27} -> {finding.do}", markup=False)
    if as_json:
        emit({"findings": [dataclasses.asdict(finding) for finding in found]})
    return USAGE if any(finding.status == "problem" for finding in found) else OK
