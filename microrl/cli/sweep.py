"""`microrl sweep`: many runs under one budget."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from microrl.cli import options
from microrl.cli.attempts import run_with_fallback
from microrl.cli.output import FAILED, OK, emit, guarded, say
from microrl.cli.train import go_on
from microrl.errors import UserError
from microrl.tables import table_text
from microrl.terminal import counted, time_in_words

if TYPE_CHECKING:
    from microrl.sweep.folder import SweepFolder
    from microrl.sweep.grid import Grid, Trial

EXAMPLES = """
[bold]Examples[/]
  microrl sweep quickstart --ranks 2,4,8 --seeds 0,1,2     [dim]nine runs, each with the preset's limits[/]
  microrl sweep micro-r64 --ranks 8,64,256 --alpha fixed,rank --seeds 0,1,2 --hours 24 --out runs/study
  microrl sweep quickstart --vary optim.lr=5e-5,1e-4,2e-4 --vary loss.beta=0,0.05 --hours 1 --dry-run
  microrl sweep --resume runs/study                        [dim]after it was interrupted or killed[/]
"""


def _several(what: str, of: str) -> Any:
    return typer.Option(metavar=f"{what}[,...]", help=of, show_default="the preset's")


@options.takes(
    "hours", "steps", "data", "engine", "price",
    hours=dict(help="Time limit in hours for the whole sweep.", default="none: each trial has the preset's limits"),
    steps=dict(help="Maximum number of training steps of each trial."),
)  # fmt: skip
def sweep(
    presets: options.Presets = None,
    *,
    models: Annotated[str | None, _several("MODEL", "Models to train.")] = None,
    adapters: Annotated[str | None, _several("KIND", "Kinds of adapters.")] = None,
    ranks: Annotated[
        str | None, _several("R", "Adapter ranks. An adapter without a rank, such as full, is trained only once.")
    ] = None,
    alpha: Annotated[
        str | None,
        typer.Option(
            metavar="fixed|rank|2rank|rslora[,...]",
            help="How alpha depends on the rank (the scale is alpha / rank). fixed: alpha as configured; rank: alpha = rank, "
            "scale 1; 2rank: alpha = 2 x rank, scale 2; rslora: scale alpha / sqrt(rank).",
            show_default="fixed",
        ),
    ] = None,
    losses: Annotated[str | None, _several("LOSS", "Losses.")] = None,
    vary: Annotated[
        list[str] | None,
        typer.Option(
            metavar="KEY=A,B",
            help="Values of any configuration key; repeat for several keys. A value with commas is quoted: "
            '\'KEY="a,b",c\'. Lists are in brackets: \'KEY=["a","b"],["c"]\'.',
        ),
    ] = None,
    seeds: Annotated[str | None, _several("N", "Training seeds: each setting is trained once per seed.")] = None,
    strategy: Annotated[
        Literal["equal", "seeds-first", "halving"] | None,
        typer.Option(
            help="equal: the same time for every trial, every setting before the next seed; seeds-first: the same, but "
            "every seed before the next setting; halving: successive halving of the settings by validation accuracy, until "
            "one is left; needs --hours.",
            show_default="equal",
        ),
    ] = None,
    flags: options.Flags,
    sets: options.Sets = None,
    out: Annotated[Path | None, typer.Option(help="Folder of the sweep.", show_default="runs/sweep-NAME-TIME")] = None,
    resume: Annotated[str | None, typer.Option(metavar="SWEEP", help="Resume this sweep.")] = None,
    on: Annotated[
        str | None,
        typer.Option(
            metavar="ray[://HOST:PORT]",
            help="Train the trials in parallel, as tasks of a Ray cluster. --hours then limits the trials' summed time.",
            show_default="here, one after the other",
        ),
    ] = None,
    cpus: Annotated[int | None, typer.Option(min=1, help="With --on ray: CPU cores per trial, instead of one GPU.")] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print the trials with a forecast of time and cost; do not train.")
    ] = False,
    as_json: options.Json = False,
) -> int:
    """Train every combination of settings and seeds, within one time limit. Each trial is a run folder of its own."""
    from microrl import files
    from microrl.cli import early, machine
    from microrl.cli.value_lists import numbers, values, varied
    from microrl.sweep.folder import SweepFolder
    from microrl.sweep.forecast import forecasts, refuse_what_does_not_fit
    from microrl.sweep.grid import Grid, Study

    _refuse_places(on, cpus)
    if resume is not None:
        settings = [presets, models, adapters, ranks, alpha, losses, vary, seeds, strategy, *flags.values(), sets, out]
        if any(one is not None for one in settings) or dry_run:
            raise UserError(
                "--resume uses the settings of the sweep", "only --on, --cpus and --json can be added; or start another sweep"
            )
        begun = SweepFolder.open(Path(resume))
        if on is None:
            machine.check(begun.config(begun.plan.trials[0]), begun.path)
        return _run_trials(begun, on=on, cpus=cpus, as_json=as_json, is_resumed=True)
    study = Study.of(presets or ())
    if flags["budget.hours"] is None and flags["budget.steps"] is None:
        flags["budget.hours"] = study.hours
    hours = flags["budget.hours"]
    strategy = strategy or study.strategy or "equal"
    given: dict[str, Sequence[Any]] = {
        "model": values("--models", models), "adapter": values("--adapters", adapters),
        "rank": numbers("--ranks", ranks, least=1), "alpha": values("--alpha", alpha), "loss": values("--losses", losses),
        **varied(vary or ()), "seed": numbers("--seeds", seeds),
    }  # fmt: skip
    # An axis that a study's preset has as well keeps its place among the others.
    axes = {**study.axes(), **{axis: listed for axis, listed in given.items() if listed}}
    trials = _ordered(Grid(presets or (), flags, sets or (), axes), strategy, hours)
    path = out or options.run_folder(f"sweep-{options.run_name(presets, trials[0].config.model.name)}")
    if on is None and not dry_run:  # once for all trials, by the first one
        machine.check(trials[0].config, path, runs=len(trials))
    early.refuse_trials(trials, are_here=on is None)
    if dry_run:
        return _preview(trials, strategy, hours, as_json=as_json)
    refuse_what_does_not_fit(forecasts(trials, strategy, hours), hours)
    folder = SweepFolder.create(path, strategy, hours, trials)
    try:
        return _run_trials(folder, on=on, cpus=cpus, as_json=as_json)
    except UserError:
        if not folder.events():  # of a cluster that cannot be used: nothing has begun
            files.remove(folder.path)
        raise


def _refuse_places(on: str | None, cpus: int | None) -> None:
    """Raise UserError for what --on and --cpus cannot be."""
    if on is None:
        if cpus is not None:
            raise UserError("--cpus has no effect without --on ray", "add --on ray, or drop --cpus")
        return
    from microrl.sweep import on_ray

    on_ray.refuse_address(on)
    on_ray.refuse_if_missing()


def _ordered(grid: Grid, strategy: str, hours: float | None) -> list[Trial]:
    """The trials in the order in which they begin. Raises UserError where they cannot be made, or their strategy cannot be."""
    from microrl.sweep.grid import setting_of

    trials = grid.trials()
    for trial in trials:
        if not trial.config.is_bounded:
            raise UserError("no budget given", "pass --hours H for all trials together, or --steps N for each")
        if hours is not None and trial.config.budget.hours != hours:
            raise UserError(
                f"budget.hours cannot be set here: the trials share the sweep's {time_in_words(hours)}",
                "pass only --hours, and remove budget.hours from --set or --vary",
            )
    settings = [setting_of(trial.values) for trial in trials]
    if strategy == "seeds-first":
        order = sorted(range(len(trials)), key=lambda number: settings.index(settings[number]))
        return [trials[number] for number in order]
    if strategy == "halving":
        if hours is None:
            raise UserError("--strategy halving needs --hours", "pass --hours H, of the whole sweep")
        if any(trial.config.data.validation == 0 for trial in trials):
            raise UserError("--strategy halving compares validation accuracy, and there is none", "add --set data.validation=0.1")
        if all(one == settings[0] for one in settings):
            raise UserError("--strategy halving needs settings to choose from", "vary something besides the seed")
    return trials


def _preview(trials: list[Trial], strategy: str, hours: float | None, *, as_json: bool) -> int:
    from microrl.plan.show import sft_alone
    from microrl.sweep.forecast import forecasts, refuse_what_does_not_fit
    from microrl.sweep.grid import rounds

    trial_forecasts = forecasts(trials, strategy, hours)
    refuse_what_does_not_fit(trial_forecasts, hours)
    plans = [one.plan for one in trial_forecasts if one.plan is not None]
    together = {"hours": sum(plan.hours for plan in plans), "cost_usd": sum(plan.cost_usd for plan in plans)}
    if as_json:
        emit({"trials": [one.to_json() for one in trial_forecasts], "strategy": strategy, **together})
        return OK
    rows = [
        [
            one.trial.name,
            "" if (scale := getattr(one.trial.config.adapter, "scale", None)) is None else f"{scale:g}",
            "" if one.hours is None else time_in_words(one.hours),
            "" if one.plan is None else sft_alone(one.trial.config, one.plan) or f"~{one.plan.steps}",
            "" if one.plan is None else time_in_words(one.plan.hours),
            "" if one.plan is None else f"{one.plan.cost_usd:.2f}",
            "; ".join(one.trial.also_named()),
        ]
        for one in trial_forecasts
    ]
    print(table_text(["trial", "scale", "limit", "steps", "forecast", "$", "same as"], rows))
    trial_count = counted(len(trial_forecasts), "trial")
    parts = rounds((one.values for one in trials), strategy)
    if parts > 1:
        trial_count = f"round 1 of {parts}: {trial_count}"
    if len(plans) == len(trial_forecasts):
        limit = f"; all rounds together take at most {time_in_words(hours)}" if hours is not None and parts > 1 else ""
        say(f"{trial_count}, about {time_in_words(together['hours'])} and ${together['cost_usd']:.2f} in total{limit}")
    else:
        say(f"{trial_count}; no forecast, because the size of a model is unknown here (not downloaded, and no network)")
    return OK


def _train(path: Path, hours: float | None, is_fresh: bool) -> int:
    """A trial in the process that was made for it."""
    from microrl.run.folder import RunFolder

    def work() -> int:
        folder = RunFolder.open(path)
        if is_fresh:
            return run_with_fallback(folder, resume=False)
        return go_on(folder, None if folder.config()["budget"]["hours"] == hours else hours, None)

    return guarded(work)


def evaluate_base(path: str, config: str) -> int:
    """Evaluate the untouched model anew into a run folder; `config` is JSON. Returns an exit status."""
    from microrl import clock, files
    from microrl.cli import early
    from microrl.config import check
    from microrl.run.folder import RunFolder

    def work() -> int:
        from microrl.train.loop import evaluate_base

        checked = check(json.loads(config))
        files.remove(Path(path))
        folder = RunFolder.create(Path(path), checked.model_dump(mode="json"))
        early.refuse(checked)
        evaluate_base(checked, folder, started=clock.process_started_s())
        return OK

    return guarded(work)


def _run_trials(folder: SweepFolder, *, on: str | None, cpus: int | None, as_json: bool, is_resumed: bool = False) -> int:
    """Make the trials that are left, and print the table. Those that have failed are tried again where the sweep is resumed.

    Raises UserError where all were refused.
    """
    from microrl import clock
    from microrl.rollout.preflight import starts_vllm
    from microrl.sweep import sweep as local
    from microrl.sweep.contrast import answer_of
    from microrl.sweep.display import Display
    from microrl.sweep.folder import LOST
    from microrl.sweep.table import SETTINGS_STAY, lines

    folder.lock()
    if is_resumed:
        folder.retry_failed()
    show = Display(folder)
    say(f"sweep: {folder.path}, {counted(len(folder.plan.trials), 'trial')}; {show.times()}")
    where = "" if on is None else f" --on {on}" + ("" if cpus is None else f" --cpus {cpus}")
    try:
        if on is not None:
            from microrl.sweep import on_ray

            on_ray.run_trials(folder, "" if on == on_ray.SCHEME else on, cpus, show)
        else:
            if not any(starts_vllm(folder.config(trial)) for trial in folder.plan.trials):
                import microrl.train.loop  # noqa: F401 - once, for all the processes that are forked from this one
            local.run_trials(folder, local.Work(_train, evaluate_base), show, started=clock.process_started_s())
    except KeyboardInterrupt:
        show.close()
        say(f"resume with: microrl sweep --resume {folder.path}{where}")
        raise
    trial_lines, answer = lines(folder), answer_of(folder)
    if as_json:
        trials = [line.to_json() for line in trial_lines]
        emit({"sweep": str(folder.path), "trials": trials, "answer": None if answer is None else answer.to_json()})
    else:
        print(table_text(*_table(trial_lines)))
        if answer is not None:
            say(answer.text)
        if answer is None or answer.pairs:
            say(f"compare the settings: microrl compare {folder.path}")
    if not any(line.status in LOST for line in trial_lines):
        return OK
    keep = SETTINGS_STAY if any(line.status == "refused" for line in trial_lines) else ""
    say(f"{keep}once the cause is removed, try again what failed: microrl sweep --resume {folder.path}{where}")
    if all(line.status == "refused" for line in trial_lines):
        raise folder.refusal(trial_lines[0].trial.name)
    return FAILED


def _table(lines: list[Any]) -> tuple[list[str], list[list[str]]]:
    head = ["trial", "scale", "trained", "steps", "time", "loading", "$", "before", "after", "gain", "status"]
    rows = []
    for line in lines:
        one, gain = line.summary, line.gain
        before, after = (one.eval.before, one.eval.after) if one else (None, None)
        rows.append([
            line.trial.name, "" if line.scale is None else f"{line.scale:g}", f"{one.trainable_params:,}" if one else "",
            f"{one.steps}" if one else "", time_in_words(one.hours_spent) if one else "",
            "" if line.loading is None else f"{line.loading:.0%}", f"{one.cost_usd:.2f}" if one and one.cost_usd else "",
            "" if before is None else f"{before.accuracy:.3f}", "" if after is None else f"{after.accuracy:.3f}",
            "" if gain is None else gain.text("+.3f"),
            line.status + (f": {line.why}" if line.why else ""),
        ])  # fmt: skip
    return head, rows
