"""The teacher of a distillation: its scores, the update towards it, and what it takes."""

import copy

import pytest
import torch
from random_models import as_loaded, gradients, own_logits, own_logprobs, relative_gap, small, with_adapter

from microrl.adapters.attach import attach
from microrl.algorithm.batch import Batch, Row
from microrl.config import resolve
from microrl.errors import MachineFailure, UserError
from microrl.models.nf4 import quantize
from microrl.models.tensors import weight_sharing_copy, weights
from microrl.models.ways import Ways
from microrl.policy.microbatch import drawn_mask, pad
from microrl.policy.policy import Policy
from microrl.policy.teacher import Teacher
from microrl.types import BASE

FLAGS = {"distill.teacher": "quickstart"}
DRAWN = (True, True, False, False, True, True)
ROWS = (
    Row((5, 6, 7), (8, 9, 10, 11), (-3.0,) * 4, 0.5, True, 0),
    Row((5, 6, 7), (12, 9, 14, 11, 20, 21), (-3.0,) * 6, -0.5, True, 0, drawn=DRAWN),
    Row((30, 31, 32, 33, 34), (40, 41), (-3.0,) * 2, 0.0, True, 1),
    Row((30, 31, 32, 33, 34), (40, 42, 43), (-3.0,) * 3, 0.0, False, 1),
)


def trained(model, kind, scale=0.2):
    """An update of this kind that is not zero, as a run would have left it; the model stays as it was."""
    adapter = {} if kind == "full" else {"adapter.rank": 4}
    attached = attach(weight_sharing_copy(model), resolve((), {"adapter.kind": kind, **adapter}).adapter, seed=1)
    generator = torch.Generator().manual_seed(2)
    with torch.no_grad():
        for parameter in attached.parameters.values():
            parameter += torch.randn(parameter.shape, generator=generator).to(parameter) * scale * (0.05 if kind == "full" else 1)
    return attached.snapshot(1)


def scores(teacher, *, share_prompts=True):
    return teacher.scores(pad(ROWS, (0, 1, 2, 3), torch.device("cpu"), share_prompts=share_prompts))


@pytest.mark.parametrize("kind", ["lora", "dora", "full"])
@pytest.mark.parametrize("is_own", [True, False])
def test_an_update_beside_the_base_scores_as_a_merged_model(kind, is_own):
    """Whether the base is the student's own, which has an adapter by then, or a second model."""
    model = as_loaded(small("qwen2"))
    update, merged = trained(model, kind), copy.deepcopy(model)
    merged.load_state_dict({name: tensor.clone() for name, tensor in weights(model, update)}, strict=False)
    teacher = Teacher(model if is_own else as_loaded(small("qwen2")), update)
    base = dict(model.named_parameters())
    assert all(torch.equal(base[name], parameter) for name, parameter in small("qwen2").named_parameters()), "the base stays"
    policy = with_adapter(model, teacher=teacher, **FLAGS)
    policy.update(Batch(ROWS, 2, 0), 1e-2)
    expected, plain = scores(Teacher(merged, BASE)), scores(Teacher(as_loaded(small("qwen2")), BASE))
    found = scores(teacher)
    assert torch.allclose(found.logprobs_BT, expected.logprobs_BT, atol=1e-5)
    assert torch.allclose(found.entropy_BT, expected.entropy_BT, atol=1e-5)
    assert (found.logprobs_BT - plain.logprobs_BT).abs().max() > 0.01, "the update does something"


@pytest.mark.parametrize("kind", ["lora", "dora"])
def test_a_base_in_4_bits_scores_as_its_numbers(kind):
    model = small("qwen2")
    quantize(model, torch.device("cpu"))
    update, plain = trained(weight_sharing_copy(model), kind), small("qwen2")
    plain.load_state_dict({name: tensor.clone() for name, tensor in weights(model, update)}, strict=False)
    found, expected = scores(Teacher(model, update)), scores(Teacher(plain, BASE))
    assert torch.allclose(found.logprobs_BT, expected.logprobs_BT, atol=1e-4)


@pytest.mark.parametrize("kind", ["full", "ln", "pissa"])
def test_a_student_that_changes_any_weight_leaves_its_teacher_as_it_is(kind):
    """They have one base; so does the student's with its adapter off."""
    model = as_loaded(small("qwen2"))
    teacher = Teacher(model, BASE)
    before = scores(teacher)
    rank = {"adapter.rank": 4} if kind == "pissa" else {}
    policy = Policy(model, resolve((), {"adapter.kind": kind, **rank, **FLAGS}), teacher=teacher)
    for _ in range(2):
        assert policy.update(Batch(ROWS, 2, policy.version), 1e-2).skipped == 0
    assert all(map(torch.equal, scores(teacher), before))


def test_the_scores_do_not_depend_on_how_prompts_are_shared():
    model = small("qwen2").double()
    shared = scores(Teacher(model, BASE))
    slower = small("qwen2").double()
    Ways(update="it must not").keep(slower)
    for other in (scores(Teacher(slower, BASE)), scores(Teacher(model, BASE), share_prompts=False)):
        assert torch.allclose(other.logprobs_BT, shared.logprobs_BT, atol=1e-9)
    for number, row in enumerate(ROWS):
        drawn_T = drawn_mask([row], len(row.completion_ids))[0]
        own_T = own_logprobs(model, row).masked_fill(~drawn_T, 0.0)
        assert torch.allclose(shared.logprobs_BT[number, : len(own_T)], own_T, atol=1e-9)


def test_the_teacher_is_scored_at_the_training_temperature():
    model, row = small("qwen2").double(), ROWS[2]
    expected_T = (own_logits(model, row) / 0.6).log_softmax(-1).gather(1, torch.tensor(row.completion_ids)[:, None])[:, 0]
    assert torch.allclose(scores(Teacher(model, BASE, temperature=0.6)).logprobs_BT[2, :2], expected_T, atol=1e-9)


@pytest.mark.parametrize("weight", [0.0, 0.7])
def test_the_gradient_is_that_of_the_plain_formula_however_it_is_cut(weight):
    """Of -sum over drawn tokens of importance * (teacher - student + weight * advantage) * log p / their number, without our
    batching. A group whose rewards are equal has a gradient too; a row that does not count has none."""
    other = small("llama").double()
    policy = with_adapter(
        as_loaded(small("qwen2")).double(), teacher=Teacher(other, BASE), **FLAGS, **{"distill.reward_weight": weight}
    )
    ours = gradients(policy, Batch(ROWS, 2, 0))
    for size in (1, 15):
        assert relative_gap(gradients(policy, Batch(ROWS, 2, 0), max_tokens=size), ours) < 1e-6
    policy.adapter.model.zero_grad()
    tokens, total = sum(row.length for row in ROWS if row.counts), 0.0
    for row in ROWS[:3]:
        chosen_T, drawn_T = own_logprobs(policy.adapter.model, row), drawn_mask([row], len(row.completion_ids))[0]
        advantages_T = (own_logprobs(other, row) - chosen_T).detach() + weight * row.advantage
        importance_T = (chosen_T.detach() - torch.tensor(row.engine_logprobs)).exp().clamp(max=2)
        total = total - (importance_T * advantages_T * chosen_T)[drawn_T].sum() / tokens
    total.backward()
    assert relative_gap(ours, [parameter.grad for parameter in policy.parameters]) < 1e-6


def test_a_teacher_of_the_same_weights_changes_nothing():
    """It has the same base and the same update, beside it and not in one product: what is left is rounding."""
    model = as_loaded(small("qwen2")).double()
    plain = with_adapter(as_loaded(small("qwen2")).double())
    policy = with_adapter(model, teacher=Teacher(model, plain.snapshot()), **FLAGS)
    apart = with_adapter(as_loaded(small("qwen2")).double(), teacher=Teacher(small("llama").double(), BASE), **FLAGS)
    size = max(float(gradient.abs().max()) for gradient in gradients(apart, Batch(ROWS, 2, 0)))
    assert max(float(gradient.abs().max()) for gradient in gradients(policy, Batch(ROWS, 2, 0))) < 1e-4 * size


def broken_at(token):
    """A teacher that finds no log-probability from this token on."""
    other = small("llama").double()
    other.get_input_embeddings().weight[token] = torch.nan
    return Teacher(other, BASE)


@pytest.mark.parametrize("top_k", [None, 4, "all"])
def test_tokens_that_the_teacher_calls_impossible_have_no_gradient(top_k):
    """5 of 13, in the last two rows, of which one counts: what is left is the mean over 10 tokens of the first two rows' 8."""
    flags, first = {**FLAGS, "distill.top_k": top_k}, Batch(ROWS[:2], 1, 0)
    policy = with_adapter(small("qwen2").double(), teacher=broken_at(30), **flags)
    meant = [gradient * 8 / 10 for gradient in gradients(policy, first)]
    assert relative_gap(gradients(policy, Batch(ROWS, 2, 0)), meant) < 1e-6
    update, alone = (
        with_adapter(small("qwen2").double(), teacher=broken_at(30), **flags).update(batch, 0.0)
        for batch in (Batch(ROWS, 2, 0), first)
    )
    assert (update.teacher_impossible, update.tokens, alone.teacher_impossible) == (5, 13, 0)
    assert update.teacher_entropy == pytest.approx(alone.teacher_entropy, rel=1e-9)


def test_a_teacher_that_calls_most_tokens_impossible_ends_the_update():
    policy = with_adapter(small("qwen2").double(), teacher=broken_at(5), **FLAGS)
    with pytest.raises(UserError, match="not finite for 8 of the 13 drawn tokens"):
        policy.update(Batch(ROWS, 2, 0), 1e-3)


def test_without_memory_for_one_completion_the_teacher_is_named(monkeypatch):
    def failing(self, batch):
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(Teacher, "scores", failing)
    policy = with_adapter(small("qwen2").double(), teacher=Teacher(small("llama").double(), BASE), **FLAGS)
    with pytest.raises(MachineFailure, match="out of memory in the update beside the teacher, with one completion") as caught:
        policy.update(Batch(ROWS, 2, 0), 1e-3)
    assert "--set distill.quant=nf4 (if the teacher is a second model), --set model.grad" in caught.value.hint


@pytest.mark.parametrize("at", [1, 2])
def test_a_teacher_that_runs_out_of_memory_gets_smaller_microbatches(monkeypatch, at):
    events, calls, plain = [], [], Teacher.scores

    def failing(self, batch):
        calls.append(len(batch.rows))
        if len(calls) == at:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return plain(self, batch)

    def policy():
        return with_adapter(small("qwen2").double(), teacher=Teacher(small("llama").double(), BASE), **FLAGS)

    meant = gradients(policy(), Batch(ROWS, 2, 0))
    monkeypatch.setattr(Teacher, "scores", failing)
    tried = policy()
    tried.on_event = lambda kind, *_, **__: events.append(kind)
    assert relative_gap(gradients(tried, Batch(ROWS, 2, 0), max_tokens=60), meant) < 1e-6
    assert events == ["out of memory"] and max(calls[at:]) < max(calls[:at])
