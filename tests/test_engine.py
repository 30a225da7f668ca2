"""The transformers engine: what it samples, how likely it says that was, and that the trainer agrees."""

import pytest
import torch
from transformers import (
    Gemma3ForCausalLM,
    Gemma3TextConfig,
    LlamaConfig,
    LlamaForCausalLM,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)

from microrl.algorithm.batch import Row
from microrl.config import resolve
from microrl.policy.policy import Policy
from microrl.rollout.transformers import TransformersEngine, sample_tokens
from microrl.types import BASE, Prompt, Sampling

SHAPE = dict(vocab_size=300, hidden_size=64, intermediate_size=96, num_hidden_layers=3, num_attention_heads=4,
             num_key_value_heads=2, head_dim=16, eos_token_id=2, pad_token_id=0)  # fmt: skip
ARCHITECTURES = {
    "qwen2": lambda: Qwen2ForCausalLM(Qwen2Config(**SHAPE, tie_word_embeddings=True)),
    "llama": lambda: LlamaForCausalLM(LlamaConfig(**SHAPE)),
    "qwen3": lambda: Qwen3ForCausalLM(Qwen3Config(**SHAPE)),
    "gemma3": lambda: Gemma3ForCausalLM(Gemma3TextConfig(**SHAPE, sliding_window=8, query_pre_attn_scalar=16)),
}
PROMPTS = [Prompt("q", "1", "", tuple(range(5, 5 + length))) for length in (4, 11, 6)]


def random_model(architecture):
    torch.manual_seed(0)
    model = ARCHITECTURES[architecture]().eval().requires_grad_(False)
    for parameter in model.parameters():
        if parameter.dim() > 1:
            parameter.normal_(0, 0.15)
    return model


def with_adapter(model, **flags):
    """A policy on the model whose adapter is not zero."""
    config = resolve((), {"adapter.rank": 8, "adapter.alpha": 16.0, "sampling.max_completion_tokens": 16, **flags})
    policy = Policy(model, config)
    generator = torch.Generator().manual_seed(1)
    for pair in policy.snapshot().pairs.values():
        pair.B_OR.copy_(torch.randn(pair.B_OR.shape, generator=generator) * 0.2)
    return policy


def collect(engine, snapshot, prompts, sampling, stream=(0, 0)):
    with engine.awake(snapshot) as sampler:
        return [group for _, group in sorted(sampler.groups(prompts, sampling, stream=stream), key=lambda item: item[0])]


def rows_of(groups):
    return [
        Row(group.prompt.token_ids, completion.token_ids, completion.logprobs, 1.0, True, 0)
        for group in groups
        for completion in group.completions
    ]


def test_at_the_least_temperature_the_likeliest_token_is_taken(tokenizer):
    """Logits divided by it are finite still, and engine and trainer agree; at 1e-40 nothing was right, because all was NaN."""
    model = random_model("qwen2")
    engine = TransformersEngine(model, tokenizer, max_kv_gb=1)
    policy = with_adapter(model, **{"sampling.temperature": 0.01})
    rows = rows_of(collect(engine, policy.snapshot(), PROMPTS, Sampling(2, 8, temperature=0.01)))
    for row, logprobs in zip(rows, policy.logprobs(rows), strict=True):
        assert torch.allclose(torch.tensor(row.engine_logprobs), logprobs, atol=2e-3)
    sure = [value > -0.01 for row in rows for value in row.engine_logprobs]
    assert sum(sure) > 0.8 * len(sure)


@pytest.mark.parametrize("kind", ["lora", "rslora"])
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_engine_and_trainer_agree_on_logprobs(architecture, kind, tokenizer):
    model = random_model(architecture)
    engine = TransformersEngine(model, tokenizer, max_kv_gb=1)
    # rslora's scale, alpha / sqrt(rank), is larger: the same alpha would blow this random model's activations up.
    alpha = 16.0 if kind == "lora" else 6.0
    policy = with_adapter(model, **{"adapter.kind": kind, "adapter.alpha": alpha, "sampling.temperature": 0.7})
    groups = collect(engine, policy.snapshot(), PROMPTS, Sampling(3, 16, temperature=0.7))
    rows = rows_of(groups)
    for row, logprobs in zip(rows, policy.logprobs(rows), strict=True):
        assert torch.allclose(torch.tensor(row.engine_logprobs), logprobs, atol=2e-5)
    # The base is another distribution: had the fold been forgotten, this would have been noticed.
    with policy.adapter.off():
        gap = max((torch.tensor(row.engine_logprobs) - base).abs().max() for row, base in zip(rows, policy.logprobs(rows)))
    assert gap > 0.1


def test_a_small_update_is_not_rounded_away_in_bf16(tokenizer):
    """Folded into bf16 weights, most of an update this small would vanish; beside them it moves the engine as the trainer."""
    model = random_model("qwen2").to(torch.bfloat16)
    engine = TransformersEngine(model, tokenizer, max_kv_gb=1)
    policy = with_adapter(model)
    for pair in policy.snapshot().pairs.values():
        pair.B_OR.mul_(2e-4)
    linear = engine._model.get_submodule("model.layers.0.mlp.up_proj")
    x = torch.randn(4, 64, dtype=torch.bfloat16)
    theirs = policy.adapter.model.get_submodule("model.layers.0.mlp.up_proj")
    with engine.awake(policy.snapshot()):
        assert torch.equal(linear(x), theirs(x))
    groups = collect(engine, policy.snapshot(), PROMPTS, Sampling(2, 8))
    rows = rows_of(groups)
    for row, logprobs in zip(rows, policy.logprobs(rows), strict=True):
        assert torch.allclose(torch.tensor(row.engine_logprobs), logprobs, atol=0.15)


def test_the_base_snapshot_samples_the_untouched_model(tokenizer):
    model = random_model("qwen2")
    engine = TransformersEngine(model, tokenizer, max_kv_gb=1)
    policy = with_adapter(model)
    rows = rows_of(collect(engine, BASE, PROMPTS, Sampling(2, 8)))
    with policy.adapter.off():
        for row, logprobs in zip(rows, policy.logprobs(rows), strict=True):
            assert torch.allclose(torch.tensor(row.engine_logprobs), logprobs, atol=2e-5)


def test_folding_leaves_the_trainers_weights_alone_and_is_undone(tokenizer):
    model = random_model("llama")
    engine = TransformersEngine(model, tokenizer, max_kv_gb=1)
    before = {name: parameter.clone() for name, parameter in model.named_parameters()}
    pointers = {name: parameter.data_ptr() for name, parameter in engine._model.named_parameters()}
    policy = with_adapter(model)
    collect(engine, policy.snapshot(), PROMPTS, Sampling(2, 8))
    after = {name.replace(".base_layer", ""): parameter for name, parameter in model.named_parameters()}
    assert all(torch.equal(before[name], after[name]) for name in before)
    # Asleep, the engine holds no tensor of its own.
    assert pointers == {name: parameter.data_ptr() for name, parameter in engine._model.named_parameters()}
    assert set(pointers.values()) <= {parameter.data_ptr() for parameter in model.parameters()}


def test_a_completion_depends_on_its_own_key_only(tokenizer):
    """Not on its neighbours, the order of prompts, the number of waves, nor the process's generators."""
    engine = TransformersEngine(random_model("qwen2"), tokenizer, max_kv_gb=1)
    sampling = Sampling(2, 12)
    together = collect(engine, BASE, PROMPTS, sampling)
    torch.manual_seed(99)
    alone = collect(engine, BASE, PROMPTS[:1], sampling)
    one_by_one = TransformersEngine(random_model("qwen2"), tokenizer, max_kv_gb=1e-9)
    waves = collect(one_by_one, BASE, PROMPTS, sampling)
    ids = [[completion.token_ids for completion in group.completions] for group in together]
    assert ids[0] == [completion.token_ids for completion in alone[0].completions]
    assert ids == [[completion.token_ids for completion in group.completions] for group in waves]
    assert ids[0][0] != ids[0][1]
    assert ids != [[c.token_ids for c in g.completions] for g in collect(engine, BASE, PROMPTS, sampling, stream=(0, 1))]


def test_finish_reasons_lengths_and_streaming(tokenizer):
    model = random_model("qwen2")
    model.model.embed_tokens.weight[2] *= 3  # tied head: the end of sequence is likely now
    engine = TransformersEngine(model, tokenizer, max_kv_gb=1)
    seen = []
    with engine.awake(BASE) as sampler:
        for position, group in sampler.groups(PROMPTS * 3, Sampling(2, 16), stream=(4,)):
            seen.append(position)
            for completion in group.completions:
                ids = completion.token_ids
                assert len(ids) == len(completion.logprobs) and completion.version == 0
                stopped = ids[-1] == 2
                assert completion.finish == ("stop" if stopped else "length")
                assert 2 not in ids[:-1] and (stopped or len(ids) == 16)
    assert sorted(seen) == list(range(9))
    assert seen != sorted(seen), "groups come as they finish"


def test_forced_length(tokenizer):
    engine = TransformersEngine(random_model("qwen2"), tokenizer, max_kv_gb=1)
    groups = collect(engine, BASE, PROMPTS, Sampling(2, 9, min_tokens=9))
    assert {len(completion.token_ids) for group in groups for completion in group.completions} == {9}


def test_choose_inverts_the_distribution():
    logits = torch.log(torch.tensor([[0.5, 0.25, 0.25]])).repeat(4, 1)
    tokens, logprobs = sample_tokens(logits, torch.tensor([0.0, 0.49, 0.51, 0.9999999], dtype=torch.float64), Sampling(1, 1))
    assert tokens.tolist() == [0, 0, 1, 2]
    assert logprobs.exp().tolist() == pytest.approx([0.5, 0.5, 0.25, 0.25])


def test_sampling_follows_the_probabilities():
    probabilities = torch.tensor([0.6, 0.3, 0.1])
    uniforms = torch.rand(20_000, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    tokens, _ = sample_tokens(probabilities.log().repeat(20_000, 1), uniforms, Sampling(1, 1))
    assert torch.bincount(tokens).div(20_000).tolist() == pytest.approx(probabilities.tolist(), abs=0.01)


def test_temperature_and_top_p_are_in_the_logprobs():
    logits = torch.log(torch.tensor([[0.5, 0.3, 0.2]]))
    draw = torch.tensor([0.99], dtype=torch.float64)
    _, hot = sample_tokens(logits, draw, Sampling(1, 1, temperature=2.0))
    roots = torch.tensor([0.5, 0.3, 0.2]).sqrt()
    assert hot.exp().item() == pytest.approx(float(roots[2] / roots.sum()))
    token, cut = sample_tokens(logits, draw, Sampling(1, 1, top_p=0.7))
    assert token.item() == 1 and cut.exp().item() == pytest.approx(0.3 / 0.8)
