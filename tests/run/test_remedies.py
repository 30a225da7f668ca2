"""What gives a run what it lacks: the command that works, not one that is refused in its turn."""

import json

import pytest
from command_line import in_process

from microrl.config import resolve
from microrl.errors import UserError
from microrl.run.folder import RunFolder
from microrl.run.remedies import to_evaluate


def made(tmp_path, **sets) -> RunFolder:
    return RunFolder.create(tmp_path / "run", resolve(["quickstart"], sets).model_dump(mode="json"))


@pytest.mark.parametrize(
    ("sets", "part", "command"),
    [
        ({}, None, "eval RUN"),
        ({}, "step-000004", "eval RUN/step-000004"),
        ({"evaluation.problems": 0}, None, "eval RUN --problems 64"),
        ({"evaluation.problems": 0, "data.held_out": 0.0}, "best", "eval RUN/best --data FILE.jsonl"),
    ],
)
def test_the_command_that_evaluates_a_run_has_what_its_settings_lack(tmp_path, sets, part, command):
    run = made(tmp_path, **sets)
    (run.path / "final").mkdir()
    assert to_evaluate(run.path, run.settings(), part) == f"microrl {command.replace('RUN', str(run.path))}"
    if part is None:
        with pytest.raises(UserError) as refused:
            compared(run)
        assert refused.value.hint == f"microrl {command.replace('RUN', str(run.path))}"


def compared(run):
    from microrl.commands.compare import Entry, compare

    compare([Entry.of(run, None)])


def test_a_run_that_has_no_adapter_is_to_be_finished_unless_it_was_refused(tmp_path):
    run = made(tmp_path)
    finish = f"microrl train --resume {run.path}"
    assert to_evaluate(run.path, run.settings()) == finish
    run.event("failed", "there is nothing to learn from", hint="raise the limit", step=0)
    assert to_evaluate(run.path, run.settings()) == "raise the limit"
    with pytest.raises(UserError, match="before its first update: there is nothing to learn from") as caught:
        run.final()
    assert caught.value.hint == "raise the limit"
    for later in ({"kind": "interrupted", "step": 0}, {"kind": "failed", "step": 3, "hint": "no"}, {"kind": "failed", "step": 0}):
        (run.path / "events.jsonl").write_text(json.dumps({"kind": "failed", "step": 0, "hint": "no"}) + "\n" + json.dumps(later))
        assert to_evaluate(run.path, run.settings()) == finish, later


def test_untouched_weights_are_not_offered_as_the_best_so_far(tmp_path):
    """A validation before the first update makes the untouched model the best checkpoint."""
    run = made(tmp_path)
    (run.path / "best").mkdir()
    for version, is_offered in ((0, False), (3, True)):
        (run.path / "best" / "state.json").write_text(json.dumps({"version": version}))
        told = in_process("export", run.path, "--out", tmp_path / "out")
        assert told.returncode == 2 and f"finish it: microrl train --resume {run.path}" in told.stderr
        assert (str(run.path / "best") in told.stderr) is is_offered


@pytest.mark.slow
@pytest.mark.one_of_each
def test_the_untouched_weights_of_a_refused_run_are_not_saved_as_trained(tiny_arguments, tmp_path):
    more = ["--set", "evaluation.problems=20", "--set", "data.held_out=0.6", "--set", "sampling.max_completion_tokens=3"]
    done = in_process("train", *tiny_arguments, *more, "--steps", 2, "--out", tmp_path / "run")
    assert done.returncode == 2 and "there is nothing to learn from" in done.stderr, done.stderr
    assert (tmp_path / "run" / "checkpoints" / "step-000000").is_dir() and not (tmp_path / "run" / "final").exists()
    told = in_process("eval", tmp_path / "run")
    assert told.returncode == 2 and "ended before its first update" in told.stderr and "in a new run" in told.stderr
