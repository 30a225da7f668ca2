"""`microrl eval`: accuracy and pass@k of a run or a model."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from microrl.cli import options
from microrl.cli.output import emit, say

if TYPE_CHECKING:
    from microrl.run.folder import RunFolder

EXAMPLES = """
[bold]Examples[/]

  microrl eval --pass-k 16                         [dim]the newest run, on its held-out problems[/]

  microrl eval runs/mine --base quickstart --samples 32 --json

  microrl eval Qwen2.5-1.5B-Instruct --data problems.jsonl --pass-k 1,8
"""


ALL = 10**9


def _store(run: RunFolder, result: dict[str, Any]) -> None:
    for name, value in result["benchmarks"].items():
        try:
            run.write_json(f"eval/{name}.json", value)
        except OSError as error:
            say(f"warning: the result could not be stored in {run.path / 'eval'}: {error.strerror}")


def _interval(estimate: dict[str, Any], sign: str = "") -> str:
    low, high = estimate["ci95"]
    return f"95 % CI [{low:{sign}.4f}, {high:{sign}.4f}]"


def register(app: typer.Typer) -> None:
    app.command("eval", epilog=EXAMPLES)(evaluate)


def evaluate(
    target: Annotated[
        str | None, typer.Argument(metavar="RUN_OR_MODEL", help="A run folder or a model.", show_default="the newest run")
    ] = None,
    data: Annotated[
        str | None,
        typer.Option(
            help="Evaluate on all of this data set or file.",
            show_default="the held-out part of the run's data; for a model, of open-rs",
        ),
    ] = None,
    pass_k: Annotated[
        str | None, typer.Option(help="k of pass@k; comma-separated for several.", show_default="the run's evaluation.pass_k")
    ] = None,
    samples: Annotated[
        int | None,
        typer.Option(help="Completions per problem; at least the largest k.", show_default="the run's evaluation.samples"),
    ] = None,
    problems: Annotated[
        int | None,
        typer.Option(help="Maximum number of problems.", show_default="all with --data, else the run's evaluation.problems"),
    ] = None,
    base: Annotated[
        str | None, typer.Option(help="Also evaluate this model on the same problems and report the paired gain.")
    ] = None,
    engine: Annotated[str, typer.Option(help="auto, vllm or transformers; need not be the training engine.")] = "auto",
    seed: Annotated[
        int | None, typer.Option(help="Seed of sampling and of the choice of problems.", show_default="the run's evaluation.seed")
    ] = None,
    as_json: options.Json = False,
    sets: options.Sets = None,
) -> None:
    """Measure accuracy and unbiased pass@k with 95 % confidence intervals."""
    from microrl.cli.target import find, prepare_hub
    from microrl.errors import UserError

    ks: list[int] = []
    if pass_k is not None:
        try:
            ks = [int(part) for part in pass_k.split(",")]
        except ValueError:
            raise UserError(
                f"--pass-k {pass_k} is not a comma-separated list of integers", "for example: --pass-k 1,8,16"
            ) from None
    found = find(target)
    if ks and samples is None:
        samples = max(*ks, found.config.evaluation.samples)
    if samples is not None and not ks:
        ks = [k for k in found.config.evaluation.pass_k if k <= samples] or [samples]
    if data is not None and problems is None:
        problems = ALL
    config = found.with_settings(
        {
            "data.name": data, "data.held_out": None if data is None else 1.0, "evaluation.samples": samples,
            "evaluation.pass_k": tuple(ks) or None, "evaluation.problems": problems, "evaluation.seed": seed,
            "engine.kind": engine, "engine.sync": None if engine == "transformers" else "auto",
        },
        sets or (),
    )  # fmt: skip
    prepare_hub(config, *([base] if base else []), reads_data=True)
    from microrl.commands.evaluate import measure

    if found.run is not None and not found.run.is_writable("eval"):
        say(f"note: {found.run.path / 'eval'} is not writable; the result is printed but not stored")
    result = measure(config, found.run, base)
    if found.run is not None:
        _store(found.run, result)
    if as_json:
        for value in result["benchmarks"].values():
            for side in (value, value.get("base", {})):
                side.pop("right", None)
        emit(result)
        return
    for name, value in result["benchmarks"].items():
        temperature = value["settings"]["temperature"]
        say(f"{name}: {value['questions']} problems, {value['samples']} samples each, temperature {temperature}")
        for side, numbers in (("", value), ("base ", value.get("base", {}))):
            for key, estimate in numbers.items():
                if key.startswith(("avg@", "pass@")):
                    label = f"accuracy ({key})" if key.startswith("avg@") else key
                    print(f"{side}{label}  {estimate['mean']:.4f}  {_interval(estimate)}")
        for key, gain in value.items():
            if key.startswith("paired_gain") and gain is not None:
                label = "accuracy" if key == "paired_gain" else key.removeprefix("paired_gain_")
                print(f"paired gain, {label}  {gain['mean']:+.4f}  {_interval(gain, '+')}")
