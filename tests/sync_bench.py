"""What handing every adapter over to vLLM costs, in each way that it can be served, on one engine; the proof apart.

    python tests/sync_bench.py --shape 1.5b --layers 4 --rank 64

Random weights of a real shape; the median of some versions each. Prints one JSON object an adapter and way.
"""

import argparse
import copy
import json
import statistics

import torch
from rollout_bench import SHAPES
from transformers import AutoConfig, AutoModelForCausalLM

from microrl.config import resolve
from microrl.config.adapters import KINDS
from microrl.models.tiny import build_tokenizer
from microrl.policy.policy import Policy
from microrl.rollout.factory import make_engine
from microrl.types import BASE


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shape", choices=SHAPES, default="tiny")
    parser.add_argument("--layers", type=int, help="fewer than the shape has")
    parser.add_argument("--rank", type=int, default=8)
    parser.add_argument("--versions", type=int, default=3)
    parser.add_argument("--kinds", nargs="+", choices=KINDS, default=list(KINDS))
    args = parser.parse_args()
    cuda = torch.cuda.is_available()
    tokenizer = build_tokenizer()
    shape = {**SHAPES[args.shape]}
    shape["num_hidden_layers"] = args.layers or shape["num_hidden_layers"]
    torch.manual_seed(0)
    config = AutoConfig.for_model(
        "qwen2", **shape, max_position_embeddings=8192, tie_word_embeddings=True, initializer_range=0.03, bos_token_id=1,
        eos_token_id=tokenizer.eos_token_id, pad_token_id=0,
    )  # fmt: skip
    dtype = torch.bfloat16 if cuda else torch.float32
    model = AutoModelForCausalLM.from_config(config).to("cuda" if cuda else "cpu", dtype).eval().requires_grad_(False)
    # Buffers as a residual form needs them serve all the others, too.
    settings = resolve((), {"engine.kind": "vllm", "adapter.kind": "pissa", "adapter.rank": args.rank, "engine.max_kv_gb": 0.5,
                            "sampling.max_completion_tokens": 64, "data.max_prompt_tokens": 128})  # fmt: skip
    engine = make_engine(settings, model, tokenizer)
    with engine.awake(BASE):
        pass  # the trainer's base is in it from here on
    for kind in args.kinds:
        for row in measure(engine, model, kind, args.rank, args.versions):
            print(json.dumps(row), flush=True)
    engine.close()


def measure(engine, model, kind, rank, versions):
    """Median seconds of a push, for swap and merge or for merge alone."""
    flags = {"adapter.kind": kind} | ({"adapter.rank": rank} if "rank" in KINDS[kind].model_fields else {})
    config = resolve((), flags)
    policy = Policy(copy.deepcopy(engine._base), config, fresh=False)
    generator = torch.Generator(device=model.device).manual_seed(1)
    for mode in ("swap", "merge") if config.adapter.pair_rank else ("merge",):
        seconds = []
        for _ in range(versions):
            with torch.no_grad():
                for parameter in policy.parameters:
                    step = 0.002 * float(parameter.abs().mean()) + 1e-4
                    parameter += step * torch.randn(parameter.shape, generator=generator, device=parameter.device)
            policy.version += 1
            engine._push_timed(policy.snapshot(), mode)
            seconds.append(engine.report.push_s)
        yield {"kind": kind, "mode": mode, "trained": policy.trainable, "push_s": statistics.median(seconds), "all_s": seconds}
        engine._push(BASE, mode)


if __name__ == "__main__":
    main()
