"""`microrl plan`: estimate memory, time and cost of a run, without a GPU."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from microrl.cli import options
from microrl.cli.output import emit, say
from microrl.errors import UserError

if TYPE_CHECKING:
    from microrl.config import RunConfig
    from microrl.evaluation.power import Study
    from microrl.plan import Device, Shape

DEFAULT_HOURS = 24.0
GPUS = "t4, l4, a10g, 3090, 4090, 5090, a40, a6000, l40s, rtx6000ada, a100-40gb, a100, h100, h200, b200"
"""The names in `plan.devices.DEVICES`, which is not imported for a help text."""
EXAMPLES = """
[bold]Examples[/]
  microrl plan --model Qwen2.5-1.5B-Instruct --rank 256 --hours 24 --gpu a40
  microrl plan micro-r64 budget-6h                 [dim]one row per GPU[/]
  microrl plan ortho-7b --gpu h100 --price 2.50 --json
  microrl plan --starts --hours 24 --gpu a40       [dim]which model to start from[/]
  microrl plan micro-r64 --fetch                   [dim]also download what the run needs[/]
  microrl plan micro-r64 --gpu a40 --detect 0.03   [dim]problems and samples to detect a gain of 3 points[/]
"""


@options.takes(*(name for name in options.SETTINGS if name not in ("reward", "init", "track")))
def plan(
    presets: options.Presets = None,
    *,
    flags: options.Flags,
    sets: options.Sets = None,
    gpu: Annotated[
        str | None,
        typer.Option(help=f"GPU to plan for: {GPUS}, or cpu.", show_default="this machine's GPU, else one row per GPU"),
    ] = None,
    starts: Annotated[
        bool,
        typer.Option(
            "--starts",
            help="Instead of a plan, compare known models to start from: published accuracy, and steps that fit into the budget.",
        ),
    ] = False,
    detect: Annotated[
        float | None,
        typer.Option(
            help="Instead of a plan, show how many problems, samples and seeds it takes to detect this gain in accuracy, for "
            "example 0.03 (three points), with a power of 90 %."
        ),
    ] = None,
    accuracy: Annotated[
        float | None,
        typer.Option(help="With --detect: accuracy before training, between 0 and 1.", show_default="0.5, the hardest case"),
    ] = None,
    fetch: Annotated[
        bool, typer.Option("--fetch", help="Also download model, tokenizer and data now, before they cost a run's time.")
    ] = False,
    as_json: options.Json = False,
) -> None:
    """Estimate memory, time per step, steps and cost of a run (24 hours if no limit is given). Needs no GPU or weights."""
    study = _study(detect, accuracy)
    if starts and study is not None:
        raise UserError("--starts and --detect are two different tables", "pass one of them")
    from microrl.cli import early
    from microrl.config import keys_set, resolve
    from microrl.environments.process import schema_tokens
    from microrl.plan.source import shape_of

    config = _bounded(resolve(presets or (), flags, sets or ()))
    early.refuse_environment(config.env, starts=False)
    early.refuse_sft_of_several(config)
    if starts and config.asked_teacher:
        raise UserError("--starts compares models without a teacher", "plan each with --model NAME --teacher TEACHER")
    if fetch:
        _fetch(config)
    shape = shape_of(config.model.name)
    device, free_gb = _card(gpu)
    tool_tokens = 0 if study is not None else schema_tokens(config.env)
    if starts:
        from microrl.cli.starts import show as show_starts
        from microrl.plan import here

        if device is None:
            device, free_gb = here.instead_of_gpu(shape)
            say(f"note: planning for the {device.label}; --gpu NAME chooses another")
        if config.budget.hours is None:
            say(f"note: --starts needs a time limit; planning for {DEFAULT_HOURS:g} hours")
            config = config.model_copy(update={"budget": config.budget.model_copy(update={"hours": DEFAULT_HOURS})})
        words = _repeated(presets or [], flags, sets or [])
        show_starts(config, device, free_gb, keys_set(sets or ()), words, tool_tokens=tool_tokens, as_json=as_json)
        return
    if study is not None:
        from microrl.cli import detect as detecting
        from microrl.plan.devices import DEVICES

        detecting.show(config, shape, study, [device] if device else list(DEVICES.values()), as_json=as_json)
        return
    if device is None:
        names_price = flags["budget.price"] is not None or "budget.price" in keys_set(sets or ())
        _compare(config, shape, tool_tokens, names_price=names_price, as_json=as_json)
        return
    from microrl.plan import make, show
    from microrl.run.teacher import size

    run_plan = make(config, shape, device, free_gb=free_gb, tool_tokens=tool_tokens, teacher=size(config))
    if as_json:
        emit(run_plan.to_json())
        return
    print(show.page(config, run_plan))
    from microrl.cli.starts import suggest

    suggest(config, device, free_gb, tool_tokens=tool_tokens)


def _repeated(presets: list[str], flags: dict[str, Any], sets: list[str]) -> list[str]:
    """What was typed, as words of another command: without the model and the budget, which a start has of its own."""
    own = {"model.name", "budget.hours", "budget.steps"}
    given = {options.FLAGS[key]: value for key, value in flags.items() if value is not None and key in options.FLAGS.keys() - own}
    pairs = [(flag, one) for flag, value in given.items() for one in (value if isinstance(value, list | tuple) else [value])]
    pairs += [("--set", text) for text in sets if text.partition("=")[0].strip() not in own]
    return [*presets, *(str(word) for pair in pairs for word in pair)]


def _fetch(config: RunConfig) -> None:
    """Download the run's model and data sets, as far as the hub has them and this machine has not. Raises UserError."""
    from microrl.cli.target import prepare_hub
    from microrl.config.data import DataConfig
    from microrl.data.sources import provenance, rows_of
    from microrl.models import hub
    from microrl.models.download import download
    from microrl.run.console import RunConsole
    from microrl.run.teacher import find

    teacher = [] if config.asked_teacher is None else [find(config.asked_teacher).model]
    prepare_hub(config, *teacher, reads_data=True)
    examples = [] if config.sft.data is None else [DataConfig(name=config.sft.data)]
    with RunConsole() as console:
        for name in (config.model.name, *teacher):
            download(name, console.progress)
        for data in (config.data, *examples, *map(config.data.for_benchmark, config.data.decontaminate)):
            source = provenance(data)
            if source.get("hub_id") is not None and source["local"] is None:
                console.status(f"downloading the data set {data.name}")
                next(iter(rows_of(data)), None)
    say(f"all that the hub has of this run is in {hub.hub_folder().parent}")


def _study(gain: float | None, accuracy: float | None) -> Study | None:
    """What --detect asks; None without it."""
    if gain is None:
        if accuracy is not None:
            raise UserError("--accuracy has no effect without --detect", "add the gain to be detected: --detect 0.03")
        return None
    from microrl.cli.detect import study_of
    from microrl.evaluation.power import ACCURACY

    return study_of(gain, ACCURACY if accuracy is None else accuracy)


def _bounded(config: RunConfig) -> RunConfig:
    if config.budget.hours is not None or config.budget.steps is not None:
        return config
    say(f"note: no --hours or --steps given; planning for {DEFAULT_HOURS:g} hours")
    return config.model_copy(update={"budget": config.budget.model_copy(update={"hours": DEFAULT_HOURS})})


def _card(name: str | None) -> tuple[Device | None, float | None]:
    """(device of --gpu or of this machine, its free memory in GB); None for what is not known."""
    from microrl.models import driver
    from microrl.plan import devices, here

    if name is not None:
        return (here.processor() if name.lower() == devices.CPU else devices.find(name)), None
    if (problem := driver.problem()) is not None:
        say(f"note: {problem.message}; planning for other GPUs")
        say(f"hint: {problem.hint}")
    gpu = here.gpu()
    return (None, None) if gpu is None else gpu


def _compare(config: RunConfig, shape: Shape, tool_tokens: int, *, names_price: bool, as_json: bool) -> None:
    """Compare all devices at their typical rents. Only a price from the command line overrides it: a preset's is for one GPU."""
    from microrl.plan import advice, devices, here, make, show
    from microrl.run.teacher import size

    if not names_price:
        config = config.model_copy(update={"budget": config.budget.model_copy(update={"price": None})})
    every = (here.processor(), *devices.DEVICES.values())
    teacher = size(config)
    plans = [make(config, shape, device, tool_tokens=tool_tokens, teacher=teacher) for device in every]
    if as_json:
        likely = make(config, shape, here.likely(shape).device, tool_tokens=tool_tokens, teacher=teacher)
        cards = {device_plan.device.name: device_plan.to_json() for device_plan in plans}
        value: dict[str, Any] = {**likely.to_json(), "cards": cards}
        emit(value)
        return
    print(show.comparison(config, plans))
    for note in advice.episodes(config, tool_tokens):
        print(f"note: {note}")
    say("--gpu NAME shows one GPU in detail. Prices are typical rental prices; set yours with --price")
