"""Options that several commands share. Every default in a help text is that of `RunConfig`."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import wraps
from inspect import Parameter, signature
from pathlib import Path
from typing import Annotated, Any, NamedTuple, TypeVar

import typer

from microrl import clock
from microrl.errors import UserError

T = TypeVar("T")

ENGINES = "auto (vLLM on a GPU where it is installed, else transformers), vllm or transformers"
MODEL_HELP = "Local folder, Hugging Face id (owner/name), .gguf file, quickstart, or a short name such as Qwen2.5-1.5B-Instruct."
Presets = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="PRESET", help="Presets (listed by `microrl presets`) or TOML files; later ones override earlier ones."
    ),
]
Run = Annotated[str | None, typer.Argument(metavar="RUN", help="A run folder.", show_default="the newest run")]
Json = Annotated[bool, typer.Option("--json", help="Print the result as JSON.")]
Figures = Annotated[Path | None, typer.Option("--figures", help="Folder for the figures as PNG and SVG.", show_default="none")]
Sets = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="Set any configuration key, e.g. optim.lr=2e-5; repeat for several."),
]


class Setting(NamedTuple):
    """An option that sets one key of the configuration. `default` is shown in the help."""

    key: str
    type: Any
    help: str
    default: str | None = None
    metavar: str | None = None


SETTINGS = {
    "model": Setting("model.name", str, MODEL_HELP, "the preset's, else Qwen2.5-1.5B-Instruct"),
    "rank": Setting(
        "adapter.rank", int, "Adapter rank. LoRA's update is scaled by alpha / rank; set alpha with --set adapter.alpha=A.",
        "the preset's, else 64 (tinylora: 2)",
    ),
    "hours": Setting(
        "budget.hours", float, "Time limit in hours for the whole run, loading and evaluation included. A run needs --hours or "
        "--steps, from here or from a preset; giving either replaces both limits of the preset.",
    ),
    "steps": Setting("budget.steps", int, "Maximum number of training steps. Without --hours there is then no time limit."),
    "adapter": Setting(
        "adapter.kind", str, "lora, dora, pissa, full, ...: `microrl presets adapters` lists all.", "the preset's, else lora"
    ),
    "loss": Setting(
        "loss.kind", str, "grpo, dapo, ...: `microrl guide losses` lists all; or a custom algorithm as MODULE:CLASS.",
        "the preset's, else grpo",
    ),
    "teacher": Setting(
        "distill.teacher", str, "Distil on-policy from this teacher (sets --loss distill): a model, a run, its best/, or an "
        "adapter folder in PEFT's format. A folder written by `microrl teach`: SFT on its stored scores; with --sft-minutes, RL "
        "follows. none: no teacher.",
        "the preset's, else none", "MODEL|RUN|FOLDER",
    ),
    "data": Setting(
        "data.name", str, "open-rs, gsm8k, mbpp, ... (`microrl presets data` lists all), arithmetic, reasoning-gym:TASK[,TASK], "
        "a Hugging Face id, or a local .jsonl, .json, .csv or .parquet file, or a folder of such files.",
        "the preset's, else open-rs",
    ),
    "lr": Setting(
        "optim.lr", str, "Instead of --step-kl: a fixed peak learning rate, or auto: from a scaling law.",
        "the preset's, else steered"
    ),
    "step_kl": Setting(
        "optim.step_kl", float, "Instead of --lr: steer the rate so that each step moves the policy by this KL (nats per token).",
        "the preset's, else 0.001",
    ),
    "reward": Setting(
        "reward.functions", list[str], "Add a custom reward function, or an entry point of the group microrl.rewards; repeat for "
        "several.", "the preset's, else none", "MODULE:FUNCTION[=WEIGHT]",
    ),
    "env": Setting(
        "env.target", list[str], "Tools that the model may call, in training and evaluation: the methods of this class; or "
        "calculator, python, higher-lower, or an entry point of the group microrl.environments. Repeat for several: the column "
        "`environment` then says which NAME each row uses. none: no tools.", "the preset's, else none", "[NAME=]MODULE:CLASS",
    ),
    "engine": Setting(
        "engine.kind", str, f"{ENGINES}.", "the preset's, else auto",
    ),
    "seed": Setting("seed", int, "Random seed of training.", "the preset's, else 0"),
    "price": Setting(
        "budget.price", float, "Price of this machine, US dollars per hour.",
        "the preset's, else the GPU's typical price, 0 on a CPU",
    ),
    "sft_minutes": Setting(
        "sft.minutes", float, "Start with supervised fine-tuning (SFT), for at most this many minutes of --hours; needs worked "
        "solutions.", "the preset's, else none",
    ),
    "sft_data": Setting(
        "sft.data", str, "What the SFT learns from: data as for --data, with worked solutions, or a folder written by "
        "`microrl teach`.", "the preset's, else the run's data", "FOLDER|FILE",
    ),
    "init": Setting(
        "init", str, "Start from the adapter in this run's newest checkpoint; needs the same model and adapter settings.",
        metavar="RUN",
    ),
    "track": Setting(
        "track", str, "Send metrics to this tracker from a separate process.", metavar="wandb|trackio|tensorboard"
    ),
}  # fmt: skip
"""The options that set a key of their own, in the order of every `--help`."""
ASKED = {
    "samples": Setting(
        "evaluation.samples", int, "Completions per problem; must be at least the largest k of --pass-k.",
        "the run's evaluation.samples, else 8; more if --pass-k needs them; 1 with --temperature 0",
    ),
    "max_tokens": Setting(
        "evaluation.max_completion_tokens", int, "Completion limit in tokens.", "the run's limit, else 3584"
    ),
    "temperature": Setting(
        "evaluation.temperature", float, "Sampling temperature; 0: greedy.", "the run's or the protocol's, else 1"
    ),
    "top_p": Setting("evaluation.top_p", float, "Nucleus sampling; 1: off.", "the run's or the protocol's, else 1"),
    "problems": Setting(
        "evaluation.problems", int, "Maximum number of problems.",
        "all with --data, --bench or --protocol, else the run's, else 64",
    ),
    "question_seed": Setting(
        "evaluation.question_seed", int, "Seed of the choice and order of the problems.", "the run's or the protocol's, else 0"
    ),
}  # fmt: skip
"""Those of the commands that ask a model."""


def flag(name: str) -> str:
    """The option of an entry of `SETTINGS` or `ASKED`."""
    return f"--{name.replace('_', '-')}"


FLAGS = {setting.key: flag(name) for name, setting in SETTINGS.items()}
"""The flags of configuration keys."""
Flags = dict[str, Any]
"""Configuration keys, and what was given for them; None for what was not given."""
NAME_BYTES = 120
"""Maximum length of a run folder's name without its time: file systems allow 255, and there may be many presets."""


def run_name(presets: list[str] | None, model: str) -> str:
    """The name of a run folder without its time: the presets' names, or the model's.

    Only the suffixes `.toml` and `.gguf` are removed; the `.5B` of `1.5B` is part of a model's name.
    """
    if presets:
        name = "-".join(Path(preset).name.removesuffix(".toml") for preset in presets)
    else:
        path = Path(model)
        name = (path if path.name not in ("", "..") else path.resolve()).name.removesuffix(".gguf")
    return name.encode(errors="replace")[:NAME_BYTES].decode(errors="ignore") or "run"


def run_folder(name: str) -> Path:
    """`runs/NAME-TIME`: the folder of a run that starts now."""
    return Path("runs") / f"{name}-{time.strftime('%Y%m%d-%H%M%S')}"


@contextmanager
def named(flags: Mapping[str, str]) -> Iterator[None]:
    """Give an error the names of these flags for their keys, where it has `KEY` in backticks or advises `--set KEY=`."""
    try:
        yield
    except UserError as error:
        for key, flag in flags.items():
            error.message = error.message.replace(f"`{key}`", flag)
            error.hint = error.hint and error.hint.replace(f"--set {key}=", f"{flag} ")
        raise


def until_s(flags: Flags) -> float | None:
    """The `clock.now_s` at which a command's own --hours, taken out of `flags`, are over; None: no limit. Raises UserError."""
    hours = flags.pop("budget.hours")
    if hours is not None and not hours > 0:
        raise UserError(f"--hours must be above 0, got {hours:g}", "leave it out for no time limit")
    return None if hours is None else clock.process_started_s() + hours * 3600


def takes(*names: str, **changed: dict[str, Any]) -> Callable[[Callable[..., T]], Callable[..., T]]:
    """Give a command the options of these `SETTINGS` and `ASKED` in the place of its parameter `flags`: what was given for them.

    `changed`: fields of some of them that differ in this command. Where an error has one of their keys in backticks, it gets the
    name of the option instead, unless `--set` was given for that key.
    """

    settings = {name: (SETTINGS | ASKED)[name]._replace(**changed.get(name, {})) for name in names}

    def with_options(command: Callable[..., T]) -> Callable[..., T]:
        @wraps(command)
        def run(**given: Any) -> T:
            flags = {setting.key: given.pop(name) for name, setting in settings.items()}
            set_keys = {text.partition("=")[0].strip() for text in given.get("sets") or ()}
            used = [name for name, setting in settings.items() if setting.key not in set_keys and flags[setting.key] is not None]
            if reward := flags.get("reward.functions"):  # looked for here, whatever the preset or run says of its own
                flags |= {"reward.functions": tuple(reward), "reward.path": "."}
            if environments := flags.get("env.target"):
                flags |= {"env.target": tuple(environments), "env.path": "."}
            with named({settings[name].key: flag(name) for name in used}):
                return command(flags=flags, **given)

        def parameters(one: Parameter) -> Iterator[Parameter]:
            if one.name != "flags":
                yield one
                return
            for name, setting in settings.items():
                option = typer.Option(help=setting.help, show_default=setting.default or True, metavar=setting.metavar)
                yield Parameter(name, one.kind, default=None, annotation=Annotated[setting.type | None, option])

        own = signature(command, eval_str=True)
        shown = own.replace(parameters=[shown for one in own.parameters.values() for shown in parameters(one)])
        run.__signature__ = shown  # type: ignore[attr-defined]  # typer reads it
        return run

    return with_options
