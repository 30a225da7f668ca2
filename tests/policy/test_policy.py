"""Log-probabilities, entropies, and an update that does not depend on how it was cut up."""

import dataclasses
import math
import random
import statistics
import weakref

import pytest
import torch
from algorithms import GRPO, MASKED
from random_models import ARCHITECTURES, as_loaded, gradients, own_logits, random_model, relative_gap, with_adapter
from samples import PROMPTS, collect, scored_groups

from microrl.algorithm import loss as losses
from microrl.algorithm.batch import Batch, Row, assemble, split_evenly
from microrl.config import resolve
from microrl.config.oversight import GuardConfig
from microrl.errors import UserError
from microrl.limits import SHRUNK_ABOVE
from microrl.models.forward import Head, LogitTransform
from microrl.policy import policy as policy_module
from microrl.policy import step_kl
from microrl.policy.logprobs import chosen_logprobs
from microrl.policy.microbatch import plan
from microrl.policy.optimizer import LARGEST_RATE, Steering, scheduled
from microrl.policy.policy import Policy
from microrl.policy.sft import sft_step
from microrl.rollout.decoding import sample_tokens
from microrl.rollout.transformers import TransformersEngine
from microrl.run import metrics
from microrl.run.budget import Budget
from microrl.train.guard_rules import RULES, Memory
from microrl.types import Group, Sampling, Score, SftExample


@pytest.fixture
def small_chunks(monkeypatch):
    """Chunks of five tokens of a vocabulary of 50, and blocks of two."""
    monkeypatch.setattr("microrl.policy.logprobs.chunk_elements", lambda vocab, on_cpu: 50 * 5)
    monkeypatch.setattr("microrl.policy.logprobs.CPU_BLOCK_ELEMENTS", 50 * 2)


@pytest.mark.usefixtures("small_chunks")
@pytest.mark.parametrize("temperature", [1.0, 0.6])
def test_chunked_logprobs_equal_whole_vocabulary_ones(temperature):
    torch.manual_seed(0)
    hidden = torch.randn(37, 16, dtype=torch.float64)
    head = torch.nn.Linear(16, 50, dtype=torch.float64).requires_grad_(False)
    targets = torch.randint(50, (37,))
    weights = torch.randn(37, dtype=torch.float64)
    ours, whole = hidden.clone().requires_grad_(), hidden.clone().requires_grad_()
    logprobs, entropy = chosen_logprobs(ours, targets, Head(head.weight, head.bias, temperature))
    everything = (head(whole) / temperature).log_softmax(-1)
    assert torch.allclose(logprobs, everything.gather(1, targets[:, None])[:, 0], atol=1e-12)
    assert torch.allclose(entropy, -(everything.exp() * everything).sum(-1), atol=1e-12)
    (logprobs * weights).sum().backward()
    (everything.gather(1, targets[:, None])[:, 0] * weights).sum().backward()
    assert torch.allclose(ours.grad, whole.grad, atol=1e-12)
    assert not entropy.requires_grad


@pytest.mark.usefixtures("small_chunks")
def test_the_entropy_beside_an_impossible_token_is_that_of_the_others():
    torch.manual_seed(0)
    hidden, targets = torch.randn(37, 16, dtype=torch.float64), torch.randint(49, (37,))
    head = torch.nn.Linear(16, 50, dtype=torch.float64).requires_grad_(False)
    others = Head(head.weight[:49], head.bias[:49])
    head.bias[49] = -torch.inf
    found, expected = (chosen_logprobs(hidden, targets, one) for one in (Head(head.weight, head.bias), others))
    assert all(torch.allclose(*pair, atol=1e-12) for pair in zip(found, expected, strict=True)) and found[1].min() > 1


@pytest.mark.usefixtures("small_chunks")
@pytest.mark.parametrize(
    "transform", [None, LogitTransform(scale=0.4), LogitTransform(cap=3.0), LogitTransform(scale=2.5, cap=1.5)]
)
def test_bent_logits_and_all_their_gradients_are_autograds(transform):
    """States, weights and bias of the head against autograd through the whole formula, in chunks, in float64."""
    torch.manual_seed(0)
    hidden, weights, targets = torch.randn(37, 16).double(), torch.randn(37).double(), torch.randint(50, (37,))
    head = torch.nn.Linear(16, 50, dtype=torch.float64)
    head.weight.data *= 8
    inputs = [hidden.requires_grad_(), head.weight, head.bias]
    logprobs, entropy = chosen_logprobs(hidden, targets, Head(head.weight, head.bias, 0.7, transform=transform))
    z = head(hidden)
    if transform is not None:
        z = transform.scale * (z if transform.cap is None else transform.cap * torch.tanh(z / transform.cap))
    everything = (z / 0.7).log_softmax(-1)
    expected = everything.gather(1, targets[:, None])[:, 0]
    assert torch.allclose(logprobs, expected, atol=1e-12)
    assert torch.allclose(entropy, -(everything.exp() * everything).sum(-1), atol=1e-12)
    found = torch.autograd.grad((logprobs * weights).sum(), inputs)
    for ours, whole in zip(found, torch.autograd.grad((expected * weights).sum(), inputs), strict=True):
        assert whole.norm() > 0.1 and torch.allclose(ours, whole, atol=1e-10)


@torch.no_grad()
def test_an_fp32_head_rounds_no_logit_in_trainer_and_engine(tokenizer, monkeypatch):
    """bfloat16 everywhere else: the log-probabilities are those of the model's own states under an exact head."""
    gaps, drawn_from = {}, {}
    for head in ("model", "float32"):
        model = random_model("qwen2").to(torch.bfloat16)
        engine = TransformersEngine(model, tokenizer, max_kv_gb=1, fp32_head=head == "float32")
        policy = with_adapter(model, **{"model.head_dtype": head})

        def noting(logits_RV, *arguments, head=head, **more):
            drawn_from[head] = logits_RV.dtype
            return sample_tokens(logits_RV, *arguments, **more)

        monkeypatch.setattr("microrl.rollout.continuous.sample_tokens", noting)
        group = collect(engine, policy.snapshot(), PROMPTS, Sampling(2, 8))[0]
        ids = group.prompt.token_ids + group.completions[0].token_ids
        states = policy._model.base_model(torch.tensor([ids])).last_hidden_state[0].double()
        exact = (states @ policy._model.get_output_embeddings().weight.double().t()).log_softmax(-1)
        expected = torch.stack([exact[place - 1, ids[place]] for place in range(1, len(ids))])
        gaps[head] = float((policy.score([ids])[0].double() - expected).abs().max())
    assert gaps["float32"] < 1e-5 < 1e-3 < gaps["model"]
    assert drawn_from == {"model": torch.bfloat16, "float32": torch.float32}


def test_float16_gradients_survive_small_weights(tokenizer):
    """A token's share of the loss is below float16's smallest number here: without a scale its gradient would be 0."""
    found = {}
    for dtype in (torch.float32, torch.float16):
        policy = with_adapter(
            random_model("llama").to(dtype), **{"sampling.max_completion_tokens": 10**6, "loss.kind": "dr_grpo"}
        )
        engine = [(1.0, -1.0)[n % 2] * 1e-3 for n in range(4)]
        rows = tuple(Row((5, 6, 7), (8 + n, 9, 10 + n), (-5.0,) * 3, engine[n], True, 0) for n in range(4))
        gradients = []
        policy.optimizer_step = lambda has, tally, progress, policy=policy, gradients=gradients: gradients.extend(
            parameter.grad.double().clone() for parameter in policy.parameters
        )
        policy.update(Batch(rows, 1, 0), lr=1.0)
        found[dtype] = torch.cat([gradient.flatten() for gradient in gradients])
    assert found[torch.float32].norm() > 0
    assert (found[torch.float16] - found[torch.float32]).norm() < 0.05 * found[torch.float32].norm()


@pytest.mark.parametrize("confidence", [3.0, 6.0, 9.0])
def test_bf16_gradients_of_confident_tokens_survive(confidence):
    """At p = 0.9999 the slope is a difference of nearly equal things; it must not be taken between rounded weights."""
    torch.manual_seed(0)
    hidden = torch.nn.functional.normalize(torch.randn(1, 64), dim=-1) * 8
    weight = torch.randn(50, 64) * 0.02
    weight[7] = hidden[0] / 8 * (confidence + 4) / 8
    found = {}
    for dtype in (torch.bfloat16, torch.float64):
        head = torch.nn.Linear(64, 50, bias=False).requires_grad_(False)
        head.weight = torch.nn.Parameter(weight.bfloat16().to(dtype), requires_grad=False)
        state = hidden.bfloat16().to(dtype).requires_grad_()
        chosen_logprobs(state, torch.tensor([7]), Head(head.weight, head.bias))[0].sum().backward()
        found[dtype] = state.grad.double()
    assert (found[torch.bfloat16] - found[torch.float64]).norm() < 0.05 * found[torch.float64].norm()


def test_no_tensor_of_all_tokens_times_vocabulary_exists(monkeypatch):
    """Watches every operation: the largest tensor with a vocabulary dimension stays at the chunk's size."""
    from torch.utils._python_dispatch import TorchDispatchMode

    largest = 0

    class Watch(TorchDispatchMode):
        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            nonlocal largest
            out = function(*args, **(kwargs or {}))
            if isinstance(out, torch.Tensor) and out.dim() > 1 and out.shape[-1] == 1000:
                largest = max(largest, out.shape[0])
            return out

    monkeypatch.setattr("microrl.policy.logprobs.chunk_elements", lambda vocab, on_cpu: 1000 * 8)
    hidden = torch.randn(64, 4, requires_grad=True)
    head = torch.nn.Linear(4, 1000, bias=False).requires_grad_(False)
    with Watch():
        logprobs, _ = chosen_logprobs(hidden, torch.zeros(64, dtype=torch.long), Head(head.weight, head.bias))
        logprobs.sum().backward()
    assert largest == 8


PRODUCT = [(architecture, loss) for architecture in ARCHITECTURES for loss in ("grpo", "dapo", "dr_grpo", "gspo")]


@pytest.mark.cases(fast=1)
@pytest.mark.parametrize(
    ("architecture", "loss"),
    [
        pytest.param(*pair, marks=[] if pair in (("qwen2", "grpo"), ("qwen2", "gspo"), ("gemma3", "grpo")) else pytest.mark.slow)
        for pair in PRODUCT
    ],
)
def test_gradients_do_not_depend_on_the_micro_batch(architecture, loss, tokenizer, monkeypatch):
    """Micro-batches of 1, of 3 and of all sequences, in float64, with ragged lengths and the KL term on."""
    model = as_loaded(random_model(architecture)).double()
    policy = with_adapter(model, **{"loss.kind": loss, "loss.beta": 0.1})
    ragged = [
        Row(
            row.prompt_ids,
            row.completion_ids[: 1 + number % 16],
            row.engine_logprobs[: 1 + number % 16],
            row.advantage,
            True,
            row.group,
        )
        for number, row in enumerate(assemble(scored_groups(model, policy, tokenizer), GRPO).rows)
    ]
    batch = Batch(tuple(ragged), 3, 0)
    whole = gradients(policy, batch, max_tokens=10**9)
    assert max(float(gradient.abs().max()) for gradient in whole) > 1e-4
    for size in (1, 3):
        monkeypatch.setattr(
            "microrl.policy.policy.plan",
            lambda rows, limit, share_prompts, size=size: [
                tuple(range(start, min(start + size, len(rows)))) for start in range(0, len(rows), size)
            ],
        )
        assert relative_gap(gradients(policy, batch), whole) < 1e-6
    monkeypatch.undo()
    assert relative_gap(gradients(policy, batch, max_tokens=40), whole) < 1e-6


def test_gradient_checkpointing_and_unshared_prompts_change_nothing(tokenizer):
    found = []
    for checkpointing in (False, True):
        model = as_loaded(random_model("llama")).double()
        policy = with_adapter(model, **{"model.gradient_checkpointing": checkpointing})
        batch = assemble(scored_groups(model, policy, tokenizer), GRPO)
        found.append(gradients(policy, batch))
    assert relative_gap(found[1], found[0]) < 1e-6


def test_the_gradient_is_that_of_the_plain_formula(tokenizer):
    """GRPO with one update a batch: the gradient of -mean_i mean_t A_i log p, computed without any of our batching."""
    model = as_loaded(random_model("qwen2")).double()
    policy = with_adapter(model, **{"loss.importance_cap": 1e9})
    batch = assemble(scored_groups(model, policy, tokenizer), GRPO)
    ours = gradients(policy, batch)
    policy.adapter.model.zero_grad()
    total = 0.0
    for row in batch.rows:
        logits = own_logits(policy.adapter.model, row).log_softmax(-1)
        chosen = logits.gather(1, torch.tensor(row.completion_ids)[:, None])[:, 0]
        # The importance weight of trainer against sampler, whose log-probabilities are fp32 here.
        weight = (chosen.detach() - torch.tensor(row.engine_logprobs)).exp()
        total = total - (weight * row.advantage * chosen).mean() / len(batch.rows)
    total.backward()
    assert relative_gap(ours, [parameter.grad for parameter in policy.parameters]) < 1e-6


def test_an_update_moves_the_adapter_and_not_the_base(tokenizer):
    model = random_model("qwen2")
    policy = with_adapter(model)
    base = {name: parameter.clone() for name, parameter in model.named_parameters() if "lora" not in name}
    before = [parameter.clone() for parameter in policy.parameters]
    update = policy.update(assemble(scored_groups(model, policy, tokenizer), GRPO), 1e-3)
    assert policy.version == 1 and update.skipped == 0 and update.grad_norm > 0
    assert update.kl_sampler < 1e-6 and update.outside_share == 0 and update.kl_ref is None
    assert any(not torch.equal(a, b) for a, b in zip(before, policy.parameters))
    assert all(torch.equal(parameter, dict(model.named_parameters())[name]) for name, parameter in base.items())


@pytest.mark.parametrize("is_sft", [False, True])
def test_nothing_of_a_micro_batch_lives_on_in_the_next(is_sft, tokenizer):
    """Not even the empty nodes of its graph: each takes a few bytes between two activations, and the holes do not join."""
    model = random_model("llama")
    policy = with_adapter(model)
    groups = scored_groups(model, policy, tokenizer)
    policy.max_tokens = 40
    graphs, alive, score = [], [], policy.token_scores

    def scores(*given, **more):
        alive.append(sum(graph() is not None for graph in graphs))
        found, entropies = score(*given, **more)
        node, mark = found.grad_fn, type("Mark", (), {})()
        node.metadata["mark"] = mark  # it lives as long as the node
        graphs.append(weakref.ref(mark))
        return found, entropies

    policy.token_scores = scores
    if is_sft:
        sft_step(policy, [SftExample(group.prompt, group.completions[0].token_ids) for group in groups], 1e-3)
    else:
        policy.update(assemble(groups, GRPO), 1e-3)
    assert len(alive) > 2 and not any(alive)


def test_a_batch_of_other_weights_is_refused(tokenizer):
    model = random_model("qwen2")
    policy = with_adapter(model)
    batch = assemble(scored_groups(model, policy, tokenizer), GRPO)
    policy.update(batch, 1e-3)
    with pytest.raises(AssertionError, match="sampled by version 0"):
        policy.update(batch, 1e-3)


def test_non_finite_gradients_skip_the_step(tokenizer):
    model = random_model("qwen2")
    policy = with_adapter(model)
    batch = assemble(scored_groups(model, policy, tokenizer), GRPO)
    before = [parameter.clone() for parameter in policy.parameters]
    policy.parameters[0].register_hook(lambda gradient: gradient * float("nan"))
    update = policy.update(batch, 1e-3)
    assert update.skipped == 1 and "nan" in update.reason
    assert all(torch.equal(a, b) for a, b in zip(before, policy.parameters))
    assert policy.version == 1


def test_equal_rewards_update_nothing_but_are_scored(tokenizer):
    model = random_model("qwen2")
    policy = with_adapter(model)
    groups = [
        Group(group.prompt, group.completions, (Score(0.2, 1.0, 0.0),) * 4) for group in scored_groups(model, policy, tokenizer)
    ]
    before = [parameter.clone() for parameter in policy.parameters]
    update = policy.update(assemble(groups, GRPO), 1e-3)
    assert update.skipped == 1 and "no gradient" in update.reason and update.entropy > 0
    assert all(torch.equal(a, b) for a, b in zip(before, policy.parameters))


def test_of_a_groups_rows_without_a_gradient_one_is_scored_for_all(monkeypatch):
    """The weights become the same, and the entropy is unbiased: averaged over which of them is scored, that of all rows."""
    size, scored = 4, []
    plain = policy_module.pad

    def seen(rows, positions, *args, **kwargs):
        scored.append([rows[position] for position in positions])
        return plain(rows, positions, *args, **kwargs)

    monkeypatch.setattr(policy_module, "pad", seen)

    def updated(first, sampling=True):
        """An update of a batch whose third group has no gradient, with another of its rows in the first place each time."""
        policy = with_adapter(random_model("qwen2").double())
        rows = list(ragged_batch(groups=3, size=size).rows)
        rows[-size:] = rows[-size + first :] + rows[-size : len(rows) - size + first]
        if not sampling:
            monkeypatch.setattr(policy_module, "sample_without_gradient", lambda rows, carries: rows)
        scored.clear()
        update = policy.update(Batch(tuple(rows), 3, 0), 1e-3)
        monkeypatch.undo() if not sampling else None
        return update, policy.parameters

    updates = []
    for first in range(size):
        update, weights = updated(first)
        updates.append(update)
        alike = [row for batch in scored for row in batch]
        # Of the first two groups all: three rows with a gradient each, and the one that is left out of the loss for itself.
        assert len(alike) == 2 * size + 1 and sum(row.represents for row in alike) == 3 * size
    whole, expected = updated(0, sampling=False)
    assert statistics.fmean(update.entropy for update in updates) == pytest.approx(whole.entropy, rel=1e-12)
    assert len({update.entropy for update in updates}) == size, "they are different rows"
    for update in updates:
        assert update.loss == pytest.approx(whole.loss, rel=1e-12) and update.grad_norm == pytest.approx(whole.grad_norm)
    assert all(torch.allclose(a, b, rtol=1e-10, atol=1e-14) for a, b in zip(weights, expected, strict=True))


def test_beta_zero_runs_no_reference_pass(tokenizer):
    calls = {}
    for beta in (0.0, 0.1):
        model = random_model("qwen2")
        policy = with_adapter(model, **{"loss.beta": beta})
        batch = assemble(scored_groups(model, policy, tokenizer), GRPO)
        count = 0

        def counted(*_, **__):
            nonlocal count
            count += 1

        model.lm_head.register_forward_pre_hook(counted)
        model.base_model.register_forward_pre_hook(counted)
        update = policy.update(batch, 1e-3)
        calls[beta] = count
        assert (update.kl_ref is None) == (beta == 0)
    assert calls[0.1] == 2 * calls[0.0]


def test_mini_batches_take_several_steps_against_the_sampling_weights(tokenizer):
    model = random_model("qwen2")
    policy = with_adapter(model)
    policy._optim = policy._optim.model_copy(update={"prompts_per_update": 1})
    batch = assemble(scored_groups(model, policy, tokenizer), GRPO)
    steps = 0
    original = policy.optimizer.step

    def counted(*args, **kwargs):
        nonlocal steps
        steps += 1
        return original(*args, **kwargs)

    policy.optimizer.step = counted
    update = policy.update(batch, 3e-2)
    assert steps == 3
    assert update.clip_fraction > 0, "after the first step the ratios have moved"
    assert update.kl_sampler < 1e-6, "old log-probabilities are those of the weights that sampled"


def ragged_batch(groups, size=4):
    """Rows of all lengths; every third group has no gradient, and in each the second row is left out of the loss."""
    generator = torch.Generator().manual_seed(0)

    def ids(count):
        return tuple(torch.randint(5, 250, (count,), generator=generator).tolist())

    rows = []
    for group in range(groups):
        prompt = ids(6 + 3 * group)
        for number in range(size):
            completion = ids(int(torch.randint(3, 40, (), generator=generator)))
            advantage = 0.0 if group % 3 == 2 else (-1.0) ** number
            rows.append(Row(prompt, completion, (-5.0,) * len(completion), advantage, number != 1, group))
    return Batch(tuple(rows), groups, 0)


def test_the_divergence_from_the_base_is_measured_on_rows_of_every_length(monkeypatch):
    policy, batch = with_adapter(random_model("qwen2")), ragged_batch(groups=12)
    policy.max_tokens = 10**6
    with policy.adapter.off():
        base = policy.logprobs(batch.rows)
    ratios = torch.cat(base) - torch.cat(policy.logprobs(batch.rows))
    k3 = float((ratios.expm1() - ratios).mean(dtype=torch.float64))
    assert k3 > 1e-3 and policy.kl_to_base(batch) == pytest.approx(k3, rel=1e-5), "one micro-batch holds all"

    policy.max_tokens, measured, pad = 300, [], policy_module.pad

    def padded(rows, positions, *args, **kwargs):
        measured.extend(len(rows[position].completion_ids) for position in positions)
        return pad(rows, positions, *args, **kwargs)

    monkeypatch.setattr(policy_module, "pad", padded)
    part = policy.kl_to_base(batch)
    lengths = [len(row.completion_ids) for row in batch.rows]
    assert len(measured) < len(lengths) / 4 and part == pytest.approx(k3, rel=0.5)
    assert statistics.mean(measured) == pytest.approx(statistics.mean(lengths), rel=0.1)
    assert min(measured) < 12 and max(measured) > 30


@pytest.mark.cases(fast=1)
@pytest.mark.parametrize(
    ("loss", "failing", "recomputing"),
    [
        *((loss, "never", False) for loss in ("grpo", "gspo")),
        *(pytest.param(loss, "never", False, marks=pytest.mark.slow) for loss in ("dapo", "dr_grpo")),
        ("gspo", "in the second step", False),
        pytest.param("gspo", "in the second step", True, marks=[pytest.mark.slow, pytest.mark.one_of_each]),
        *(pytest.param(loss, "never", True, marks=pytest.mark.slow) for loss in ("grpo", "dapo", "dr_grpo", "gspo")),
        *(
            pytest.param("gspo", place, recomputing, marks=pytest.mark.slow)
            for place in ("before the steps", "in the first step")
            for recomputing in (False, True)
        ),
    ],
)
def test_at_rate_0_every_ratio_is_exactly_1(loss, failing, recomputing, monkeypatch):
    """In bfloat16 a row's log-probabilities depend on its neighbours: `old` and `new` must be computed beside the same ones."""
    policy = with_adapter(
        random_model("qwen2").to(torch.bfloat16),
        **{"loss.kind": loss, "optim.prompts_per_update": 2, "model.gradient_checkpointing": recomputing},
    )
    policy.max_tokens, calls, exact = 400, [], []
    plain_states, plain_surrogate = policy_module.hidden_states, losses.surrogate

    def states(*args, **kwargs):
        before = not torch.is_grad_enabled() and not exact
        stepped = next(iter(policy.optimizer.state.values()))["step"] > 0
        here = "before the steps" if before else "in the second step" if stepped else "in the first step"
        calls.append(here)
        if here == failing and policy.max_tokens == 400 and calls.count(here) == 1:
            raise torch.OutOfMemoryError("CUDA out of memory.")
        return plain_states(*args, **kwargs)

    def surrogate(new_BT, old_BT, *args, **kwargs):
        exact.append(torch.equal(new_BT, old_BT))
        return plain_surrogate(new_BT, old_BT, *args, **kwargs)

    monkeypatch.setattr(policy_module, "hidden_states", states)
    monkeypatch.setattr(losses, "surrogate", surrogate)
    update = policy.update(ragged_batch(groups=6), 0.0)
    assert len(exact) >= 5 and all(exact), exact
    assert update.clip_fraction == 0 and update.skipped == 0
    assert (policy.max_tokens < 400) is (failing != "never")


def test_a_token_that_the_engine_calls_impossible_is_counted_and_seen(tokenizer):
    """-inf made the mismatch null, and the guard took that for nothing to say."""
    policy = with_adapter(random_model("qwen2"))
    batch = assemble(scored_groups(policy._model, policy, tokenizer), GRPO)
    first = batch.rows[0]
    rows = (dataclasses.replace(first, engine_logprobs=(-math.inf, *first.engine_logprobs[1:])), *batch.rows[1:])
    update = policy.update(dataclasses.replace(batch, rows=rows), 1e-3)
    tokens = sum(len(row.completion_ids) for row in rows)
    assert update.impossible_tokens == 1 and update.outside_share == pytest.approx(1 / tokens)
    assert update.kl_sampler == pytest.approx((math.expm1(10) - 10) / tokens, rel=1e-4)
    assert update.skipped == 0 and math.isfinite(update.loss) and math.isfinite(update.grad_norm)
    row = metrics.row({"policy/kl_sampler": update.kl_sampler})
    assert RULES["kl_sampler"].measure(row, Memory()) > GuardConfig().kl_sampler


def test_mini_batches_are_of_one_size():
    """65 groups by at most 32: three steps of 22, 22 and 21 groups, and not a whole step on the last one."""
    for groups, most, sizes in ((65, 32, [21, 22, 22]), (64, 32, [32, 32]), (3, 32, [3]), (5, None, [5]), (7, 1, [1] * 7)):
        batch = ragged_batch(groups, size=2)
        parts = split_evenly(batch, most)
        assert sorted(len({row.group for row in part}) for part in parts) == sizes
        assert [row for part in parts for row in part] == list(batch.rows), "every row once, in order"


def test_truncated_completions_can_be_left_out(tokenizer):
    model = random_model("qwen2")
    policy = with_adapter(model)
    groups = scored_groups(model, policy, tokenizer, tokens=5)
    assert all(completion.finish == "length" for group in groups for completion in group.completions)
    update = policy.update(assemble(groups, MASKED), 1e-3)
    assert update.skipped == 1


def test_the_plan_keeps_the_budget_and_every_row():
    torch.manual_seed(0)
    rows = [
        Row((group,) * (5 + group), (1,) * int(torch.randint(1, 40, ())), (), 1.0, True, group)
        for group in range(6)
        for _ in range(7)
    ]
    for progress in (True, False):
        batches = plan(rows, 200, share_prompts=progress)
        assert sorted(position for batch in batches for position in batch) == list(range(42))
        for batch in batches:
            chosen = [rows[position] for position in batch]
            widest = max(len(row.completion_ids) for row in chosen)
            prompts = len({row.prompt_ids for row in chosen}) if progress else len(chosen)
            cost = prompts * max(len(row.prompt_ids) for row in chosen) + len(chosen) * widest
            assert cost <= 200 or len(batch) == 1


def test_micro_batches_are_few_and_then_even():
    """Four groups of eight rows where nine would fit: a group each, whose prompt is then read once, and not 9, 9, 9 and 5."""
    rows = [Row((group,) * 50, (1,) * 64, (), 1.0, True, group) for group in range(4) for _ in range(8)]
    nine = 9 * 64 + 2 * 50
    assert plan(rows, nine, share_prompts=True) == [tuple(range(8 * group, 8 * group + 8)) for group in range(4)]
    assert [len(batch) for batch in plan(rows[:10], 9 * 114, share_prompts=False)] == [5, 5]
    assert plan([], nine, share_prompts=True) == [] and plan(rows[:3], 1, share_prompts=True) == [(0,), (1,), (2,)]


def test_the_size_of_a_step_is_the_divergence_of_the_weights_after_it_from_those_before(monkeypatch):
    """By k3 over the rows' own tokens: of all rows, and of every eighth by length as a run measures it."""
    for scored in (1, 8):
        monkeypatch.setattr(policy_module, "SCORED", scored)
        policy, batch = with_adapter(random_model("qwen2")), ragged_batch(groups=12)
        by_length = sorted(batch.rows, key=lambda row: len(row.completion_ids))
        rows = by_length[(scored - 1) // 2 :: scored]
        before = torch.cat(policy.logprobs(rows))
        found = policy.update(batch, 1e-3, measures_kl=True)
        ratios = torch.cat(policy.logprobs(rows)) - before
        expected = float((ratios.expm1() - ratios).mean(dtype=torch.float64))
        assert expected > 1e-6 and found.step_kl == pytest.approx(expected, rel=1e-4)
    twin = with_adapter(random_model("qwen2"))
    assert twin.update(batch, 1e-3).step_kl is None
    assert all(torch.equal(a, b) for a, b in zip(policy.parameters, twin.parameters, strict=True)), "measuring changes nothing"
    rows = tuple(dataclasses.replace(row, advantage=0.0) for row in batch.rows)
    assert policy.update(Batch(rows, batch.groups, 1), 1e-3, measures_kl=True).step_kl is None, "nothing has moved"


def sure(dtype):
    """A model about as sure of its tokens as a trained one. In bfloat16, rounding alone is a KL of 1e-3 to 5e-3 here."""
    model = random_model("llama")
    model.lm_head.weight.mul_(3)
    return model.to(dtype)


@pytest.mark.parametrize("target", [2e-4, None])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_rounding_to_16_bits_is_not_taken_for_a_step(dtype, target):
    batch = ragged_batch(groups=12)
    for lr in (1e-6, 3e-5):
        exact, rounded, twin = (with_adapter(sure(one)) for one in (torch.float32, dtype, dtype))
        expected = exact.update(batch, lr, measures_kl=True).step_kl
        found = rounded.update(batch, lr, measures_kl=True, target_kl=target)
        twin.update(batch, lr)
        assert found.fraction == 1.0 and all(map(torch.equal, rounded.parameters, twin.parameters)), "measuring changes nothing"
        assert expected / 3 < found.step_kl < 3 * expected
    found = with_adapter(sure(torch.bfloat16)).update(batch, 1e-7, measures_kl=True)
    exact = with_adapter(sure(torch.float32)).update(batch, 1e-7, measures_kl=True)
    assert found.step_kl == pytest.approx(exact.step_kl, rel=0.5), "of the last length that was measured"


def test_a_measurement_that_fails_leaves_the_weights_of_the_update(monkeypatch):
    rounded, twin = (with_adapter(sure(torch.bfloat16)) for _ in range(2))
    batch, scored = ragged_batch(groups=12), step_kl.StepSize._kl
    monkeypatch.setattr(step_kl.StepSize, "_kl", lambda size: scored(size) / 0)
    with pytest.raises(ZeroDivisionError):
        rounded.update(batch, 1e-5, measures_kl=True, target_kl=2e-4)
    twin.update(batch, 1e-5)
    assert all(map(torch.equal, rounded.parameters, twin.parameters)) and not rounded.is_consistent


def test_a_steered_rate_is_about_the_same_in_16_bits():
    """Steered by the KL of rounding, it ends a hundred times lower."""
    found, batch, target = {}, ragged_batch(groups=12), 2e-4
    for dtype in (torch.float32, torch.bfloat16):
        policy, steering, peak = with_adapter(sure(dtype)), Steering(), 1e-4
        for step in range(10):
            update = policy.update(Batch(batch.rows, batch.groups, step), peak, measures_kl=True, target_kl=target)
            steering.learn(peak * update.fraction, peak * update.fraction, update.step_kl, target)
            peak = steering.rate
        found[dtype] = peak
    assert found[torch.float32] / 2 < found[torch.bfloat16] < 2 * found[torch.float32], found


@pytest.mark.parametrize("lr", [3e-2, 0.3])
def test_a_step_that_is_far_too_large_is_the_step_at_a_lower_rate(lr):
    """As after SFT, where the first step's rate is guessed. A step that is not so large stays as it is, to the bit."""
    target, batch = 2e-4, ragged_batch(groups=12)
    policies = [with_adapter(random_model("qwen2")) for _ in range(4)]
    shrunk, again, whole, small = policies
    found = shrunk.update(batch, lr, measures_kl=True, target_kl=target)
    assert whole.update(batch, lr, measures_kl=True).step_kl > SHRUNK_ABOVE * target, "too large"
    assert 0 < found.fraction < 0.2 and target / 10 < found.step_kl < SHRUNK_ABOVE * target
    again.update(batch, lr * found.fraction)
    for one, other in zip(shrunk.parameters, again.parameters, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-7)
    kept = small.update(batch, 1e-4, measures_kl=True, target_kl=target)
    twin = with_adapter(random_model("qwen2"))
    twin.update(batch, 1e-4)
    assert kept.fraction == 1.0 and all(map(torch.equal, small.parameters, twin.parameters))


@pytest.mark.parametrize("moved", [1e9, math.inf, math.nan])
def test_a_step_that_left_everything_behind_is_shrunk_as_well(moved):
    sizes = iter([0.5, 1e-3])
    weight = torch.ones(3)
    fraction, left = step_kl.shrink([weight], [torch.zeros(3)], moved, 1e-4, lambda: next(sizes))
    assert (
        left == 1e-3
        and fraction == pytest.approx(1e-2 * math.sqrt(1e-4 / 0.5))
        and torch.allclose(weight, torch.tensor(fraction))
    )


def test_a_rank_that_adalora_has_cut_stays_cut_wherever_a_step_is_put():
    weight, ended = torch.tensor([0.0, 0.0]), [torch.tensor([1.0, 0.0])]
    step_kl._place([weight], [torch.tensor([0.5, 5.0])], ended, 3.0)
    assert weight.tolist() == [2.0, 0.0]
    weight = torch.tensor([1.0, 0.0])
    step_kl.shrink([weight], [torch.tensor([3.0, 5.0])], 1.0, 1e-2, lambda: 1e-2)
    assert weight.tolist() == pytest.approx([2.8, 0.0])


@pytest.mark.parametrize("sensitivity", [1e-3, 1.0, 1e3, 1e6])
def test_a_steered_rate_finds_the_step_that_is_wanted_whatever_it_starts_from(sensitivity):
    """Of a policy whose KL is noisy, and falls to a tenth for the same rate while AdamW's moments settle."""
    draws = random.Random(0)
    steering, target, peak, sizes = Steering(), 2e-4, 1e-5, []
    for step in range(400):
        peak = steering.rate or peak
        lr = peak * (0.5 if step >= 200 else 1.0)  # as a guard or a schedule has it
        true = sensitivity * lr**2 * max(0.1, 1 - step / 10)
        sizes.append(true / (lr / peak) ** 2)
        if steering.is_due(step):
            steering.learn(peak, lr, true * draws.expovariate(1.0), target)
        assert peak / 2 <= steering.rate <= min(2 * peak, LARGEST_RATE)
    wanted = min(target, sensitivity * 0.1 * LARGEST_RATE**2)
    assert statistics.fmean(sizes[100:200]) == pytest.approx(wanted, rel=0.35)
    assert statistics.fmean(sizes[200:]) == pytest.approx(wanted, rel=0.35), "half the rate is a quarter of the step, and no less"


@pytest.mark.parametrize("moved", [math.inf, math.nan])
def test_a_kl_that_is_not_finite_lowers_a_steered_rate_and_is_forgotten(moved):
    steering = Steering(1e-3, 200.0)
    assert not steering.learn(1e-3, 1e-3, moved, 2e-4)
    assert steering == Steering(5e-4, 200.0)


def test_a_fixed_rate_is_measured_ever_more_seldom():
    assert [step + 1 for step in range(300) if Steering().is_due(step, is_steered=False)] == [1, 4, 16, 64, 256]


def test_steps_are_measured_until_one_has_moved_the_policy():
    """Of a run whose first steps have nothing to learn from, the first update may come late: its rate is still a guess."""
    assert all(Steering().is_due(step) for step in range(30))
    assert not Steering(1e-4, 1.0).is_due(9)


def test_a_policy_that_never_moves_is_steered_to_the_largest_rate():
    steering, peak = Steering(), 1e-5
    at_the_cap = []
    for _ in range(40):
        at_the_cap.append(steering.learn(peak, peak, 0.0, 2e-4))
        peak = steering.rate
    assert peak == LARGEST_RATE and sum(at_the_cap) == 1, "it is said once"


@pytest.mark.parametrize(
    ("schedule", "rates"),
    [
        ({"kind": "constant"}, [1, 1, 1, 1]),
        ({"kind": "constant", "warmup": 0.5}, [0.5, 1, 1, 1]),
        ({"kind": "constant", "warmup": 1.0}, [0.25, 0.5, 0.75, 1]),
        ({"kind": "constant", "warmup": 0.01}, [1, 1, 1, 1]),
        ({"kind": "linear"}, [1, 0.75, 0.5, 0.25]),
        ({"kind": "linear", "floor": 0.2}, [1, 0.8, 0.6, 0.4]),
        ({"kind": "cosine"}, [1, (1 + 0.5**0.5) / 2, 0.5, (1 - 0.5**0.5) / 2]),
        ({"kind": "cosine", "warmup": 0.5}, [0.5, 1, 1, 0.5]),
    ],
)
def test_schedules_by_hand(schedule, rates):
    """Of four steps. A warm-up of W steps rises in W equal parts: no step trains at rate 0."""
    sets = [f"optim.schedule.{key}={value}" for key, value in schedule.items()]
    config = resolve((), {}, sets).optim.schedule
    budget = Budget(hours=None, steps=4, started=0.0)
    found = [scheduled(config, budget.progress(step), after=budget.progress(step + 1)) for step in range(4)]
    assert found == pytest.approx(rates)


def test_a_warm_up_by_the_clock_rises_with_what_is_spent():
    """Loading and the evaluation before training are a part of it, so that the first step's rate is above 0."""
    config = resolve((), {}, ["optim.schedule.warmup=0.1"]).optim.schedule
    now = [25.0]
    budget = Budget(hours=1000 / 3600, steps=None, started=0.0, now=lambda: now[0])
    assert scheduled(config, budget.progress(0), after=budget.progress(1)) == pytest.approx(0.25)
    now[0] = 100.0
    assert scheduled(config, budget.progress(1), after=budget.progress(2)) == 1.0


@pytest.mark.parametrize(("flags", "word"), [({"adapter.rank": 33}, "rank 33"), ({"adapter.targets": ("q_prj",)}, "q_proj")])
def test_adapters_that_cannot_be(flags, word):
    with pytest.raises(UserError) as caught:
        with_adapter(random_model("qwen2"), **flags)
    assert word in f"{caught.value.message} {caught.value.hint}"


def test_the_same_seed_starts_the_same_adapter_and_the_first_forward_is_the_bases():
    starts = [Policy(random_model("qwen2"), resolve((), {"adapter.rank": 4, "seed": seed})).snapshot() for seed in (1, 1, 2)]
    first, same, other = ([pair.A_RI for pair in start.pairs.values()] for start in starts)
    assert all(torch.equal(a, b) for a, b in zip(first, same)) and not torch.equal(first[0], other[0])
    assert all(pair.B_OR.abs().max() == 0 for pair in starts[0].pairs.values())


@pytest.mark.cases(fast=1)
@pytest.mark.parametrize(
    ("prompts", "calls"),
    [(None, 3), pytest.param(1, 2, marks=pytest.mark.slow), (1, 17), pytest.param(1, 22, marks=pytest.mark.slow)],
)
def test_an_update_that_is_ended_between_two_micro_batches_has_not_happened(tokenizer, prompts, calls):
    """One optimiser step, or two: whatever was begun, weights and moments are those of before, and the update can be done."""
    flags = {} if prompts is None else {"optim.prompts_per_update": prompts}
    model = random_model("qwen2")
    policy = with_adapter(model, **flags)
    batch = assemble(scored_groups(model, policy, tokenizer), GRPO)
    policy.max_tokens = 1  # a micro-batch a row
    policy.update(batch, lr=1e-2)  # moments that are not 0
    policy.version = batch.version
    tensors = [*policy.parameters, *(t for state in policy.optimizer.state.values() for t in state.values())]
    before = [tensor.detach().clone() for tensor in tensors]
    policy.is_consistent, seen = True, []

    def check_deadline():
        seen.append(1)
        if len(seen) == calls:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        policy.update(batch, lr=1e-2, check_deadline=check_deadline)
    assert policy.is_consistent and policy.version == batch.version
    assert all(torch.equal(tensor, kept) for tensor, kept in zip(tensors, before, strict=True))
    assert all(parameter.grad is None for parameter in policy.parameters)
    done = []
    policy.update(batch, lr=1e-2, check_deadline=lambda: done.append(1))
    assert len(done) >= calls and (prompts is None or len(done) == 24), "twelve rows scored, then three steps of four rows"
    assert not policy.is_consistent, "until the caller has written it down"
    assert not all(torch.equal(tensor, kept) for tensor, kept in zip(tensors, before, strict=True))
