"""Evaluate runs and models on problem sets (`microrl eval`)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

from microrl import clock, files
from microrl.commands.evaluation_data import about_data
from microrl.commands.evaluation_job import Job, Measured, Prepared, Task, Weights, attempt, evaluate_apart, evaluate_job
from microrl.config import known_models
from microrl.config.schema import BaseVllmConfig
from microrl.data.load import Reading, load_questions, split
from microrl.errors import Explained, UserError
from microrl.evaluation import gain_parts
from microrl.evaluation.benchmark import Benchmark
from microrl.evaluation.record import CUT
from microrl.evaluation.result import clusters, gains
from microrl.evaluation.seeds import difference
from microrl.models.load import load_tokenizer
from microrl.report import transcripts
from microrl.rewards.judges.judge import weakness
from microrl.rewards.scorer import make_scorer
from microrl.rollout.preflight import select_engine
from microrl.run import apart, child
from microrl.run.console import RunConsole
from microrl.run.folder import RunFolder
from microrl.train import fallback
from microrl.train.questions import check_golds, pick_questions

FILE = "pass a file: --data FILE.jsonl"


def measure(
    weights: Weights,
    benchmarks: Sequence[Benchmark],
    base: Weights | None,
    run: RunFolder | None,
    place: Path,
    deadline_s: float | None = None,
) -> dict[str, Any]:
    """Evaluate on every benchmark: `{"benchmarks": {NAME: {...}}}`. `run`: the run of the weights, if they are of one.

    With `base`, that model is evaluated on the same questions and the paired difference added. `deadline_s`: seconds for all of
    it; the benchmarks share them by the tokens that they may take. Every result is stored in the folder `place` as soon as it is
    there. Raises UserError.
    """
    if not all(benchmark.config.evaluation.problems for benchmark in benchmarks):
        is_empty = any(benchmark.config.data.held_out == 0 for benchmark in benchmarks)
        hint = FILE if is_empty else "pass --problems N"
        raise UserError("`evaluation.problems` is 0: there is nothing to evaluate", hint)
    began = clock.now_s()
    sides = [weights, *([base] if base is not None else [])]
    is_apart = "vllm" in [select_engine(side.config) for side in sides]  # fails before anything is loaded
    if base is not None and base.config.model.name not in (weights.config.model.name, *known_models.TINY):
        load_tokenizer(base.config.model)  # a wrong name is found before the other side is sampled
    results: dict[str, Any] = {}
    ours: dict[str, Measured] = {}
    with RunConsole() as console:
        if not files.is_writable(place):
            console.note(f"note: {place} is not writable; the result is printed but not stored")
        if (weak := weakness()) is not None:
            console.note(f"warning: {weak}")
        prepared = [_prepared(benchmark, run, console) for benchmark in benchmarks]

        def on_measured(task: Task, measured: Measured) -> None:
            one, name = task.prepared, task.prepared.benchmark.name
            if task.is_base:
                results[name] |= _paired(ours[name], measured, console)
                results[name] |= _gain_parts(one, ours[name], measured, place, console)
            else:
                ours[name], one.stem = measured, measured.stem.removesuffix(CUT)
                results[name] = {**measured.to_json(), "data": one.data}
            attempt(partial(files.write_json, place / f"{ours[name].stem}.json", results[name]), console)

        until_s = None if deadline_s is None else began + deadline_s
        _evaluate_all(_shared(sides, prepared), weights, place, until_s, console, on_measured, is_apart=is_apart)
    return {"benchmarks": results}


def _shared(sides: Sequence[Weights], prepared: Sequence[Prepared]) -> list[list[Task]]:
    """The tasks of each engine: one serves both models where the second is the first without its adapter."""
    tasks = [[Task(side, one, is_base=number == 1) for one in prepared] for number, side in enumerate(sides)]
    if len(sides) == 2 and sides[1].adapter is None and sides[1].config.model == sides[0].config.model:
        return [[task for side in tasks for task in side]]
    return tasks


def _evaluate_all(
    jobs: Sequence[Sequence[Task]],
    weights: Weights,
    place: Path,
    until_s: float | None,
    console: RunConsole,
    on_measured: Callable[[Task, Measured], None],
    *,
    is_apart: bool,
) -> None:
    """Carry out each engine's tasks. `is_apart`: each time in a new process, since a GPU lets no process have vLLM twice.

    A failure of vLLM changes the settings of what is left of all of them (see `train.fallback`).
    """
    made = fallback.Changes(engine=weights.config.engine, failures=[])
    left = [list(tasks) for tasks in jobs]

    def done(measured: Measured) -> None:
        on_measured(left[0].pop(0), measured)

    while left:
        tokens_after = sum(task.prepared.tokens for later in left[1:] for task in later)
        try:
            _evaluate_job(Job(list(left[0]), made.engine, place, until_s, tokens_after), console, done, is_apart=is_apart)
        except Explained as error:
            if (change := fallback.after(weights.config, made, error)) is None:
                raise
            made, description = change
            console.note(f"engine fallback: {error.message}; continuing {description}")
        left = [tasks for tasks in left if tasks]


def _evaluate_job(job: Job, console: RunConsole, on_measured: Callable[[Measured], None], *, is_apart: bool) -> None:
    """Carry out a job. Raises UserError and MachineFailure."""

    def on_report(report: Measured | tuple[str, str]) -> None:
        if isinstance(report, Measured):
            on_measured(report)
        else:
            kind, text = report
            {"note": console.note, "status": console.status}[kind](text)

    if not is_apart:
        return evaluate_job(job, console, on_measured)
    has_vllm = isinstance(job.engine, BaseVllmConfig)
    try:
        return apart.call(evaluate_apart, job, on_report=on_report, runs="vLLM" if has_vllm else "the evaluation")
    except apart.Crashed as error:
        if error.signal_name not in child.DEADLY:
            error.fault = fallback.fault(job.engine, "running")
        error.hint = "see the lines above for the cause; run the same command again to continue" + (
            ", or add --engine transformers" if has_vllm else ""
        )
        raise


def _prepared(benchmark: Benchmark, run: RunFolder | None, console: RunConsole) -> Prepared:
    """Raises UserError."""
    config = benchmark.config
    reading = Reading()
    everything = load_questions(config.data, raw=config.env.target is not None, reading=reading)
    data = about_data(benchmark, everything, reading, run, console)
    pool = split(everything, config.data.held_out).held_out
    is_whole = config.data.held_out == 1  # a benchmark is what it is, repeated questions and all
    chosen = pick_questions(pool, config.evaluation.problems, config.evaluation.question_seed, repeated=is_whole)
    with closing(make_scorer(config)) as scorer:
        questions = check_golds(chosen, scorer, config, None, console)
    if not questions:
        raise UserError("there is nothing to evaluate: the held-out part is empty", FILE)
    return Prepared(benchmark, questions, data, benchmark.stem)


def _gain_parts(prepared: Prepared, measured: Measured, base: Measured, place: Path, console: RunConsole) -> dict[str, Any]:
    """Where the gain over the base comes from, as the stored answers tell it; nothing where they are not stored."""
    theirs, ours = (place / f"{one.stem}{transcripts.SUFFIX}" for one in (base, measured))
    if not (theirs.exists() and ours.exists()):
        return {}
    notes: list[str] = []
    with closing(make_scorer(prepared.benchmark.config)) as scorer:
        parts = transcripts.gain_parts(theirs, ours, scorer, notes, clusters([base.result, measured.result]))
    for note in notes:
        console.note(f"warning: {note}")
    return {} if parts is None else {gain_parts.KEY: parts.model_dump(mode="json")}


def _paired(measured: Measured, base: Measured, console: RunConsole) -> dict[str, Any]:
    """What is added to a result where a base was evaluated on the same questions."""
    ours, theirs = measured.result, base.result
    if theirs.right.keys() != ours.right.keys():
        console.note(
            f"warning: the two models answered {len(ours.right)} and {len(theirs.right)} problems; the gain is measured on the "
            f"{len(theirs.right.keys() & ours.right.keys())} that both answered"
        )
    change = None
    if theirs.entropy and ours.entropy is not None:
        change = (ours.entropy - theirs.entropy) / theirs.entropy * 100
    _, p = difference([theirs], [ours]) or (None, None)
    return {"base": base.to_json(), **gains(theirs, ours), "paired_gain_p": p, "entropy_change_pct": change}
