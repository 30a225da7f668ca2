"""`microrl regrade`: the rollouts of a run judged again, with another reward or by a newer checker."""

from __future__ import annotations

from typing import Any

from microrl.cli import options
from microrl.cli.output import emit, say

EXAMPLES = """
[bold]Examples[/]
  microrl regrade                                  [dim]the newest run, by the checker of this version[/]
  microrl regrade runs/mine --reward my_rewards:brevity=0.5
  microrl regrade runs/mine --set reward.normalise=apart --json
"""

SHOWN = 20
WIDTH = 60


@options.takes(
    "reward", reward=dict(help="A reward function to use instead of the run's own; repeat for several.", default="the run's")
)
def regrade(
    target: options.Run = None, *, flags: options.Flags, sets: options.Sets = None, as_json: options.Json = False
) -> None:
    """Judge a run's rollouts again, without a model: rewards, advantages and useful groups step by step, and changed verdicts."""
    from microrl.cli.target import run_of
    from microrl.config.resolve import override
    from microrl.rewards.custom.process import refuse_unusable

    run = run_of(target)
    config = override(run.settings().model_dump(), flags, sets or ())
    refuse_unusable(config.reward)
    from microrl.commands.regrade import regrade as judge_again

    comparison = judge_again(run, config)
    if as_json:
        emit(comparison)
        return
    _table(comparison)


def _table(comparison: dict[str, Any]) -> None:
    say(f"reward then: {comparison['reward']['then']}; now: {comparison['reward']['now']}")
    steps = comparison["steps"]
    shown = steps if len(steps) <= 2 * SHOWN else [*steps[:SHOWN], *steps[-SHOWN:]]
    for row in shown:
        then, now = row["then"], row["now"]
        pairs = [
            f"{name.replace('_', ' ')} {_number(then[name])} -> {_number(now[name])}"
            for name in ("reward", "accuracy", "useful_groups")
        ]
        counts = (
            f"verdicts changed {row['changed_verdicts']}, advantage signs changed {row['changed_signs']}, completions left out "
            f"{now['left_out']}"
        )
        say("  ".join((f"step {row['step'] + 1}", *pairs, counts)))
    if len(shown) < len(steps):
        say(f"{len(steps) - len(shown)} steps in between are not shown; --json has all")
    changed = comparison["changed"]
    total = sum(row["completions"] for row in steps)
    say(f"the verdict changed for {len(changed)} of {total} completions" + ("; the first of them:" if changed else ""))
    for one in changed[:SHOWN]:
        verdict = f"accuracy {one['accuracy']['then']:g} -> {one['accuracy']['now']:g}"
        ending = " ".join(one["completion"][-WIDTH:].split())
        say(f"step {one['step'] + 1}, row {one['row']}, gold {one['answer'][:WIDTH]!r}, {verdict}: ...{ending}")
    missing = {name: entry["why"] for row in steps for name, entry in row["missing"].items()}
    for name, why in missing.items():
        say(f"warning: the reward `{name}` gave no value for some completions: {why}")


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.3f}"
