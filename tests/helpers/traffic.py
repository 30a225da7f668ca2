"""Bytes and arithmetic of a forward and backward pass, counted op by op as the dispatcher sees them: each op reads its inputs and
writes its outputs once. Views are free; matrix products and attention are told from the rest, which is elementwise."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

PRODUCTS = {"mm", "addmm", "addmm_", "bmm", "baddbmm"}


@dataclass
class Count:
    ops: int = 0
    bytes: int = 0
    flop: float = 0.0


@dataclass
class Traffic(TorchDispatchMode):
    """Counts while it is on. `by_op` has the elementwise ops, `products` the matrix products by type."""

    by_op: dict[str, Count] = field(default_factory=lambda: defaultdict(Count))
    products: dict[str, Count] = field(default_factory=lambda: defaultdict(Count))
    attention: Count = field(default_factory=Count)

    def __post_init__(self) -> None:
        super().__init__()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        name = func.overloadpacket.__name__
        if func.is_view or name == "_unsafe_view":
            return out
        ins = [leaf for leaf in tree_leaves((args, kwargs or {})) if isinstance(leaf, torch.Tensor)]
        outs = [leaf for leaf in tree_leaves(out) if isinstance(leaf, torch.Tensor)]
        moved = sum(tensor.numel() * tensor.element_size() for tensor in (*ins, *outs))
        if "attention" in name:
            count = self.attention
        elif name in PRODUCTS:
            count = self.products[str(outs[0].dtype).removeprefix("torch.")]
            left = ins[1] if name in ("addmm", "addmm_", "baddbmm") else ins[0]
            count.flop += 2.0 * outs[0].numel() * left.shape[-1]
        else:
            count = self.by_op[name]
        count.ops += 1
        count.bytes += moved
        return out

    @property
    def elementwise_bytes(self) -> int:
        return sum(count.bytes for count in self.by_op.values())
