"""`microrl doctor`: what this machine has, what goes together, and whether the loop fixes."""

from __future__ import annotations

import dataclasses
from typing import Annotated

import typer

from microrl.cli.output import OK, USAGE, emit, say

MARKS = {"ok": ("ok", "green"), "warning": ("warning", "yellow"), "problem": ("problem", "bold red")}


def register(app: typer.Typer) -> None:
    app.command()(doctor)


def doctor(
    self_test: Annotated[bool, typer.Option(help="Run a tiny model once around the loop: half a minute.")] = True,
    as_json: Annotated[bool, typer.Option("--json", help="Print the findings as JSON.")] = False,
) -> int:
    """Check card, libraries, vLLM, disk and hub, and run a tiny model once around the loop. Status 0 if fit, else 2."""
    from rich.console import Console

    words = Console(stderr=True)
    with words.status("loading"):
        from microrl.commands.doctor import examine
    if self_test and not words.is_terminal:
        say("looking around; the self-test takes half a minute")
    found = []
    out = Console(highlight=False, soft_wrap=True)
    with words.status("looking around; the self-test takes half a minute"):
        for finding in examine(self_test=self_test):
            found.append(finding)
            if not as_json:
                text, style = MARKS[finding.status]
                out.print(f"[{style}]{text:8}[/] {finding.about:16}", end="")
                out.print(finding.says, markup=False)
                if finding.do:
                    out.print(f"{'':25} -> {finding.do}", markup=False)
    if as_json:
        emit({"findings": [dataclasses.asdict(finding) for finding in found]})
    return USAGE if any(finding.status == "problem" for finding in found) else OK
