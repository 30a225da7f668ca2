"""Three swap and sleep cycles on a random-weight model of a real shape, then throughput against plain vLLM on the same requests.

    python tests/rollout_bench.py --shape 1.5b --rank 256 --sleep kv --sync swap

Prints one JSON object for each architecture, one engine after the other. `--shape tiny` runs on a CPU, where nothing sleeps.
"""

import argparse
import gc
import json
import statistics
import time

import torch
from transformers import AutoConfig, AutoModelForCausalLM

from microrl.config import resolve
from microrl.models.tiny import build_tokenizer
from microrl.policy.policy import Policy
from microrl.rollout.factory import make_engine
from microrl.types import Prompt, Sampling

SHAPES = {
    "tiny": dict(hidden_size=128, intermediate_size=256, num_hidden_layers=2, num_attention_heads=2, num_key_value_heads=1,
                 vocab_size=320),
    "1.5b": dict(hidden_size=1536, intermediate_size=8960, num_hidden_layers=28, num_attention_heads=12, num_key_value_heads=2,
                 vocab_size=151936),
}  # fmt: skip


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shape", choices=SHAPES, default="tiny")
    parser.add_argument("--arch", nargs="+", default=["qwen2"], help="qwen2, qwen3, llama, gemma3_text, phi3")
    parser.add_argument("--rank", type=int, default=64)
    parser.add_argument("--targets", nargs="+", help="layers that get an adapter; all linear ones, if not given")
    parser.add_argument("--sleep", choices=["auto", "kv", "1", "2", "off"], default="auto")
    parser.add_argument("--sync", choices=["swap", "merge"], default="swap")
    parser.add_argument("--dtype", help="bfloat16 on a GPU and float32 on a CPU, if not given")
    parser.add_argument("--head", choices=["model", "float32"], default="model", help="the output head's type, on both sides")
    parser.add_argument("--prompts", type=int, default=16)
    parser.add_argument("--group", type=int, default=8)
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--cycles", type=int, default=3)
    parser.add_argument("--pairs", type=int, default=3)
    parser.add_argument("--cpu", action="store_true", help="even where there is a GPU")
    args = parser.parse_args()
    for arch in args.arch:
        print(json.dumps(run(args, arch)), flush=True)


def run(args, arch):
    cuda = torch.cuda.is_available() and not args.cpu
    if not cuda:
        torch.set_num_threads(1)
    tokenizer = build_tokenizer()
    torch.manual_seed(0)
    shape = SHAPES[args.shape]
    dtype = getattr(torch, args.dtype) if args.dtype else torch.bfloat16 if cuda else torch.float32
    with torch.device("cuda" if cuda else "cpu"):
        # Random weights of this width leave the logits alive: a probe on a flat distribution would show little.
        config = AutoConfig.for_model(
            arch, **shape, max_position_embeddings=8192, tie_word_embeddings=arch != "llama", initializer_range=0.03,
            bos_token_id=1, eos_token_id=tokenizer.eos_token_id, pad_token_id=0,
            head_dim=shape["hidden_size"] // shape["num_attention_heads"],
        )  # fmt: skip
        model = AutoModelForCausalLM.from_config(config).to(dtype).eval().requires_grad_(False)
    flags = {"engine.kind": "vllm", "adapter.rank": args.rank, "adapter.alpha": float(args.rank), "engine.sync": args.sync,
             "model.head_dtype": args.head, "sampling.prompts_per_step": args.prompts, "sampling.group_size": args.group,
             "sampling.max_completion_tokens": args.tokens, "data.max_prompt_tokens": 128}  # fmt: skip
    if args.targets:
        flags["adapter.targets"] = tuple(args.targets)
    if cuda:
        flags["engine.sleep"] = int(args.sleep) if args.sleep.isdigit() else args.sleep
    settings = resolve((), flags)
    began = time.perf_counter()
    engine = make_engine(settings, model, tokenizer)
    started_s = time.perf_counter() - began
    policy = Policy(model, settings)
    texts = [f"What is {n} + {n + 7}? Think about it step by step." for n in range(args.prompts)]
    prompts = [Prompt(text, "", text, tuple(tokenizer(text)["input_ids"])) for text in texts]
    sampling = Sampling(args.group, args.tokens, min_tokens=args.tokens)
    generator = torch.Generator(device=model.device).manual_seed(1)
    cycles = [cycle(engine, policy, prompts, sampling, generator, number) for number in range(args.cycles)]
    with engine.awake(policy.snapshot()) as sampler:
        pairs = [compare(engine, sampler, prompts, sampling, number) for number in range(args.pairs)]
    head = str(engine._driver._runner.model.logits_processor.head_dtype).removeprefix("torch.")
    wrapped = sorted({name.rsplit(".", 1)[-1] for name in engine._driver._manager().modules}) if args.sync == "swap" else []
    engine.close()
    return {
        "device": torch.cuda.get_device_name() if cuda else "cpu",
        "arch": arch,
        "shape": args.shape,
        "rank": args.rank,
        "sync": args.sync,
        "sleep": engine._settings.sleep,
        "kv_gb": engine._settings.kv_bytes / 1e9,
        "started_s": started_s,
        "trainable": policy.trainable,
        "head": head,
        "wrapped": wrapped,
        "cycles": cycles,
        "tokens_per_s": statistics.median(pair["ours"] for pair in pairs),
        "plain_tokens_per_s": statistics.median(pair["plain"] for pair in pairs),
        "ratio": statistics.median(pair["ours"] / pair["plain"] for pair in pairs),
        "pairs": pairs,
    }


def cycle(engine, policy, prompts, sampling, generator, number):
    """A new version, one step's sampling, and what the engine reports of it."""
    for pair in policy.snapshot().pairs.values():
        pair.B_OR.copy_(torch.randn(pair.B_OR.shape, generator=generator, device=pair.B_OR.device) * 0.002 * (1 + number))
    policy.version += 1
    began = time.perf_counter()
    with engine.awake(policy.snapshot()) as sampler:
        groups = list(sampler.groups(prompts, sampling, stream=(number,)))
    seconds = time.perf_counter() - began
    report = engine.report
    return {
        "seconds": seconds,
        "tokens": sum(len(completion.token_ids) for _, group in groups for completion in group.completions),
        "push_s": report.push_s,
        "proof_s": report.proof_s,
        "wake_s": report.wake_s,
        "sleep_s": report.sleep_s,
        "freed_gb": report.freed_bytes / 1e9,
        "retaken_gb": report.retaken_bytes / 1e9,
        "gap": report.gap,
        "slope": report.slope,
    }


def compare(engine, sampler, prompts, sampling, number):
    """Tokens a second of our sampler and of vLLM's own `generate`, on the same engine, requests and settings."""
    from vllm import SamplingParams

    driver = engine._driver
    rates = {}
    for side in ("ours", "plain") if number % 2 else ("plain", "ours"):
        driver.reset_cache()
        gc.collect()
        began = time.perf_counter()
        if side == "ours":
            groups = list(sampler.groups(prompts, sampling, stream=(9, number)))
            tokens = sum(len(completion.token_ids) for _, group in groups for completion in group.completions)
        else:
            settings = [
                SamplingParams(n=sampling.group_size, temperature=1.0, max_tokens=sampling.max_tokens,
                               min_tokens=sampling.min_tokens, stop_token_ids=engine._stops, logprobs=0, detokenize=False,
                               seed=1000 * number + place if driver.seeded else None)
                for place in range(len(prompts))
            ]  # fmt: skip
            requests = [{"prompt_token_ids": list(prompt.token_ids)} for prompt in prompts]
            outputs = driver._llm.generate(requests, settings, use_tqdm=False, lora_request=driver._request)
            tokens = sum(len(one.token_ids) for output in outputs for one in output.outputs)
        rates[side] = tokens / (time.perf_counter() - began)
    return rates


if __name__ == "__main__":
    main()
