"""The cards a run may be rented on: memory, bandwidth, arithmetic, and about what an hour costs."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

from microrl.errors import UserError, did_you_mean
from microrl.limits import MIN_BF16, auto_dtype
from microrl.plan.calibration import Calibration
from microrl.terminal import counted


@dataclass(frozen=True, slots=True)
class Device:
    """A GPU as its data sheet has it, or a CPU. Only its calibration, if it has one, was measured."""

    name: str
    """What `--gpu` takes."""
    label: str
    memory_gb: float
    """What CUDA reports as its total, in units of 1e9 bytes: less than nvidia-smi's total, and not the size in its name."""
    bandwidth_gb_s: float
    tflops: float
    """Dense bfloat16 products with fp32 sums (t4: float16; cpu: float32), in 1e12 operations a second."""
    usd_hour: float
    """Usual rent on demand; 0 where it is the user's own."""
    fp32_tflops: float = 0.0
    """float32 outside the tensor cores: the adapters' precision. 0 takes an eighth of `tflops`."""
    product_tflops: float = 0.0
    """What large products in 16 bits were measured to reach, by others; 0 takes `PRODUCT_SHARE` of `tflops`."""
    capability: tuple[int, int] = (8, 0)
    """CUDA's compute capability; of a CPU it says nothing."""
    calibration: Calibration | None = None
    """What was measured on such a device, in place of the stated efficiencies."""
    calibration_warning: str | None = None
    """Why a calibration that exists is not used."""

    @property
    def is_cpu(self) -> bool:
        return self.name == CPU

    @property
    def fp32(self) -> float:
        """float32 operations a second."""
        return (self.fp32_tflops or self.tflops / 8) * 1e12

    @property
    def products(self) -> float:
        """Operations a second of large products in 16 bits."""
        return (self.product_tflops or PRODUCT_SHARE * self.tflops) * 1e12

    @property
    def fp64(self) -> float:
        """float64 operations a second: half of float32's on the cards for computing centres, a 32nd or a 64th on the others."""
        return self.fp32 / (2 if self.capability in FULL_FP64 else 32 if self.capability < MIN_BF16 else 64)

    @property
    def auto_dtype(self) -> str:
        """What `model.dtype=auto` is here."""
        return auto_dtype(None if self.is_cpu else self.capability)


FULL_FP64 = {(6, 0), (7, 0), (8, 0), (9, 0), (10, 0)}


CPU = "cpu"
PRODUCT_SHARE = 0.8
"""Of the data sheet's arithmetic, what large products reach where nobody's measurement is known to us."""
CPU_CORE_TFLOPS = 0.05
"""float32 products of one core: AVX2 at 3 GHz reaches about this much in large matrices."""
CPU_BANDWIDTH_GB_S = 12.0

GIB = 2**30 / 1e9
# Arithmetic and bandwidth: NVIDIA's data sheets, without sparsity.
# Memory: the "total capacity" in torch's out-of-memory messages, which is what `torch.cuda.mem_get_info` returns. By issue on
# GitHub: t4 Zheng-Chong/CatVTON#133, 3090 GaoLii/DSP#10, 4090 ali-vilab/VGen#104, 5090 Wan-Video/Wan2.1#465, rtx6000ada
# DINGYANB/MTVCrafter#21 (with ECC, as a10g, a40 and l40s), a100-40gb TianheWu/CoSeR#10, a100 wbfwonderful/Vad-R1#11. l4, a10g,
# a6000, l40s, h100, h200 and b200: messages in public logs of those cards, which agree to 0.1 GiB. a40: as l40s, since
# nvidia-smi shows 46068 MiB for both. Drivers differ by up to half a per cent; a run takes what its own card reports.
# Rents: a40 as the micro paper paid it (a list price in August 2026 is 0.44). The others are rough on-demand prices of the
# marketplaces and neoclouds (RunPod, Vast, Verda, Jarvislabs, Akash) as their pages and price indices had them between August
# and November 2026; a10g is AWS's g5.xlarge. They move by half within a year and differ by a factor of four between
# vendors, so `--price` says what yours costs.
# Large products: the largest sizes of torch.matmul in bfloat16 (t4: float16), github.com/zzc0721/torch-performance-test-data at
# 9d82827, the median where there are several; a40 from its issue 185. a10g, rtx6000ada, h200 and b200 are not in it.
_TABLE = (
    Device("t4", "NVIDIA T4 16 GB", 14.56 * GIB, 320, 65, 0.20, 8.1, 42, (7, 5)),
    Device("l4", "NVIDIA L4 24 GB", 22.03 * GIB, 300, 121, 0.44, 30.3, 71, (8, 9)),
    Device("a10g", "NVIDIA A10G 24 GB", 22.06 * GIB, 600, 70, 1.01, 31.5, 0, (8, 6)),
    Device("3090", "GeForce RTX 3090 24 GB", 23.70 * GIB, 936, 71, 0.22, 35.6, 77, (8, 6)),
    Device("4090", "GeForce RTX 4090 24 GB", 23.64 * GIB, 1008, 165, 0.34, 82.6, 163, (8, 9)),
    Device("5090", "GeForce RTX 5090 32 GB", 31.37 * GIB, 1792, 210, 0.69, 104.8, 238, (12, 0)),
    Device("a40", "NVIDIA A40 48 GB", 44.39 * GIB, 696, 150, 0.30, 37.4, 122, (8, 6)),
    Device("a6000", "RTX A6000 48 GB", 47.50 * GIB, 768, 155, 0.49, 38.7, 123, (8, 6)),
    Device("l40s", "NVIDIA L40S 48 GB", 44.39 * GIB, 864, 362, 0.94, 91.6, 269, (8, 9)),
    Device("rtx6000ada", "RTX 6000 Ada 48 GB", 44.43 * GIB, 960, 364, 0.74, 91.1, 0, (8, 9)),
    Device("a100-40gb", "NVIDIA A100 40 GB", 39.50 * GIB, 1555, 312, 1.00, 19.5, 240, (8, 0)),
    Device("a100", "NVIDIA A100 80 GB", 79.25 * GIB, 2039, 312, 1.39, 19.5, 265, (8, 0)),
    Device("h100", "NVIDIA H100 SXM 80 GB", 79.18 * GIB, 3350, 989, 2.69, 67.0, 791, (9, 0)),
    Device("h200", "NVIDIA H200 141 GB", 139.80 * GIB, 4800, 989, 4.44, 67.0, 0, (9, 0)),
    Device("b200", "NVIDIA B200 180 GB", 178.35 * GIB, 8000, 2250, 5.98, 75.0, 0, (10, 0)),
)
DEVICES: dict[str, Device] = {device.name: device for device in _TABLE}
_SPELLINGS = {re.sub("[^a-z0-9]", "", name): name for name in DEVICES} | {
    "a10": "a10g", "a10080gb": "a100", "6000ada": "rtx6000ada",
}  # fmt: skip
_NOISE = re.compile(r"nvidia|geforce|tesla|rtx|sxm\d?|pcie|hbm\d?e?|generation|[^a-z0-9]")
_MEMORY = re.compile(r"[\s_-]+\d+\s*gi?b\b")


def find(name: str) -> Device:
    """The card of this name, however it is spelled: `a40`, `RTX 4090`, `rtx-4090`, `H100 80GB`. Raises UserError."""
    device = _lookup(name)
    if device is None:
        raise UserError(f"unknown GPU `{name}`", did_you_mean(name, [*DEVICES, CPU]))
    return device


def of_device(name: str, memory_gb: float, capability: tuple[int, int] | None = None) -> Device:
    """The card by the name that its driver gives it, with the memory (units of 1e9 bytes) and capability that it really has.

    nvidia-smi counts what the driver keeps for itself: more than the table says is cut to it. One that is not in the table is
    taken for an older card of its memory, and labelled so.
    """
    device = _lookup(name)
    if device is not None and memory_gb > 0.75 * device.memory_gb:  # less is a slice of it
        return replace(device, memory_gb=min(memory_gb, device.memory_gb), capability=capability or device.capability)
    smaller = [known for known in _TABLE if known.memory_gb <= memory_gb * 1.1] or [DEVICES["t4"]]
    # The slowest of about the largest that are not larger: a guess that disappoints in the right direction.
    largest = max(known.memory_gb for known in smaller)
    like = min((known for known in smaller if known.memory_gb > 0.9 * largest), key=lambda known: known.bandwidth_gb_s)
    label = f"{name} (unknown GPU, estimated as {like.label})"
    return replace(like, name=name, label=label, memory_gb=memory_gb, capability=capability or like.capability)


def cpu(cores: int, memory_gb: float) -> Device:
    """This machine without a GPU; costs nothing."""
    tflops = cores * CPU_CORE_TFLOPS
    return Device(CPU, f"CPU, {counted(cores, 'core')}", memory_gb, CPU_BANDWIDTH_GB_S, tflops, 0.0, tflops)


def _lookup(name: str) -> Device | None:
    """By name without case, vendor and spacing; then without the memory that stands in it."""
    lowered = name.lower()
    for text in (lowered, _MEMORY.sub("", lowered)):
        for spelling in (re.sub(r"[^a-z0-9]", "", text), _NOISE.sub("", text)):
            if spelling in _SPELLINGS:
                return DEVICES[_SPELLINGS[spelling]]
    return None
