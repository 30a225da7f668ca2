"""Is this machine fit to train, and what to do where it is not: one finding after the other, and a test run at the end."""

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

from microrl.limits import auto_dtype
from microrl.models import gpu, hub
from microrl.rollout.preflight import SUPPORTED, installed

GB = 1e9
LOW_DISK_GB, NO_DISK_GB = 20.0, 2.0
SELF_TEST_S = 240.0
"""Deadline of the self-test. It takes half a minute at most, but kernels are compiled on the first one."""
TOGETHER = ("torch", "transformers")
"""The packages that vLLM must agree on with the rest."""


@dataclass(frozen=True, slots=True)
class Finding:
    """`do` is what to do about it; None where nothing needs doing."""

    about: str
    status: Literal["ok", "warning", "problem"]
    says: str
    do: str | None = None


def examine(*, self_test: bool = True) -> Iterator[Finding]:
    """Everything worth knowing, cheap things first."""
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
            yield Finding(
                "card", "ok", "no NVIDIA card here: everything runs on the CPU, which is for tiny models and for trying out"
            )
        elif torch.version.cuda is None:
            yield Finding("card", "problem", f"there is an NVIDIA driver, but torch {torch.__version__} is built for CPUs",
                          "pip install --force-reinstall torch --index-url https://download.pytorch.org/whl/cu130")  # fmt: skip
        else:
            yield Finding("card", "problem", f"torch {torch.__version__} (CUDA {torch.version.cuda}) sees no card",
                          "does `nvidia-smi` work? is the driver older than this CUDA? is CUDA_VISIBLE_DEVICES set?")  # fmt: skip
        return
    free, total = torch.cuda.mem_get_info()
    major, minor = torch.cuda.get_device_capability()
    yield Finding("card", "ok", f"{torch.cuda.get_device_name()}, compute capability {major}.{minor}, driver {_driver()}, "
                                f"CUDA {torch.version.cuda}")  # fmt: skip
    room = f"{free / GB:.1f} of {total / GB:.1f} GB are free"
    if free < 0.9 * total:
        held = [f"{other.name or 'process'} {other.pid} has {other.bytes / GB:.1f} GB" for other in gpu.others_on_card()]
        yield Finding("card's memory", "warning", ", ".join([room, *held]), "end what else runs on it: see `nvidia-smi`")
    else:
        yield Finding("card's memory", "ok", room)
    if auto_dtype((major, minor)) != "bfloat16":
        yield Finding("bfloat16", "ok", "this card computes bfloat16 slowly or not at all: models are loaded in float16")


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
        yield Finding("libraries", "problem", "; ".join(wrong), "pip install --upgrade microrl, in an environment of its own")
    else:
        yield Finding("libraries", "ok", "every library is there in a version that goes together with this one")


def _unmet(wanted: Requirement) -> str | None:
    """What is wrong with one requirement; extras and other platforms' requirements do not count."""
    if wanted.marker is not None and not wanted.marker.evaluate({"extra": ""}):
        return None
    try:
        found = metadata.version(wanted.name)
    except metadata.PackageNotFoundError:
        return f"{wanted.name} is missing"
    if wanted.specifier.contains(found, prereleases=True):
        return None
    return f"{wanted.name} is {found}, and {wanted.specifier} is needed"


def _vllm() -> Iterator[Finding]:
    vllm = installed()
    if vllm is None:
        cuda = torch.cuda.is_available()
        yield Finding("vLLM", "warning" if cuda else "ok", "not installed: sampling runs on transformers",
                      "pip install 'microrl[gpu]': generation is many times faster with it" if cuda else None)  # fmt: skip
        return
    if not vllm.is_supported:
        yield Finding("vLLM", "problem", f"{vllm.version} is outside of {SUPPORTED}", "pip install --upgrade 'microrl[gpu]'")
        return
    lines = metadata.requires(vllm.distribution) or ()
    wanted = [requirement for line in lines if (requirement := Requirement(line)).name in TOGETHER]
    wrong = [text for requirement in wanted if (text := _unmet(requirement))]
    if wrong:
        yield Finding("vLLM", "problem", f"{vllm.version} does not go with what is here: {'; '.join(wrong)}",
                      f"pip install '{vllm.distribution}=={vllm.version}' once more, and then microrl")  # fmt: skip
    else:
        yield Finding("vLLM", "ok", f"{vllm.version}{' for CPUs' if vllm.is_for_cpu else ''}, and its torch and transformers")


def _allocator() -> Finding:
    if variable := gpu.expandable_segments():
        return Finding("allocator", "warning", f"{variable} fixes expandable_segments on: vLLM's sleep may then free nothing",
                       f"unset {variable}")  # fmt: skip
    return Finding("allocator", "ok", "no variable stands in the way of sleeping")


def _disk() -> Iterator[Finding]:
    cache = Path(os.environ.get("HF_HOME", "~/.cache/huggingface")).expanduser()
    for about, folder in (("disk for runs", Path.cwd()), ("disk for models", cache)):
        existing = next(path for path in (folder, *folder.parents) if path.exists())
        free = shutil.disk_usage(existing).free / GB
        says = f"{free:.0f} GB free for {folder}"
        if not os.access(existing, os.W_OK):
            do = "cd elsewhere, or --out DIR" if about == "disk for runs" else "set HF_HOME to a folder of yours"
            yield Finding(about, "problem", f"{folder} cannot be written", do)
        elif free < LOW_DISK_GB:
            yield Finding(
                about, "problem" if free < NO_DISK_GB else "warning", says, "a 1.5B model is 3 GB, a run at rank 256 some 15 GB"
            )
        else:
            yield Finding(about, "ok", says)


def _hub() -> Finding:
    if hub.reachable():
        return Finding("model hub", "ok", "it answers, or a proxy is set")
    return Finding("model hub", "warning", "out of reach, or HF_HUB_OFFLINE is set: only local models and data",
                   "pass --model FOLDER --data FILE.jsonl, or fetch them elsewhere with `hf download`")  # fmt: skip


def _self_test() -> Finding:
    """In a process of its own: what crashes or hangs there does not take this one along."""
    try:
        done = subprocess.run(
            [sys.executable, "-m", "microrl.commands.selftest"], capture_output=True, text=True, timeout=SELF_TEST_S
        )
    except subprocess.TimeoutExpired:
        return Finding("self-test", "problem", f"no answer in {SELF_TEST_S:.0f} s",
                       "is the machine busy? `python -m microrl.train.selftest` shows where it hangs")  # fmt: skip
    lines = [line for line in done.stdout.splitlines() if line.startswith("{")]
    if not lines:
        last = (done.stderr.strip().splitlines() or ["without a word"])[-1]
        return Finding("self-test", "problem", f"died with status {done.returncode}: {last[:200]}",
                       "`python -m microrl.train.selftest` shows all of it")  # fmt: skip
    answer: dict[str, Any] = json.loads(lines[-1])
    if "error" in answer:
        return Finding("self-test", "problem", answer["error"], answer["hint"] or "`python -m microrl.train.selftest` shows more")
    seen = answer["passed"]
    proved = "shares the trainer's weights"
    if seen["probe_gap"] is not None:
        slope = "not measurable" if seen["probe_slope"] is None else f"{seen['probe_slope']:.3f}"
        proved = f"swap proved in {1000 * seen['swap_s']:.0f} ms (gap {seen['probe_gap']:.1g} nats a token, slope {slope})"
    slept = f", sleep freed {seen['freed_bytes'] / GB:.1f} GB" if seen["freed_bytes"] else ""
    return Finding(
        "self-test", "ok",
        f"{seen['engine']} on {seen['device']}: started in {seen['start_s']:.0f} s, {seen['tokens']} tokens in "
        f"{seen['generate_s']:.2f} s, {proved}{slept}, one update in {seen['update_s']:.2f} s, KL to the sampler "
        f"{seen['kl_sampler']:.1g} nats a token",
    )  # fmt: skip
