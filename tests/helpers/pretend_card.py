"""What vLLM's CUDA build makes of microrl's options on cards that are not there: its own configuration code, over a pretended
driver and with empty modules in place of the compiled ones. Prints JSON, by compute capability and rows, which is
`fixtures/vllm_cards.json`.

FlashInfer is no dependency of the CPU build: `attention` is vLLM's choice without it, `attention_order` its order with it.
Python needs vLLM's dependencies (those of its CPU build do), and `PYTHONPATH` the unpacked wheel of the CUDA build before them.
"""

import importlib.abc
import importlib.machinery
import json
import os
import re
import sys
from dataclasses import fields
from types import SimpleNamespace

import v2_runner

CARDS = {"7.5": ("Tesla T4", 15), "8.0": ("NVIDIA A100-SXM4-80GB", 79), "8.6": ("NVIDIA A40", 44), "8.9": ("NVIDIA L4", 22),
         "9.0": ("NVIDIA H100 80GB HBM3", 79), "10.0": ("NVIDIA B200", 178), "12.0": ("NVIDIA GeForce RTX 5090", 31)}  # fmt: skip
ROWS = (128, 512)
MODEL = {"hidden_size": 1536, "intermediate_size": 8960, "num_hidden_layers": 28, "num_attention_heads": 12,
         "num_key_value_heads": 2, "vocab_size": 151936, "max_position_embeddings": 32768}  # fmt: skip
CAUSAL = {"architecture": "Qwen2ForCausalLM", "is_text_generation_model": True, "attn_type": "decoder", "supports_pp": True,
          "default_seq_pooling_type": "LAST", "default_tok_pooling_type": "ALL", "score_type": "bi-encoder",
          "supported_video_pruning_methods": ()}  # fmt: skip


class Empty(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """The wheel's compiled modules, of which none can be loaded without CUDA."""

    def find_spec(self, name, path=None, target=None):
        is_compiled = re.fullmatch(r"vllm\.(\w+\.)*(_\w*C|_C_\w+|cumem_allocator|spinloop)", name)
        return importlib.machinery.ModuleSpec(name, self) if is_compiled else None

    def exec_module(self, module):
        pass


def pretend():
    """Have vLLM take a card for the machine's; returns an object whose `capability`, `name` and `gib` say which."""
    sys.meta_path.insert(0, Empty())
    v2_runner.pretend_triton("nvidia")
    os.environ["VLLM_LOGGING_LEVEL"] = "CRITICAL"
    import torch

    for asked in ("fp8", "block_fp8", "fp4"):  # at import; nothing here is quantised
        setattr(torch.ops._C, f"cutlass_scaled_mm_supports_{asked}", lambda capability: False)
    torch.ops._C.cutlass_group_gemm_supported = lambda capability: False
    import vllm.platforms as platforms
    from vllm.platforms.cuda import NvmlCudaPlatform
    from vllm.platforms.interface import DeviceCapability

    card = SimpleNamespace()

    class Card(NvmlCudaPlatform):
        get_device_capability = classmethod(lambda cls, device_id=0: DeviceCapability(*card.capability))
        has_device_capability = classmethod(lambda cls, least, device_id=0: cls.get_device_capability().to_int() >= _int(least))
        get_device_name = classmethod(lambda cls, device_id=0: card.name)
        get_device_total_memory = classmethod(lambda cls, device_id=0: card.gib * 2**30)
        device_count = classmethod(lambda cls: 1)
        num_compute_units = classmethod(lambda cls, device_id=0: 84)
        is_pin_memory_available = is_sleep_mode_available = is_cumem_allocator_available = classmethod(lambda cls: True)
        import_kernels = log_warnings = get_global_graph_pool = classmethod(lambda cls: None)

    platforms._current_platform = Card()
    from vllm.model_executor.models import registry  # other modules take the platform when they are imported

    known = registry._ModelInfo(**{field.name: CAUSAL.get(field.name, False) for field in fields(registry._ModelInfo)})
    registry._LazyRegisteredModel.inspect_model_cls = lambda self: known
    return card


def _int(capability):
    return 10 * capability[0] + capability[1] if isinstance(capability, tuple) else capability


def options_of(rows, dtype, **changed):
    """The options that microrl starts vLLM with for so many rows."""
    import torch
    import vllm
    from transformers import Qwen2Config

    from microrl.plan.reserve import capture_sizes
    from microrl.rollout.vllm.launch import VllmSettings, start

    vllm.LLM = lambda **options: options
    model = type("Qwen2ForCausalLM", (), {"config": Qwen2Config(**MODEL), "device": torch.device("cuda"), "dtype": dtype})()
    settings = {"targets": ("model.layers.0.self_attn.q_proj",), "rank": 256, "max_model_len": 4096, "max_sequences": rows,
                "kv_bytes": 10**9, "memory_fraction": 0.5, "sync": "swap", "sleep": "kv",
                "capture_sizes": capture_sizes(rows)}  # fmt: skip
    return start(model, VllmSettings(**settings | changed))


def resolved(options):
    """What vLLM makes of them: the runner, the largest batch, and the graphs that it would capture."""
    import torch
    import vllm.v1.worker.gpu.cudagraph_utils as graphs
    from vllm.engine.arg_utils import EngineArgs
    from vllm.platforms import current_platform
    from vllm.platforms.cuda import _get_backend_priorities
    from vllm.usage.usage_lib import UsageContext
    from vllm.v1.attention.selector import AttentionSelectorConfig
    from vllm.v1.worker.gpu.lora_utils import get_lora_capture_cases

    config = EngineArgs(**options).create_engine_config(UsageContext.LLM_CLASS)
    compilation = config.compilation_config
    graphs.get_pp_group = lambda: SimpleNamespace(is_first_rank=True, is_last_rank=True)
    cases = get_lora_capture_cases(config.lora_config, compilation)
    manager = graphs.CudaGraphManager(config, torch.device("cpu"), compilation.cudagraph_mode, 1, cases)
    attention = AttentionSelectorConfig(config.model_config.get_head_size(), config.model_config.dtype, "auto", 16)
    valid, _ = current_platform.get_valid_backends(current_platform.get_device_capability(), attention, 12)
    return {
        "runner": "V2" if config.use_v2_model_runner else "V1",
        "batched_tokens": config.scheduler_config.max_num_batched_tokens,
        "chunked_prefill": config.scheduler_config.enable_chunked_prefill,
        "graphs": compilation.cudagraph_mode.name,
        "sizes": compilation.cudagraph_capture_sizes,
        "captured": {mode.name: len(found) for mode, found in manager._capture_descs.items()},
        "attention": valid[0].backend.name,
        "attention_order": [one.name for one in _get_backend_priorities(False, current_platform.get_device_capability())],
    }


def main():
    os.environ |= v2_runner.ENVIRONMENT
    os.environ.pop("VLLM_USE_V2_MODEL_RUNNER")  # whether it is chosen is the question
    card, found = pretend(), {}
    import torch

    for capability, (name, gib) in CARDS.items():
        card.capability, card.name, card.gib = tuple(map(int, capability.split("."))), name, gib
        dtype = torch.float16 if card.capability < (8, 0) else torch.bfloat16
        for rows in ROWS:
            options = options_of(rows, dtype)
            found.setdefault(capability, {})[str(rows)] = resolved(options)
        vllms_own = {key: value for key, value in options.items() if key not in ("max_num_batched_tokens", "compilation_config")}
        found[capability]["vLLM's own, 512"] = resolved(vllms_own)
        found[capability]["no graphs"] = resolved(options_of(512, dtype, cuda_graphs=False))
    print("{" + ",\n".join(f"{json.dumps(capability)}: {json.dumps(each)}" for capability, each in found.items()) + "}")


if __name__ == "__main__":
    main()
