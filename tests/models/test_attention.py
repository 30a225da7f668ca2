"""Completions of one prompt: the same states and gradients as row by row, without masks and repeated keys."""

import pytest
import torch
from random_models import ARCHITECTURES, relative_gap, small
from samples import PROMPTS

from microrl.algorithm.batch import Row
from microrl.models import attention
from microrl.policy.microbatch import hidden_states, pad
from microrl.rollout.plain_step import PlainStep
from microrl.rollout.transformers import TransformersEngine

PROMPT = (5, 9, 17, 33, 65)
ROWS = [Row(PROMPT, ids, (0.0,) * len(ids), 1.0, True, 0) for ids in ((7, 8, 9, 10, 11, 12), (20, 21), (30, 31, 32, 33))]


def states_and_gradient(model, rows, share_prompts):
    """The states of all rows' completions, and the gradient of a loss on them with respect to the embeddings."""
    batch = pad(rows, tuple(range(len(rows))), torch.device("cpu"), share_prompts=share_prompts)
    table = model.get_input_embeddings().weight.requires_grad_()
    table.grad = None
    found = hidden_states(model, batch, share_prompts=share_prompts)[batch.mask_BT]
    (found * torch.arange(found.shape[-1])).sum().backward()
    return found.detach(), table.grad.clone()


@pytest.fixture
def seen(monkeypatch):
    """Arguments of every attention: (heads of the keys, the mask)."""
    calls, real = [], torch.nn.functional.scaled_dot_product_attention

    def attend(query, key, value, attn_mask=None, **rest):
        calls.append((key.shape[1], attn_mask))
        return real(query, key, value, attn_mask=attn_mask, **rest)

    monkeypatch.setattr(torch.nn.functional, "scaled_dot_product_attention", attend)
    return calls


@pytest.mark.parametrize("share_prompts", [True, False])
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_rows_of_one_prompt_are_as_if_alone(architecture, share_prompts):
    model = small(architecture).double()
    alone = [states_and_gradient(model, [row], False) for row in ROWS]
    attention.use_lower_right(model)
    states, gradient = states_and_gradient(model, ROWS, share_prompts)
    assert torch.allclose(states, torch.cat([one for one, _ in alone]), atol=1e-10)
    assert relative_gap([gradient], [sum(one for _, one in alone)]) < 1e-6  # transformers' norms are in float32


def test_no_mask_is_built_and_no_key_repeated(seen, monkeypatch):
    def refuse(**_):
        raise AssertionError("a mask was built")

    model = small("qwen2")
    attention.use_lower_right(model)
    monkeypatch.setattr(attention, "sdpa_mask", refuse)
    states_and_gradient(model, ROWS, True)
    heads, masks = zip(*seen, strict=True)
    assert (
        set(heads) == {model.config.num_key_value_heads} and model.config.num_key_value_heads < model.config.num_attention_heads
    )
    triangles = [mask for mask in masks if mask is not None]
    assert len(triangles) == model.config.num_hidden_layers and all(mask is triangles[0] for mask in triangles)
    assert triangles[0].shape == (5, 10), "of one row, and not of the batch"


@pytest.mark.parametrize(
    ("bytes_each", "capability", "shared"), [(2, (8, 0), True), (2, (12, 0), True), (2, (7, 5), False), (4, (9, 0), False)]
)
def test_keys_are_shared_where_a_kernel_stores_no_scores(bytes_each, capability, shared):
    assert attention.shares_keys(bytes_each, capability) is shared


@pytest.mark.parametrize("share_prompts", [True, False])
def test_repeated_keys_give_the_same_values_and_gradients(monkeypatch, seen, share_prompts):
    """Below sm_80: as many heads in every attention, and the numbers of the grouped one."""
    model = small("qwen2").double()
    attention.use_lower_right(model)
    states, gradient = states_and_gradient(model, ROWS, share_prompts)
    assert {heads for heads, _ in seen} == {model.config.num_key_value_heads}
    seen.clear()
    monkeypatch.setattr(attention, "takes_groups", lambda query: False)
    repeated, other = states_and_gradient(model, ROWS, share_prompts)
    assert {heads for heads, _ in seen} == {model.config.num_attention_heads}
    assert torch.allclose(states, repeated, atol=1e-12) and relative_gap([gradient], [other]) < 1e-9


def test_a_prompt_alone_is_causal_with_repeated_keys(monkeypatch):
    """As many queries as keys: transformers' own function, for which the groups are gone."""
    torch.manual_seed(0)
    module = torch.nn.Module()
    module.num_key_value_groups, module.is_causal = 3, True
    query, key, value = torch.randn(2, 6, 5, 8), torch.randn(2, 2, 5, 8), torch.randn(2, 2, 5, 8)
    for each in (query, key, value):
        each.requires_grad_()
    grouped, _ = attention.attend(module, query, key, value, None)
    expected = torch.autograd.grad(grouped.square().sum(), (query, key, value))
    real = torch.nn.functional.scaled_dot_product_attention

    def without_groups(*tensors, enable_gqa=False, **rest):
        assert not enable_gqa, "which the memory-efficient kernel refuses"
        return real(*tensors, **rest)

    monkeypatch.setattr(torch.nn.functional, "scaled_dot_product_attention", without_groups)
    monkeypatch.setattr(attention, "takes_groups", lambda query: False)
    repeated, _ = attention.attend(module, query, key, value, None)
    found = torch.autograd.grad(repeated.square().sum(), (query, key, value))
    assert torch.allclose(grouped, repeated, atol=1e-6)
    assert all(torch.allclose(one, other, atol=1e-5) for one, other in zip(expected, found, strict=True))
    one = torch.softmax(query[0, 0] @ key[0, 0].T * 8**-0.5 + torch.full((5, 5), float("-inf")).triu(1), -1) @ value[0, 0]
    assert torch.allclose(repeated[0, :, 0], one, atol=1e-6), "by hand"


def test_prompts_of_different_lengths_are_masked_as_before(seen):
    model = small("qwen2").double()
    rows = [*ROWS, Row((40, 41), (50, 51, 52), (0.0,) * 3, 1.0, True, 1)]
    alone = [states_and_gradient(model, [row], False) for row in rows]
    attention.use_lower_right(model)
    seen.clear()
    states, gradient = states_and_gradient(model, rows, True)
    assert torch.allclose(states, torch.cat([one for one, _ in alone]), atol=1e-10)
    assert relative_gap([gradient], [sum(one for _, one in alone)]) < 1e-6  # transformers' norms are in float32
    assert all(mask is not None and mask.dim() == 4 for _, mask in seen)


@pytest.mark.parametrize(("architecture", "passes"), [("qwen2", 1), ("llama", 1), ("qwen3", 1), ("gemma3", 2)])
def test_prompts_and_completions_are_one_pass_where_tokens_meet_in_attention_alone(architecture, passes):
    """Gemma 3 has windows: its completions are read behind a cache."""
    model, tokens = small(architecture), []
    attention.use_lower_right(model)
    model.get_input_embeddings().register_forward_hook(lambda module, inputs, output: tokens.append(inputs[0].numel()))
    states_and_gradient(model, ROWS, True)
    assert len(tokens) == passes and sum(tokens) == len(PROMPT) + 3 * 5, "the last token is not fed"


@pytest.mark.parametrize("change", ["none", "subclass", "sliding", "eager"])
def test_other_models_are_read_behind_a_cache(change):
    model = small("qwen2")
    attention.use_lower_right(model)
    if change == "subclass":
        model.model.__class__ = type("OtherModel", (type(model.model),), {})
    elif change == "sliding":
        model.config.layer_types = ["full_attention", *["sliding_attention"] * (model.config.num_hidden_layers - 1)]
    elif change == "eager":
        model.set_attn_implementation("eager")
    assert attention.takes_packing(model) is (change == "none")


def test_the_masks_of_padded_prompts_by_hand():
    is_token = torch.tensor([[False, False, True], [True, True, True]])
    packing = attention.Packing.of(is_token, torch.tensor([1, 0, 0]), 2, has_padding=True)
    assert packing.prompt_mask_P1LL.int().tolist() == [
        [[[1, 0, 0], [0, 1, 0], [0, 0, 1]]],
        [[[1, 0, 0], [1, 1, 0], [1, 1, 1]]],
    ]
    alone, full = [[0, 0, 1, 1, 0], [0, 0, 1, 1, 1]], [[1, 1, 1, 1, 0], [1, 1, 1, 1, 1]]
    assert packing.mask_B1TK.int().tolist() == [[full], [alone], [alone]]
    plain = attention.Packing.of(is_token | True, torch.tensor([1, 0, 0]), 2, has_padding=False)
    assert plain.prompt_mask_P1LL is None and plain.mask_B1TK is None


def test_a_window_keeps_its_mask(seen):
    """Layers that look back only so far."""
    model = small("gemma3")
    attention.use_lower_right(model)
    long = [Row(PROMPT, tuple(range(20, 36)), (0.0,) * 16, 1.0, True, 0)] * 2
    states_and_gradient(model, long, True)
    windowed = [mask for _, mask in seen if mask is not None and mask.dim() == 4]
    assert windowed and all(bool((~mask).any()) for mask in windowed)


def test_models_that_do_not_attend_by_the_interface_are_left_alone():
    model = small("qwen2")
    model.set_attn_implementation("eager")
    attention.use_lower_right(model)
    assert model.config._attn_implementation == "eager"


@pytest.mark.parametrize("prompts", [PROMPTS[:1], PROMPTS[:3]], ids=["no mask", "padded prompts"])
def test_in_a_decode_step_heads_that_share_a_key_are_its_queries(monkeypatch, prompts, tokenizer):
    heads, real = [], torch.nn.functional.scaled_dot_product_attention

    def attend(query, key, value, **rest):
        heads.append((query.shape[1], key.shape[1]))
        return real(query, key, value, **rest)

    monkeypatch.setattr(torch.nn.functional, "scaled_dot_product_attention", attend)
    monkeypatch.setattr(PlainStep, "of", lambda *_: None)  # it has an attention of its own
    model = small("qwen2")
    ids = [prompt.token_ids for prompt in prompts]
    completions = [[(7, 8, 9, 10), (20, 21, 22, 23)]] * len(ids)
    before = TransformersEngine(model, tokenizer, max_kv_gb=None).score(ids, completions)
    attention.use_lower_right(model)
    heads.clear()
    after = TransformersEngine(model, tokenizer, max_kv_gb=None).score(ids, completions)
    assert torch.allclose(torch.stack(before), torch.stack(after), atol=1e-5)
    shared = model.config.num_key_value_heads
    assert shared < model.config.num_attention_heads
    assert set(heads[model.config.num_hidden_layers :]) == {(shared, shared)}, "behind the prefill"
