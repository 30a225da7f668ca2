"""The transformers engine: what it samples, how likely it says that was, and that the trainer agrees."""

import dataclasses
import time

import pytest
import torch
from echoes import Echoes
from random_models import ARCHITECTURES, random_model, with_adapter
from samples import PROMPTS, ScriptedPace, collect, rows_of

from microrl.limits import CPU_ROWS
from microrl.models.forward import sequence_logprobs
from microrl.rollout.decoding import _nucleus, sample_tokens
from microrl.rollout.requests import Queue, Request
from microrl.rollout.transformers import TransformersEngine
from microrl.types import BASE, Prompt, Sampling

MOST_APART = [name if name in ("qwen2", "gemma3") else pytest.param(name, marks=pytest.mark.slow) for name in ARCHITECTURES]


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


@pytest.mark.cases(fast=2)
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
    linear = engine.model.get_submodule("model.layers.0.mlp.up_proj")
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
    pointers = {name: parameter.data_ptr() for name, parameter in engine.model.named_parameters()}
    policy = with_adapter(model)
    collect(engine, policy.snapshot(), PROMPTS, Sampling(2, 8))
    after = {name.replace(".base_layer", ""): parameter for name, parameter in model.named_parameters()}
    assert all(torch.equal(before[name], after[name]) for name in before)
    # Asleep, the engine holds no tensor of its own.
    assert pointers == {name: parameter.data_ptr() for name, parameter in engine.model.named_parameters()}
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


@pytest.mark.parametrize("vocab", [288, 4097, 8192])
@pytest.mark.parametrize("top_p", [1.0, 0.5])
def test_a_draw_in_blocks_is_the_one_over_the_whole_vocabulary(vocab, top_p):
    generator = torch.Generator().manual_seed(vocab)
    logits = 4 * torch.randn(200, vocab, generator=generator)
    logits[:, 1::3] = -torch.inf
    uniforms = torch.rand(200, generator=generator, dtype=torch.float64)
    uniforms[:2] = torch.tensor([0.0, 1 - 2**-53], dtype=torch.float64)
    tokens, logprobs = sample_tokens(logits, uniforms, Sampling(1, 1, top_p=top_p))
    probabilities = logits.softmax(1) if top_p == 1 else _nucleus(logits.softmax(1), top_p)
    ends = probabilities.cumsum(1, dtype=torch.float64)
    targets, drawn = uniforms.unsqueeze(1) * ends[:, -1:], tokens.unsqueeze(1)
    # The fp32 sum of a block moves its boundaries by less than 1e-6: another token is drawn at most where one is that near.
    begins = (ends - probabilities).gather(1, drawn)
    assert (begins - 1e-6 <= targets).all() and (targets < ends.gather(1, drawn) + 1e-6).all()
    assert (torch.searchsorted(ends, targets, right=True) != drawn).sum() <= 1
    assert torch.equal(logprobs, probabilities.gather(1, drawn).log().squeeze(1)) and logprobs.isfinite().all()


def test_nothing_impossible_is_drawn():
    """A block's sum and the sums within it round differently: near a block's end no token of probability 0 may come of it."""
    possible = [0, 126, 128, 254, 256, 382]
    logits = torch.full((2, 8192), -torch.inf)
    logits[:, possible] = torch.tensor([0.1, 0.7, 0.3, 0.2, 0.9, 0.4])
    ends = logits.double().softmax(1).cumsum(1)
    for edge in ends[0, [126, 254, 382]].tolist():
        for step in range(-20, 21):
            uniforms = torch.tensor([edge + step * 2e-9, edge * (1 + step * 2**-53)], dtype=torch.float64).clamp(0, 1 - 2**-53)
            tokens, logprobs = sample_tokens(logits, uniforms, Sampling(1, 1))
            assert logprobs.isfinite().all() and set(tokens.tolist()) <= set(possible)


def test_logits_that_are_not_numbers_show_in_the_logprob():
    tokens, logprobs = sample_tokens(torch.full((2, 5000), torch.nan), torch.tensor([0.0, 0.9]).double(), Sampling(1, 1))
    assert tokens.max() < 5000 and logprobs.isnan().all()


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


def varied(count):
    """Prompts of 2 to 30 tokens in no order."""
    return [Prompt("q", "1", "", tuple(range(5, 7 + 11 * number % 29))) for number in range(count)]


def waiting(prompts):
    return Queue((Request((0, n), prompt.token_ids, 2) for n, prompt in enumerate(prompts)), stream=(0,))


def that_often_stops(architecture):
    model = random_model(architecture)
    head = model.get_output_embeddings()
    head.weight = torch.nn.Parameter(head.weight.clone(), requires_grad=False)
    head.weight[2] *= 6 if architecture == "qwen3" else 3
    return model


@pytest.mark.slow
@pytest.mark.cases(one_of_each=1)
@pytest.mark.parametrize("architecture", MOST_APART)
def test_prompts_that_take_the_place_of_finished_rows_get_the_completions_that_they_get_alone(architecture, tokenizer):
    """Room for six rows of 24 prompts: rows join others that are ahead, and the cache is moved when it is full."""
    model = that_often_stops(architecture)
    bytes_a_token = 2 * 3 * 2 * 16 * 4
    narrow = TransformersEngine(model, tokenizer, max_kv_gb=6.1 * 1.25 * (30 + 40) * bytes_a_token / 1e9)
    wide = TransformersEngine(model, tokenizer, max_kv_gb=1)
    prompts, sampling = varied(24), Sampling(2, 40)
    assert narrow.room(waiting(prompts), sampling) == (3, 88) and wide.room(waiting(prompts), sampling) == (24, 70)
    assert wide.room(waiting(prompts * 50), sampling)[0] == CPU_ROWS // 2, "more at once would only take memory"
    with narrow.awake(BASE) as sampler:
        found = dict(sampler.groups(prompts, sampling, stream=(0, 0)))
        steps = sampler.decode_steps
    lengths = [max(len(one.token_ids) for one in found[position].completions) for position in range(24)]
    assert len(set(lengths)) > 6 and max(lengths) == 40, "the test needs completions of many lengths"
    waves = sum(max(lengths[start : start + 3]) for start in range(0, 24, 3))
    assert steps < 0.8 * waves, "no group waits for another one to finish"
    rows = [(group.prompt.token_ids, one) for _, group in sorted(found.items()) for one in group.completions]
    for (ids, one), logprobs in zip(rows, sequence_logprobs(model, [ids + one.token_ids for ids, one in rows], fp32_head=False)):
        assert torch.allclose(logprobs[len(ids) - 1 :], torch.tensor(one.logprobs), atol=2e-5)
    together = [one for group in collect(wide, BASE, prompts, sampling) for one in group.completions]
    # A float's last bit may turn a draw that lies on the boundary of two tokens.
    assert sum(one.token_ids != alone.token_ids for (_, one), alone in zip(rows, together, strict=True)) <= 1


def with_equal_numbers(groups, like):
    """The groups with the log-probabilities of `like` where they differ by no more than floats do."""
    replaced = []
    for position, group in enumerate(groups):
        completions = []
        for ours, theirs in zip(group.completions, like[position].completions, strict=True):
            assert ours.logprobs == pytest.approx(theirs.logprobs, abs=2e-4)
            completions.append(dataclasses.replace(ours, logprobs=theirs.logprobs))
        replaced.append(dataclasses.replace(group, completions=tuple(completions)))
    return replaced


def test_a_pace_holds_groups_back_and_ends_the_sampling(tokenizer):
    engine = TransformersEngine(that_often_stops("qwen2"), tokenizer, max_kv_gb=1)
    prompts, sampling = varied(9), Sampling(2, 40)
    free = collect(engine, BASE, prompts, sampling)
    with engine.awake(BASE) as sampler:
        pace = ScriptedPace(2)
        held = dict(sampler.groups(prompts, sampling, stream=(0, 0), pace=pace))
        assert pace.most == 2
        assert [held[n] for n in range(9)] == with_equal_numbers(free, held)[:9]
        assert list(sampler.groups(prompts, sampling, stream=(0, 0), pace=ScriptedPace(0))) == []
        cut = dict(sampler.groups(prompts, sampling, stream=(0, 0), pace=ScriptedPace(2, looks=60)))
    assert 0 < len(cut) < 9 and all(cut[n] == held[n] for n in cut), "what is yielded is whole"


@pytest.mark.parametrize("seconds", [0.0, 0.02])
def test_an_answered_question_makes_room_for_another(tokenizer, seconds):
    """However long its environment takes for the last turn, after which nothing is decoded."""
    engine, pace = TransformersEngine(that_often_stops("qwen2"), tokenizer, max_kv_gb=1), ScriptedPace(2)
    echoes = Echoes(turns=2, wait=lambda: time.sleep(seconds))
    with engine.awake(BASE) as sampler:
        groups = sampler.groups(varied(9), Sampling(2, 40), stream=(0, 0), pace=pace, environment=echoes)
        assert {position for position, _ in groups} == {*range(9)} and pace.most == 2


def test_positions_name_the_random_numbers(tokenizer):
    """A part of the questions gets the completions that it gets among all of them."""
    engine = TransformersEngine(random_model("qwen2"), tokenizer, max_kv_gb=1)
    whole = collect(engine, BASE, PROMPTS, Sampling(2, 12))
    with engine.awake(BASE) as sampler:
        part = dict(sampler.groups(PROMPTS[1:], Sampling(2, 12), stream=(0, 0), positions=(1, 2)))
    assert [part[n] for n in (1, 2)] == with_equal_numbers(whole, dict(enumerate([whole[0], part[1], part[2]])))[1:]


def test_temperature_0_takes_the_likeliest_token(tokenizer):
    logits = torch.log(torch.tensor([[0.5, 0.3, 0.2], [0.2, 0.2, 0.6]]))
    tokens, logprobs = sample_tokens(logits, torch.tensor([0.99, 0.01], dtype=torch.float64), Sampling(1, 1, temperature=0.0))
    assert tokens.tolist() == [0, 2] and logprobs.exp().tolist() == pytest.approx([0.5, 0.6])
    engine = TransformersEngine(random_model("qwen2"), tokenizer, max_kv_gb=1)
    group = collect(engine, BASE, PROMPTS, Sampling(3, 12, temperature=0.0))[0]
    assert len({completion.token_ids for completion in group.completions}) == 1


def test_drawing_in_pieces_draws_the_same(monkeypatch):
    logits, draws = torch.randn(7, 50), torch.rand(7, dtype=torch.float64)
    whole = sample_tokens(logits, draws, Sampling(1, 1, top_p=0.9))
    monkeypatch.setattr("microrl.rollout.decoding.SAMPLED_LOGITS", 100)
    assert all(torch.equal(a, b) for a, b in zip(whole, sample_tokens(logits, draws, Sampling(1, 1, top_p=0.9)), strict=True))


@pytest.mark.one_of_each
@pytest.mark.slow
def test_an_evaluation_without_barriers_takes_a_fifth_of_the_decode_steps(tokenizer):
    """Questions whose answers differ in length as those to MATH-500: most are short, and each chunk has a long one."""
    engine = TransformersEngine(that_often_stops("qwen2"), tokenizer, max_kv_gb=1)
    prompts, sampling = varied(200), Sampling(4, 128)
    with engine.awake(BASE) as sampler:
        lengths = sorted(
            len(one.token_ids) for _, group in sampler.groups(prompts, sampling, stream=(0,)) for one in group.completions
        )
        at_once = sampler.decode_steps
    with engine.awake(BASE) as sampler:
        for start in range(0, 200, 16):
            chunk = range(start, min(start + 16, 200))
            list(sampler.groups([prompts[n] for n in chunk], sampling, stream=(0,), positions=chunk))
        in_chunks = sampler.decode_steps
    assert lengths[400] < 25 and lengths[-1] > 100
    assert in_chunks > 5 * at_once
