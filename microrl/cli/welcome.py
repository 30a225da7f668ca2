"""Bare `microrl`: six lines for whoever does not know yet what to type."""

from __future__ import annotations

from microrl import __version__

ABOUT = "GRPO and LoRA for small language models: RL with verifiable rewards, within a wall-clock budget"
BEGIN = (
    ("microrl train quickstart", "a tiny model learns sums in a minute: no GPU, no download"),
    ("microrl plan --model Qwen2.5-1.5B-Instruct --hours 24", "memory, time and cost of a run, before you rent a GPU"),
    ("microrl guide", "your data, your rewards, a real model; all commands: microrl --help"),
)


def first_screen() -> str:
    """What it is, what to begin with, this machine, and the newest run under `runs/` with what to do next."""
    width = max(len(command) for command, _ in BEGIN)
    begin = (f"  {command:{width}}  {text}" for command, text in BEGIN)
    return "\n".join((f"microrl {__version__}: {ABOUT}", *begin, f"This machine: {_machine()}", f"Newest run: {_newest()}"))


def _machine() -> str:
    from microrl.models import driver
    from microrl.plan import here

    if (gpu := here.gpu()) is not None:
        return f"{gpu.device.name}, {gpu.free_gb:.0f} of {gpu.device.memory_gb:.0f} GB free"
    processor = here.processor()
    cores = f"{here.calibration_name(processor)}, {processor.memory_gb:.0f} GB of memory"
    return f"{cores}; its GPU cannot be used: microrl doctor" if driver.is_here() else f"{cores}, no NVIDIA GPU"


def _newest() -> str:
    from microrl.errors import UserError
    from microrl.run import follow, summary
    from microrl.run.folder import RunFolder

    try:
        path = RunFolder.newest().path
    except UserError:
        return "none in runs/ yet; begin with the quickstart"
    if not follow.is_over(path):
        alive = follow.is_alive(path)
        return f"{path}, in progress: microrl watch" if alive else f"{path}, not finished: microrl train --resume {path}"
    try:
        gain = summary.read(path).eval.paired_gain
    except UserError:
        return f"{path}, but its summary cannot be read: microrl report"
    if gain is None:
        return f"{path}, not evaluated before and after: microrl report"
    accuracy = "" if gain.before is None or gain.after is None else f"accuracy {gain.before:.2f} -> {gain.after:.2f}, "
    low, high = gain.ci95
    return f"{path}, {accuracy}gain {gain.mean:+.2f} [{low:+.2f}, {high:+.2f}]: microrl report, microrl sample"
