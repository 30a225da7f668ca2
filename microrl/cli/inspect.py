"""`microrl inspect`: what training has done to the weights, and kl's theorem on the digits."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from microrl.cli import options
from microrl.cli.output import emit, say
from microrl.errors import UserError
from microrl.run import names
from microrl.tables import table_text

EXAMPLES = """
[bold]Examples[/]
  microrl inspect                                  [dim]the newest run: its final adapter[/]
  microrl inspect runs/mine/best --layers 0,14,27 --projections q_proj,down_proj --json
  microrl inspect runs/mine --html                 [dim]also writes the report, with the figures in it[/]
  microrl inspect kl-bound --seeds 20              [dim]theorem 1 of "LoRA as an implicit KL regulariser"[/]
"""
KL_BOUND = "kl-bound"
Clip = Literal["value", "norm"]
RANKS = (2, 4, 8, 16, 32, 64)


def inspect(
    target: Annotated[
        str | None,
        typer.Argument(
            metavar="ADAPTER",
            help="A run, one of its checkpoints (RUN/best, RUN/step-000100), a PEFT adapter folder, or kl-bound.",
            show_default="the newest run",
        ),
    ] = None,
    layers: Annotated[
        str | None,
        typer.Option(help="Decoder layers by number, comma-separated; -1 is the last.", show_default="first, middle, last"),
    ] = None,
    projections: Annotated[str, typer.Option(help="Projections whose spectra to measure, comma-separated.")] = "q_proj,o_proj",
    html: Annotated[bool, typer.Option("--html", help="Also write the run's report, with the figures in it.")] = False,
    pictures: options.Figures = None,
    seeds: Annotated[int, typer.Option(min=1, help="kl-bound: number of seeds.")] = 20,
    ranks: Annotated[str | None, typer.Option(help="kl-bound: ranks, comma-separated.", show_default="2,4,8,16,32,64")] = None,
    clip: Annotated[Clip, typer.Option(help="kl-bound: clip gradients by value or by norm.")] = "value",
    as_json: options.Json = False,
) -> None:
    """Measure an update against the weights it changes: its spectrum, its norm by layer and its initialization."""
    from microrl.cli.value_lists import numbers, values
    from microrl.report.figures import save
    from microrl.report.inspected import kl_bound, save_all

    if target == KL_BOUND:
        study = _kl_bound(numbers("--ranks", ranks, least=1) or list(RANKS), seeds, clip)
        if pictures is not None:
            _save(lambda folder: save(lambda: [("kl-bound", kl_bound(study, width=3.3, height=2.2))], folder), pictures)
        emit(study) if as_json else _show_kl_bound(study)
        return
    from microrl.cli.target import find_adapter, prepare_hub

    resolved_target = find_adapter(target)
    folder = resolved_target.adapter_folder()
    assert folder is not None, "an adapter has a folder"
    prepare_hub(resolved_target.config)
    from microrl.commands.inspect import inspect as measure

    chosen_layers = numbers("--layers", layers) or None
    if html and resolved_target.run is None:
        raise UserError(f"{target} does not belong to a run, so there is no report to write", "pass --figures DIR instead")
    measurements = measure(
        resolved_target.config,
        resolved_target.run,
        folder,
        layers=chosen_layers,
        projections=values("--projections", projections),
    )
    if resolved_target.run is not None:
        try:
            resolved_target.run.write_json(names.INSPECTION, measurements)
        except OSError as error:
            say(f"warning: the result could not be stored in {resolved_target.run.path}: {error.strerror}")
    if pictures is not None:
        _save(lambda folder: save_all(measurements, folder), pictures)
    if html and resolved_target.run is not None:
        from microrl.report.history import History
        from microrl.report.page import write

        target_file = resolved_target.run.path / names.REPORT
        try:
            write([History.load(resolved_target.run.path)], target_file)
        except OSError as error:
            raise UserError(f"cannot write {target_file}: {error.strerror}", "pass --figures DIR instead") from None
        say(f"report: {target_file}")
    emit(measurements) if as_json else _show(measurements)


def _save(write: Callable[[Path], list[Path]], folder: Path) -> None:
    """Raises UserError where the folder cannot be written."""
    try:
        written = write(folder)
    except OSError as error:
        raise UserError(
            f"cannot write {error.filename or folder}: {error.strerror}", "choose another place: --figures DIR"
        ) from None
    say(f"{len(written)} figures in {folder}")


def _kl_bound(ranks: list[int], seeds: int, clip: Clip) -> dict[str, Any]:
    try:
        import sklearn  # noqa: F401
    except ImportError:
        raise UserError("kl-bound needs scikit-learn, for its digits data set", "pip install scikit-learn") from None
    from microrl.diagnostics.kl_bound import study
    from microrl.run.console import RunConsole

    label = f"theorem 1 on scikit-learn's digits, {seeds} seeds: ranks"
    with RunConsole() as console:
        done = list(console.progress(study(sorted(ranks), seeds, clip=clip), len(ranks), label))
    rows: list[dict[str, Any]] = [
        {
            "rank": one.rank,
            "kl": {"mean": float(one.kl_S.mean()), "sd": float(one.kl_S.std()) if seeds > 1 else None},
            "bound": {"mean": float(one.bound_S.mean()), "sd": float(one.bound_S.std()) if seeds > 1 else None},
            "holds": int((one.kl_S <= one.bound_S).sum()),
        }
        for one in done
    ]
    means: list[float] = [row["kl"]["mean"] for row in rows]
    return {"seeds": seeds, "clip": clip, "ranks": rows, "grows": means == sorted(means)}


def _show_kl_bound(study: dict[str, Any]) -> None:
    rows = []
    for row in study["ranks"]:
        kl, bound = (f"{row[name]['mean']:.3g} +- {row[name]['sd'] or 0.0:.2g}" for name in ("kl", "bound"))
        rows.append((str(row["rank"]), kl, bound, f"{row['holds']} of {study['seeds']} seeds"))
    print(table_text((">rank", ">KL, nats", ">bound", "holds for"), rows))
    say("the divergence grows with the rank" if study["grows"] else "the divergence does not grow with every rank")


def _show(measurements: dict[str, Any]) -> None:
    """By kind of projection: how large the update is; then where it lies in the spectra of the chosen weights."""
    kinds: dict[str, list[dict[str, Any]]] = {}
    for row in measurements["norms"]:
        kinds.setdefault(row["kind"], []).append(row)
    lines = []
    for kind, rows in kinds.items():
        norm, relative = (sum(row[name] for row in rows) / len(rows) for name in ("norm", "relative"))
        lines.append((kind, str(len(rows)), f"{norm:.4g}", f"{relative:.3g}"))
    print(table_text(("projection", ">matrices", ">||dW||", ">||dW||/||W||"), lines))
    for row in measurements["spectra"]:
        half = next((at for at, energy in zip(row["index"], row["energy"], strict=True) if energy >= 0.5), None)
        where = "no change" if half is None else f"50 % of the energy within {half + 1} of {row['index'][-1] + 1} singular values"
        print(f"{row['module']}: {where}")
    for row in measurements["similarity"]:
        print(
            f"{row['module']}: overlap of A with the top {row['rank']} singular directions {row['top']:.3f}, the bottom ones "
            f"{row['bottom']:.3f}; {row['by_chance']:.3f} is expected by chance"
        )
