"""Check whether this machine can train: one finding after the other, with what to do about it, and a self-test at the end."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from importlib import metadata

import torch
from packaging.requirements import Requirement

from microrl.commands import isolated
from microrl.errors import INSTALL_GPU
from microrl.limits import GB, auto_dtype
from microrl.models import driver, gpu, hub
from microrl.rollout.preflight import SUPPORTED, installed
from microrl.run import caches, machine, room
from microrl.sandbox import levels
from microrl.types import Finding

SELF_TEST_S = 600.0
"""Deadline of the self-test in seconds. It takes half a minute, but the first one on a new machine also reads torch and vLLM
from a cold disk, and compiles kernels."""
TOGETHER = ("torch", "transformers")
"""The packages whose versions vLLM pins."""


def examine(*, self_test: bool = True) -> Iterator[Finding]:
    """All findings, quick checks first."""
    yield from _card()
    yield caches.move(with_compilers=torch.cuda.is_available()) or Finding("caches", "ok", "can be written")
    yield machine.compiler(is_needed=torch.cuda.is_available())
    yield machine.python_header(is_needed=torch.cuda.is_available())
    yield from _libraries()
    yield from _vllm()
    yield _allocator()
    yield _sandbox()
    yield from room.disks()
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
    _, findings = machine.of_gpu()
    yield from findings
    if not any(one.about == "GPU memory" for one in findings):
        yield Finding("GPU memory", "ok", f"{free / GB:.1f} of {total / GB:.1f} GB are free")
    if auto_dtype((major, minor)) != "bfloat16":
        yield Finding("bfloat16", "ok", "this GPU has no fast bfloat16: models are loaded in float16")


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
        version = metadata.version(wanted.name)
    except metadata.PackageNotFoundError:
        return f"{wanted.name} is missing"
    if wanted.specifier.contains(version, prereleases=True):
        return None
    return f"{wanted.name} is {version}, but {wanted.specifier} is required"


def _vllm() -> Iterator[Finding]:
    vllm = installed()
    if vllm is None:
        cuda = torch.cuda.is_available()
        do = f"sampling takes an estimated 2 to 7 times as long without vLLM; {INSTALL_GPU}" if cuda else None
        yield Finding("vLLM", "warning" if cuda else "ok", "not installed: sampling uses transformers", do)
        return
    if not vllm.is_supported:
        yield Finding("vLLM", "problem", f"{vllm.version} is not supported ({SUPPORTED} are)", INSTALL_GPU)
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
    return Finding("allocator", "ok", "neither PYTORCH_ALLOC_CONF nor PYTORCH_CUDA_ALLOC_CONF enables expandable_segments, which "
                   "can keep vLLM's sleep from freeing memory")  # fmt: skip


def _sandbox() -> Finding:
    held = levels()
    if held.is_enforced:
        return Finding("sandbox", "ok", f"in force: {held}")
    do = (
        "use a machine with Linux 6.2 or later; here, reward.confine_functions is refused, and training on programs or "
        "procedural tasks needs --set reward.sandbox=weak"
    )
    return Finding("sandbox", "warning", f"weak: this kernel lacks {held.lacking}; in force: {held}", do)


def _hub() -> Finding:
    elsewhere = "download model and data on another machine with `hf download`, then pass --model FOLDER --data FILE"
    if hub.is_offline():
        says = "switched off by HF_HUB_OFFLINE: only local models and data can be used"
        return Finding("Hugging Face Hub", "warning", says, f"unset HF_HUB_OFFLINE to use the hub; or {elsewhere}")
    if hub.reachable():
        return Finding("Hugging Face Hub", "ok", "not checked: a proxy is set" if hub.behind_proxy() else "reachable")
    says = f"no answer from {hub.endpoint()}: only local models and data can be used"
    do = f"check the network, or set HF_ENDPOINT to a mirror or https_proxy to a proxy; or {elsewhere}"
    return Finding("Hugging Face Hub", "warning", says, do)


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
