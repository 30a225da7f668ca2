"""`microrl report`: one page about one or several runs."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from microrl.cli import options
from microrl.cli.output import emit, say
from microrl.errors import UserError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from microrl.evaluation.intervals import Estimate

EXAMPLES = """
[bold]Examples[/]

  microrl report                                   [dim]the newest run; writes report.html into its folder[/]

  microrl report runs/mine runs/warm --out both.html

  microrl report runs/mine --figures figures       [dim]also as PNG and SVG, as wide as a paper's column[/]
"""


def register(app: typer.Typer) -> None:
    app.command("report", epilog=EXAMPLES)(report)


def report(
    targets: Annotated[
        list[str] | None,
        typer.Argument(metavar="RUN|SWEEP", help="Run folders, or sweeps with all their trials.", show_default="the newest run"),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(
            help="File to write.",
            show_default="report.html in the run's folder; for several runs or a sweep, in the current folder",
        ),
    ] = None,
    pictures: Annotated[
        Path | None, typer.Option("--figures", help="Folder for the figures as PNG and SVG.", show_default="none")
    ] = None,
    as_json: options.Json = False,
) -> None:
    """Write a page about runs: did it help, what went wrong, figures, completions. One HTML file that loads nothing else."""
    from rich.console import Console

    from microrl.report import settings
    from microrl.report.figures import save, save_all
    from microrl.report.history import load_all
    from microrl.report.page import write
    from microrl.report.verdict import judge
    from microrl.run.folder import RunFolder
    from microrl.terminal import printable

    by_setting: list[tuple[str, Estimate]] = []
    if targets:
        by_setting = [one for target in targets for one in _by_setting(Path(target))]
        paths = [path for target in targets for path in _runs(Path(target))]
    else:
        paths = [RunFolder.newest().path]
        say(f"using the newest run: {paths[0]}")
    target = out or (paths[0] / "report.html" if len(paths) == 1 else Path("report.html"))
    of_sweep = _of_sweep(targets or ())
    with Console(stderr=True).status("reading, and drawing the figures"):  # on a terminal only
        histories = load_all(paths)
        try:
            size = write(histories, target, by_setting, **of_sweep)
            written = save_all(histories, pictures) if pictures is not None else []
            if pictures is not None and by_setting:
                written += save(lambda: [(settings.KEY, settings.figure(by_setting))], pictures)
        except OSError as error:
            where = "--figures DIR" if pictures is not None and target.exists() else "--out FILE"
            why = f"cannot write {error.filename or target}: {error.strerror}"
            raise UserError(why, f"choose another place: {where}") from None
    if as_json:
        runs = [{"run": str(history.path)} | judge(history).to_json() for history in histories]
        emit({"report": str(target), "bytes": size, "figures": [str(path) for path in written], "runs": runs})
        return
    say(f"{size / 1e6:.2f} MB" + (f"; {len(written)} figures in {pictures}" if written else ""))
    print(printable(str(target)))


def _by_setting(path: Path) -> list[tuple[str, Estimate]]:
    """The accuracy of a sweep's settings; nothing for a run."""
    from microrl.sweep.contrast import accuracies
    from microrl.sweep.folder import SweepFolder

    return accuracies(SweepFolder.open(path)) if SweepFolder.is_one(path) else []


def _of_sweep(targets: Sequence[str]) -> dict[str, Any]:
    """Title and answer of a sweep, where the page is of one alone."""
    from microrl.sweep.contrast import answer_of
    from microrl.sweep.folder import SweepFolder

    if len(targets) != 1 or not SweepFolder.is_one(path := Path(targets[0])):
        return {}
    sweep = SweepFolder.open(path)
    return {"title": f"Sweep {path.absolute().name}: {len(sweep.plan.trials)} trials", "answer": answer_of(sweep)}


def _runs(path: Path) -> list[Path]:
    """The runs of a sweep's folder; else the folder itself."""
    from microrl.sweep.folder import SweepFolder

    if not SweepFolder.is_one(path):
        return [path]
    from microrl.sweep.table import left_out

    sweep = SweepFolder.open(path)
    found = sweep.runs()
    if not found:
        raise UserError(f"no trial of {path} has begun", f"train them first: microrl sweep --resume {path}")
    if any(missing := left_out(sweep)):
        say("; ".join(missing))
    return found
