"""`microrl bench`: measure training steps, sampling and weight syncs on this machine, and compare with TRL."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Annotated, Any, Literal

import typer

from microrl.cli import options
from microrl.cli.output import emit, say
from microrl.commands.bench.synthetic import ARCHITECTURES, Device, Dtype, Shape, check_name, work
from microrl.errors import UserError
from microrl.terminal import counted

Prompts = Annotated[int, typer.Option(min=1, help="Prompts per step.")]
Group = Annotated[int, typer.Option(min=2, help="Completions per prompt.")]
Tokens = Annotated[int, typer.Option(min=1, help="Tokens per completion; every completion is made exactly this long.")]
Rank = Annotated[int, typer.Option(min=1, help="Adapter rank.")]
Env = Annotated[
    str | None,
    typer.Option(
        metavar="CLASS",
        help="Tools that the model may call: calculator, python, higher-lower or MODULE:CLASS. Completions then end where the "
        "model ends them, and --tokens is their limit.",
        show_default="no tools",
    ),
]
Teacher = Annotated[
    str | None,
    typer.Option(
        metavar="MODEL",
        help="Distil from this model, by the KL over the whole vocabulary, instead of GRPO.",
        show_default="none: GRPO",
    ),
]
ShapeOption = Annotated[Shape, typer.Option(help="Size of the model, whose weights are random; 1.5b is Qwen2.5-1.5B's.")]
EXAMPLES = """
[bold]Examples[/]
  microrl bench step --model ./SmolLM2-135M-Instruct --rank 64 --steps 2
  microrl bench peer --peer ENV/bin/python --model ./SmolLM2-135M-Instruct
  microrl bench rollout --sync swap --pairs 5      [dim]needs vLLM[/]
  microrl bench rollout --turns 3 --tokens 96 --tool-seconds 0.2
  microrl bench sync --adapters lora,dora          [dim]needs vLLM[/]
"""


def step(
    model: Annotated[str, typer.Option(help=options.MODEL_HELP)],
    prompts: Prompts = 4,
    group: Group = 8,
    tokens: Tokens = 64,
    rank: Rank = 64,
    steps: Annotated[int, typer.Option(min=1, help="Number of timed steps; one untimed warm-up step precedes them.")] = 3,
    dtype: Annotated[Literal["auto", "float32", "bfloat16", "float16"], typer.Option(help="Data type of the weights.")] = "auto",
    env: Env = None,
    teacher: Teacher = None,
    as_json: options.Json = False,
) -> None:
    """Time training steps: sampling, answer checks, log-probabilities, entropy, optimizer.

    Completions have a forced length, except with --env.
    """
    from microrl.cli import early
    from microrl.cli.target import prepare_hub
    from microrl.config import resolve

    flags: dict[str, Any] = {"model.name": model, "model.dtype": dtype, "budget.steps": steps + 1}
    if env is not None:
        flags |= {"env.target": env, "env.path": "."}
    if teacher is not None:
        flags |= {"distill.teacher": teacher, "distill.top_k": "all", "loss.kind": "distill"}
    config = resolve((), flags | work(rank=rank, prompts=prompts, group=group, tokens=tokens))
    prepare_hub(config)
    early.refuse_environment(config.env)
    from microrl.commands.bench.page import STEP
    from microrl.commands.bench.step import time_steps

    say(f"loading {model}, then one untimed warm-up step and {counted(steps, 'timed step')}")
    with options.named({"sampling.max_completion_tokens": "--tokens"}):
        result = time_steps(config, lambda step, seconds: say(f"{f'step {step}' if step else 'warm-up'}: {seconds:.2f} s"))
    _show(result, STEP, as_json=as_json)


def logprob(
    tokens: Annotated[int, typer.Option(min=1, help="Completion tokens.")] = 8192,
    vocab: Annotated[int, typer.Option(min=2, help="Size of the vocabulary.")] = 151936,
    hidden: Annotated[int, typer.Option(min=1, help="Width of the hidden states.")] = 1536,
    dtype: Annotated[
        Literal["float32", "bfloat16", "float16"], typer.Option(help="Data type of the hidden states and the output head.")
    ] = "float32",
    pairs: Annotated[int, typer.Option(min=1, help="Number of timed pairs.")] = 3,
    as_json: options.Json = False,
) -> None:
    """Compare time, memory and gradients of microrl's log-probabilities and entropies with the naive pass that holds all logits.

    Both sides run forward and backward. Ratios are microrl's value divided by the naive pass's: below 1, microrl is faster or
    needs less memory.
    """
    say("loading torch")
    from microrl.commands.bench.logprob import compare
    from microrl.commands.bench.page import LOGPROB

    say("measuring the memory of both sides")
    result = compare(tokens, vocab, hidden, dtype, pairs, lambda pair, ratio: say(f"pair {pair}: {ratio:.2f} of the naive time"))
    _show(result, LOGPROB, as_json=as_json)


def peer(
    peer: Annotated[
        str,
        typer.Option(
            metavar="PYTHON", help="Python of a virtual environment with TRL, peft and datasets; see `microrl guide speed`."
        ),
    ],
    model: Annotated[str, typer.Option(help="Local folder, .gguf file, or quickstart.")] = "quickstart",
    prompts: Prompts = 4,
    group: Group = 8,
    tokens: Tokens = 64,
    rank: Rank = 64,
    pairs: Annotated[int, typer.Option(min=1, help="Pairs of processes, one of microrl and one of TRL.")] = 5,
    steps: Annotated[int, typer.Option(min=1, help="Timed steps per process; one untimed warm-up step precedes them.")] = 2,
    to_accuracy: Annotated[
        float | None,
        typer.Option(
            min=0.01,
            max=1.0,
            help="Compare the time to reach this training accuracy (0 to 1), instead of the time of a step.",
            show_default="steps are compared",
        ),
    ] = None,
    preset: Annotated[
        str | None,
        typer.Option(
            help="With --to-accuracy: preset on whose questions microrl and TRL both train, without its SFT and curriculum. "
            "TRL's reward is 1 for an exact match in \\boxed{} or <answer>.",
            show_default="addition",
        ),
    ] = None,
    lr: Annotated[
        float | None,
        typer.Option(
            min=0.0,
            help="With --to-accuracy: learning rate of both sides, which then also use --prompts, --group, --tokens and --rank.",
            show_default="each side has its own defaults",
        ),
    ] = None,
    minutes: Annotated[
        float | None, typer.Option(min=0.1, help="With --to-accuracy: time limit of each side in a pair.", show_default="10")
    ] = None,
    env: Env = None,
    teacher: Teacher = None,
    as_json: options.Json = False,
) -> None:
    """Compare microrl with TRL in float32: seconds per step, or time to an accuracy. Processes of the two alternate.

    Ratios are microrl's value divided by TRL's: below 1, microrl is faster or needs less memory. Memory is the peak resident
    memory of the process, which on a GPU does not include the GPU's. With --env, the model's chat template must be one that TRL
    knows, such as Qwen2.5's.
    """
    from microrl.commands.bench.page import PEER
    from microrl.commands.bench.peer import Work, check_environment, check_model, compare
    from microrl.config import known_models
    from microrl.models import hub

    check_model(model)
    check_environment(env)
    if teacher is not None:
        check_model(teacher, "--teacher")
    hub.prepare(model, *filter(None, [teacher]), local=(known_models.QUICKSTART,))
    work = Work(prompts, group, tokens, rank, steps, env, teacher)
    if to_accuracy is None and (lr, minutes, preset) != (None, None, None):
        name = "lr" if lr is not None else "minutes" if minutes is not None else "preset"
        raise UserError(f"--{name} has no effect without --to-accuracy", "remove it, or add --to-accuracy 0.6")
    if to_accuracy is not None and env is not None:
        raise UserError("--env cannot be combined with --to-accuracy, which trains without tools", "remove one of them")
    if teacher is not None and (env is not None or to_accuracy is not None):
        other = "--env" if env is not None else "--to-accuracy"
        raise UserError(f"--teacher cannot be combined with {other}", "remove one of them")
    if to_accuracy is not None:
        from microrl.commands.bench import to_accuracy as trained

        result = trained.compare(
            peer, trained.Goal(to_accuracy, minutes or 10.0, lr), work, model=model, preset=preset, pairs=pairs, say=say
        )
        emit(result) if as_json else print(trained.in_words(result))
        return
    result = compare(peer, work, model=model, pairs=pairs, say=say)
    _show(result, PEER, as_json=as_json)


def rollout(
    shape: ShapeOption = "tiny",
    arch: Annotated[
        str, typer.Option(help="qwen2, qwen3, llama, gemma3_text or phi3; several, separated by commas, one after the other.")
    ] = "qwen2",
    rank: Rank = 64,
    targets: Annotated[
        str | None, typer.Option(help="Layers with an adapter, such as q_proj,down_proj.", show_default="all linear layers")
    ] = None,
    sync: Annotated[
        Literal["swap", "merge"],
        typer.Option(help="How an adapter reaches vLLM: swap: as a LoRA; merge: merged into vLLM's weights."),
    ] = "swap",
    sleep: Annotated[
        Literal["auto", "kv", "1", "2", "off"],
        typer.Option(
            help="GPU memory that vLLM frees while asleep: kv: its KV cache; 1: also its weights, which "
            "main memory keeps; 2: also its weights, which come from the trainer again."
        ),
    ] = "auto",
    dtype: Annotated[
        Dtype | None, typer.Option(help="Data type of the weights.", show_default="bfloat16 on a GPU, else float32")
    ] = None,
    head: Annotated[
        Literal["model", "float32"], typer.Option(help="Data type of the output head, with microrl and with vLLM alone.")
    ] = "model",
    device: Annotated[Device | None, typer.Option(help="Where it runs.", show_default="the GPU, else the CPU")] = None,
    prompts: Annotated[int, typer.Option(min=1, help="Prompts per rollout.")] = 16,
    group: Annotated[int, typer.Option(min=1, help="Completions per prompt.")] = 8,
    tokens: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="Sampled tokens per completion; every completion is made exactly this long.",
            show_default="64; with --turns, 128 for each turn",
        ),
    ] = None,
    cycles: Annotated[int, typer.Option(min=1, help="Rollouts, each with a new adapter and its sync.")] = 3,
    pairs: Annotated[
        int, typer.Option(min=1, help="Pairs of rollouts: microrl and vLLM alone, or with --turns, episodes and single turns.")
    ] = 3,
    turns: Annotated[
        int | None,
        typer.Option(
            min=2,
            help="Time episodes of this many turns, with a tool, against single turns with as many sampled tokens; vLLM is not "
            "used.",
            show_default="vLLM is measured",
        ),
    ] = None,
    tool_seconds: Annotated[
        float | None,
        typer.Option(min=0.0, help="With --turns: also time the episodes with a real environment whose tool takes this long."),
    ] = None,
    as_json: options.Json = False,
) -> None:
    """Time weight syncs and sleep, and compare sampling with vLLM's own `generate`; or time episodes with a tool.

    Needs vLLM, except with --turns. Both sides have the same engine, requests and settings, and a model with random weights.
    The ratio is microrl's tokens per second divided by vLLM's own; with --turns, the time of episodes divided by that of single
    turns.
    """
    from microrl.cli.value_lists import values
    from microrl.commands.bench.page import EPISODES, ROLLOUT
    from microrl.rollout.preflight import require_vllm

    names = values("--arch", arch)
    for name in names:
        check_name("architecture", name, ARCHITECTURES)
    if turns is not None:
        if tokens is not None and tokens < 2 * turns:
            raise UserError(
                f"--tokens {tokens} is too small for {turns} turns, which need at least 2 tokens each",
                f"pass --tokens {2 * turns}",
            )
        unused = {"rank": rank != 64, "targets": targets, "sync": sync != "swap", "sleep": sleep != "auto", "dtype": dtype,
                  "head": head != "model", "device": device, "cycles": cycles != 3}  # fmt: skip
        if option := next((option for option, is_set in unused.items() if is_set), None):
            raise UserError(f"--{option} has no effect with --turns", "remove it, or remove --turns")
    else:
        if tool_seconds is not None:
            raise UserError("--tool-seconds has no effect without --turns", "add --turns 2")
        require_vllm("bench rollout")
    from microrl.run import apart

    results: list[dict[str, Any]] = []

    def on_report(report: str | dict[str, Any]) -> None:
        if isinstance(report, str):
            return say(report)
        results.append(report)
        if not as_json:
            _show(report, ROLLOUT if turns is None else EPISODES)

    given: dict[str, Any] = {"shape": shape, "prompts": prompts, "group": group, "tokens": tokens, "pairs": pairs}
    if turns is not None:
        given |= {"turns": turns, "tool_seconds": tool_seconds}
    else:
        targeted = values("--targets", targets)
        given |= {"rank": rank, "targets": targeted, "sync": sync, "sleep": sleep, "dtype": dtype, "head": head,
                 "device": device, "cycles": cycles}  # fmt: skip
    for name in names:
        apart.call(_measure_rollout, {**given, "architecture": name}, on_report=on_report, runs="the measurement")
    if as_json:
        emit({"rollouts": results})


def _measure_rollout(given: dict[str, Any], report: Callable[[Any], None]) -> None:
    """One architecture, in a process of its own: a GPU lets no process have vLLM twice."""
    if "turns" in given:
        from microrl.commands.bench.turns import episodes

        return report(episodes(**given, say=report))
    from microrl.commands.bench.engine import rollout

    report(rollout(**given, say=report))


def sync(
    adapters: Annotated[
        str | None, typer.Option(help="Adapters, such as lora,dora; `microrl presets adapters` lists them.", show_default="all")
    ] = None,
    shape: ShapeOption = "tiny",
    layers: Annotated[int | None, typer.Option(min=1, help="Number of layers.", show_default="the shape's")] = None,
    rank: Annotated[int, typer.Option(min=1, help="Adapter rank, where the adapter has one.")] = 8,
    versions: Annotated[int, typer.Option(min=1, help="Timed syncs per adapter and mode, each of changed weights.")] = 3,
    as_json: options.Json = False,
) -> None:
    """Time how long each adapter takes to reach vLLM: with swap, as a LoRA, and with merge, merged into vLLM's weights.

    Needs vLLM. The check that vLLM samples from the new weights is not timed. The model has random weights.
    """
    from microrl.cli.value_lists import values
    from microrl.commands.bench.page import SYNC
    from microrl.config.adapters import KINDS
    from microrl.rollout.preflight import require_vllm

    kinds = values("--adapters", adapters)
    for kind in kinds:
        check_name("adapter", kind, KINDS)
    require_vllm("bench sync")
    from microrl.commands.bench.engine import sync as measure

    syncs = measure(adapters=kinds, shape=shape, layers=layers, rank=rank, versions=versions, say=say)
    _show({"syncs": syncs}, SYNC, as_json=as_json)


def _show(result: dict[str, Any], labels: Mapping[str, str], *, as_json: bool = False) -> None:
    from microrl.commands.bench.page import text

    emit(result) if as_json else print(text(result, labels))


group = typer.Typer(
    help="Measure training steps, sampling and weight syncs on this machine, and compare with TRL.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode="rich",
)
for command in (step, peer, rollout, sync, logprob):
    group.command(command.__name__)(command)
