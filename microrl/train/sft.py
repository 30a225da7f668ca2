"""The supervised phase (SFT) before reinforcement learning, for models that are too rarely right to learn from rewards."""

from __future__ import annotations

import math

from microrl import clock
from microrl.data.sampler import PromptSampler
from microrl.errors import UserError
from microrl.policy import sft
from microrl.run import names
from microrl.run.view import clock as clock_text
from microrl.terminal import counted
from microrl.train import saving
from microrl.train.run import OutOfTime, Run
from microrl.types import SftExample

PHASE = "sft"


def sft_phase(run: Run) -> None:
    """Fine-tune on solutions until `sft.steps`, `sft.minutes` or the budget is used up; once per run.

    Time for the final evaluation, the save and (unless `sft.only`) a first training step is kept. The optimizer state is reset
    at the end. Raises UserError if there is no time for a supervised step.
    """
    config, state = run.config.sft, run.state.sft
    if not config.is_on or state.is_done:
        return
    examples = run.sft_examples
    run.saved_s = began = run.budget.elapsed_s()
    sampler = PromptSampler(examples, run.config.seed, position=state.steps * config.batch)
    run.forecast.plan_sft(sum(len(example.token_ids) for example in examples) / len(examples))
    run.expect_end()
    try:
        while _fits(run):
            began = run.budget.elapsed_s()
            _step(run, sampler)
            run.budget.sft_step.add(run.budget.elapsed_s() - began)
            saving.save_if_due(run, step=state.steps, steps=config.steps)
    except OutOfTime:
        run.budget.sft_step.guess_s = max(run.budget.sft_step.guess_s, run.budget.elapsed_s() - began)
        run.announce("time is up", f"the unfinished work after SFT step {state.steps} was discarded")
    _refuse_without_a_step(run)
    with run.watch.phase(PHASE):
        run.policy.forget_moments()
    state.is_done = True
    is_cut = _is_full(run) and state.steps != config.steps
    why = f" (another would have exceeded sft.minutes={config.minutes:g})" if is_cut else ""
    losses = f"loss {_number(state.first_loss)} -> {_number(state.last_loss)}"
    outcome = f"{counted(state.steps, 'SFT step')} in {spent_s(run):.0f} s{why}, {losses}"
    run.folder.event("sft finished", outcome, steps=state.steps, step=0)
    run.console.note(f"SFT finished: {outcome}")
    saving.save_checkpoint(run)


def spent_s(run: Run) -> float:
    """Seconds of the phase so far, including earlier processes of the run."""
    return run.watch.totals.get(PHASE, 0.0)


def progress(run: Run) -> float:
    """Fraction of the phase that is over, 0 to 1: of `sft.steps` if set, which is reproducible, else of its time."""
    config, budget = run.config.sft, run.budget
    if config.steps is not None:
        return run.state.sft.steps / config.steps
    if config.minutes is not None:
        return min(spent_s(run) / (config.minutes * 60), 1.0)
    left = budget.left_s()
    assert left is not None, "the run has an end"
    after_s = max(left - budget.reserve_s(), 0.0)
    return spent_s(run) / max(spent_s(run) + after_s, 1e-9)


def _fits(run: Run) -> bool:
    config, budget, steps = run.config.sft, run.budget, run.state.sft.steps
    step_s = budget.sft_step.forecast_s()
    if config.steps is not None and steps >= config.steps:
        return False
    if _is_full(run):
        return False
    needed_s = step_s + (0.0 if config.only else budget.step.forecast_s())
    return budget.fits(needed_s, barely=steps == 0)


def _is_full(run: Run) -> bool:
    """Whether another step would take longer than `sft.minutes` allow."""
    minutes, step_s = run.config.sft.minutes, run.budget.sft_step.forecast_s()
    return minutes is not None and run.state.sft.steps > 0 and spent_s(run) + step_s > minutes * 60


def _step(run: Run, sampler: PromptSampler[SftExample]) -> None:
    config, state, policy = run.config, run.state.sft, run.policy
    began = clock.now_s()
    rate = config.optim.lr if config.sft.lr is None else config.sft.lr
    assert not isinstance(rate, str), "auto is a number once the model is known"
    done = progress(run)
    lr = rate * (1 - done)
    # AdaLoRA's rank schedule follows the budget of the run, of which this phase is a part.
    spent = done if config.sft.only else run.budget.progress(0)
    total = f"/{config.sft.steps}" if config.sft.steps is not None else ""
    so_far = f", loss {_number(state.last_loss)}, {done:.0%} done" if state.steps else ""
    left = f", {clock_text(spent_s(run) * (1 - done) / done)} to go" if done else ""
    run.console.status(f"SFT: step {state.steps + 1}{total}{so_far}{left}")
    with run.signals.held("this micro-batch"), run.watch.phase(PHASE):
        update = sft.sft_step(policy, sampler.draw(config.sft.batch), lr, run.check_deadline, progress=spent)
        loss = update.loss if math.isfinite(update.loss) else None
        row = {
            "step": state.steps, "loss": loss, "tokens": update.tokens, "lr": lr, "grad_norm": update.grad_norm,
            "seconds": clock.now_s() - began, **({} if update.kl is None else {"kl": loss}),
        }  # fmt: skip
        run.folder.append(names.SFT, row)
        if update.reason:
            run.folder.event("update skipped", update.reason, sft_step=state.steps)
        state.steps += 1
        state.first_loss = loss if state.first_loss is None else state.first_loss
        state.last_loss = loss
        policy.is_consistent = True


def _number(loss: float | None) -> str:
    return "not finite" if loss is None else f"{loss:.3f}"


def _refuse_without_a_step(run: Run) -> None:
    budget = run.budget
    if run.state.sft.steps:
        return
    needed_s = budget.sft_step.forecast_s() + budget.min_reserve_s()
    needed_s += 0.0 if run.config.sft.only else budget.step.forecast_s()
    raise UserError(
        f"{budget.limit()} is too short for an SFT step: it and what must follow may take {needed_s:.1f} s, but only "
        f"{budget.left_s():.1f} s are left",
        f"microrl train --resume {run.folder.path} --hours {budget.min_hours(needed_s):g}",
    )
