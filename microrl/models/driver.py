"""The NVIDIA driver: is one here, is it new enough for torch, and what to do where torch sees no GPU beside it.

Imports torch only where there is a driver: `microrl plan` asks too, and starts without torch elsewhere.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import warnings
from collections.abc import Mapping
from pathlib import Path

from microrl.errors import UserError

PROC = Path("/proc/driver/nvidia")
"""Where Linux shows the driver once its kernel module is loaded."""
TOOL = "nvidia-smi"
ANSWER_S = 10.0
"""Maximum seconds for nvidia-smi to answer: the first call may have to start the driver."""
NEEDED = {12: 525, 13: 580}
"""The lowest driver of each CUDA generation: NVIDIA's CUDA Compatibility guide, "Minor Version Compatibility", table 1."""
ON_CPU = 'to run on the CPU on purpose, set CUDA_VISIBLE_DEVICES=""'
TORCH_FOR_GPUS = "pip install --force-reinstall torch --index-url https://download.pytorch.org/whl/cu130"


def is_here() -> bool:
    """Whether this machine has an NVIDIA driver, or its tool."""
    return PROC.exists() or shutil.which(TOOL) is not None


def is_hidden(environment: Mapping[str, str] = os.environ) -> bool:
    """Whether CUDA_VISIBLE_DEVICES hides all GPUs on purpose: it is empty or -1."""
    return environment.get("CUDA_VISIBLE_DEVICES", "0").strip() in ("", "-1")


def version() -> str | None:
    """The driver's version, such as 550.54.14, from /proc or else from nvidia-smi; None where neither tells."""
    try:
        told = (PROC / "version").read_text(encoding="utf-8", errors="replace")
    except OSError:
        told = ""
    return _version_in(told) or _version_in(asked("driver_version"))


def asked(fields: str, timeout_s: float = ANSWER_S) -> str:
    """What nvidia-smi answers, a card a line; nothing where it is missing, fails or hangs."""
    tool = shutil.which(TOOL)
    if tool is None:
        return ""
    query = [tool, f"--query-gpu={fields}", "--format=csv,noheader,nounits"]
    try:
        return subprocess.run(query, capture_output=True, text=True, timeout=timeout_s, check=True).stdout
    except (OSError, subprocess.SubprocessError, ValueError):
        return ""


def _version_in(text: str) -> str | None:
    found = re.search(r"(?<![\w.])\d{3,}\.\d+(?:\.\d+)*", text)  # the compiler's version in the same file has two digits
    return found[0] if found else None


def needed(cuda: str | None) -> int | None:
    """The lowest driver for a torch that is built for this CUDA version; None for a CPU build or an unknown generation."""
    return NEEDED.get(int(cuda.partition(".")[0])) if cuda else None


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
    found, cuda = version(), torch.version.cuda
    driver = f"NVIDIA driver {found}" if found else "an NVIDIA driver (its version cannot be read)"
    if cuda is None:
        return UserError(f"torch {torch.__version__} is a build for CPUs, but this machine has {driver}",
                         f"{TORCH_FOR_GPUS}; {ON_CPU}")  # fmt: skip
    least = needed(cuda)
    if found and least and int(found.partition(".")[0]) < least:
        package = "cuda-compat-" + "-".join(cuda.split(".")[:2])
        return UserError(
            f"{driver} is too old: torch {torch.__version__} is built for CUDA {cuda}, which needs driver {least} or later",
            f"upgrade the driver, or rent a machine with driver {least} or later; a data-centre GPU also runs with the "
            f"package {package} (put its libraries on LD_LIBRARY_PATH); {ON_CPU}",
        )
    enough = f", which needs driver {least} or later" if least else ""
    return UserError(
        f"this machine has {driver}, but torch {torch.__version__} (built for CUDA {cuda}{enough}) sees no GPU",
        f"does `nvidia-smi` list one? a container needs --gpus all, and CUDA_VISIBLE_DEVICES must name one that exists; {ON_CPU}",
    )


def require_gpu() -> None:
    """Raises UserError where there is a driver but torch sees no GPU, unless CUDA_VISIBLE_DEVICES says so."""
    if (error := problem()) is not None:
        raise error
