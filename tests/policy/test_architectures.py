"""Models of many architectures: each is computed as it computes itself, or refused by name with the reason."""

import copy
import json
import signal

import pytest
import torch
from architectures import FIELDS, tiny
from peft import PeftModel
from safetensors.torch import load_file, save_file
from trained import logits, trained_logits
from transformers import CONFIG_MAPPING, AutoModelForCausalLM, AutoModelForImageTextToText
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES
from whole_runs import rows, same_end, start

from microrl.algorithm.batch import Batch, Row
from microrl.config import resolve
from microrl.config.schema import ModelConfig
from microrl.errors import UserError
from microrl.models.load import load
from microrl.models.ways import Ways
from microrl.plan.workload import SLOWER
from microrl.policy import architecture, microbatch
from microrl.policy.policy import Policy
from microrl.rollout.factory import make_engine
from microrl.rollout.transformers import TransformersEngine
from microrl.types import BASE, Prompt, Sampling

SUPPORTED = ["llama", "mistral", "qwen2", "qwen3", "qwen3_moe", "gemma2", "gemma3_text", "gemma4_text", "cohere", "cohere2",
             "granite", "olmo2", "phi3", "phimoe", "smollm3", "gpt_oss", "gpt_neox", "gpt_bigcode", "bloom", "falcon", "opt",
             "xglm", "biogpt", "persimmon", "mpt", "seed_oss", "nanochat"]  # fmt: skip
HYBRID = ["qwen3_5_text", "lfm2", "granitemoehybrid", "falcon_h1", "jamba", "qwen3_next"]
"""Their layers have more state than keys and values."""
REFUSED = {
    "llama4_text": "the model raises AttributeError",
    "modernbert-decoder": "backbone and output head separately, log-probabilities differ by",
    "bert": "log-probabilities differ by",
    "bert-generation": "log-probabilities differ by",
    "rwkv": "decoding with the model's own cache, the model raises KeyError",
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
    model = tiny(model_type)
    update = once_around(model, tokenizer)
    assert update.kl_sampler < 1e-9 and update.grad_norm > 0
    assert Ways.of(model) == Ways(), "the fast ones"


@pytest.mark.cases(fast=3)
@pytest.mark.parametrize("model_type", HYBRID)
def test_a_hybrid_goes_once_around_by_slower_ways(model_type, tokenizer):
    assert model_type in SLOWER, "the plan knows it, too"
    model = tiny(model_type)
    update = once_around(model, tokenizer)
    assert update.kl_sampler < 1e-9 and update.grad_norm > 0
    prompts, decoding = Ways.of(model).notes()
    assert (
        "recomputes the prompt for each completion, which is slower: with one prompt shared by its group, the model raises"
        in prompts
    )
    assert "in separate batches, which is slower: decoding with a KV cache, the model raises" in decoding


@pytest.mark.cases(fast=3)
@pytest.mark.parametrize("model_type", [*HYBRID, "gemma4_text"])
@torch.no_grad()
def test_trainer_and_engine_find_every_row_as_likely_as_the_model_does(model_type, tokenizer):
    """Rows of prompts of three lengths that join and leave while others decode, against the model's own logits, row by row."""
    model = tiny(model_type)
    architecture.check(model, tokenizer)
    engine = TransformersEngine(model, tokenizer, max_kv_gb=1)
    engine.room = lambda queue, sampling: (2, 64)
    engine.stops = torch.arange(0, 300, 6)
    with engine.awake(BASE) as sampler:
        prompts = [*PROMPTS, Prompt("q", "1", "", (3, 4)), Prompt("q", "1", "", (8, 6, 7)), Prompt("q", "1", "", (5, 5, 5))]
        groups = [group for _, group in sampler.groups(prompts, Sampling(3, 12), stream=(0, 0))]
    drawn = [(group.prompt.token_ids, one.token_ids, one.logprobs) for group in groups for one in group.completions]
    policy = Policy(model, resolve((), {"adapter.rank": 4, "sampling.max_completion_tokens": 12}))
    scored = policy.logprobs([Row(prompt, ids, (), 1.0, True, number) for number, (prompt, ids, _) in enumerate(drawn)])
    probed = policy.score([prompt + ids for prompt, ids, _ in drawn])
    assert len({len(ids) for _, ids, _ in drawn}) > 1, "some leave before others"
    for (prompt, ids, sampled), trained, whole in zip(drawn, scored, probed, strict=True):
        logits = model(input_ids=torch.tensor([prompt + ids]), use_cache=False).logits[0, len(prompt) - 1 : -1]
        own = logits.log_softmax(-1).gather(1, torch.tensor(ids)[:, None])[:, 0]
        for found in (torch.tensor(sampled), trained, whole[len(prompt) - 1 :]):
            assert torch.allclose(found, own, atol=1e-4)


@pytest.mark.cases(fast=3)
@pytest.mark.parametrize("model_type", REFUSED)
def test_another_architecture_is_refused_with_the_reason(model_type, tokenizer):
    with pytest.raises(UserError, match=f"{model_type} models are not supported: .*{REFUSED[model_type]}") as error:
        architecture.check(tiny(model_type), tokenizer)
    assert "\n" not in error.value.message and error.value.hint


def saved(model, tokenizer, folder):
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


TEXT = {
    "vocab_size": 300, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 16, "max_position_embeddings": 128, "bos_token_id": 0, "eos_token_id": 1,
}  # fmt: skip
VISION = {"hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "head_dim": 16}
WITH_IMAGES = {
    "gemma3": {"text_config": TEXT, "vision_config": {**VISION, "image_size": 28, "patch_size": 14}},
    "gemma4": {"text_config": {**TEXT, **FIELDS["gemma4_text"]}, "vision_config": VISION, "audio_config": None},
    "qwen3_5": {
        "text_config": {**TEXT, **FIELDS["qwen3_5_text"]},
        "vision_config": {"depth": 1, "hidden_size": 32, "intermediate_size": 32, "num_heads": 2, "out_hidden_size": 64},
    },
    "mistral3": {
        "text_config": {**TEXT, "model_type": "ministral3"},
        "vision_config": {**VISION, "model_type": "pixtral", "image_size": 28, "patch_size": 14},
    },
}


@pytest.mark.parametrize("model_type", WITH_IMAGES)
@torch.no_grad()
def test_the_text_part_of_a_model_for_images_loads_and_is_saved_alone(model_type, tokenizer, tmp_path):
    whole = AutoModelForImageTextToText.from_config(CONFIG_MAPPING[model_type](**copy.deepcopy(WITH_IMAGES[model_type]))).eval()
    ids = torch.tensor([[5, 6, 7, 8]])
    expected = whole(input_ids=ids).logits
    part = load(ModelConfig(name=str(saved(whole, tokenizer, tmp_path / "whole")))).model
    assert not [name for name, _ in part.named_parameters() if "vision" in name or "visual" in name]
    assert torch.allclose(part(input_ids=ids).logits, expected, atol=1e-5)
    again = load(ModelConfig(name=str(saved(part, tokenizer, tmp_path / "part")))).model
    assert type(again) is type(part) and torch.allclose(again(input_ids=ids).logits, expected, atol=1e-5)


def test_a_model_for_images_whose_text_part_is_not_whole_is_refused(tokenizer, tmp_path):
    whole = AutoModelForImageTextToText.from_config(CONFIG_MAPPING["gemma3"](**copy.deepcopy(WITH_IMAGES["gemma3"])))
    saved(whole, tokenizer, tmp_path)
    tensors = load_file(tmp_path / "model.safetensors")
    del tensors["language_model.model.norm.weight"]
    save_file(tensors, tmp_path / "model.safetensors", {"format": "pt"})
    with pytest.raises(UserError, match=r"its language model lacks model\.norm\.weight"):
        load(ModelConfig(name=str(tmp_path)))


@pytest.mark.slow
@pytest.mark.cases(one_of_each=1)
@pytest.mark.parametrize("model_type", [*HYBRID, "gemma4_text"])
def test_a_model_of_today_trains_resumes_and_is_exported(model_type, inside, tokenizer, data_file, tmp_path, monkeypatch):
    """With every default of the adapter and of the rate, which is steered. Killed and resumed, the run ends as the one that was
    not, bit by bit; plain transformers and PEFT compute what it has trained from either export."""
    model, whole, out = (tmp_path / name for name in ("model", "whole", "killed"))
    saved(tiny(model_type, vocab_size=300), tokenizer, model)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "parity.py").write_text(
        "def even(prompts, completions, rows):\n    return [len(text) % 2 for text in completions]\n"
    )
    sets = ["sampling.prompts_per_step=4", "sampling.group_size=4", "sampling.max_completion_tokens=12", "data.system=",
            "data.held_out=0.2", "data.validation=0.2", "evaluation.problems=4", "data.max_prompt_tokens=100"]  # fmt: skip
    command = ["train", "--model", model, "--data", data_file, "--rank", 8, "--steps", 5, "--reward", "parity:even",
               *(part for key in sets for part in ("--set", key))]  # fmt: skip
    done = inside(*command, "--out", whole)
    assert done.returncode == 0, done.stderr
    steps = rows(whole)
    assert all(step["policy/step_kl"] > 0 and step["policy/kl_sampler"] < 1e-9 for step in steps)
    assert len({step["optim/lr"] for step in steps}) > 1, "the rate is steered"
    process = start([*command, "--out", out], place="row", count=3)
    _, errors = process.communicate(timeout=300)
    assert process.returncode == -signal.SIGKILL and len(rows(out)) == 3, errors
    resumed = inside("train", "--resume", out)
    assert resumed.returncode == 0, resumed.stderr
    same_end(out, whole)
    slower = [0, 0] if model_type == "gemma4_text" else [1, 1]  # the update, and the decoding
    said = [" are decoded in separate batches", "recomputes the prompt for each completion"]
    kinds = [json.loads(line)["kind"] for line in (out / "events.jsonl").read_text().splitlines()]
    assert [resumed.stderr.count(words) for words in said] == slower and kinds.count("slower") == 2 * sum(slower)
    for command in (("eval", out, "--samples", 1, "--out", tmp_path / "eval"), ("sample", out, "2 + 2?", "--json")):
        done = inside(*command)
        assert done.returncode == 0 and done.stderr.count(said[0]) == slower[0], done.stderr
        assert said[1] not in done.stderr, "nothing is trained"
    ids = torch.tensor([[5, 6, 7, 8, 9, 17, 33]])
    base, trained = trained_logits(out, model, ids)
    assert (trained - base).abs().max() > 1e-2
    for form in ("full", "lora"):
        done = inside("export", out, "--as", form, "--out", tmp_path / form)
        assert done.returncode == 0, done.stderr
        assert (logits(AutoModelForCausalLM.from_pretrained(tmp_path / form), ids) - trained).abs().max() < 1e-4
    adapter = PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained(model), tmp_path / "lora")
    assert (logits(adapter, ids) - trained).abs().max() < 1e-4


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
    assert len(through) > 110 and len(refused) > 50 and len(unmade) < 40, (through, refused, unmade)


@pytest.mark.parametrize("model_type", ["rwkv", "modernbert-decoder"])
def test_the_command_refuses_it_before_anything_is_trained(inside, model_type, tokenizer, data_file, tmp_path):
    saved(tiny(model_type, vocab_size=300), tokenizer, tmp_path / "model")
    sets = ["sampling.max_completion_tokens=12", "data.max_prompt_tokens=100", "data.system=", "evaluation.problems=0"]
    flags = [part for key in sets for part in ("--set", key)]
    done = inside("train", "--model", tmp_path / "model", "--data", data_file, "--rank", 4, "--steps", 1, *flags,
                  "--out", tmp_path / "run")  # fmt: skip
    assert done.returncode == 2 and f"{model_type} models are not supported" in done.stderr and "hint:" in done.stderr


@pytest.mark.cases(fast=1)
@pytest.mark.parametrize("model_type", BENT)
@torch.no_grad()
def test_bent_logits_are_scored_as_the_model_bends_them(model_type, tokenizer):
    """Trainer, probe and engine against the model's own logits, with weights at which the transform is worth many nats."""
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
    model = tiny("llama")
    architecture.check(model, tokenizer)
    assert "gradients differ by" in Ways.of(model).update and Ways.of(model).decoding is None


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
