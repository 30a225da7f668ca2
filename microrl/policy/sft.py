"""The supervised step: one optimizer step towards given solutions, cut up and undone as an update is."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import torch

from microrl.algorithm.batch import Row
from microrl.policy.policy import Policy, loss_scale
from microrl.policy.soft_targets import kl_to_top
from microrl.policy.update_metrics import SftUpdate, UpdateMetrics
from microrl.types import SftExample, SoftTargets


def sft_step(
    policy: Policy,
    examples: Sequence[SftExample],
    lr: float,
    check_deadline: Callable[[], None] = lambda: None,
    *,
    progress: float = 0.0,
) -> SftUpdate:
    """One optimizer step on the mean cross-entropy of these solutions, in nats a token.

    The loss is -sum of log p(token) over the tokens of all solutions / their number, at the training temperature: what is
    made likely is what the engine samples. What tools have answered in a conversation is read, and no part of either.
    Where the solutions have soft targets, it is instead the mean of `kl_to_top` over their tokens.
    Everything else is as in `Policy.update`.
    """
    targets = [one.targets for one in examples if one.targets is not None]
    assert len(targets) in (0, len(examples)), "some solutions have soft targets, and others have none"
    policy.set_lr(lr)
    rows = [
        Row(one.prompt.token_ids, one.token_ids, (), 0.0, True, number, drawn=one.drawn) for number, one in enumerate(examples)
    ]
    with policy.all_or_nothing(several=False), policy.threads():
        done = policy.run([rows], lambda: _attempt(policy, rows, targets, check_deadline, progress))
    policy.is_consistent = False
    policy.version += 1
    return done


def _attempt(
    policy: Policy,
    rows: Sequence[Row],
    targets: Sequence[SoftTargets],
    check_deadline: Callable[[], None],
    progress: float,
) -> SftUpdate:
    tokens, loss, metrics = sum(row.length for row in rows), 0.0, UpdateMetrics(1)
    policy.optimizer.zero_grad(set_to_none=True)
    scale = loss_scale(torch.tensor(1 / tokens), policy.adapter.dtype)
    for _, batch in policy.microbatches(rows):
        check_deadline()
        if targets:
            part = policy.token_scores(batch, partial(kl_to_top, targets=[targets[row] for row in batch.rows])).sum() / tokens
        else:
            part = -policy.token_scores(batch)[0].sum() / tokens  # that of padding and of what is only read is 0
        (part * scale).backward()
        loss += float(part.detach())
        del part  # its graph would take memory beside the next one
    policy.regularise(scale)
    policy.optimizer_step(True, metrics, progress)
    return SftUpdate(
        loss, tokens, metrics.grad_norms[0] if metrics.grad_norms else None, metrics.reason, kl=loss if targets else None
    )
