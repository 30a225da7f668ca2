"""Soft targets: the divergence from a teacher's stored scores, and the step that lowers it."""

import pytest
import torch
from random_models import random_model, relative_gap, with_adapter

from microrl.algorithm.batch import Row
from microrl.models.forward import Head, LogitTransform
from microrl.policy import soft_targets
from microrl.policy.microbatch import pad
from microrl.policy.sft import sft_step
from microrl.policy.soft_targets import kl_to_top, top_scores
from microrl.policy.teacher import Teacher
from microrl.types import BASE, Prompt, SftExample, SoftTargets

VOCABULARY, WIDTH = 50, 16
ROWS = [Row((1, 2), tuple(range(length)), (), 0.0, True, 0) for length in (7, 3, 5)]


def targets_of(logits, row, count):
    """As `microrl teach` stores them, from a teacher's logits [B, T, V]."""
    top = logits[row, : ROWS[row].length].log_softmax(-1).topk(count)
    return SoftTargets(top.indices.int().numpy(), top.values.numpy())


def plain_kl(logits, targets):
    """Sum over the positions, outcome by outcome."""
    total = 0.0
    for position, (ids, logprobs) in enumerate(zip(targets.ids_TK, targets.logprobs_TK, strict=True)):
        student = logits[position].softmax(-1)
        p, q = torch.tensor(logprobs).double().exp(), student[torch.tensor(ids).long()]
        total = total + (p * (p.log() - q.log())).sum()
        rest_p, rest_q = 1 - p.sum(), student.sum() - q.sum()
        total = total + rest_p * (rest_p.log() - rest_q.log())
    return total


@pytest.mark.parametrize("chunk", [None, 1, 4])
@pytest.mark.parametrize("transform", [None, LogitTransform(0.5), LogitTransform(2.0, 30.0)])
@pytest.mark.parametrize(("temperature", "count"), [(1.0, 4), (0.6, VOCABULARY - 1)])
def test_the_divergence_is_the_plain_ones_however_it_is_cut(chunk, transform, temperature, count, monkeypatch):
    """In float64, with gradients of the states, the head and its bias."""
    if chunk is not None:
        monkeypatch.setattr(soft_targets, "chunk_elements", lambda vocab, on_cpu: chunk * vocab * soft_targets.PASSES)
    torch.manual_seed(0)
    hidden = torch.randn(3, 7, WIDTH, dtype=torch.float64)
    head = torch.nn.Linear(WIDTH, VOCABULARY, dtype=torch.float64)
    teacher = 2 * torch.randn(3, 7, VOCABULARY, dtype=torch.float64)
    order = (2, 0, 1)
    batch = pad(ROWS, order, torch.device("cpu"), share_prompts=True)
    targets = [targets_of(teacher, row, count) for row in order]
    results = []
    for is_ours in (True, False):
        given = hidden.clone().requires_grad_()
        if is_ours:
            found = kl_to_top(given, batch, Head(head.weight, head.bias, temperature, transform=transform), targets=targets)
            assert found.shape == (15,) and bool((found >= 0).all())
            total = found.sum()
        else:
            logits = head(given) if transform is None else transform(head(given))
            total = sum(plain_kl(logits[number] / temperature, one) for number, one in enumerate(targets))
        head.zero_grad()
        total.backward()
        results.append([total.detach(), given.grad, head.weight.grad.clone(), head.bias.grad.clone()])
    for ours, plain in zip(*results, strict=True):
        assert torch.allclose(ours, plain, rtol=1e-9, atol=1e-11)


def test_with_all_tokens_it_is_the_divergence_of_the_whole_vocabulary():
    torch.manual_seed(1)
    hidden, teacher = torch.randn(3, 7, WIDTH, dtype=torch.float64), torch.randn(3, 7, VOCABULARY, dtype=torch.float64)
    head = torch.nn.Linear(WIDTH, VOCABULARY, dtype=torch.float64)
    batch = pad(ROWS, (0,), torch.device("cpu"), share_prompts=True)
    found = kl_to_top(hidden[:1], batch, Head(head.weight, head.bias), targets=[targets_of(teacher, 0, VOCABULARY - 1)])
    p, q = teacher[0].log_softmax(-1), head(hidden[0]).log_softmax(-1)
    assert torch.allclose(found, (p.exp() * (p - q)).sum(-1), rtol=1e-9)


def test_the_likeliest_tokens_are_those_of_the_tokenizer():
    """There is always a token beside them, and a row of the head beyond the vocabulary is none of them."""
    torch.manual_seed(2)
    hidden = torch.randn(3, 7, WIDTH, dtype=torch.float64)
    head = torch.nn.Linear(WIDTH, VOCABULARY, dtype=torch.float64)
    batch = pad(ROWS, (0, 1, 2), torch.device("cpu"), share_prompts=True)
    found = top_scores(hidden, batch, Head(head.weight, head.bias, 0.7), count=VOCABULARY, vocabulary=40)
    whole = (head(hidden) / 0.7).log_softmax(-1)[batch.mask_BT]
    assert found.ids_NK.shape == (15, 39) and int(found.ids_NK.max()) <= 39, "one is left for a student of 40 tokens"
    assert torch.allclose(found.top_NK, whole.gather(1, found.ids_NK)) and torch.equal(
        found.top_NK, found.top_NK.sort(1, True)[0]
    )
    drawn = batch.completions_BT[batch.mask_BT]
    assert torch.allclose(found.logprobs_N, whole.gather(1, drawn[:, None])[:, 0])
    assert top_scores(hidden, batch, Head(head.weight, head.bias), count=99, vocabulary=99).ids_NK.shape == (15, VOCABULARY - 1)


def examples(model, count, *, update=BASE):
    """Completions with the scores of this model."""
    teacher = Teacher(model, update)
    rows = [Row((5, 6 + number), tuple(range(7, 12 + number)), (), 0.0, True, number) for number in range(4)]
    found = []
    for number, row in enumerate(rows):
        scores = teacher.top(pad(rows, (number,), model.device, share_prompts=True), count, 40)
        targets = SoftTargets(scores.ids_NK.int().numpy(), scores.top_NK.float().numpy())
        found.append(SftExample(Prompt("", "", "", row.prompt_ids), row.completion_ids, targets=targets))
    return found


def gradients(policy, given, **attributes):
    for name, value in attributes.items():
        setattr(policy, name, value)
    found = []
    policy.optimizer_step = lambda has_gradient, metrics, progress: found.extend(one.grad.clone() for one in policy.parameters)
    return found, sft_step(policy, given, 1e-3)


def test_a_student_that_is_its_teacher_has_no_gradient(tokenizer):
    model = random_model("qwen2")
    given = examples(model, 8)
    policy = with_adapter(model)
    away, moved = gradients(policy, given)
    for pair in policy.snapshot().pairs.values():
        pair.B_OR.zero_()  # as an adapter starts: A has values, and B can learn
    ours, done = gradients(policy, given)
    assert abs(done.kl) < 1e-6 and done.loss == done.kl and moved.kl > 1e-3
    hard, _ = gradients(policy, [SftExample(one.prompt, one.token_ids) for one in given])
    assert max(float(one.abs().max()) for one in ours) < 1e-4 * max(float(one.abs().max()) for one in hard)
    assert max(float(one.abs().max()) for one in ours) < 1e-4 * max(float(one.abs().max()) for one in away)


def test_micro_batches_do_not_show(tokenizer):
    model = random_model("qwen2")
    given, policy = examples(model, 8), with_adapter(model)
    whole, done = gradients(policy, given, max_tokens=10**9)
    for most in (1, 20):
        cut, again = gradients(policy, given, max_tokens=most)
        assert relative_gap(cut, whole) < 1e-4 and again.kl == pytest.approx(done.kl, rel=1e-5)
        assert again.tokens == done.tokens == sum(len(one.token_ids) for one in given)


def test_a_step_brings_the_student_closer(tokenizer):
    model = random_model("qwen2")
    given, policy = examples(model, 8), with_adapter(model)
    found = [sft_step(policy, given, 1e-3).kl for _ in range(12)]
    assert found[-1] < 0.6 * found[0]
    hard = [SftExample(one.prompt, one.token_ids) for one in given]
    assert sft_step(policy, hard, 1e-3).kl is None


def test_hard_and_soft_solutions_are_not_mixed(tokenizer):
    model = random_model("qwen2")
    given, policy = examples(model, 8), with_adapter(model)
    with pytest.raises(AssertionError, match="soft targets"):
        sft_step(policy, [*given, SftExample(given[0].prompt, given[0].token_ids)], 1e-3)
