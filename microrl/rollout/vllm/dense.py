"""One adapter needs no Punica: vLLM's LoRA layers with two dense products, y += s (x A^T) B^T, of cuBLAS on a GPU.

Punica (Chen et al. 2023, arXiv:2310.18547) picks an adapter for every row. This engine serves one adapter to all rows, or none.
Its kernels are slow at rank 256 and add up by atomics, so that a seed does not repeat its samples. x A^T is rounded to the type
of x, as in the trainer's `LoraProduct`; the products themselves add up in float32.

What this relies on, as read in vLLM 0.32's wheel for CUDA:

- `Platform.get_punica_wrapper` names the class that `LoRAModelManager` builds while the model is loaded.
- `BaseLinearLayerWithLoRA._apply_lora_to_output` calls its `add_lora_linear` with the layer's own stacked buffers, whose
  addresses never change. Dynamo translates that call once, without guards: what a batch decides has to be read inside of an
  operator, from a tensor on the CPU, as `LoRAKernelMeta.no_lora_flag_cpu` is.
- `set_adapter_mapping` calls `update_metadata` before each forward pass whose mapping is another one, and before each capture of
  a CUDA graph. `get_lora_capture_cases` and `CudagraphDispatcher._get_lora_cases` capture each size with an adapter and without.
- `aot_compile_hash_factors` knows compiled graphs by `VllmConfig.compute_hash`, of which `additional_config` is a part.
- Embeddings, heads and layers of experts (`add_lora_logits`, `add_lora_w13`, `add_lora_w2`) keep vLLM's own kernels.
- With VLLM_LORA_ENABLE_DUAL_STREAM the update is computed beside the base (`add_inputs=False`), into zeros.
"""

from __future__ import annotations

import importlib
import inspect
import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Literal
from unittest import mock

import torch

Products = Literal["dense", "punica"]
PRODUCTS: dict[Products, str] = {"dense": "dense matmuls", "punica": "its own kernels (Punica)"}
ASKED = "MICRORL_LORA_PRODUCTS"
"""Environment variable: `punica` keeps vLLM's own kernels."""
TAKEN_OVER = {
    "add_lora_linear": ("self", "y", "x", "lora_a_stacked", "lora_b_stacked", "scale", "output_slices"),
    "update_metadata": ("self", "mapping"),
}
"""What `Dense` replaces of vLLM's class: a vLLM whose methods begin otherwise keeps its own way."""


def add_low_rank_(
    y_NO: torch.Tensor,
    x_NI: torch.Tensor,
    A_1_1_R_I: Sequence[torch.Tensor],
    B_1_1_P_R: Sequence[torch.Tensor],
    widths: Sequence[int],
    scale: float,
    serves: torch.Tensor,
) -> None:
    """y += s (x A^T) B^T in place, for each of the layers packed in y: the next P of its columns, as `widths` says.

    `serves` [1], on the CPU: whether there is an adapter. Without one nothing is done, and a graph captured then holds nothing.
    """
    if not serves.item():
        return
    first = 0
    for A, B, width in zip(A_1_1_R_I, B_1_1_P_R, widths, strict=True):
        y_NO[:, first : first + width].addmm_(x_NI @ A[0, 0].t(), B[0, 0].t(), alpha=scale)
        first += width


_LIBRARY = torch.library.Library("microrl", "DEF")
_LIBRARY.define("add_low_rank_(Tensor(a!) y, Tensor x, Tensor[] A, Tensor[] B, int[] widths, float scale, Tensor serves) -> ()")
_LIBRARY.impl("add_low_rank_", add_low_rank_, "CompositeExplicitAutograd")
torch.library.register_fake("microrl::add_low_rank_", lambda *_: None, lib=_LIBRARY)


class Dense:
    """To be derived from together with vLLM's own class, whose linear layers it takes over."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.serves = torch.zeros(1, dtype=torch.bool, device="cpu")

    def update_metadata(self, mapping: Any, *args: Any, **kwargs: Any) -> None:
        """The driver sees to it that a batch has requests of one kind: all with the adapter, or (number 0) all without."""
        super().update_metadata(mapping, *args, **kwargs)  # type: ignore[misc]
        self.serves.fill_(any(mapping.index_mapping))

    def add_lora_linear(
        self,
        y: torch.Tensor,
        x: torch.Tensor,
        lora_a_stacked: tuple[torch.Tensor, ...],
        lora_b_stacked: tuple[torch.Tensor, ...],
        scale: float,
        output_slices: tuple[int, ...],
        **others: Any,
    ) -> Any:
        """`add_low_rank_`; vLLM's own kernels where it wants more than that, or in several types."""
        if others.keys() - {"add_inputs"} or {x.dtype, y.dtype} != {lora_a_stacked[0].dtype}:
            return super().add_lora_linear(y, x, lora_a_stacked, lora_b_stacked, scale, output_slices, **others)  # type: ignore[misc]
        y_NO, x_NI = y.view(-1, y.shape[-1]), x.view(-1, x.shape[-1])
        return torch.ops.microrl.add_low_rank_(y_NO, x_NI, lora_a_stacked, lora_b_stacked, output_slices, scale, self.serves)


Wrapper: type | None = None
"""What vLLM finds by its name while it is built."""


@contextmanager
def dense_products(options: dict[str, Any]) -> Iterator[None]:
    """Have a vLLM that is built inside with these options multiply densely, if it is built for adapters and can be.

    It is told in the options too, for its cache of compiled graphs. `products_of` says what came of it.
    """
    from vllm.platforms import current_platform

    own = _own_wrapper(current_platform)
    if own is None or not options.get("enable_lora") or os.environ.get(ASKED) == "punica":
        yield
        return
    global Wrapper
    Wrapper = type(f"Dense{own.__name__}", (Dense, own), {})
    options["additional_config"] = {"lora_products": "dense"}
    with mock.patch.object(type(current_platform), "get_punica_wrapper", classmethod(lambda cls: f"{__name__}.Wrapper")):
        yield


def products_of(layers: Iterable[Any]) -> Products:
    """How these LoRA layers of vLLM multiply."""
    return "dense" if all(isinstance(layer.punica_wrapper, Dense) for layer in layers) else "punica"


def _own_wrapper(platform: Any) -> type | None:
    """vLLM's own class, if it has what `Dense` takes over."""
    try:
        module, _, name = platform.get_punica_wrapper().rpartition(".")
        own: type = getattr(importlib.import_module(module), name)
        parameters = {method: tuple(inspect.signature(getattr(own, method)).parameters) for method in TAKEN_OVER}
    except (ImportError, AttributeError, NotImplementedError):
        return None
    return own if all(parameters[method][: len(begin)] == begin for method, begin in TAKEN_OVER.items()) else None
