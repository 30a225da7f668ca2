"""vLLM's own interfaces to weights, adapters, requests and memory; what differs from 0.26 to 0.33 is found out by looking.

vLLM never reads weights from disk: it starts on dummies, and the trainer's own tensors are pushed into it.
"""

from __future__ import annotations

import gc
from collections.abc import Mapping, Sequence
from copy import copy
from itertools import accumulate
from typing import Any

import torch
from transformers import PreTrainedModel

from microrl.config.adapter import kind_of
from microrl.models import gpu
from microrl.models.tensors import shape_of, weights
from microrl.rollout.requests import Request
from microrl.rollout.vllm.dense import Products, products_of
from microrl.rollout.vllm.launch import VllmSettings, start
from microrl.types import AdapterSnapshot, LowRank, Sampling


class VllmDriver:
    """One running engine: weights and adapters in, requests through, memory freed and taken back.

    `llm`, `engine`, `runner` and `adapter_manager` are vLLM's own parts.
    """

    def __init__(self, base: PreTrainedModel, settings: VllmSettings) -> None:
        self._base, self.settings = base, settings
        self.llm = start(base, settings)
        self.engine = self.llm.llm_engine
        self.runner = self.engine.model_executor.driver_worker.model_runner
        self.lora_request: Any = None
        """The adapter of requests to come, as vLLM is told of it; None: the base."""
        self._adapters = self._requests = 0
        self._unfinished: set[str] = set()
        newer = bool(getattr(self.engine.vllm_config, "use_v2_model_runner", False))
        self.seeded = newer or base.device.type != "cuda"
        """Whether a seed of its own costs a request nothing: on a GPU the older runner draws such rows one by one."""

    @property
    def adapter_manager(self) -> Any:
        return self.runner.lora_manager._adapter_manager

    @property
    def lora_products(self) -> Products | None:
        """How the engine multiplies by an adapter's factors; None: it has no buffers for them."""
        return None if self.settings.sync == "merge" else products_of(self.adapter_manager.modules.values())

    def close(self) -> None:
        """Take the engine down; only on a CPU (see `VllmEngine.close`). A second time there is nothing to do."""
        if not hasattr(self, "engine"):
            return
        from vllm.distributed import cleanup_dist_env_and_memory

        self.engine.model_executor.shutdown()
        del self.llm, self.engine, self.runner
        gc.collect()
        cleanup_dist_env_and_memory()

    # ---- weights

    def load(self, snapshot: AdapterSnapshot) -> None:
        """Every weight of the trainer's base, with this snapshot merged, into the engine's own memory. Adapters are lost."""
        self.lora_request = None
        self._empty_buffers()  # in which a sleep of level 2 may have left anything
        wrapped = self._wrapped_layers()
        named = ((_inside(name, wrapped), tensor) for name, tensor in weights(self._base, snapshot, for_engine=True))
        with torch.no_grad():
            self.engine.collective_rpc("reload_weights", kwargs={"weights_iterator": named})
            head: Any = getattr(self.runner.model, "lm_head", None)
            if hasattr(head, "cpu_linear"):  # a CPU keeps a packed copy, which a tied head is not told to renew
                head.quant_method.process_weights_after_loading(head)

    def _wrapped_layers(self) -> set[str]:
        """The layers to be named with their wrapper: before 0.28 vLLM did not look for weights inside of it."""
        if self.settings.sync == "merge":
            return set()
        from vllm.lora.layers import BaseLayerWithLoRA

        if hasattr(BaseLayerWithLoRA, "load_weights"):
            return set()
        manager = self.adapter_manager
        return {part for whole in manager.modules for part in manager.packed_modules.get(whole, [whole])}

    def swap(self, pairs: Mapping[str, LowRank]) -> None:
        """The pairs as the one adapter of the requests to come, from memory, under a new number that no cache knows."""
        from vllm.lora.lora_model import LoRAModel
        from vllm.lora.lora_weights import LoRALayerWeights
        from vllm.lora.request import LoRARequest

        self.drop_adapters()
        self._adapters += 1
        number, layers = self._adapters, {}
        for name, pair in pairs.items():
            A_RI, B_OR = self._served(pair)
            # The scale is in B already. Told of a scale, vLLM would multiply it into the tensor it is given, in place.
            own = self._own_name(name)
            layers[own] = LoRALayerWeights(own, len(A_RI), len(A_RI), A_RI, B_OR)
        manager, adapter = self.adapter_manager, LoRAModel(number, self.settings.rank, layers)
        manager.add_adapter(adapter)
        manager.activate_adapter(number)
        adapter.loras.clear()  # the kernels read the engine's buffers: these copies would only stay on the card
        self.lora_request = LoRARequest(f"microrl-{number}", number, lora_path="in-memory")

    def drop_adapters(self) -> None:
        """Requests go to the base from now on. Raises RuntimeError while earlier ones are being decoded."""
        if self._unfinished:
            raise RuntimeError(f"{len(self._unfinished)} requests for another adapter are still being decoded")
        self.lora_request = None
        if self.settings.sync != "merge":
            for number in list(self.adapter_manager.list_adapters()):
                self._empty_buffers()
                self.adapter_manager.remove_adapter(number)

    def _empty_buffers(self) -> None:
        """Zero the factors: dense products of them change nothing. Not while they sleep: their memory is not there."""
        if self.settings.sync != "merge":
            for module in self.adapter_manager.modules.values():
                module.reset_lora(0)

    def reset_cache(self) -> None:
        """Forget the keys and values of prompts, which older weights have computed."""
        if not self.llm.reset_prefix_cache():
            raise RuntimeError("vLLM would not reset its prompt cache: requests of an earlier step are still in it")

    def _served(self, pair: LowRank) -> tuple[torch.Tensor, torch.Tensor]:
        """The factors as the engine holds them, in tensors of their own: its type, its device, the scale in B."""
        dtype, device = self.adapter_manager.lora_config.lora_dtype, self._base.device
        return pair.A_RI.detach().to(device, dtype, copy=True), (pair.B_OR.detach().float() * pair.scale).to(device, dtype)

    # ---- what is really in memory

    def weights_difference(self, snapshot: AdapterSnapshot) -> str | None:
        """The first parameter that is not, bit by bit, the trainer's with this snapshot merged; None: all are."""
        for name, expected in weights(self._base, snapshot, for_engine=True):
            try:
                if not self._holds(name, expected):
                    return f"`{name}` in vLLM's memory is not the trainer's"
            except AttributeError:
                return f"`{name}` has no counterpart in vLLM's model"
        return None

    def adapter_difference(self, pairs: Mapping[str, LowRank]) -> str | None:
        """The first layer whose adapter, in the buffers that the kernels read, is not this one bit by bit; None: all are."""
        manager = self.adapter_manager
        if self.lora_request is None or self.lora_request.lora_int_id not in manager.lora_index_to_id:
            return "no adapter of this version is active in vLLM"
        slot = manager.lora_index_to_id.index(self.lora_request.lora_int_id)
        parts = {part: (whole, names) for whole, names in manager.packed_modules.items() for part in names}
        for name, pair in pairs.items():
            own = self._own_name(name)
            whole, names = parts.get(own, (own, [own]))
            if whole not in manager.modules:
                return f"`{name}` has no adapter in vLLM"
            A_RI, B_OR = self._served(pair)
            R = len(A_RI)  # the buffers are as wide as the largest rank: the rest must be empty
            layer, begin = manager.modules[whole], self._rows_before(name, names) if own in parts else 0
            rows = accumulate((len(B[slot, 0]) for B in layer.lora_b_stacked), initial=0)
            # A layer may be kept in several slices, each with the same A, as that of Mamba's inputs is.
            held = [
                (A[slot, 0], B[slot, 0])
                for A, B, row in zip(layer.lora_a_stacked, layer.lora_b_stacked, rows, strict=False)
                if begin <= row < begin + len(B_OR)
            ]
            same = all(torch.equal(A_LI[:R], A_RI) and not (A_LI[R:].any() or B_PL[:, R:].any()) for A_LI, B_PL in held)
            if not (held and same and torch.equal(torch.cat([B_PL[:, :R] for _, B_PL in held]), B_OR)):
                return f"the adapter of `{name}` in vLLM's memory is not the trainer's"
        return None

    def _holds(self, name: str, expected: torch.Tensor) -> bool:
        """Whether the engine holds this tensor, by the name that the trainer has for it: its rows of what vLLM keeps in one."""
        model = self.runner.model
        fused = getattr(model, "packed_modules_mapping", {})
        module, _, leaf = self._own_name(name).rpartition(".")
        parent, _, last = module.rpartition(".")
        packed = next((key for key, parts in fused.items() if last in parts and len(parts) > 1), None)
        if packed is not None and not hasattr(model.get_submodule(parent), packed):
            packed = None  # layers that share keys and values with earlier ones: there the queries are on their own
        holder = model.get_submodule(f"{parent}.{packed}" if packed else module)
        holder = getattr(holder, "base_layer", holder)
        if name.endswith(".A_log") and hasattr(holder, "A"):  # of Mamba's layers vLLM keeps what it computes with
            leaf, expected = "A", -expected.float().exp()
        unpacked = getattr(holder, "_cpu_unpacked_conv_weight", None)  # a CPU may keep that of a convolution beside a packed one
        tensor = getattr(holder, leaf).data if unpacked is None else unpacked[:, None]
        if tensor.numel() == 0:  # a CPU keeps it packed only: ask for the products with the unit vectors
            eye = torch.eye(holder.input_size, dtype=self._base.dtype)
            tensor = holder.quant_method.apply(holder, eye, None).t()
        start = 0 if packed is None else self._rows_before(name.removesuffix(f".{leaf}"), fused[packed])
        return torch.equal(tensor[start:][: len(expected)] if expected.dim() else tensor, expected)  # vocabularies are padded

    def _rows_before(self, name: str, parts: Sequence[str]) -> int:
        """Rows of the layers that vLLM puts before this one in the layer that it makes of these parts."""
        parent, _, last = name.rpartition(".")
        kinds = [kind_of(part) for part in parts]
        return sum(shape_of(self._base.get_submodule(f"{parent}.{kind}").weight)[0] for kind in kinds[: kinds.index(last)])

    def _own_name(self, name: str) -> str:
        """The name that vLLM has for a module or a tensor, before it packs several into one."""
        mapper: Any = getattr(self.runner.model, "hf_to_vllm_mapper", None)
        if mapper is None:
            return name
        return getattr(mapper, "get_rename_mapper", lambda: mapper)()._map_name(name) or name

    # ---- requests

    def sample(self, request: Request, sampling: Sampling, stops: Sequence[int], seed: int) -> list[str]:
        """Queue each completion as a vLLM request of its own, and return the names of these in order. They finish independently,
        and the prefix cache shares their prefill. Completion n has the seed plus n, if the engine is `seeded`.

        At temperature 0 one request serves all.
        """
        from vllm import SamplingParams
        from vllm.sampling_params import RequestOutputKind

        settings = SamplingParams(
            temperature=sampling.temperature,
            top_p=sampling.top_p,
            max_tokens=sampling.max_tokens - request.written,
            min_tokens=sampling.min_tokens,
            stop_token_ids=list(stops),
            logprobs=0,  # the sampled token's own
            flat_logprobs=True,
            detokenize=False,
            output_kind=RequestOutputKind.FINAL_ONLY,
        )
        names = []
        for number in range(request.count if sampling.temperature else 1):
            own = copy(settings)
            own.seed = seed + number if self.seeded else None
            names.append(self._add(request.token_ids, own))
        return names

    def score(self, sequences: Sequence[tuple[int, ...]]) -> list[torch.Tensor]:
        """Log-probabilities of each sequence's second token to its last, temperature 1, by the path that prompts take."""
        from vllm import SamplingParams

        settings = SamplingParams(max_tokens=1, temperature=0.0, prompt_logprobs=0, detokenize=False)
        names = [self._add(ids, settings) for ids in sequences]
        logprobs_by_request: dict[str, torch.Tensor] = {}
        while self._unfinished:
            for output in self.step():
                ids, scores = output.prompt_token_ids, output.prompt_logprobs
                logprobs_by_request[output.request_id] = torch.tensor([scores[i][ids[i]].logprob for i in range(1, len(ids))])
        return [logprobs_by_request[name] for name in names]

    def step(self) -> list[Any]:
        """Decode one more token of every request; returns the outputs of those that are finished by it."""
        finished = [output for output in self.engine.step() if output.finished]
        self._unfinished.difference_update(output.request_id for output in finished)
        return finished

    def settle(self) -> None:
        """Take back what is still being decoded, and step on until vLLM has nothing in hand.

        It tells its worker of finished requests one step later, and with asynchronous scheduling a batch may be under way:
        neither must be there when memory is freed or weights are pushed.
        """
        if self._unfinished:
            self.engine.abort_request(list(self._unfinished))
            self._unfinished.clear()
        core = self.engine.engine_core.engine_core
        while core.scheduler.has_requests() or core.batch_queue:
            self.engine.step()

    def _add(self, ids: Sequence[int], settings: Any) -> str:
        self._requests += 1
        name = str(self._requests)
        self._unfinished.add(name)  # first: an interrupt in between must not leave half a group behind
        self.engine.add_request(name, {"prompt_token_ids": list(ids)}, settings, lora_request=self.lora_request)
        return name

    # ---- memory

    def sleep(self) -> int:
        """Free what the sleep level frees; returns the bytes by which the card has more room."""
        level = self.settings.sleep
        if level == "off":
            return 0
        torch.cuda.empty_cache()
        free = torch.cuda.mem_get_info()[0]
        with gpu.new_phase():
            if level == "kv":
                self.engine.sleep(0)
                self.engine.release_kv_cache_memory()
            else:
                self.engine.sleep(level)
        torch.cuda.empty_cache()
        return torch.cuda.mem_get_info()[0] - free

    def wake(self, what: str) -> int:
        """Take `weights` or `kv_cache` back, where they were freed; returns the bytes."""
        level = self.settings.sleep
        if level == "off" or not self.engine.is_sleeping() or (what == "weights" and level == "kv"):
            return 0
        torch.cuda.empty_cache()  # what the trainer's allocator keeps for later is wanted now
        free = torch.cuda.mem_get_info()[0]
        with gpu.new_phase():
            self.engine.wake_up([what])
        return free - torch.cuda.mem_get_info()[0]


def _inside(name: str, wrapped: set[str]) -> str:
    module, _, leaf = name.rpartition(".")
    return f"{module}.base_layer.{leaf}" if module in wrapped else name
