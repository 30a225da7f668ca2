"""The buffers that vLLM's model runner of a GPU ("V2") makes, on the meta device: its own constructors, and nothing allocated.

Prints, for each ROWS,VOCABULARY,LENGTH,RANK among the arguments, the bytes that would be on the card. Needs vLLM's CPU build.
"""

import json
import os
import sys
import tempfile
from pathlib import Path
from types import SimpleNamespace

import torch
import v2_runner
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

META = torch.device("meta")
BATCHED_TOKENS = 4096
SIZES = {"architectures": ["Qwen2ForCausalLM"], "model_type": "qwen2", "hidden_size": 256, "intermediate_size": 512,
         "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
         "max_position_embeddings": 32768}  # fmt: skip


class Ledger(TorchDispatchMode):
    """Every tensor on the meta device that is made while this is active, by its storage."""

    def __init__(self):
        super().__init__()
        self.made = {}

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        result = function(*args, **(kwargs or {}))
        for tensor in tree_leaves(result):
            if isinstance(tensor, torch.Tensor) and tensor.device == META:
                self.made[tensor.untyped_storage()._cdata] = tensor
        return result

    @property
    def bytes(self):
        return sum(tensor.untyped_storage().nbytes() for tensor in self.made.values())


def patch():
    """Without a driver there are no streams, and pinned memory of the host is plain memory."""
    from vllm.v1.worker.gpu import buffer_utils, model_runner

    torch.cuda.Stream = torch.cuda.Event = lambda *args, **named: None
    buffer_utils.is_uva_available = lambda: True
    buffer_utils.UvaBuffer = buffer_utils.NonUvaBuffer
    model_runner.get_pp_group = lambda: SimpleNamespace(is_first_rank=True, is_last_rank=True)
    state = SimpleNamespace(num_new_sampled_tokens_per_step=1, custom_sampler=lambda sampler: None)
    model_runner.init_model_state = lambda *args: state  # of a text model it holds nothing
    return model_runner.GPUModelRunner


def count(rows, vocab, length, rank):
    from vllm.engine.arg_utils import EngineArgs
    from vllm.lora.punica_wrapper.punica_gpu import PunicaWrapperGPU
    from vllm.v1.worker.gpu.block_table import BlockTables

    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "config.json").write_text(json.dumps(SIZES | {"vocab_size": vocab}))
        adapters = {"enable_lora": True, "max_loras": 1, "max_cpu_loras": 1, "max_lora_rank": rank} if rank else {}
        config = EngineArgs(
            model=folder, skip_tokenizer_init=True, load_format="dummy", dtype="bfloat16", max_model_len=length,
            max_num_seqs=rows, max_num_batched_tokens=BATCHED_TOKENS, logprobs_mode="processed_logprobs", **adapters,
        ).create_engine_config()  # fmt: skip
    with Ledger() as ledger:
        runner = patch()(config, META)
        runner.load_lora_model = lambda model, *args: model
        runner.load_model(model=torch.nn.Module())
        kept = [runner, BlockTables([16], rows, BATCHED_TOKENS, [-(-length // 16)], META)]
        if rank:
            kept.append(PunicaWrapperGPU(BATCHED_TOKENS, rows, META, lora_config=config.lora_config))
    return ledger.bytes


if __name__ == "__main__":
    os.environ["VLLM_LOGGING_LEVEL"] = "CRITICAL"
    v2_runner.choose()
    print(json.dumps([count(*map(int, each.split(","))) for each in sys.argv[1:]]))
