"""The supervised step: one optimizer step towards given solutions, cut up and undone as an update is."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from microrl.algorithm.batch import Row
from microrl.policy.policy import Policy, loss_scale
from microrl.policy.update_metrics import SftUpdate, UpdateMetrics
from microrl.types import SftExample


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
    Everything else is as in `Policy.update`.
    """
    policy.set_lr(lr)
    rows = [
        Row(one.prompt.token_ids, one.token_ids, (), 0.0, True, number, drawn=one.drawn) for number, one in enumerate(examples)
    ]
    with policy.all_or_nothing(several=False), policy.threads():
        done = policy.run([rows], lambda: _attempt(policy, rows, check_deadline, progress))
    policy.is_consistent = False
    policy.version += 1
    return done


def _attempt(policy: Policy, rows: Sequence[Row], check_deadline: Callable[[], None], progress: float) -> SftUpdate:
    tokens, loss, metrics = sum(row.length for row in rows), 0.0, UpdateMetrics(1)
    policy.optimizer.zero_grad(set_to_none=True)
    scale = loss_scale(torch.tensor(1 / tokens), policy.adapter.dtype)
    for _, batch in policy.microbatches(rows):
        check_deadline()
        part = -policy.token_scores(batch)[0].sum() / tokens  # the log-probability of padding and of what is only read is 0
        (part * scale).backward()
        loss += float(part.detach())
        del part  # its graph would take memory beside the next one
    policy.regularise(scale)
    policy.optimizer_step(True, metrics, progress)
    return SftUpdate(loss, tokens, metrics.grad_norms[0] if metrics.grad_norms else None, metrics.reason)
