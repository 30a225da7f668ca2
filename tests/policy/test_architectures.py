"""Models of many architectures: each is computed as it computes itself, or refused by name with the reason."""

import pytest
import torch
from architectures import tiny
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

from microrl.algorithm.batch import Batch, Row
from microrl.config import resolve
from microrl.errors import UserError
from microrl.policy import architecture, microbatch
from microrl.policy.policy import Policy
from microrl.rollout.factory import make_engine
from microrl.rollout.transformers import TransformersEngine
from microrl.types import Prompt, Sampling

SUPPORTED = ["llama", "mistral", "qwen2", "qwen3", "qwen3_moe", "gemma2", "gemma3_text", "cohere", "cohere2", "granite", "olmo2",
             "phi3", "phimoe", "smollm3", "gpt_oss", "gpt_neox", "gpt_bigcode", "bloom", "falcon", "opt", "xglm", "biogpt",
             "persimmon", "mpt", "seed_oss", "nanochat"]  # fmt: skip
REFUSED = {
    "qwen3_next": "one prompt shared by its group, the model raises IndexError",
    "lfm2": "one prompt shared by its group, the model raises IndexError",
    "jamba": "one prompt shared by its group, the model raises IndexError",
    "nemotron_h": "one prompt shared by its group, the model raises IndexError",
    "mamba": "one prompt shared by its group, the model raises IndexError",
    "llama4_text": "the model raises AttributeError",
    "modernbert-decoder": "backbone and output head separately, log-probabilities differ by",
    "bert": "log-probabilities differ by",
    "bert-generation": "log-probabilities differ by",
    "rwkv": "one prompt shared by its group, the model raises RuntimeError",
}
BENT = {"gemma2": {}, "cohere": {}, "granite": {"logits_scaling": 8.0}, "nanochat": {}}
"""What these make of their head's output is not the identity."""
PROMPTS = [Prompt("q", "1", "", (5, 6, 7)), Prompt("q", "1", "", (9, 8, 7, 6, 5))]


def once_around(model, tokenizer):
    """Check the model, sample from it with an adapter, and update that. Returns what the update says."""
    architecture.check(model, tokenizer)
    config = resolve((), {"adapter.rank": 4, "sampling.max_completion_tokens": 8, "data.max_prompt_tokens": 16})
    engine = make_engine(config, model, tokenizer)
    policy = Policy(model, config)
    with engine.awake(policy.snapshot()) as sampler:
        groups = [group for _, group in sampler.groups(PROMPTS, Sampling(2, 6), stream=(0, 0))]
    rows = tuple(
        Row(group.prompt.token_ids, completion.token_ids, completion.logprobs, (-1.0) ** number, True, place)
        for place, group in enumerate(groups)
        for number, completion in enumerate(group.completions)
    )
    return policy.update(Batch(rows, len(groups), 0), 1e-3)


@pytest.mark.cases(fast=5)
@pytest.mark.parametrize("model_type", SUPPORTED)
def test_a_supported_architecture_goes_once_around(model_type, tokenizer):
    update = once_around(tiny(model_type), tokenizer)
    assert update.kl_sampler < 1e-9 and update.grad_norm > 0


@pytest.mark.cases(fast=3)
@pytest.mark.parametrize("model_type", REFUSED)
def test_another_architecture_is_refused_with_the_reason(model_type, tokenizer):
    with pytest.raises(UserError, match=f"{model_type} models are not supported: .*{REFUSED[model_type]}") as error:
        architecture.check(tiny(model_type), tokenizer)
    assert "\n" not in error.value.message and error.value.hint


@pytest.mark.slow
def test_no_architecture_ends_in_a_traceback(tokenizer):
    """Every one that transformers has and that can be made small: through, or one line."""
    through, refused, unmade = [], [], []
    for model_type in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES:
        try:
            model = tiny(model_type)
        except Exception as error:  # a configuration with needs of its own
            unmade.append(f"{model_type}: {error}")
            continue
        try:
            assert once_around(model, tokenizer).kl_sampler < 1e-9, model_type
            through.append(model_type)
        except UserError as error:
            assert "\n" not in error.message, model_type
            refused.append(f"{model_type}: {error.message}")
    assert len(through) > 60 and len(refused) > 60 and len(unmade) < 40, (through, refused, unmade)


@pytest.mark.parametrize("model_type", ["lfm2", "modernbert-decoder"])
def test_the_command_refuses_it_before_anything_is_trained(inside, model_type, tokenizer, data_file, tmp_path):
    tiny(model_type, vocab_size=300).save_pretrained(tmp_path / "model")
    tokenizer.save_pretrained(tmp_path / "model")
    sets = ["sampling.max_completion_tokens=12", "data.max_prompt_tokens=100", "data.system=", "evaluation.problems=0"]
    flags = [part for key in sets for part in ("--set", key)]
    done = inside("train", "--model", tmp_path / "model", "--data", data_file, "--rank", 4, "--steps", 1, *flags,
                  "--out", tmp_path / "run")  # fmt: skip
    assert done.returncode == 2 and f"{model_type} models are not supported" in done.stderr and "hint:" in done.stderr


@pytest.mark.cases(fast=1)
@pytest.mark.parametrize("model_type", BENT)
@torch.no_grad()
def test_bent_logits_are_scored_as_the_model_bends_them(model_type, tokenizer):
    """Trainer, probe and engine against the model's own logits, with weights at which the bend is worth many nats."""
    model = tiny(model_type, **BENT[model_type])
    model.get_output_embeddings().weight.mul_(20)
    ids = tuple(range(5, 25))
    logits = model(input_ids=torch.tensor([ids])).logits[0, :-1]
    own = logits.log_softmax(-1).gather(1, torch.tensor(ids[1:])[:, None])[:, 0]
    states = model.base_model(input_ids=torch.tensor([ids])).last_hidden_state[0, :-1]
    head = model.get_output_embeddings()(states).log_softmax(-1).gather(1, torch.tensor(ids[1:])[:, None])[:, 0]
    assert (head - own).abs().max() > 2, "the head's own output would be seen to be another distribution"
    engine = TransformersEngine(model, tokenizer, max_kv_gb=1)
    (decoded,) = engine.score([ids[:8]], [[ids[8:]]])
    policy = Policy(model, resolve((), {"adapter.rank": 4}))
    (scored,) = policy.logprobs([Row(ids[:8], ids[8:], (), 1.0, True, 0)])
    for found, expected in ((policy.score([ids])[0], own), (scored, own[7:]), (decoded, own[7:])):
        assert torch.allclose(found, expected, atol=1e-3)


def test_the_check_leaves_no_trace(tokenizer):
    """The random numbers to come and the model are what they were."""
    model = tiny("llama")
    state, modules = torch.get_rng_state(), [dict(vars(module)) for module in model.modules()]
    architecture.check(model, tokenizer)
    assert torch.equal(torch.get_rng_state(), state)
    for module, before in zip(model.modules(), modules, strict=True):
        assert vars(module).keys() == before.keys() and not module._forward_hooks


def test_a_cache_without_gradients_is_seen(tokenizer, monkeypatch):
    """The log-probabilities are right then, and what the completions teach the prompt's layers is lost."""
    select = microbatch.rows_at
    monkeypatch.setattr(microbatch, "rows_at", lambda x, index: select(x.detach() if x.dim() == 4 else x, index))
    with pytest.raises(UserError, match="gradients differ by"):
        architecture.check(tiny("llama"), tokenizer)


@pytest.mark.cases(fast=1)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_narrow_types_pass_the_check(dtype, tokenizer):
    for model_type in ("llama", "gemma2", "qwen3"):
        architecture.check(tiny(model_type).to(dtype), tokenizer)


def test_weights_that_are_not_finite_are_seen(tokenizer):
    model = tiny("llama")
    model.lm_head.weight[7, 3] = float("nan")
    with pytest.raises(UserError, match="not finite in float32"):
        architecture.check(model, tokenizer)


LONGROPE = {"rope_type": "longrope", "short_factor": [1.0] * 8, "long_factor": [8.0] * 8, "rope_theta": 10000.0,
            "original_max_position_embeddings": 32}  # fmt: skip


@torch.no_grad()
def test_rotary_embeddings_that_change_with_the_length_are_bounded(tokenizer):
    """Beyond the bound a row's log-probabilities move by what happens to be beside it."""
    model = tiny("phi3", rope_parameters=LONGROPE, original_max_position_embeddings=32)
    flags = {"adapter.rank": 4, "data.max_prompt_tokens": 8}
    with pytest.raises(UserError, match=r"beyond 32 tokens.* \(longrope\)") as error:
        make_engine(resolve((), {"sampling.max_completion_tokens": 25, **flags}), model, tokenizer)
    assert "at most 32" in error.value.hint
    config = resolve((), {"sampling.max_completion_tokens": 24, **flags})
    make_engine(config, model, tokenizer)
    policy = Policy(model, config)
    prompt, short = (5, 6, 7, 8, 9, 10, 11, 12), tuple(range(20, 30))
    (alone,) = policy.logprobs([Row(prompt, short, (), 1.0, True, 0)])
    moved = {}
    for length in (24, 30):
        beside, _ = policy.logprobs([Row(prompt, short, (), 1.0, True, 0), Row(prompt, tuple(range(length)), (), 1.0, True, 0)])
        moved[length] = float((beside - alone).abs().max())
    assert moved[24] < 1e-4 < 0.05 < moved[30]


@pytest.mark.parametrize("key", ["sampling.max_completion_tokens", "evaluation.max_completion_tokens"])
def test_completions_beyond_the_models_positions_are_refused(key, tokenizer):
    config = resolve((), {"data.max_prompt_tokens": 28, "sampling.max_completion_tokens": 50, key: 101})
    with pytest.raises(UserError, match="do not fit in the model's 128 positions") as error:
        make_engine(config, tiny("llama"), tokenizer)
    assert "at most 128" in error.value.hint
