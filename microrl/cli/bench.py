"""`microrl bench`: time and memory of a training step, and of its parts, on this machine."""

from __future__ import annotations

from typing import Annotated, Literal

import typer

from microrl.cli import options
from microrl.cli.output import emit, say


def register(app: typer.Typer) -> None:
    group = typer.Typer(help="Time complete training steps, or a part of them, on this machine.", no_args_is_help=True)
    group.callback()(lambda: None)
    group.command("step")(step)
    group.command("logprob")(logprob)
    app.add_typer(group, name="bench")


def step(
    model: Annotated[
        str,
        typer.Option(
            help="Local folder, Hugging Face id (owner/name), .gguf file, or a short name such as Qwen2.5-1.5B-Instruct."
        ),
    ],
    prompts: Annotated[int, typer.Option(min=1, help="Prompts per step.")] = 4,
    group: Annotated[int, typer.Option(min=2, help="Completions per prompt.")] = 8,
    tokens: Annotated[int, typer.Option(min=1, help="Tokens per completion; every completion is made exactly this long.")] = 64,
    rank: Annotated[int, typer.Option(min=1, help="Adapter rank.")] = 64,
    steps: Annotated[int, typer.Option(min=1, help="Number of timed steps; one untimed warm-up step precedes them.")] = 3,
    dtype: Annotated[str, typer.Option(help="Weight type: float32, bfloat16, float16 or auto.")] = "auto",
    as_json: options.Json = False,
) -> None:
    """Time training steps with completions of a forced length: sampling, answer checks, log-probabilities, entropy, optimizer."""
    from microrl.cli.target import prepare_hub
    from microrl.config import resolve

    config = resolve(
        (),
        {
            "model.name": model, "model.dtype": dtype, "adapter.rank": rank, "adapter.alpha": float(rank),
            "sampling.prompts_per_step": prompts, "sampling.group_size": group, "sampling.max_completion_tokens": tokens,
            "budget.steps": steps + 1,
        },
    )  # fmt: skip
    prepare_hub(config)
    from microrl.commands.bench import time_steps

    say(f"loading {model}, then one untimed warm-up step and {steps} timed steps")
    result = time_steps(config, lambda step, seconds: say(f"{f'step {step}' if step else 'warm-up'}: {seconds:.2f} s"))
    if as_json:
        emit(result)
        return
    phases = ", ".join(f"{name} {seconds:.2f}" for name, seconds in result["seconds_by_phase"].items())
    say(f"{result['tokens_per_step']} tokens per step: {phases}")
    print(f"median {result['step_s_median']:.2f} s per step, peak memory of the process {result['peak_rss_gb']:.2f} GB")


def logprob(
    tokens: Annotated[int, typer.Option(min=1, help="Completion tokens.")] = 8192,
    vocab: Annotated[int, typer.Option(min=2, help="Vocabulary.")] = 151936,
    hidden: Annotated[int, typer.Option(min=1, help="Width of the hidden states.")] = 1536,
    dtype: Annotated[Literal["float32", "bfloat16", "float16"], typer.Option(help="Type of states and head.")] = "float32",
    pairs: Annotated[int, typer.Option(min=1, help="Number of timed pairs.")] = 3,
    as_json: options.Json = False,
) -> None:
    """Compare log-probabilities and entropies, forward and backward, with the naive pass that holds all logits."""
    say("loading torch")
    from microrl.commands.bench_logprob import compare

    say("measuring the memory of both sides")
    result = compare(tokens, vocab, hidden, dtype, pairs, lambda pair, ratio: say(f"pair {pair}: {ratio:.2f} of the naive time"))
    if as_json:
        emit(result)
        return
    for name in ("ours", "naive"):
        seconds = ", ".join(f"{one:.2f}" for one in result[name]["seconds"])
        print(f"{name}: peak memory {result[name]['peak_gb']:.3f} GB, seconds {seconds}")
    print(
        f"memory ratio {result['memory_ratio']:.3f}, time ratio {result['time_ratio']:.2f} (median), "
        f"gradient error {result['gradient_error']:.1e}"
    )
