"""Check whether this machine can train: one finding after the other, with what to do about it, and a self-test at the end."""

from __future__ import annotations

import os
import shutil
import sys
import sysconfig
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Literal

import torch
from packaging.requirements import Requirement

from microrl.commands import isolated
from microrl.errors import INSTALL_GPU
from microrl.limits import auto_dtype
from microrl.models import driver, gpu, hub
from microrl.rollout.preflight import SUPPORTED, installed
from microrl.sandbox import levels

GB = 1e9
LOW_DISK_GB, NO_DISK_GB = 20.0, 2.0
SELF_TEST_S = 600.0
"""Deadline of the self-test in seconds. It takes half a minute, but the first one on a new machine also reads torch and vLLM
from a cold disk, and compiles kernels."""
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
    yield _compiler()
    yield _python_header()
    yield from _libraries()
    yield from _vllm()
    yield _allocator()
    yield _sandbox()
    yield from _disk()
    yield _hub()
    if self_test:
        yield _self_test()


def _card() -> Iterator[Finding]:
    if not torch.cuda.is_available():
        if (problem := driver.problem()) is not None:
            yield Finding("GPU", "problem", problem.message, problem.hint)
        elif driver.is_here():
            yield Finding("GPU", "ok", "CUDA_VISIBLE_DEVICES hides the GPUs: everything runs on the CPU")
        else:
            yield Finding("GPU", "ok", "no NVIDIA GPU: everything runs on the CPU, which is enough for tiny models")
        return
    free, total = torch.cuda.mem_get_info()
    major, minor = torch.cuda.get_device_capability()
    yield Finding("GPU", "ok", f"{torch.cuda.get_device_name()}, compute capability {major}.{minor}, driver "
                                f"{driver.version() or 'unknown'} (CUDA {torch.version.cuda} needs "
                                f"{driver.needed(torch.version.cuda) or 'an unknown one'} or later)")  # fmt: skip
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


def _compiler() -> Finding:
    """Triton compiles a launcher for each of vLLM's kernels at run time, with $CC, gcc or clang."""
    found = os.environ.get("CC") or next((name for name in ("gcc", "clang") if shutil.which(name)), None)
    if found is not None:
        return Finding("C compiler", "ok", found)
    return _needed_on_a_gpu("C compiler", "no gcc and no clang: Triton, and with it vLLM, cannot compile its kernels",
                            "export CC=cc" if shutil.which("cc") else "apt install gcc (or dnf install gcc)")  # fmt: skip


def _python_header() -> Finding:
    scheme = sysconfig.get_default_scheme().replace("posix_local", "posix_prefix")  # as Triton asks, on Debian too
    header = Path(sysconfig.get_path("include", scheme)) / "Python.h"
    if header.is_file():
        return Finding("Python.h", "ok", str(header))
    package = f"python{sys.version_info.major}.{sys.version_info.minor}-dev"
    return _needed_on_a_gpu("Python.h", f"{header} is missing: Triton, and with it vLLM, cannot compile its kernels",
                            f"apt install {package} (or dnf install {package}el)")  # fmt: skip


def _needed_on_a_gpu(about: str, says: str, do: str) -> Finding:
    if torch.cuda.is_available():
        return Finding(about, "problem", says, do)
    return Finding(about, "ok", f"{says} (only needed on a GPU)")


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
    if variable := gpu.segments_that_stay():
        return Finding("allocator", "warning", f"{variable} enables expandable_segments: this vLLM does not notice, and may free "
                       "no memory in its sleep", "use PYTORCH_CUDA_ALLOC_CONF instead, or upgrade vLLM to 0.32")  # fmt: skip
    if variable := gpu.expandable_segments():
        return Finding("allocator", "ok", f"{variable} enables expandable_segments, which vLLM switches off for its own memory")
    return Finding("allocator", "ok", "no environment variable prevents the engine from freeing memory")


def _sandbox() -> Finding:
    held = levels()
    if held.is_tight:
        return Finding("sandbox", "ok", f"in force: {held}")
    do = (
        "use a machine with Linux 6.2 or later; training on programs or procedural tasks is refused here, unless "
        "--set reward.sandbox=weak, and so is reward.confine_functions"
    )
    return Finding("sandbox", "warning", f"weak, this kernel lacks {held.lacking}; in force: {held}", do)


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
    answer = isolated.run("microrl.commands.selftest", deadline_s=SELF_TEST_S)
    if "error" in answer:
        do = answer["hint"] or "for the full output, run `python -m microrl.commands.selftest`"
        return Finding("self-test", "problem", answer["error"], do)
    seen = answer["found"]
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
