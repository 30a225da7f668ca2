"""vLLM's Triton kernels compiled for cards that are not there, with what each needs of a card.

vLLM's own launchers are called on tensors of the meta device. Triton specializes and compiles as at a launch, with the ptxas and
the options that it picks for the card, and nothing is launched. Prints JSON: for each "case: kernel" and capability the bytes
spilled (stores or loads in the code, the more of the two), the bytes of shared memory, the registers of a thread, and the
threads of a block. `--write` keeps it in `fixtures/kernels_ahead.json`.

Needs vLLM's CPU build, whose Python files are those of the CUDA build, and the Triton of the CUDA build.
"""

import argparse
import contextlib
import io
import json
import os
import re
import tempfile
from functools import partial
from types import SimpleNamespace

import pretend_card
import v2_runner
from places import FIXTURES

FIXTURE = FIXTURES / "kernels_ahead.json"
UNITS = {"7.5": 40, "8.0": 108, "8.6": 84, "8.9": 58, "9.0": 132, "10.0": 148, "12.0": 170}
"""Multiprocessors of `pretend_card.CARDS`: by them vLLM splits a row of logits."""
HIDDEN, INTERMEDIATE, HEADS, KV_HEADS, HEAD, VOCAB = 1536, 8960, 12, 2, 128, 151_936
"""Qwen2.5-1.5B."""
LAYERS = {"qkv": (HIDDEN, (1536, 256, 256)), "o": (HIDDEN, (HIDDEN,)), "gate_up": (HIDDEN, (INTERMEDIATE, INTERMEDIATE)),
          "down": (INTERMEDIATE, (HIDDEN,))}  # fmt: skip
"""Each layer's inputs, and the outputs of what is packed in it."""
RANKS = (8, 64, 256)
ADAPTER_ROWS = (1, 71, 512)
"""One sequence, and below and above 128 rows, where vLLM takes other blocks."""
SLOTS, BATCHED_TOKENS, LENGTH = 512, 4096, 4096


class Driver:
    """What Triton asks of a driver before a launch. Its caches are by device, so each card is a device of its own."""

    def __init__(self):
        self.capability = 0

    def get_current_target(self):
        from triton.backends.compiler import GPUTarget

        return GPUTarget("cuda", self.capability, 32)

    def get_current_device(self):
        return self.capability

    def get_current_stream(self, device):
        return 0


class Compiled:
    """Runs in place of a launch: compiles, and keeps ptxas's own report of what the kernel needs."""

    def __init__(self, run):
        self._run, self._reports, self.launched = run, {}, []

    def __call__(self, function, *args, grid, warmup, **options):
        log = io.StringIO()
        with contextlib.redirect_stdout(log):
            kernel = self._run(function, *args, grid=grid, warmup=True, **options)
        if kernel not in self._reports:  # otherwise Triton had it already
            text = log.getvalue()
            spilled = [int(found) for found in re.findall(r"(\d+) bytes spill (?:stores|loads)", text)]
            registers = [int(found) for found in re.findall(r"Used (\d+) registers", text)]
            assert spilled and registers, f"ptxas reported nothing of {function.__name__}: {text}"
            self._reports[kernel] = [max(spilled), kernel.metadata.shared, max(registers), 32 * kernel.metadata.num_warps]
        self.launched.append((function.__name__.strip("_"), self._reports[kernel]))


def tensor(*shape, dtype):
    import torch

    return torch.empty(shape, dtype=dtype, device="meta")


def adapter_cases(dtype):
    import torch
    from vllm.lora.ops.triton_ops import LoRAKernelMeta, lora_expand_op, lora_shrink_op, utils

    utils.async_tensor_h2d = lambda data, dtype, device: tensor(len(data), dtype=dtype)
    meta = LoRAKernelMeta.make(1, BATCHED_TOKENS, "meta")

    def apply(inputs, outputs, rank, rows):
        utils._LORA_A_PTR_DICT.clear()  # known by their addresses, of which the meta device has none
        utils._LORA_B_PTR_DICT.clear()
        arguments = meta.meta_args(rows, False)
        between = tensor(len(outputs), rows, rank, dtype=torch.float32)
        A = [tensor(1, 1, rank, inputs, dtype=dtype) for _ in outputs]
        lora_shrink_op._lora_shrink(tensor(rows, inputs, dtype=dtype), A, between, *arguments, 1.0)
        B = [tensor(1, 1, width, rank, dtype=dtype) for width in outputs]
        lora_expand_op._lora_expand(between, B, tensor(rows, sum(outputs), dtype=dtype), *arguments, add_inputs=True)

    for rank in RANKS:
        for rows in ADAPTER_ROWS:
            for name, (inputs, outputs) in LAYERS.items():
                yield f"adapter {name}, rank {rank}, {rows} rows", partial(apply, inputs, outputs, rank, rows)


def sampler_cases(dtype):
    import torch
    from vllm.v1.sample.ops import topk_topp_triton
    from vllm.v1.worker.gpu.sample import gumbel, logit_bias, logprob, penalties, prompt_logprob

    int32, int64, float32 = (partial(tensor, dtype=one) for one in (torch.int32, torch.int64, torch.float32))
    index, position, slots = int64(128), int64(128), float32(SLOTS)
    for name, logits in (("raw", tensor(128, VOCAB, dtype=dtype)), ("processed", float32(128, VOCAB))):
        sample = partial(gumbel.gumbel_sample, apply_temperature=False, is_drafting=False)
        yield f"sampler, {name} logits", partial(sample, logits, index, slots, int64(SLOTS), position)
        yield f"log-probabilities, {name} logits", partial(logprob.compute_topk_scores, logits, 0, index)
    yield "temperature", partial(gumbel.apply_temperature, logits, index, slots)

    def truncate(rows, k):
        """`apply_top_k_top_p_triton`, which asks for a CUDA device where it splits rows."""
        p, splits = float32(rows), rows <= topk_topp_triton._SPLIT_MAX_BATCH
        if k is not None or not splits:
            topk_topp_triton.apply_top_k_top_p_triton(logits[:rows], k, p)
        if splits:
            topk_topp_triton._apply_topp_split(logits[:rows], k, p, float("-inf"), topk_topp_triton.num_compute_units())

    logits = float32(SLOTS, VOCAB)
    for rows in (8, 64, 71, 512):
        yield f"top-p, {rows} rows", partial(truncate, rows, None)
    for rows in (64, 512):
        yield f"top-k and top-p, {rows} rows", partial(truncate, rows, int32(rows))
    count, ids = int32(SLOTS), int32(SLOTS, 1024)
    biases = (count, ids, count, ids, float32(SLOTS, 1024), count, count, count, int32(SLOTS, 128))
    yield "least tokens", partial(logit_bias.apply_logit_bias, logits, index, position, *biases)
    tokens, seen, counts = int32(SLOTS, LENGTH), int32(SLOTS, VOCAB // 32), int32(SLOTS, VOCAB)
    yield "prompts' tokens", partial(prompt_logprob.get_prompt_logprobs_token_ids, 1024, int32(9), int64(8), count, tokens)
    yield "penalties", partial(penalties.apply_penalties, logits, index, int32(128), int32(128), *3 * (slots,), seen, counts)
    yield "penalties' counts", partial(penalties.bincount, int64(8), tokens, count, count, seen, counts, LENGTH)


def runner_cases():
    import torch
    from vllm.v1.worker.gpu import buffer_utils, input_batch
    from vllm.v1.worker.gpu.block_table import BlockTables

    int32, int64, uint64 = (partial(tensor, dtype=one) for one in (torch.int32, torch.int64, torch.uint64))
    flag = partial(tensor, dtype=torch.bool)
    rows = 71
    index, starts, slots, tokens = int64(rows), int32(rows + 1), int32(SLOTS), int32(SLOTS, LENGTH)
    ids, positions, lengths = int32(BATCHED_TOKENS), int64(BATCHED_TOKENS), int32(SLOTS)
    last, sampled, number = int64(SLOTS, 1), int64(rows, 1), int32(rows)
    prepare = partial(input_batch.prepare_prefill_inputs, ids, int32(1, SLOTS), index, starts, tokens, slots, slots)
    yield "runner, prompts", prepare
    yield "runner, positions", partial(input_batch.prepare_pos_seq_lens, index, starts, slots, positions, lengths)
    combine = input_batch.combine_sampled_and_draft_tokens
    yield "runner, last tokens", partial(combine, ids, index, last, starts, lengths, slots, int64(SLOTS, 0), starts, rows)
    yield "runner, sampled", partial(input_batch.get_num_sampled_and_rejected, number, number, starts, index, slots)
    update = partial(input_batch.post_update, index, slots, last)
    for name, counts in (("", None), (" and counts", int32(SLOTS, VOCAB))):
        yield f"runner, update{name}", partial(update, counts, sampled, number, number, starts, tokens, slots)
    blocks = SimpleNamespace(
        num_kv_cache_groups=1, input_block_tables=[int32(SLOTS, LENGTH // 16)], input_block_table_ptrs=uint64(1),
        block_table_ptrs=uint64(1), block_table_strides=int64(1), num_blocks=SimpleNamespace(gpu=int32(1, SLOTS)),
        slot_mappings=int64(1, BATCHED_TOKENS), block_sizes_tensor=int32(1), slot_mapping_enabled=flag(1), dcp_sharded=flag(1),
        cp_rank=0, cp_size=1, cp_interleave=1,
    )  # fmt: skip
    yield "runner, block tables", partial(BlockTables.gather_block_tables, blocks, index, rows)
    yield "runner, slots", partial(BlockTables.compute_slot_mappings, blocks, index, starts, positions, BATCHED_TOKENS)
    for name, target in (("tokens", tokens), ("blocks", int32(SLOTS, LENGTH // 16))):
        pool = SimpleNamespace(copy_to_uva=lambda values: int32(len(values)))
        parts = ("indices", "starts", "cu_lens", "contents")
        held = {f"_staged_write_{part}": [0] for part in parts} | {f"write_{part}": pool for part in parts}
        staged = SimpleNamespace(gpu=target, clear_staged_writes=lambda: None, **held)
        yield f"runner, staged {name}", partial(buffer_utils.StagedWriteTensor.apply_write, staged)


def attention_cases(dtype):
    """vLLM's attention where FlashAttention has none, below capability 8.0."""
    import torch
    from vllm.v1.attention.backends import triton_attn
    from vllm.v1.attention.ops.triton_reshape_and_cache_flash import triton_reshape_and_cache_flash
    from vllm.v1.attention.ops.triton_unified_attention import unified_attention

    float32, int32 = partial(tensor, dtype=torch.float32), partial(tensor, dtype=torch.int32)
    segments, most = triton_attn.NUM_PAR_SOFTMAX_SEGMENTS, triton_attn.MIN_LAUNCH_GRID_SIZE_2D // KV_HEADS
    cache = tensor(1000, KV_HEADS, 16, 2 * HEAD, dtype=dtype).transpose(1, 2).split(HEAD, dim=-1)
    scale = float32()

    def attend(sequences, tokens, longest):
        q = tensor(tokens, HEADS, HEAD, dtype=dtype)
        table, descale = int32(sequences, LENGTH // 16), scale.expand(sequences, KV_HEADS)
        unified_attention(
            q, *cache, torch.empty_like(q), int32(sequences + 1), longest, int32(sequences), LENGTH, HEAD**-0.5, True, (-1, -1),
            table, 0, None, descale, descale, seq_threshold_3D=most, num_par_softmax_segments=segments,
            softmax_segm_output=float32(most, HEADS, segments, HEAD), softmax_segm_max=float32(most, HEADS, segments),
            softmax_segm_expsum=float32(most, HEADS, segments),
        )  # fmt: skip

    for sequences in (16, 33, 71, 512):
        yield f"attention, {sequences} rows", partial(attend, sequences, sequences, 1)
    for sequences, tokens in ((8, 4096), (71, 1007)):
        yield f"attention, {sequences} prompts", partial(attend, sequences, tokens, 512)
    for rows in (71, 512):
        new = tensor(rows, (HEADS + 2 * KV_HEADS) * HEAD, dtype=dtype)[:, -KV_HEADS * HEAD :].view(rows, KV_HEADS, HEAD)
        slots = tensor(rows, dtype=torch.int64)
        keep = partial(triton_reshape_and_cache_flash, new, new, *cache, slots, "auto", scale, scale)
        yield f"attention, {rows} rows kept", keep


def compile_all(cards, words=()):
    """What each kernel needs, by "case: kernel" and capability; of the cases, those that hold one of `words`."""
    import triton.backends

    backends = dict(triton.backends.backends)
    v2_runner.pretend_triton()  # vLLM's CPU build asks for such a backend
    card = pretend_card.pretend()
    card.capability = (8, 0)
    import torch
    import vllm
    from vllm.v1.sample.ops import topk_topp_triton

    triton.backends.backends.clear()
    triton.backends.backends.update(backends)
    driver, compiled = Driver(), Compiled(triton.runtime.jit.JITFunction.run)
    triton.runtime.driver.set_active(driver)
    triton.knobs.nvidia.dump_ptxas_log = True
    triton.runtime.jit.JITFunction.run = lambda *args, **options: compiled(*args, **options)
    torch.cuda.get_device_capability = lambda device=None: card.capability

    found = {}
    for capability in cards:
        card.name, card.gib = pretend_card.CARDS[capability]
        card.capability = tuple(map(int, capability.split(".")))
        driver.capability = int(capability.replace(".", ""))
        topk_topp_triton.num_compute_units = lambda device=0, units=UNITS[capability]: units
        dtype = torch.float16 if driver.capability < 80 else torch.bfloat16
        cases = [*adapter_cases(dtype), *sampler_cases(dtype), *runner_cases()]
        if driver.capability < 80:
            cases += attention_cases(dtype)
        for name, launch in cases:
            if words and not any(word in name for word in words):
                continue
            launch()
            assert compiled.launched, f"{name} launched nothing"
            for kernel, need in compiled.launched:
                needs = found.setdefault(f"{name}: {kernel}", {})
                needs[capability] = [max(pair) for pair in zip(needs.get(capability, need), need)]
            compiled.launched.clear()
    return {"vllm": vllm.__version__.split("+")[0], "triton": triton.__version__, "kernels": found}


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--cards", nargs="+", default=list(pretend_card.CARDS), metavar="CAPABILITY")
    parser.add_argument("--cases", nargs="+", default=(), metavar="WORDS", help="those whose names hold one of these")
    parser.add_argument("--write", action="store_true", help=f"keep what all need in {FIXTURE.name}")
    asked = parser.parse_args()
    if asked.write and (asked.cases or len(asked.cards) < len(pretend_card.CARDS)):
        parser.error("--write is for all cards and all cases")
    os.environ.pop("TRITON_INTERPRET", None)
    with tempfile.TemporaryDirectory() as cache:
        os.environ["TRITON_CACHE_DIR"] = cache  # ptxas reports nothing of what was cached before
        found = compile_all(asked.cards, asked.cases)
    lines = ",\n".join(f"{json.dumps(name)}: {json.dumps(needs)}" for name, needs in found["kernels"].items())
    versions = ", ".join(f'"{name}": "{found[name]}"' for name in ("vllm", "triton"))
    text = f'{{{versions}, "kernels": {{\n{lines}\n}}}}\n'
    FIXTURE.write_text(text) if asked.write else print(text)


if __name__ == "__main__":
    main()
