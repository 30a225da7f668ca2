"""The NVIDIA driver: is one here, is it new enough for torch, and what to do where torch sees no GPU beside it.

`problem_before_torch` tells what shows without importing torch. `problem` asks torch, but only where there is a driver:
`microrl plan` asks too, and starts without torch elsewhere.
"""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
import sys
import warnings
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from microrl.errors import UserError

PROC = Path("/proc/driver/nvidia")
"""Where Linux shows the driver once its kernel module is loaded."""
TOOL = "nvidia-smi"
ANSWER_S, LATE_S = 10.0, 0.5
"""Maximum seconds for nvidia-smi to answer, as the first call may have to start the driver; and after how many it is said that it
is waited for."""
NEEDED = {12: 525, 13: 580}
"""The lowest driver of each CUDA generation: NVIDIA's CUDA Compatibility guide, "Minor Version Compatibility", table 1."""
LOWEST = {12: (5, 0), 13: (7, 5)}
"""The lowest compute capability that each CUDA generation compiles for: its release notes, "Deprecated or Dropped
Features". A build of torch may have code for fewer: PyTorch's RELEASE.md lists 7.5 to 12.0 for CUDA 13.0."""
ON_CPU = 'to run on the CPU on purpose, set CUDA_VISIBLE_DEVICES=""'
TORCH_FOR_GPUS = "pip install --force-reinstall torch --index-url https://download.pytorch.org/whl/cu130"


def is_here() -> bool:
    """Whether this machine has an NVIDIA driver, or its tool."""
    return PROC.exists() or shutil.which(TOOL) is not None


def is_hidden() -> bool:
    """Whether CUDA_VISIBLE_DEVICES hides all GPUs on purpose: it is empty or -1."""
    return os.environ.get("CUDA_VISIBLE_DEVICES", "0").strip() in ("", "-1")


def version() -> str | None:
    """The driver's version, such as 550.54.14, from /proc or else from nvidia-smi; None where neither tells."""
    try:
        text = (PROC / "version").read_text(encoding="utf-8", errors="replace")
    except OSError:
        text = ""
    return _version_in(text) or _version_in(asked("driver_version"))


class Hangs(Exception):
    """nvidia-smi did not answer in time."""


def ask(*arguments: str) -> str:
    """What nvidia-smi prints; nothing where it is missing or fails. Raises Hangs."""
    tool = shutil.which(TOOL)
    if tool is None:
        return ""
    try:
        process = subprocess.Popen([tool, *arguments], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        try:
            said, _ = process.communicate(timeout=LATE_S)
        except subprocess.TimeoutExpired:
            print(f"waiting for {TOOL}, at most {ANSWER_S:g} s", file=sys.stderr, flush=True)
            said, _ = process.communicate(timeout=ANSWER_S - LATE_S)
    except subprocess.TimeoutExpired:
        process.kill()  # and not waited for: inside a driver that hangs, it does not end
        raise Hangs from None
    except (OSError, ValueError):
        return ""
    return said if process.returncode == 0 else ""


def asked(fields: str) -> str:
    """What nvidia-smi says of every card, a card a line; nothing where it is missing, fails or hangs."""
    try:
        return ask(f"--query-gpu={fields}", "--format=csv,noheader,nounits")
    except Hangs:
        return ""


def _version_in(text: str) -> str | None:
    match = re.search(r"(?<![\w.])\d{3,}\.\d+(?:\.\d+)*", text)  # the compiler's version in the same file has two digits
    return match[0] if match else None


def needed(cuda: str | None) -> int | None:
    """The lowest driver for a torch that is built for this CUDA version; None for a CPU build or an unknown generation."""
    return NEEDED.get(int(cuda.partition(".")[0])) if cuda else None


class Torch(NamedTuple):
    """The installed torch: its version, and the CUDA version that it is built for; None for a CPU build."""

    version: str
    cuda: str | None


def installed_torch() -> Torch | None:
    """As its `version.py` has it, without importing it; None where there is none, or the file is another one."""
    spec = importlib.util.find_spec("torch")
    folders = (spec.submodule_search_locations if spec is not None else None) or []
    for folder in folders:
        with suppress(OSError):
            text = (Path(folder) / "version.py").read_text(encoding="utf-8", errors="replace")
            version, cuda = (re.search(rf"^{name}\b[^=\n]*= *(?:'([^']+)'|None)", text, re.M) for name in ("__version__", "cuda"))
            if version is not None and version[1] and cuda is not None:
                return Torch(version[1], cuda[1])
    return None


def problem_before_torch() -> UserError | None:
    """Why torch cannot use the GPUs of this machine, as far as that shows without importing it, and what to do; None: nothing
    shows."""
    torch = installed_torch()
    if is_hidden() or torch is None or not is_here():
        return None
    return _of_build(torch) or _of_age(torch, version(), asks_library=True)


def _of_build(torch: Torch) -> UserError | None:
    if torch.cuda is not None:
        return None
    return UserError(
        f"torch {torch.version} is a build for CPUs, but this machine has {_named(version())}", f"{TORCH_FOR_GPUS}; {ON_CPU}"
    )


def _of_age(torch: Torch, driver_version: str | None, *, asks_library: bool = False) -> UserError | None:
    """The error for a driver that is older than torch needs. `asks_library`: unless the compatibility package is in its place."""
    least = needed(torch.cuda)
    if not (driver_version and least and int(driver_version.partition(".")[0]) < least):
        return None
    assert torch.cuda is not None
    if asks_library and (_cuda_of_library() or 0) >= int(torch.cuda.partition(".")[0]):
        return None
    package = "cuda-compat-" + "-".join(torch.cuda.split(".")[:2])
    return UserError(
        f"{_named(driver_version)} is too old: torch {torch.version} is built for CUDA {torch.cuda}, which needs driver {least} "
        "or later",
        f"upgrade the driver, or rent a machine with driver {least} or later; a data-centre GPU also runs with the "
        f"package {package} (put its libraries on LD_LIBRARY_PATH); {ON_CPU}",
    )


def _cuda_of_library() -> int | None:
    """The CUDA generation that the driver's library serves: with the compatibility package a newer one than the driver's own.

    Asked in a process of its own, since a run is forked, and no driver may be loaded before.
    """
    code = "import ctypes; n = ctypes.c_int(); ctypes.CDLL('libcuda.so.1').cuDriverGetVersion(ctypes.byref(n)); print(n.value)"
    try:
        output = subprocess.run([sys.executable, "-I", "-S", "-c", code], capture_output=True, text=True, timeout=ANSWER_S).stdout
        return int(output) // 1000
    except (OSError, ValueError, subprocess.SubprocessError):
        return None


def _named(driver_version: str | None) -> str:
    return f"NVIDIA driver {driver_version}" if driver_version else "an NVIDIA driver (its version cannot be read)"


def lowest_capability(cuda: str | None) -> tuple[int, int] | None:
    """The lowest compute capability that a torch for this CUDA version can have code for; None: a CPU build, or not known."""
    return LOWEST.get(int(cuda.partition(".")[0])) if cuda else None


def problem() -> UserError | None:
    """Why torch sees no GPU although there is a driver, and what to do; None: all is well, or there is no driver.

    A run would use the CPU then, hundreds of times slower than the GPU that was rented for it.
    """
    if is_hidden() or not is_here():
        return None
    import torch

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch's own words on an old driver come without a remedy
        if torch.cuda.is_available():
            return None
    installed, driver_version = Torch(torch.__version__, torch.version.cuda), version()
    if (error := _of_build(installed) or _of_age(installed, driver_version)) is not None:
        return error
    least = needed(installed.cuda)
    enough = f", which needs driver {least} or later" if least else ""
    return UserError(
        f"this machine has {_named(driver_version)}, but torch {installed.version} (built for CUDA {installed.cuda}{enough}) "
        "sees no GPU",
        f"does `nvidia-smi` list one? a container needs --gpus all, and CUDA_VISIBLE_DEVICES must name one that exists; {ON_CPU}",
    )


def require_gpu() -> None:
    """Raises UserError where there is a driver but torch sees no GPU, unless CUDA_VISIBLE_DEVICES says so."""
    if (error := problem()) is not None:
        raise error
