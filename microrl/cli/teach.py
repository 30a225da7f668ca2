"""`microrl teach`: a teacher's completions with its scores, to learn from without the teacher in memory."""

from __future__ import annotations

import shlex
import shutil
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any, BinaryIO

import typer

from microrl.cli import options
from microrl.cli.output import emit, say
from microrl.errors import UserError
from microrl.run import names
from microrl.terminal import counted

EXAMPLES = """
[bold]Examples[/]
  microrl teach --teacher Qwen2.5-7B-Instruct --data gsm8k --samples 4 --only-right --out runs/taught
  microrl train --model Qwen2.5-1.5B-Instruct --data gsm8k --teacher runs/taught --hours 2
  microrl teach --teacher runs/mine --samples 8 --problems 1000
  microrl teach --resume runs/taught
"""
ALL = 10**9
GENERATED = "arithmetic"


@options.takes(
    "data", "samples", "max_tokens", "problems", "temperature", "hours", "engine",
    data=dict(
        help="Data whose training questions the teacher answers, as for `microrl train`; held-out questions are left out.",
        default="the run's data; for a model, open-rs; for quickstart, its generated sums",
    ),
    samples=dict(help="Completions per question.", default="4"),
    max_tokens=dict(key="sampling.max_completion_tokens"),
    problems=dict(help="Maximum number of questions.", default="all"),
    temperature=dict(
        help="Sampling temperature; 0: greedy. Scores are always at the training temperature, sampling.temperature.",
        default="the training temperature",
    ),
    hours=dict(help="Time limit in hours, loading included; checked after every 512 completions.", default="none"),
    engine=dict(help=f"{options.ENGINES}. It may differ from the engine used in training.", default="auto"),
)  # fmt: skip
def teach(
    *,
    teacher: Annotated[
        str | None,
        typer.Option(
            metavar="MODEL|RUN",
            help="The teacher: a model, a run, a part of it (RUN/best, RUN/step-000100), or an adapter folder.",
            show_default="with --resume: the folder's",
        ),
    ] = None,
    only_right: Annotated[bool, typer.Option("--only-right", help="Keep only completions with an accuracy of 1.")] = False,
    top_k: Annotated[
        int | None,
        typer.Option(
            min=0,
            help="Keep the log-probabilities of this many of the likeliest tokens at each position, as soft targets; 0: only "
            "that of the sampled token.",
            show_default="16",
        ),
    ] = None,
    flags: options.Flags,
    out: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Folder for the completions.", show_default="runs/teach-NAME-TIME")
    ] = None,
    resume: Annotated[
        Path | None, typer.Option(metavar="FOLDER", help="Continue this folder; only --hours can be given with it.")
    ] = None,
    as_json: options.Json = False,
    sets: options.Sets = None,
) -> None:
    """Store a teacher's answers and their log-probabilities (scores).

    For SFT on right answers (rejection sampling), or for offline distillation.
    """
    from microrl import clock
    from microrl.cli import machine
    from microrl.cli.target import prepare_hub
    from microrl.data import taught
    from microrl.run import locks

    until_s = options.until_s(flags)
    if resume is not None:
        flag_of = options.FLAGS | {setting.key: options.flag(name) for name, setting in options.ASKED.items()}
        given = {
            "--teacher": teacher, "--max-tokens": flags.pop("sampling.max_completion_tokens"),
            **{flag_of[key]: value for key, value in flags.items()}, "--top-k": top_k, "--out": out, "--set": sets,
            "--only-right": only_right or None,
        }  # fmt: skip
        if named := [name for name, value in given.items() if value is not None]:
            raise UserError(
                f"--resume uses the settings of the folder; it cannot be combined with {', '.join(named)}",
                f"with --resume, only --hours can be given: microrl teach --resume {resume}",
            )
        from microrl.config import check

        record, folder = taught.read_record(resume), resume
        config, name, top_k, only_right = check(record.config), record.teacher.name, record.top_k, record.only_right
        is_rl = record.teacher.is_rl
        adapter = None if record.adapter is None else Path(record.adapter)
        if adapter is not None and not adapter.is_dir():
            raise UserError(
                f"the teacher of {resume} is gone: there is no folder {adapter}",
                f"restore it, or begin another folder: {taught.NEW}",
            )
    else:
        if teacher is None:
            raise UserError("no teacher given", "microrl teach --teacher MODEL, or --teacher RUN, or --resume FOLDER")
        name, top_k = teacher, 16 if top_k is None else top_k
        defaults = {"evaluation.samples": 4, "evaluation.problems": ALL, "engine.kind": "auto"}
        flags = {key: defaults.get(key) if value is None else value for key, value in flags.items()}
        config, adapter, is_rl = _asked(teacher, sets or [], flags)
        if not config.evaluation.problems:
            raise UserError("--problems 0 leaves no question for the teacher", "raise it, or leave it out for all questions")
        folder = out or options.run_folder(f"teach-{options.run_name(None, teacher)}")
    machine.check(config, folder)
    prepare_hub(config, reads_data=True)
    if resume is None:
        _make(folder)
    lock = _lock(folder)
    from microrl.commands import teach as command

    try:
        record = command.teach(
            config,
            name,
            adapter,
            folder,
            top_k=top_k,
            only_right=only_right,
            until_s=until_s,
            is_resumed=resume is not None,
            is_rl=is_rl,
        )
    except BaseException:
        _after_failure(folder, is_new=resume is None)
        raise
    finally:
        with suppress(OSError):
            (folder / names.LOCK).unlink()
        if lock is not None:
            locks.release(lock)
    seconds = clock.now_s() - clock.process_started_s()
    _tell(record, folder, config.model.name, seconds, as_json=as_json)


def _asked(teacher: str, sets: list[str], flags: dict[str, Any]) -> tuple[Any, Path | None, bool]:
    """The configuration of the teacher's run, or of a model, with what is asked of it; the folder of its update; and whether
    rewards have trained it."""
    from microrl.cli.target import find_weights
    from microrl.config.resolve import override
    from microrl.config.schema import RunConfig
    from microrl.run.teacher import Source

    resolved_teacher = find_weights(teacher)
    given, plain = resolved_teacher.config.model_dump(), RunConfig().model_dump()
    # How its run was trained is no matter here.
    tree = {**given, **{key: plain[key] for key in ("init", "loss", "distill", "sft", "track")}}
    tree |= {"evaluation": given["evaluation"] | {"max_completion_tokens": None}}
    flags = {**flags, "evaluation.pass_k": (1,), "evaluation.top_p": 1.0}
    if flags["evaluation.temperature"] is None:
        flags["evaluation.temperature"] = override(tree, flags, sets).sampling.temperature
    config = override(tree, flags, sets)
    if config.env.target is not None:
        raise UserError(
            f"{teacher} calls tools, but `microrl teach` stores only single answers",
            "choose another teacher, or --set env.target=none",
        )
    if config.reward.functions:
        raise UserError(
            f"`microrl teach` judges answers by their accuracy alone, not by {', '.join(config.reward.functions)}",
            "leave reward functions out: --set 'reward.functions=[]'",
        )
    if config.evaluation.temperature == 0 and config.evaluation.samples > 1:
        raise UserError("at temperature 0, all samples of a question are equal", "add --samples 1, or raise --temperature")
    adapter = resolved_teacher.adapter_folder()
    run_config = None if resolved_teacher.run is None else resolved_teacher.config
    return config, None if adapter is None else adapter.absolute(), Source(config.model.name, adapter, run_config).is_rl


def _lock(folder: Path) -> BinaryIO | None:
    """Lock the folder against other processes. Raises UserError if another one writes in it."""
    from microrl.run import locks

    try:
        return locks.take(folder / names.LOCK)
    except locks.Held as error:
        owner = f" (PID {error.owner})" if error.owner else ""
        raise UserError(f"another process{owner} is writing in {folder}", "wait for it, or stop it") from None
    except OSError as error:
        raise UserError(f"cannot write in {folder}: {error.strerror}", "fix its permissions") from None


def _after_failure(folder: Path, *, is_new: bool) -> None:
    """Say what is left of a folder. A new one without a part is removed, so that its name is free again."""
    from microrl.config.paths import TEACH
    from microrl.data import taught

    with suppress(OSError, UserError):
        if is_new and not ((folder / TEACH).is_file() and taught.read_record(folder).parts):
            shutil.rmtree(folder)
            return
    say(f"finished parts are kept; to continue: microrl teach --resume {folder}")


def _make(folder: Path) -> None:
    from microrl import files

    try:
        files.make_folder(folder)
    except FileExistsError:
        if folder.is_dir() and {path.name for path in folder.iterdir()} <= {names.LOCK}:
            return  # whoever made it was killed before anything was written
        raise UserError(
            f"{folder} already exists", f"to continue it: microrl teach --resume {folder}; else choose another: --out DIR"
        ) from None
    except OSError as error:
        raise UserError(f"{folder} cannot be made: {error.strerror or error}", "choose another: --out DIR") from None


def _tell(record: Any, folder: Path, model: str, seconds: float, *, as_json: bool) -> None:
    from microrl.config import known_models
    from microrl.data import taught

    keys = ("questions", "sampled", "right", "kept", "tokens", "broken", "cut")
    sums = {key: sum(getattr(part, key) for part in record.parts) for key in keys}
    if not sums["kept"]:
        raise UserError(
            f"{folder} has no completion" + taught.none_right(record),
            "begin another folder (--out) without --only-right, with easier questions, or with a better teacher",
        )
    if sums["broken"] == sums["kept"]:
        raise UserError(
            f"all {sums['broken']:,} completions in {folder} come {taught.BROKEN}",
            "the teacher's weights may be broken: check its answers (microrl sample); if they are good, learn the tokens alone: "
            f"microrl train --sft-data {shlex.quote(str(folder))}",
        )
    student = "quickstart" if model == known_models.QUICKSTART else "--model MODEL"
    data = "" if record.data.name == GENERATED else f" --data {shlex.quote(record.data.name)}"
    how = "--teacher {} --hours H" if record.top_k else "--sft-data {} --sft-minutes M --hours H"
    following = f"microrl train {student}{data} {how.format(shlex.quote(str(folder)))}"
    if as_json:
        return emit({"folder": str(folder), **sums, "seconds": round(seconds, 1), "next": following})
    print(
        f"{counted(sums['sampled'], 'completion')} of {counted(sums['questions'], 'question')}, "
        f"{sums['right'] / sums['sampled']:.0%} right; "
        f"{sums['kept']:,} kept, with {sums['tokens']:,} tokens"
    )
    if sums["cut"]:
        share, limit = sums["cut"] / sums["kept"], record.sampling.max_tokens
        print(f"{share:.0%} of these reached the limit of {limit:,} tokens, and are learned without an end; see --max-tokens")
    if sums["broken"]:
        print(f"{counted(sums['broken'], 'completion')} {taught.BROKEN}: a run that learns from scores leaves these out")
    print(f"written to {folder} in {seconds:.0f} s")
    print(f"next: {following}")
