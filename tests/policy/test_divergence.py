"""KL to a teacher over more than the drawn token: values and gradients against autograd of the plain formula in float64."""

import copy
import dataclasses
import gc
import json
import math
import weakref

import pytest
import torch
from places import FIXTURES
from random_models import SHAPE, as_loaded, gradients, own_logits, relative_gap, small, with_adapter
from transformers import Qwen2Config, Qwen2ForCausalLM

from microrl.algorithm.batch import Batch, Row
from microrl.config import resolve
from microrl.errors import UserError
from microrl.models.forward import Head, LogitTransform
from microrl.policy.divergence import Divergence
from microrl.policy.logprobs import chosen_logprobs
from microrl.policy.microbatch import drawn_mask
from microrl.policy.policy import Policy
from microrl.policy.teacher import Teacher
from microrl.types import BASE

ROWS = (
    Row((5, 6, 7), (8, 9, 10, 11), (-3.0,) * 4, 0.5, True, 0),
    Row((5, 6, 7), (12, 9, 14, 11, 20, 21), (-3.0,) * 6, -0.5, True, 0, drawn=(True, True, False, False, True, True)),
    Row((30, 31, 32, 33, 34), (40, 41), (-3.0,) * 2, 0.0, True, 1),
    Row((30, 31, 32, 33, 34), (40, 42, 43), (-3.0,) * 3, 0.0, False, 1),
)
FLAGS = {"distill.teacher": "quickstart"}


def plain(student_NV, teacher_NV, top_k):
    """[N]: the formula in a few words, of the logits over the ids that both have."""
    shared = min(student_NV.shape[1], teacher_NV.shape[1])
    p_NV, q_NV = (logits_NV[:, :shared].softmax(-1) for logits_NV in (student_NV, teacher_NV))
    if top_k != "all" and top_k < shared:
        top_NK = p_NV.topk(top_k).indices
        p_NV, q_NV = (
            torch.cat([one.gather(1, top_NK), 1 - one.gather(1, top_NK).sum(1, keepdim=True)], dim=1) for one in (p_NV, q_NV)
        )
    return (p_NV * (p_NV.log() - q_NV.log())).sum(-1)


def bent(logits, transform):
    if transform is None:
        return logits
    return transform.scale * (logits if transform.cap is None else transform.cap * torch.tanh(logits / transform.cap))


def head_of(inputs, outputs, scale=2.0):
    head = torch.nn.Linear(inputs, outputs, dtype=torch.float64)
    head.weight.data *= scale
    return head


@pytest.fixture(params=[5, 1000], ids=["chunks", "whole"])
def chunk(request, monkeypatch):
    """Chunks of five tokens of a vocabulary of 50 and blocks of two, or one chunk."""
    monkeypatch.setattr("microrl.policy.logprobs.chunk_elements", lambda vocab, on_cpu: 50 * request.param)
    for module in ("logprobs", "divergence"):
        monkeypatch.setattr(f"microrl.policy.{module}.CPU_BLOCK_ELEMENTS", 50 * min(request.param, 2))


@pytest.mark.cases(fast=16)
@pytest.mark.usefixtures("chunk")
@pytest.mark.parametrize("widths", [(50, 50), (50, 44), (44, 50)], ids=lambda widths: "-".join(map(str, widths)))
@pytest.mark.parametrize("transform", [None, LogitTransform(scale=0.4), LogitTransform(scale=2.5, cap=1.5)])
@pytest.mark.parametrize("top_k", [1, 7, 60, "all"])
def test_values_and_gradients_are_autograds(top_k, transform, widths):
    """With states, weights and bias of a trained head, a temperature, and a policy gradient beside the divergence."""
    torch.manual_seed(0)
    hidden, other = torch.randn(13, 16).double().requires_grad_(), torch.randn(13, 9).double()
    head, theirs = head_of(16, widths[0]), head_of(9, widths[1]).requires_grad_(False)
    targets, weights, shares = torch.randint(44, (13,)), torch.randn(13).double(), torch.randn(13).double()
    compared = Divergence(other, targets, Head(theirs.weight, theirs.bias, transform=transform), top_k=top_k)
    logprobs, _ = chosen_logprobs(hidden, targets, Head(head.weight, head.bias, 0.7, transform=transform), compared=compared)
    student, teacher = bent(head(hidden), transform) / 0.7, bent(theirs(other), transform) / 0.7
    expected = plain(student, teacher, top_k)
    assert torch.allclose(compared.divergence_N, expected, atol=1e-10) and (expected > 0).all() and expected.mean() > 0.01
    mask = torch.ones(1, 13, dtype=torch.bool)
    assert compared.agrees(mask)[0].tolist() == (student.argmax(-1) == teacher.argmax(-1)).tolist()
    scores, log_q = compared.scores(mask), teacher.log_softmax(-1)
    assert torch.allclose(scores.logprobs_BT[0], log_q.gather(1, targets[:, None])[:, 0], atol=1e-10)
    assert torch.allclose(scores.entropy_BT[0], -(log_q.exp() * log_q).sum(-1), atol=1e-10)
    inputs = [hidden, head.weight, head.bias]
    chosen = student.log_softmax(-1).gather(1, targets[:, None])[:, 0]
    found = torch.autograd.grad((compared.divergence_N * shares + logprobs * weights).sum(), inputs)
    for ours, whole in zip(found, torch.autograd.grad((expected * shares + chosen * weights).sum(), inputs), strict=True):
        assert whole.norm() > 0.1 and torch.allclose(ours, whole, atol=1e-9)


@pytest.mark.parametrize("top_k", [3, "all"])
def test_a_student_that_equals_its_teacher_has_no_gradient(top_k):
    hidden, head = torch.randn(6, 16).double(), head_of(16, 50).requires_grad_(False)
    ours, targets = hidden.clone().requires_grad_(), torch.zeros(6, dtype=torch.long)
    compared = Divergence(hidden, targets, Head(head.weight, head.bias), top_k=top_k, has_policy_gradient=False)
    chosen_logprobs(ours, targets, Head(head.weight, head.bias), compared=compared)
    compared.divergence_N.sum().backward()
    assert (compared.divergence_N == 0).all() and (ours.grad == 0).all() and compared.agrees(torch.ones(1, 6).bool()).all()


def test_a_confident_student_is_not_rounding_alone():
    """Beside a token of probability 1 - 1e-9, float32 computes the rest's KL as float64 does."""
    found = []
    for dtype in (torch.float32, torch.float64):
        head = torch.nn.Linear(3, 4, bias=False).to(dtype).requires_grad_(False)
        head.weight.copy_(torch.eye(4, 3))
        hidden = torch.tensor([[24.0, 3.0, 0.0]], dtype=dtype, requires_grad=True)
        teacher = torch.tensor([[22.0, 0.0, 3.0]], dtype=dtype)
        compared = Divergence(teacher, torch.tensor([0]), Head(head.weight, head.bias), top_k=1, has_policy_gradient=False)
        chosen_logprobs(hidden, torch.tensor([0]), Head(head.weight, head.bias), compared=compared)
        compared.divergence_N.sum().backward()
        found.append(hidden.grad.double())
    assert 0 < found[1].norm() < 1e-7 and (found[0] - found[1]).norm() < 1e-3 * found[1].norm()


@pytest.mark.parametrize("broken", [math.nan, -math.inf])
def test_what_the_teacher_calls_impossible_is_bounded(broken):
    """A teacher without a finite logit gives every token -100 nats: the KL is 100 - H(student)."""
    head = torch.nn.Linear(2, 3, bias=False).requires_grad_(False)
    bad = copy.deepcopy(head)
    bad.weight.fill_(broken)
    for top_k in (1, "all"):
        hidden = torch.zeros(1, 2, requires_grad=True)
        compared = Divergence(torch.ones(1, 2), torch.tensor([0]), Head(bad.weight, bad.bias), top_k=top_k)
        chosen_logprobs(hidden, torch.tensor([0]), Head(head.weight, head.bias), compared=compared)
        compared.divergence_N.sum().backward()
        outcomes = [1 / 3] * 3 if top_k == "all" else [1 / 3, 2 / 3]
        assert compared.divergence_N.item() == pytest.approx(100 + sum(p * math.log(p) for p in outcomes), rel=1e-5)
        assert hidden.grad.isfinite().all()
        assert not compared.scores(torch.ones(1, 1).bool()).logprobs_BT.isfinite().any()


def of_row(model, row):
    """The model's own logits at the drawn tokens of a row."""
    return own_logits(model, row)[drawn_mask([row], len(row.completion_ids))[0]]


@pytest.mark.parametrize(("top_k", "weight"), [(4, 0.0), ("all", 0.0), (4, 0.7)])
def test_the_gradient_of_an_update_is_that_of_the_plain_formula_however_it_is_cut(top_k, weight):
    """The mean over drawn tokens of KL - weight * importance * advantage * log p. Packed rows, and each with its own prompt."""
    other = small("llama").double()
    flags = {**FLAGS, "distill.top_k": top_k, "distill.reward_weight": weight}
    policy = with_adapter(as_loaded(small("qwen2")).double(), teacher=Teacher(other, BASE), **flags)
    ours = gradients(policy, Batch(ROWS, 2, 0))
    assert relative_gap(gradients(policy, Batch(ROWS, 2, 0), max_tokens=15), ours) < 1e-6
    policy.adapter.model.zero_grad()
    tokens, total = sum(row.length for row in ROWS if row.counts), 0.0
    for row in ROWS[:3]:
        student, drawn = of_row(policy.adapter.model, row), drawn_mask([row], len(row.completion_ids))[0]
        ids = torch.tensor(row.completion_ids)[drawn]
        chosen = student.log_softmax(-1).gather(1, ids[:, None])[:, 0]
        importance = (chosen.detach() - torch.tensor(row.engine_logprobs)[drawn]).exp().clamp(max=2)
        total = total + (plain(student, of_row(other, row), top_k) - weight * row.advantage * importance * chosen).sum() / tokens
    total.backward()
    assert relative_gap(ours, [parameter.grad for parameter in policy.parameters]) < 1e-6
    policy.checkpoint_activations()
    assert relative_gap(gradients(policy, Batch(ROWS, 2, 0)), ours) < 1e-6


@pytest.mark.cases(fast=2)
@pytest.mark.parametrize("top_k", [None, 4, "all"])
def test_the_kl_to_the_base_regularises_beside_the_teacher(top_k):
    """The two terms have gradients of their own, which add up."""
    found = []
    for beta in (0.0, 0.5, 1.0):
        torch.manual_seed(7)
        policy = with_adapter(
            as_loaded(small("qwen2")).double(), teacher=Teacher(small("llama").double(), BASE),
            **{**FLAGS, "distill.top_k": top_k, "loss.beta": beta},
        )  # fmt: skip
        with torch.no_grad():
            for parameter in policy.parameters:
                parameter += 0.05 * torch.randn_like(parameter)
        found.append(gradients(policy, Batch(ROWS, 2, 0)))
    without, half, whole = found
    assert relative_gap(half, without) > 1e-3
    assert relative_gap([one + other for one, other in zip(without, whole, strict=True)], [2 * one for one in half]) < 1e-6


@pytest.mark.parametrize("top_k", [None, 4, "all"])
def test_metrics_by_the_models_own_passes(top_k):
    other = small("qwen2").double()  # without the adapter: some of its likeliest tokens are the student's
    policy = with_adapter(small("qwen2").double(), teacher=Teacher(other, BASE), **FLAGS, **{"distill.top_k": top_k})
    same, gaps, entropies = [], [], []
    for pair in policy.snapshot().pairs.values():
        pair.B_OR.mul_(0.1)
    with torch.no_grad():
        for row in ROWS:
            student, teacher = (of_row(model, row).log_softmax(-1) for model in (policy.adapter.model, other))
            ids = torch.tensor(row.completion_ids)[drawn_mask([row], len(row.completion_ids))[0]][:, None]
            same += (student.argmax(-1) == teacher.argmax(-1)).tolist()
            gaps += (student.gather(1, ids) - teacher.gather(1, ids)).flatten().tolist()
            entropies.append(float(-(teacher.exp() * teacher).sum(-1).mean()))  # by completion, as the student's
    found = policy.update(Batch(ROWS, 2, 0), 0.0).metrics(1.0)
    assert found["distill/agreement"] == pytest.approx(sum(same) / len(same)) and 0 < sum(same) < len(same)
    assert found["distill/kl"] == pytest.approx(sum(gaps) / len(gaps), rel=1e-9)
    assert found["distill/teacher_entropy"] == pytest.approx(sum(entropies) / len(entropies), rel=1e-9)
    assert found["distill/impossible_tokens"] == 0
    without = with_adapter(small("qwen2")).update(Batch(ROWS, 2, 0), 0.0).metrics(1.0)
    assert {without[name] for name in found if name.startswith("distill/")} == {None}


def test_the_entropies_of_a_student_and_its_equal_are_equal():
    """Long and short completions count alike in both: one that is unsure in a long one is not surer than its equal."""
    rows = [dataclasses.replace(ROWS[0], completion_ids=ids, engine_logprobs=(-1.0,) * len(ids)) for ids in ((5, 6), (7,) * 30)]
    policy = with_adapter(small("qwen2").double(), **FLAGS, teacher=Teacher(small("qwen2").double(), BASE))
    for pair in policy.snapshot().pairs.values():
        pair.B_OR.zero_()
    found = policy.update(Batch(rows, 1, 0), 0.0)
    assert found.teacher_entropy == pytest.approx(found.entropy, rel=1e-6)


@pytest.mark.parametrize("top_k", [None, 4, "all"])
def test_a_token_beyond_the_teachers_vocabulary_is_impossible(top_k):
    torch.manual_seed(0)
    narrow = Qwen2ForCausalLM(Qwen2Config(**{**SHAPE, "vocab_size": 42})).eval().requires_grad_(False)
    policy = with_adapter(small("qwen2"), teacher=Teacher(narrow, BASE), **FLAGS, **{"distill.top_k": top_k})
    update = policy.update(Batch(ROWS, 2, 0), 1e-4)
    assert update.teacher_impossible == 2 and update.skipped == 0, "42 and 43"
    assert 100 * 2 / 13 - 10 < update.distill_kl < 100 * 2 / 13 + 10


def test_nothing_of_a_micro_batch_lives_on_where_the_head_is_trained():
    """The divergence is an output of the node that computes it again."""
    kept, model = [], as_loaded(small("llama"))
    teacher = Teacher(small("qwen2"), BASE)
    compared = teacher.compared

    def watched(*given):
        found = compared(*given)
        kept.append(weakref.ref(found))
        return found

    teacher.compared = watched
    policy = Policy(model, resolve((), {**FLAGS, "adapter.kind": "full", "distill.top_k": 4}), teacher=teacher)
    gc.disable()
    try:
        policy.update(Batch(ROWS, 2, 0), 1e-4)
        assert kept and not any(one() is not None for one in kept)
    finally:
        gc.enable()


@pytest.mark.parametrize("top_k", [None, 4])
def test_a_teacher_that_finds_no_token_possible_ends_the_update(top_k):
    """A few impossible tokens are counted; with none that is possible there is nothing to learn, and no weight changes."""
    broken = small("llama")
    broken.get_output_embeddings().weight.fill_(math.nan)
    policy = with_adapter(small("qwen2"), teacher=Teacher(broken, BASE), **FLAGS, **{"distill.top_k": top_k})
    before = [parameter.detach().clone() for parameter in policy.parameters]
    with pytest.raises(UserError, match="not finite for any of the 13 drawn tokens") as caught:
        policy.update(Batch(ROWS, 2, 0), 1e-3)
    assert caught.value.hint and all(map(torch.equal, before, policy.parameters))


TRL = json.loads((FIXTURES / "trl_distillation.json").read_text())


@pytest.mark.parametrize("case", TRL["cases"], ids=lambda case: case["name"])
def test_agrees_with_trl(case):
    """Loss and gradients to 1e-9 against TRL 1.16 (recorded by fixtures/record_trl_distillation.py), to 1e-6 where that computes
    in float32."""
    near = 1e-6 if case["name"].startswith("chunked") else 1e-9
    t = {name: torch.tensor(value, dtype=torch.float64) for name, value in TRL["tensors"].items()}
    head, theirs = (torch.nn.Linear(t[name].shape[1], t[name].shape[0], bias=False).double() for name in ("head", "theirs"))
    head.weight.data, theirs.weight.data = t["head"], t["theirs"]
    hidden, mask = t["hidden"].requires_grad_(), torch.tensor(TRL["mask"]).bool()
    transform, targets = (
        None if case["cap"] is None else LogitTransform(cap=case["cap"]),
        torch.zeros(int(mask.sum()), dtype=torch.long),
    )
    compared = Divergence(t["other"][mask], targets, Head(theirs.weight, theirs.bias, transform=transform), top_k=case["top_k"])
    chosen_logprobs(
        hidden[mask], targets, Head(head.weight, head.bias, case["temperature"], transform=transform), compared=compared
    )
    loss = compared.divergence_N.mean()
    assert loss.item() == pytest.approx(case["loss"], rel=near)
    found = torch.autograd.grad(loss, [hidden, head.weight])
    for ours, name in zip(found, ("to_hidden", "to_head"), strict=True):
        assert torch.allclose(ours, torch.tensor(case[name], dtype=torch.float64), rtol=near, atol=near)
