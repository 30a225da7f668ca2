"""`microrl doctor`: is this machine ready to train, and how fast is it?"""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Annotated, Any

import typer

from microrl import files
from microrl.cli import options
from microrl.cli.output import OK, USAGE, emit, say
from microrl.commands.bench.synthetic import Shape
from microrl.errors import Explained, UserError

STYLES = {"ok": "green", "warning": "yellow", "problem": "bold red"}

EXAMPLES = """
[bold]Examples[/]
  microrl doctor
  microrl doctor --measure                         [dim]15 to 25 minutes expected on a GPU (not measured), 2 on a CPU[/]
"""


def doctor(
    self_test: Annotated[bool, typer.Option(help="Run one training loop with a tiny model (30 s).")] = True,
    measure: Annotated[
        bool, typer.Option("--measure", help="Also test and time this machine; `plan` and `train` then use the measured speeds.")
    ] = False,
    shape: Annotated[
        Shape | None,
        typer.Option(help="With --measure: size of the model.", show_default="1.5b on a GPU; tiny and 135m on a CPU"),
    ] = None,
    rank: Annotated[
        int | None, typer.Option(min=1, help="With --measure: adapter rank.", show_default="256 on a GPU; 4 and 64 on a CPU")
    ] = None,
    peer: Annotated[
        str | None,
        typer.Option(metavar="PYTHON", help="With --measure: also compare with TRL, installed for this Python interpreter."),
    ] = None,
    out: Annotated[Path, typer.Option(help="With --measure: folder for measured.json and measured.md.")] = Path(),
    as_json: options.Json = False,
) -> int:
    """Check GPU, libraries, vLLM, disk and the Hugging Face Hub, and run one tiny training loop.

    Exit status 2 if there is a problem; warnings do not count.
    """
    from rich.console import Console
    from rich.text import Text

    given = {"--shape": shape, "--rank": rank, "--peer": peer, "--out": out if out != Path() else None}
    if not measure and (unused := [name for name, value in given.items() if value is not None]):
        raise UserError(f"{', '.join(unused)}: only with --measure", f"microrl doctor --measure {unused[0]} ...")
    words = Console(stderr=True)
    with words.status("loading"):
        from microrl.commands.doctor import examine
    if measure:
        _check_before_measuring(peer, out)
    if self_test and not words.is_terminal:
        say("checking this machine; the self-test takes half a minute")
    findings = []
    out_console = Console(highlight=False, soft_wrap=True)
    with words.status("checking this machine; the self-test takes half a minute"):
        for finding in examine(self_test=self_test):
            findings.append(finding)
            if not as_json:
                begin = Text(f"{finding.status:8}", STYLES[finding.status])
                out_console.print(begin, f"{finding.about:17}", finding.says, markup=False)
                if finding.do:
                    out_console.print(f"{'':27} -> {finding.do}", markup=False)
    value: dict[str, Any] = {"findings": [dataclasses.asdict(finding) for finding in findings]}
    is_bad = any(finding.status == "problem" for finding in findings)
    if measure and is_bad:
        say("not measured: first solve the problems above")
    elif measure:
        value["measured"] = _measured(shape, rank, peer, out)
        is_bad = any(stage["error"] is not None for stage in value["measured"]["stages"])
    if as_json:
        emit(value)
    return USAGE if is_bad else OK


def _check_before_measuring(peer: str | None, out: Path) -> None:
    """Raise UserError for options that would fail only after minutes."""
    from microrl.commands.bench.peer import find_peer

    if not files.is_writable(out):
        raise UserError(f"cannot write into {out}", "choose another folder: --out DIR")
    if peer is not None:
        find_peer(peer)


def _measured(shape: str | None, rank: int | None, peer: str | None, out: Path) -> dict[str, Any]:
    """Carry out all stages, show each as it ends, write the files and the calibration; returns the report."""
    from microrl.commands.bench import measure
    from microrl.commands.bench.page import page
    from microrl.commands.bench.peer import Work, compare
    from microrl.plan import calibration

    outcomes = []
    stages = measure.stages(shape, rank)
    if (warning := measure.warning()) is not None:
        say(f"warning: {warning}")
    for number, stage in enumerate(stages, start=1):
        say(f"measuring {number} of {len(stages)}: {stage.title}")
        outcomes.append(measure.run(stage))
        if outcomes[-1].error is not None:
            say(f"  failed: {outcomes[-1].error}" + (f"; {outcomes[-1].hint}" if outcomes[-1].hint else ""))
    against = None
    if peer is not None:
        try:
            against = compare(peer, Work(prompts=2, group=4, tokens=32, rank=8, steps=2), pairs=3, say=say)
        except Explained as error:  # what was measured before is kept
            say(f"not compared with TRL: {error.message}" + (f"; {error.hint}" if error.hint else ""))
    new_calibration = measure.calibration_of(outcomes)
    value = measure.report(outcomes, new_calibration, against)
    for path in measure.write(out, value, page(value)):
        say(f"written: {path}")
    if new_calibration is None:
        say("no calibration: sampling or update could not be measured")
        return value
    try:
        path = calibration.save(new_calibration)
    except OSError as error:
        say(f"warning: the calibration could not be stored: {error}")
    else:
        say(f"calibration: {path}; `microrl plan` and `microrl train` use it on this machine")
    return value
