"""`microrl bench` with the real vLLM: throughput, other architectures, steps of decoding, and what a push takes."""

import json
import sys

import processes
import pytest
from bench_labels import unlabelled
from places import HELPERS
from vllm_served import CLOSE, CUDA, DEVICE, NEAR

from microrl.commands.bench import page

pytestmark = pytest.mark.vllm


def bench(*arguments):
    """`microrl bench` in a process of its own: one engine at a time."""
    done = processes.run([sys.executable, "-m", "microrl", "bench", *arguments, "--json"], timeout=900)
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout)


def rollouts(*arguments):
    """A result for each architecture."""
    return bench("rollout", *arguments)["rollouts"]


def check_cycles(found):
    for one in found["cycles"]:
        assert one["gap"] is not None and (one["slope"] is None or one["slope"] == pytest.approx(1, abs=0.2))
    later = found["cycles"][1:]
    overhead = sum(one["push_s"] + one["proof_s"] + one["wake_s"] + one["sleep_s"] for one in later)
    return overhead / sum(one["seconds"] for one in later)


@pytest.mark.slow
def test_throughput_is_that_of_vllm_itself():
    """A CPU is noisy: the bar of 0.95 is for a GPU."""
    (found,) = rollouts("--device", DEVICE, "--pairs", 5, "--tokens", 48, "--prompts", 8)
    assert not unlabelled(found, page.ROLLOUT)
    check_cycles(found)
    assert found["ratio"] > 0.75


FOUR = ("llama", "qwen3", "gemma3_text", "phi3")


@pytest.mark.parametrize(
    ("sync", "architectures"),
    [
        ("merge", ("gemma3_text",)),
        *(
            pytest.param(sync, kinds, marks=pytest.mark.slow)
            for sync, kinds in (("swap", ("qwen3", "phi3")), ("swap", FOUR), ("merge", FOUR))
        ),
    ],
)
def test_other_architectures_and_one_engine_after_the_other(sync, architectures):
    """Separate and tied heads, normed queries, sliding windows, layers that the checkpoint has fused already."""
    together = architectures if CUDA else [",".join(architectures)]
    found = [
        one for arch in together
        for one in rollouts("--device", DEVICE, "--arch", arch, "--sync", sync, "--rank", 5, "--prompts", 2, "--group", 2,
                            "--tokens", 8, "--cycles", 2, "--pairs", 1)
    ]  # fmt: skip
    assert [one["arch"] for one in found] == list(architectures)
    for one in found:
        assert all(cycle["gap"] < CLOSE and cycle["slope"] == pytest.approx(1, abs=NEAR) for cycle in one["cycles"])


DECODE_STEPS = """
import json, os, sys
sys.path.insert(0, sys.argv[1])
from vllm_served import make_it_end
from microrl.config import resolve
from microrl.models.tiny import build_model, build_tokenizer
from microrl.rollout.factory import make_engine
from microrl.types import BASE, Prompt, Sampling
tokenizer = build_tokenizer()
model = build_model(tokenizer, layers=2, seed=3).eval().requires_grad_(False)
make_it_end(model, tokenizer)
model.get_input_embeddings().weight[tokenizer.eos_token_id] *= 1.5
texts = [f"What is {11 * n} + {n}?" * (1 + n % 2) for n in range(1, 201)]
sampling, prompts = Sampling(4, 128), [Prompt(text, "1", text, tuple(tokenizer(text)["input_ids"])) for text in texts]
flags = {"engine.kind": "vllm", "adapter.rank": 6, "data.max_prompt_tokens": 64, "sampling.prompts_per_step": len(prompts),
         "sampling.group_size": sampling.group_size, "sampling.max_completion_tokens": sampling.max_tokens}
engine = make_engine(resolve((), flags), model, tokenizer)
found = {}
with engine.awake(BASE) as sampler:
    groups = [group for _, group in sampler.groups(prompts, sampling, stream=(0,))]
    found["at_once"] = sampler.decode_steps
with engine.awake(BASE) as sampler:
    for start in range(0, 200, 16):
        chunk = range(start, min(start + 16, 200))
        list(sampler.groups([prompts[n] for n in chunk], sampling, stream=(0,), positions=chunk))
    found["in_chunks"] = sampler.decode_steps
found["lengths"] = sorted(len(one.token_ids) for group in groups for one in group.completions)
print("FOUND" + json.dumps(found), flush=True)
os._exit(0)
"""


@pytest.mark.slow
def test_an_evaluation_without_barriers_takes_a_fifth_of_the_decode_steps():
    """As in `test_engine.py`, by vLLM's own steps."""
    done = processes.run([sys.executable, "-c", DECODE_STEPS, HELPERS], timeout=900)
    assert "FOUND" in done.stdout, done.stderr[-3000:]
    found = json.loads(done.stdout.rpartition("FOUND")[2])
    assert found["lengths"][400] < 25 and found["lengths"][-1] > 100
    print(found["at_once"], found["in_chunks"], found["lengths"][::50])
    assert found["in_chunks"] > 5 * found["at_once"]


@pytest.mark.slow
def test_the_cycles_of_some_layers():
    """One of three layers that vLLM keeps in one, and another."""
    (found,) = rollouts(
        "--device", DEVICE, "--targets", "q_proj,down_proj", "--prompts", 2, "--group", 2, "--tokens", 8, "--pairs", 1
    )
    check_cycles(found)


@pytest.mark.parametrize(
    ("head", "computed"), [("float32", "float32"), pytest.param("model", "bfloat16", marks=pytest.mark.slow)]
)
def test_the_heads_type_reaches_the_engine_and_only_the_targets_are_wrapped(head, computed):
    """What is not trained costs nothing."""
    (found,) = rollouts("--device", DEVICE, "--dtype", "bfloat16", "--head", head, "--prompts", 2, "--group", 2, "--tokens", 8,
                     "--cycles", 1, "--pairs", 1, "--targets", "q_proj,down_proj")  # fmt: skip
    assert found["head"] == computed
    assert found["wrapped"] == ["down_proj", "qkv_proj"]


def test_pushes_of_two_adapters():
    """A LoRA pair goes over in both ways, DoRA is merged; only what an adapter trains is counted."""
    found = bench("sync", "--adapters", "lora,dora", "--layers", 1, "--rank", 4, "--versions", 2)["syncs"]
    assert [(row["kind"], row["mode"]) for row in found] == [("lora", "swap"), ("lora", "merge"), ("dora", "merge")]
    lora = 4 * (3 * (128 + 128) - 64 - 64 + (128 + 128) + 3 * (128 + 256))  # q, k, v; o; gate, up, down
    norms = 128 + 64 + 64 + 128 + 256 + 256 + 128
    assert [row["trained"] for row in found] == [lora, lora, lora + norms]
    assert all(len(row["all_s"]) == 2 and min(row["all_s"]) <= row["push_s"] <= max(row["all_s"]) for row in found)
    assert all(row["push_s"] > 0 for row in found) and not unlabelled({"syncs": found}, page.SYNC)


@pytest.mark.skipif(not CUDA, reason="sleep needs a GPU")
@pytest.mark.parametrize(("sleep", "sync"), [("kv", "swap"), (1, "swap"), (2, "swap"), (2, "merge")])
def test_three_cycles_at_rank_256_on_a_gpu(sleep, sync):
    (found,) = rollouts("--shape", "1.5b", "--rank", 256, "--sleep", sleep, "--sync", sync, "--tokens", 512)
    promised = found["kv_gb"] + (0 if sleep == "kv" else 3.0)
    assert all(one["freed_gb"] > 0.9 * promised for one in found["cycles"])
    assert check_cycles(found) < 0.05 and found["ratio"] > 0.95
