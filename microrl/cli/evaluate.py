"""`microrl eval`: accuracy and pass@k of a run or a model."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from microrl.cli import options
from microrl.cli.output import emit, say
from microrl.errors import UserError
from microrl.run import names
from microrl.terminal import counted

EXAMPLES = """
[bold]Examples[/]
  microrl eval --pass-k 16                         [dim]the newest run, on its held-out problems[/]
  microrl eval runs/mine --bench math500,aime24 --samples 16 --pass-k 1,8,16
  microrl eval runs/mine/best --protocol ortho --base DeepSeek-R1-Distill-Qwen-1.5B --hours 3
  microrl eval --base Qwen2.5-1.5B-Instruct --max-tokens 3584,16384   [dim]the gain at two limits[/]
  microrl eval Qwen2.5-1.5B-Instruct --data problems.jsonl --temperature 0 --dry-run
"""


@options.takes(
    "data", "samples", "max_tokens", "temperature", "top_p", "problems", "hours", "seed", "question_seed", "engine", "env",
    data=dict(
        help="Evaluate on all of this data set or file.",
        default="the held-out part of the run's data; without a run, of open-rs",
    ),
    max_tokens=dict(
        type=str, help="Completion limit in tokens; comma-separated for an evaluation at each of several limits.", metavar="N[,M]"
    ),
    hours=dict(help="Time limit in hours, loading included; problems that do not fit are left out.", default="none"),
    seed=dict(
        key="evaluation.seed", help="Seed of sampling; the problems stay the same.", default="the run's or the protocol's, else 0"
    ),
    engine=dict(help=f"{options.ENGINES}. It may differ from the engine used in training.", default="auto"),
    env=dict(default="the run's, else none"),
)  # fmt: skip
def evaluate(
    target: Annotated[
        str | None,
        typer.Argument(
            metavar="WEIGHTS",
            help="A run, a part of it (RUN/best, RUN/step-000100), an adapter folder, or a model.",
            show_default="the newest run",
        ),
    ] = None,
    *,
    bench: Annotated[
        str | None,
        typer.Option(help="Benchmarks by name, comma-separated; `microrl presets data` lists them.", show_default="none"),
    ] = None,
    protocol: Annotated[
        str | None, typer.Option(help="The benchmarks and settings of a paper: micro, peft, ortho or kl.", show_default="none")
    ] = None,
    pass_k: Annotated[
        str | None,
        typer.Option(help="k of pass@k; comma-separated for several.", show_default="the run's evaluation.pass_k, else 8"),
    ] = None,
    base: Annotated[
        str | None,
        typer.Option(
            metavar="WEIGHTS",
            help="Also evaluate this model, run or adapter folder on the same problems, and report the paired gain over it.",
            show_default="none",
        ),
    ] = None,
    flags: options.Flags,
    out: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR", help="Folder for the results.", show_default="the run's eval/; for other weights, runs/eval/NAME"
        ),
    ] = None,
    dry_run: Annotated[
        bool,
        typer.Option("--dry-run", help="Only show what would be sampled, how long it takes, and which gain it could detect."),
    ] = False,
    as_json: options.Json = False,
    sets: options.Sets = None,
) -> None:
    """Measure accuracy and unbiased pass@k with 95 % confidence intervals."""
    from microrl.cli import early, machine
    from microrl.cli.benchmarks import label, resolve_benchmarks
    from microrl.cli.target import find_weights, prepare_hub
    from microrl.cli.value_lists import numbers

    until_s, data = options.until_s(flags), flags.pop("data.name")
    if data is not None and (bench or protocol):
        raise UserError("--data cannot be combined with --bench or --protocol", "evaluate on one of them at a time")
    resolved_target = find_weights(target)
    name = label(resolved_target, target)
    if base == "":
        raise UserError("--base is empty", "pass a model, a run or an adapter folder, or leave it out")
    against = None if base is None else find_weights(base)
    base_name = None if against is None else label(against, base)
    engine = flags["engine.kind"] or "auto"
    flags |= {"engine.kind": engine, "engine.sync": "auto" if engine in ("auto", "vllm") else None}
    flags["evaluation.pass_k"] = tuple(numbers("--pass-k", pass_k, 1)) or None
    limits = numbers("--max-tokens", flags.pop("evaluation.max_completion_tokens"), 1)
    benchmarks = resolve_benchmarks(
        resolved_target,
        bench=bench,
        protocol=protocol,
        data=data,
        base=base_name,
        flags=flags,
        sets=sets or [],
        limits=limits,
    )
    adapter = resolved_target.adapter_folder()
    other_adapter = None if against is None else against.adapter_folder()
    early.refuse_environment(benchmarks[0].config.env, starts=not dry_run)
    if not dry_run:
        machine.check(benchmarks[0].config, None)
    for benchmark in benchmarks:
        prepare_hub(benchmark.config, *([against.config.model.name] if against else []), reads_data=True)
    if dry_run:
        from microrl.commands.evaluation_plan import preview

        shown = preview(benchmarks, sides=1 if base is None else 2)
        emit(shown) if as_json else _show_plan(shown)
        return
    from microrl import clock
    from microrl.commands.evaluate import measure
    from microrl.commands.evaluation_job import Weights

    config = benchmarks[0].config
    place = out or (resolved_target.run.path / names.EVAL if resolved_target.run is not None else Path("runs/eval", name))
    weights, other = Weights(name, config, adapter), None
    if against is not None and base_name is not None:
        model = config.model.model_copy(update={"name": against.config.model.name})
        other = Weights(base_name, config.model_copy(update={"model": model, "adapter": against.config.adapter}), other_adapter)
    deadline_s = None if until_s is None else until_s - clock.now_s()
    result = measure(weights, benchmarks, other, resolved_target.run, place, deadline_s)
    if as_json:
        for value in result["benchmarks"].values():
            for side in (value, value.get("base", {})):
                for by_question in ("right", "cluster_of"):
                    side.pop(by_question, None)
        emit(result)
        return
    for benchmark in benchmarks:
        _show(benchmark.name, result["benchmarks"][benchmark.name])


def _show_plan(shown: dict[str, Any]) -> None:
    for name, one in shown["benchmarks"].items():
        asked = f"{counted(one['questions'], 'problem')} x {counted(one['samples'], 'sample')}"
        print(
            f"{name}: {asked}, temperature {one['temperature']:g}, top-p {one['top_p']:g}, at most "
            f"{one['max_tokens']:,} tokens each ({one['tokens_at_most']:,} in all)"
        )
        gain = one["smallest_gain"]
        shows = "no gain of any size" if gain is None else f"a gain of {100 * gain:.1f} points or more"
        where = shown["device"] + ("" if shown["is_here"] else " (there is no GPU here)")
        minutes = f"about {one['seconds'] / 60:.1f} min on {where}, if completions reach half of the length limit"
        print(f"  {minutes}; detects {shows} (power 90 %, from an accuracy of 0.5)")
    for note in shown.get("notes", ()):
        print(f"note: {note}")
    print(f"total: about {shown['seconds'] / 60:.1f} min")


def _show(name: str, value: dict[str, Any]) -> None:
    from microrl.evaluation.result import in_clusters

    count = counted(value["questions"], "problem") + in_clusters(value["questions"], value["clusters"])
    settings, samples = value["settings"], counted(value["samples"], "sample")
    print(f"{name}: {count}, {samples} each, temperature {settings['temperature']}")
    for side, numbers in (("", value), ("base ", value.get("base", {}))):
        for key, estimate in numbers.items():
            if key.startswith(("avg@", "pass@", "pass^", "maj@")):
                label = f"accuracy ({key})" if key.startswith("avg@") else key
                print(f"{side}{label}  {estimate['mean']:.4f}  {_interval(estimate)}")
    for key, gain in value.items():
        if key == "paired_gain_p" and gain is not None:
            print(f"p-value of no gain in accuracy  {gain:.2g}  (two-sided; below 0.05 where the interval leaves out 0)")
        elif key.startswith("paired_gain") and gain is not None:
            label = "accuracy" if key == "paired_gain" else key.removeprefix("paired_gain_")
            print(f"paired gain, {label}  {gain['mean']:+.4f}  {_interval(gain, '+')}")
    from microrl.evaluation.gain_parts import KEY, GainParts

    if (parts := GainParts.read(value.get(KEY))) is not None:
        from microrl.report.words import gain_origin

        for sentence in gain_origin(parts):
            print(sentence)
    cut = value["truncated"]
    if cut > 0.02:
        say(f"note: {cut:.0%} of the completions reached the limit of {settings['max_tokens']:,} tokens; see --max-tokens")


def _interval(estimate: dict[str, Any], sign: str = "") -> str:
    low, high = estimate["ci95"]
    return f"95 % CI [{low:{sign}.4f}, {high:{sign}.4f}]"
