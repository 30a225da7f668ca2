"""`microrl report`: one page about one or several runs."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from microrl.cli import options
from microrl.cli.output import emit, say
from microrl.errors import UserError
from microrl.run import names
from microrl.terminal import counted, printable

if TYPE_CHECKING:
    from microrl.sweep.folder import SweepFolder

EXAMPLES = """
[bold]Examples[/]
  microrl report                                   [dim]the newest run; writes report.html into its folder[/]
  microrl report runs/mine runs/warm --out both.html
  microrl report runs/mine --figures figures       [dim]also as PNG and SVG, as wide as a paper's column[/]
"""


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
    pictures: options.Figures = None,
    as_json: options.Json = False,
) -> None:
    """Write a page about runs: did training help, what went wrong, figures, completions. One HTML file, nothing else needed."""
    from rich.console import Console

    from microrl.cli.target import run_of
    from microrl.report import settings
    from microrl.report.figures import save, save_all
    from microrl.report.history import load_all
    from microrl.report.page import write
    from microrl.report.verdict import judge
    from microrl.sweep.contrast import accuracies, answer_of
    from microrl.sweep.folder import SweepFolder

    given = [Path(target) for target in targets or ()] or [run_of(None).path]
    sweeps = {path: SweepFolder.open(path) for path in given if SweepFolder.is_one(path)}
    by_setting = [one for sweep in sweeps.values() for one in accuracies(sweep)]
    paths = [run for path in given for run in (_runs(sweeps[path]) if path in sweeps else [path])]
    target = out or (paths[0] / names.REPORT if len(paths) == 1 else Path(names.REPORT))
    of_sweep: dict[str, Any] = {}
    if len(given) == len(sweeps) == 1:
        (sweep,) = sweeps.values()
        title = f"Sweep {sweep.path.absolute().name}: {counted(len(sweep.plan.trials), 'trial')}"
        of_sweep = {"title": title, "answer": answer_of(sweep)}
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


def _runs(sweep: SweepFolder) -> list[Path]:
    """The runs of a sweep; what is left out is said."""
    from microrl.sweep.table import left_out

    run_folders = sweep.runs()
    if not run_folders:
        raise UserError(f"no trial of {sweep.path} has begun", f"train them first: microrl sweep --resume {sweep.path}")
    if any(missing := left_out(sweep)):
        say("; ".join(missing))
    return run_folders
