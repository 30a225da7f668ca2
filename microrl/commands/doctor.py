"""Check whether this machine can train: one finding after the other, with what to do about it, and a self-test at the end."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any, Literal

import torch
from packaging.requirements import Requirement

from microrl.errors import INSTALL_GPU
from microrl.limits import auto_dtype
from microrl.models import gpu, hub
from microrl.rollout.preflight import SUPPORTED, installed

GB = 1e9
LOW_DISK_GB, NO_DISK_GB = 20.0, 2.0
SELF_TEST_S = 240.0
"""Deadline of the self-test in seconds. It takes half a minute, but the first one also compiles kernels."""
TOGETHER = ("torch", "transformers")
"""The packages whose versions vLLM pins."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One line of the report. `do`: what to do about it; None: nothing."""

    about: str
    status: Literal["ok", "warning", "problem"]
    says: str
    do: str | None = None


def examine(*, self_test: bool = True) -> Iterator[Finding]:
    """All findings, quick checks first."""
    yield from _card()
    yield from _libraries()
    yield from _vllm()
    yield _allocator()
    yield from _disk()
    yield _hub()
    if self_test:
        yield _self_test()


def _card() -> Iterator[Finding]:
    if not torch.cuda.is_available():
        if shutil.which("nvidia-smi") is None and not Path("/proc/driver/nvidia").exists():
            yield Finding("GPU", "ok", "no NVIDIA GPU: everything runs on the CPU, which is enough for tiny models")
        elif torch.version.cuda is None:
            yield Finding("GPU", "problem", f"there is an NVIDIA driver, but torch {torch.__version__} is a CPU build",
                          "pip install --force-reinstall torch --index-url https://download.pytorch.org/whl/cu130")  # fmt: skip
        else:
            yield Finding("GPU", "problem", f"torch {torch.__version__} (CUDA {torch.version.cuda}) sees no GPU",
                          "check `nvidia-smi`, CUDA_VISIBLE_DEVICES, and that the driver is new enough")  # fmt: skip
        return
    free, total = torch.cuda.mem_get_info()
    major, minor = torch.cuda.get_device_capability()
    yield Finding("GPU", "ok", f"{torch.cuda.get_device_name()}, compute capability {major}.{minor}, driver {_driver()}, "
                                f"CUDA {torch.version.cuda}")  # fmt: skip
    room = f"{free / GB:.1f} of {total / GB:.1f} GB are free"
    if free < 0.9 * total:
        held = [f"{other.name or 'process'} {other.pid} uses {other.bytes / GB:.1f} GB" for other in gpu.others_on_card()]
        yield Finding(
            "GPU memory", "warning", ", ".join([room, *held]), "stop the other processes on this GPU; `nvidia-smi` lists them"
        )
    else:
        yield Finding("GPU memory", "ok", room)
    if auto_dtype((major, minor)) != "bfloat16":
        yield Finding("bfloat16", "ok", "this GPU has no fast bfloat16: models are loaded in float16")


def _driver() -> str:
    try:
        import pynvml

        pynvml.nvmlInit()
        found = pynvml.nvmlSystemGetDriverVersion()
        return found.decode() if isinstance(found, bytes) else found
    except Exception:  # see gpu.others_on_card
        return "unknown"


def _libraries() -> Iterator[Finding]:
    yield Finding("python", "ok", f"{sys.version.split()[0]}, microrl {metadata.version('microrl')}, torch {torch.__version__}")
    wrong = [text for line in metadata.requires("microrl") or () if (text := _unmet(Requirement(line)))]
    if wrong:
        yield Finding(
            "libraries", "problem", "; ".join(wrong), "in your clone of microrl, in a separate environment: pip install -e ."
        )
    else:
        yield Finding("libraries", "ok", "all libraries have compatible versions")


def _unmet(wanted: Requirement) -> str | None:
    """Why a requirement is not met; None if it is, or if it is for an extra or another platform."""
    if wanted.marker is not None and not wanted.marker.evaluate({"extra": ""}):
        return None
    try:
        found = metadata.version(wanted.name)
    except metadata.PackageNotFoundError:
        return f"{wanted.name} is missing"
    if wanted.specifier.contains(found, prereleases=True):
        return None
    return f"{wanted.name} is {found}, but {wanted.specifier} is required"


def _vllm() -> Iterator[Finding]:
    vllm = installed()
    if vllm is None:
        cuda = torch.cuda.is_available()
        do = f"sampling is many times faster with vLLM; {INSTALL_GPU}" if cuda else None
        yield Finding("vLLM", "warning" if cuda else "ok", "not installed: sampling uses transformers", do)
        return
    if not vllm.is_supported:
        yield Finding(
            "vLLM",
            "problem",
            f"{vllm.version} is not supported ({SUPPORTED} are)",
            INSTALL_GPU,
        )
        return
    lines = metadata.requires(vllm.distribution) or ()
    wanted = [requirement for line in lines if (requirement := Requirement(line)).name in TOGETHER]
    wrong = [text for requirement in wanted if (text := _unmet(requirement))]
    if wrong:
        yield Finding("vLLM", "problem", f"{vllm.version} is not compatible with the installed libraries: {'; '.join(wrong)}",
                      f"run `pip install '{vllm.distribution}=={vllm.version}'` again, then reinstall microrl")  # fmt: skip
    else:
        yield Finding(
            "vLLM", "ok", f"{vllm.version}{' for CPUs' if vllm.is_for_cpu else ''}, with compatible torch and transformers"
        )


def _allocator() -> Finding:
    if variable := gpu.expandable_segments():
        return Finding("allocator", "warning", f"{variable} enables expandable_segments: vLLM's sleep mode may not free memory",
                       f"unset {variable}")  # fmt: skip
    return Finding("allocator", "ok", "no environment variable prevents the engine from freeing memory")


def _disk() -> Iterator[Finding]:
    cache = Path(os.environ.get("HF_HOME", "~/.cache/huggingface")).expanduser()
    for about, folder in (("disk for runs", Path.cwd()), ("disk for models", cache)):
        existing = next(path for path in (folder, *folder.parents) if path.exists())
        free = shutil.disk_usage(existing).free / GB
        says = f"{free:.0f} GB free for {folder}"
        if not os.access(existing, os.W_OK):
            do = "change the folder, or use --out DIR" if about == "disk for runs" else "set HF_HOME to a writable folder"
            yield Finding(about, "problem", f"{folder} is not writable", do)
        elif free < LOW_DISK_GB:
            yield Finding(
                about,
                "problem" if free < NO_DISK_GB else "warning",
                says,
                "free some space: a 1.5B model takes 3 GB, a run at rank 256 about 15 GB",
            )
        else:
            yield Finding(about, "ok", says)


def _hub() -> Finding:
    if hub.reachable():
        return Finding("Hugging Face Hub", "ok", "not checked: a proxy is set" if hub.behind_proxy() else "reachable")
    why = "not reachable, or HF_HUB_OFFLINE is set: only local models and data can be used"
    do = "download the model and data on another machine with `hf download`, then pass --model FOLDER --data FILE"
    return Finding("Hugging Face Hub", "warning", why, do)


def _self_test() -> Finding:
    """Run the self-test in a separate process, which may crash or hang."""
    try:
        done = subprocess.run(
            [sys.executable, "-m", "microrl.commands.selftest"], capture_output=True, text=True, timeout=SELF_TEST_S
        )
    except subprocess.TimeoutExpired:
        do = "stop other work on this machine, or run `python -m microrl.commands.selftest` to see where it hangs"
        return Finding("self-test", "problem", f"no answer in {SELF_TEST_S:.0f} s", do)
    lines = [line for line in done.stdout.splitlines() if line.startswith("{")]
    if not lines:
        last = (done.stderr.strip().splitlines() or ["no output"])[-1]
        return Finding("self-test", "problem", f"failed with status {done.returncode}: {last[:200]}",
                       "run `python -m microrl.commands.selftest` for the full output")  # fmt: skip
    answer: dict[str, Any] = json.loads(lines[-1])
    if "error" in answer:
        return Finding(
            "self-test",
            "problem",
            answer["error"],
            answer["hint"] or "for the traceback, run `python -m microrl.commands.selftest`",
        )
    seen = answer["passed"]
    synced = "shares the trainer's weights"
    if seen["probe_gap"] is not None:
        slope = "not measurable" if seen["probe_slope"] is None else f"{seen['probe_slope']:.3f}"
        synced = (
            f"weight sync verified in {1000 * seen['swap_s']:.0f} ms (gap {seen['probe_gap']:.1g} nats per token, slope {slope})"
        )
    slept = f", sleep freed {seen['freed_bytes'] / GB:.1f} GB" if seen["freed_bytes"] else ""
    return Finding(
        "self-test", "ok",
        f"{seen['engine']} on {seen['device']}: started in {seen['start_s']:.0f} s, {seen['tokens']} tokens in "
        f"{seen['generate_s']:.2f} s, {synced}{slept}, one update in {seen['update_s']:.2f} s, KL(engine, trainer) "
        f"{seen['kl_sampler']:.1g} nats per token",
    )  # fmt: skip
