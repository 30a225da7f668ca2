"""A machine that is not this one: an `nvidia-smi` that answers as told, and a torch for CUDA that nobody may import."""

import os
import shutil
import sysconfig
from pathlib import Path

GIB = 2**30
A40 = "0, GPU-a40a40a4-0000-0000-0000-000000000000, NVIDIA A40, 8.6, 46068, 45400, [N/A]"
T4 = "1, GPU-04040404-0000-0000-0000-000000000000, Tesla T4, 7.5, 15360, 14900, [N/A]"
P100 = "0, GPU-10010010-0000-0000-0000-000000000000, Tesla P100-PCIE-16GB, 6.0, 16384, 16270, [N/A]"
SLICED = "0, GPU-a1a1a1a1-0000-0000-0000-000000000000, NVIDIA A100-SXM4-80GB, 8.0, [N/A], [N/A], Enabled"
SLICES = """\
GPU 0: NVIDIA A100-SXM4-80GB (UUID: GPU-a1a1a1a1-0000-0000-0000-000000000000)
  MIG 1g.10gb     Device  0: (UUID: MIG-11111111-0000-0000-0000-000000000000)
  MIG 3g.40gb     Device  1: (UUID: MIG-33333333-0000-0000-0000-000000000000)
"""
ANSWERS = {"driver_version": "580.65.06", "query-gpu": A40, "compute-apps": "", "-L": ""}


def nvidia_smi(folder: Path, *, hangs: bool = False, status: int = 0, **answers: str) -> str:
    """Write one into `folder`; returns a PATH that has it first. `answers` replace ANSWERS: driver, cards, apps, slices."""
    folder.mkdir(exist_ok=True)
    names = {"driver": "driver_version", "cards": "query-gpu", "apps": "compute-apps", "slices": "-L"}
    told = ANSWERS | {names[name]: text for name, text in answers.items()}
    cases = "".join(f"*{asked}*) cat <<'END'\n{text}\nEND\n;;\n" for asked, text in told.items())
    script = folder / "nvidia-smi"
    script.write_text(f'#!/bin/sh\n{"exec sleep 60" if hangs else ""}\ncase "$*" in\n{cases}esac\nexit {status}\n')
    script.chmod(0o755)
    return f"{folder}{os.pathsep}{os.environ['PATH']}"


def without_compilers(folder: Path, path: str) -> str:
    """A PATH with the same programs but for gcc, clang and cc."""
    folder.mkdir()
    for place in reversed(path.split(os.pathsep)):
        for program in Path(place).glob("*") if Path(place).is_dir() else ():
            target = folder / program.name
            if program.name not in ("gcc", "clang", "cc"):
                target.unlink(missing_ok=True)
                target.symlink_to(program)
    return str(folder)


def packages(folder: Path, *, cuda: str | None = "13.0", vllm: str | None = "0.32.0") -> str:
    """A folder for PYTHONPATH with a torch for this CUDA version, which fails when it is imported, and vLLM's name."""
    torch = folder / "torch"
    torch.mkdir(parents=True)
    torch.joinpath("__init__.py").write_text("raise AssertionError('torch was imported')")
    torch.joinpath("version.py").write_text(f"__version__ = '2.13.0'\ncuda: Optional[str] = {cuda!r}\n")
    if vllm is not None:
        info = folder / f"vllm-{vllm}.dist-info"
        info.mkdir()
        info.joinpath("METADATA").write_text(f"Metadata-Version: 2.1\nName: vllm\nVersion: {vllm}\n")
    return str(folder)


def python_without_header(folder: Path) -> str:
    """A folder for PYTHONPATH whose `sitecustomize` has Python look for its headers in a place without any."""
    folder.mkdir()
    code = "import sysconfig\nfound = sysconfig.get_path\n"
    code += f"sysconfig.get_path = lambda name, *a, **k: {str(folder)!r} if name == 'include' else found(name, *a, **k)\n"
    folder.joinpath("sitecustomize.py").write_text(code)
    return str(folder)


def has_header() -> bool:
    return Path(sysconfig.get_path("include"), "Python.h").is_file() and shutil.which("gcc") is not None
