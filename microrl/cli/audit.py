"""`microrl audit`: which cheats a reward pays for, before a model finds them."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from microrl.cli import options
from microrl.cli.output import OK, USAGE, emit, say
from microrl.errors import UserError, did_you_mean
from microrl.tables import table_text

if TYPE_CHECKING:
    from microrl.config import RunConfig

EXAMPLES = """
[bold]Examples[/]
  microrl audit quickstart                         [dim]seconds, without a model[/]
  microrl audit micro-r64 --data problems.jsonl --reward my_rewards:brevity=0.5
  microrl audit ortho-code --data humaneval        [dim]programs, in the sandbox: a minute[/]
  microrl audit runs/mine --json
"""

SHOWN = 60
EXCERPT = 120


@options.takes("data", "reward", "env")
def audit(
    target: Annotated[
        str | None,
        typer.Argument(
            metavar="PRESET_OR_RUN",
            help="A preset (listed by `microrl presets`), a TOML file, or a run folder.",
            show_default="with --data the defaults, else the newest run",
        ),
    ] = None,
    *,
    flags: options.Flags,
    sets: options.Sets = None,
    as_json: options.Json = False,
) -> int:
    """Try hundreds of cheats and the data's own answers on a reward, without a model. Exit status 2 if any is misjudged."""
    from microrl.cli import early

    config = configured(target, flags, sets or ())
    early.refuse(config, loads_model=False)
    from microrl.commands.audit import audit as run
    from microrl.commands.audit import findings

    result = run(config)
    if rows := list(findings(result)):
        shown = [(what, where, " ".join(details.split())[:EXCERPT]) for what, where, details in rows[:SHOWN]]
        print(table_text(("", "", ""), shown, stderr=True), file=sys.stderr)
    if len(rows) > SHOWN:
        say(f"and {len(rows) - SHOWN} more: see --json")
    kinds = len(result.by_kind)
    say(f"reward: {result.reward}")
    say(
        f"{result.cheats} cheats of {kinds} kinds: {len(result.paid)} pay; "
        f"{result.golds} of {result.questions} {result.solutions}: "
        f"{len(result.unpaid_golds)} do not pay, {len(result.unwritable_golds)} cannot be written; "
        f"{len(result.killed)} checks killed; {result.per_second:.0f} completions/s"
    )
    if result.tool_calls is not None:
        limit = config.sampling.max_completion_tokens
        say(
            f"environment: {result.tool_calls} tool calls, {len(result.holes)} findings; an episode whose model never stops "
            f"calling ends at {limit:,} tokens (sampling.max_completion_tokens)"
        )
    if result.without:
        say(f"{result.without} of {result.questions} problems have no {result.solutions} in the data, so these were not checked")
    if as_json:
        emit(result.to_json())
    if result.is_clean:
        say("no problem found")
        return OK
    say("hint: fix the reward or the data before training; see `microrl guide custom-rewards`")
    return USAGE


def configured(target: str | None, flags: options.Flags, sets: Sequence[str]) -> RunConfig:
    """The configuration of a preset, a TOML file or a run, with what was given. Raises UserError."""
    from microrl.cli.target import run_of
    from microrl.config import presets, resolve
    from microrl.config.resolve import override
    from microrl.run.folder import RunFolder

    if target is None and flags["data.name"] is not None:
        return resolve((), flags, sets)
    if target is None:
        run = run_of(None)
    elif target.endswith(".toml") or target in presets.available():
        return resolve([target], flags, sets)
    elif Path(target).exists() and RunFolder.is_one(Path(target)):
        run = RunFolder.open(Path(target))
    else:
        raise UserError(
            f"there is no preset and no run `{target}`", did_you_mean(target, presets.available()) + "; or a run folder"
        )
    return override(run.settings().model_dump(), flags, sets)
