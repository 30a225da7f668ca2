"""A run folder from elsewhere: nothing outside it is read or written, and what is damaged is said in one line."""

import contextlib
import json
import os
import random
import shutil
import signal
from pathlib import Path

import numpy as np
import pytest
import torch
from damage import renew, tree
from safetensors.torch import load_file, save_file

from microrl.errors import UserError
from microrl.run import checkpoint, heartbeat
from microrl.run.folder import RunFolder
from microrl.train import held_out, saving

HUGE = 10**400
LAST, FIRST = "checkpoints/step-000003", "checkpoints/step-000000"


@pytest.fixture
def run(wares, tmp_path):
    """A copy of the run that was killed in its last step: checkpoints at 0 and 3, four rows."""
    return shutil.copytree(wares / "killed", tmp_path / "run")


@pytest.fixture
def outside(tmp_path):
    """What nobody may touch."""
    folder = tmp_path / "outside"
    (folder / "step-000009").mkdir(parents=True)
    (folder / "file").write_text("before\n" * 1000)
    (folder / "step-000009" / "kept").write_text("kept")
    return folder


class Late(BaseException):
    """Nobody catches it by mistake."""


@contextlib.contextmanager
def at_most(seconds):
    def late(*_):
        raise Late(f"it took more than {seconds} s")

    before = signal.signal(signal.SIGALRM, late)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def events(run):
    return [json.loads(line) for line in (run / "events.jsonl").read_text().splitlines()]


def but_for_words(found):
    """What is in a run folder, without what says that somebody has tried to go on with it."""
    return {name: value for name, value in found.items() if name not in (".lock", "run.log", "events.jsonl", "heartbeat.json")}


def change(path, key, value):
    """Set one key of a JSON file, `a.b` for nested ones; `...` removes it."""
    found = json.loads(path.read_text())
    *parents, last = key.split(".")
    node = found
    for name in parents:
        node = node[name]
    if value is ...:
        del node[last]
    else:
        node[last] = value
    path.write_text(json.dumps(found))


def change_tensor(path, name, tensor):
    """Set one tensor of a safetensors file; None removes it."""
    found = load_file(path)
    if tensor is None:
        del found[name]
    else:
        found[name] = tensor
    save_file(found, path)


LINKS = [
    "metrics.jsonl", "events.jsonl", "sft.jsonl", ".lock", "heartbeat.json", ".heartbeat.json.tmp", "summary.json",
    "crash.log",
    "config.json", "eval", "eval/held-out-before.json", "checkpoints", "checkpoints/step-000009", "best", "rollouts",
    f"{LAST}/state.json",
]  # fmt: skip


@pytest.mark.parametrize("name", LINKS)
def test_a_link_in_a_run_folder_is_refused_and_not_followed(inside, run, outside, name):
    path = run / name
    is_folder = path.is_dir() or name == "checkpoints/step-000009"
    shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)
    path.symlink_to(outside if is_folder else outside / "file")
    before = tree(run.parent)
    done = inside("train", "--resume", run, "--steps", 5)
    assert done.returncode == 2 and f"{path} is a symbolic link" in done.stderr and "hint:" in done.stderr, done.stderr
    assert tree(run.parent) == before


@pytest.mark.parametrize(
    "name", ["metrics.jsonl", "events.jsonl", ".lock", f"{LAST}/SHA256SUMS", f"{LAST}/state.json", "config.json"]
)
def test_a_pipe_in_a_run_folder_is_refused_and_not_waited_for(inside, run, name):
    (run / name).unlink(missing_ok=True)
    os.mkfifo(run / name)
    with at_most(20):
        done = inside("train", "--resume", run)
    assert done.returncode == 2 and f"{run / name} is not a regular file" in done.stderr, done.stderr


def test_every_command_that_takes_a_run_refuses_links_in_it(inside, wares, outside, tmp_path):
    run = shutil.copytree(wares / "done", tmp_path / "runs" / "run")
    (run / "rollouts" / "step-000009.jsonl.gz").symlink_to(outside / "file")
    preset, before = wares / "preset.toml", tree(tmp_path)
    commands = [
        ["eval", run], ["eval"], ["sample", run, "1 + 2?"], ["merge", run, "--out", "merged"], ["merge", "--out", "merged"],
        ["merge", run / "best", "--out", "merged"], ["train", preset, "--init", run, "--out", "new"], ["warmup", "--resume", run],
        ["train", preset, "--resume", "auto", "--out", run],
    ]  # fmt: skip
    for command in commands:
        done = inside(*command, cwd=tmp_path)
        assert done.returncode == 2 and "step-000009.jsonl.gz is a symbolic link" in done.stderr, (command, done.stderr)
    assert tree(tmp_path) == before


@pytest.mark.slow
def test_a_run_folder_may_be_reached_by_a_link_and_hold_hard_links(inside, run):
    assert (run / LAST / "rng.safetensors").is_file()
    shutil.rmtree(run / "best")
    shutil.copytree(run / FIRST, run / "best", copy_function=os.link)
    latest = run.parent / "latest"
    latest.symlink_to(run)
    done = inside("train", "--resume", latest)
    assert done.returncode == 0 and "continuing at step 4" in done.stderr, done.stderr


@pytest.mark.parametrize("name", ["metrics.jsonl", "summary.json", "checkpoints", "eval", "heartbeat.json", ".lock"])
def test_a_folder_in_the_place_of_a_file_is_said_and_the_other_way_round(inside, run, name):
    path = run / name
    if path.is_dir():
        shutil.rmtree(path)
        path.write_text("x")
    else:
        path.unlink(missing_ok=True)
        path.mkdir()
    done = inside("train", "--resume", run)
    assert done.returncode == 2 and f"{path} is a f" in done.stderr and not (run / "crash.log").exists(), done.stderr


@pytest.mark.parametrize("name", ["/dev/zero", "../../../outside/file", "../step-000000/state.json", "..", "a/b", "", "pipe"])
def test_checksums_name_files_beside_them_and_nothing_else(run, outside, name):
    folder = run / LAST
    if name == "pipe":
        os.mkfifo(folder / "pipe")
    with (folder / "SHA256SUMS").open("a") as file:
        file.write(f"{'0' * 64}  {name}\n")
    with at_most(10):
        assert checkpoint.find_corruption(folder) is not None
        place, state = saving.find_checkpoint(RunFolder(run))
    assert (place, state.step) == (run / FIRST, 0)
    assert [event["message"].split()[2] for event in events(run)[-1:]] == ["bad-step-000003"]


STATES = [
    ("step", -1), ("step", HUGE), ("step", "3"), ("step", True), ("step", 4), ("step", 3.5), ("step", ...), ("version", -1),
    ("sampler_position", -1), ("sampler_position", HUGE), ("elapsed_s", float("nan")), ("elapsed_s", -1), ("elapsed_s", 1e300),
    ("metrics_offset", -1), ("metrics_offset", 10**9), ("metrics_offset", 5), ("phases", []), ("phases.load", "x"),
    ("phases.load", float("inf")), ("durations", {"seed": [1.0]}), ("durations.step", [-1.0]), ("durations.step", 3),
    ("is_by_steps", 1), ("is_stopped", None), ("sft", None), ("sft.steps", -1), ("sft.offset", HUGE),
    ("validation.best_step", 4), ("validation.best_step", "../.."), ("validation.best_accuracy", 2.0),
    ("validation.questions", -1),
    ("validation.x", 1), ("guard", []), ("guard.start", {"x": 1.0}), ("guard.log_norms", 1e300), ("guard.norms", -1),
    ("guard.passed", {"x": 1}), ("guard.warned", [1]), ("guard.interventions", HUGE), ("guard.validations", [2.0]),
    ("guard.x", 1), ("metrics_offset", ...), ("sft.offset", ...), ("validation", ...), ("guard.norms", ...),
    ("max_kv_gb", 0), ("tokens_per_microbatch", 0), ("checkpoints_activations", "no"), ("x", 1),
]  # fmt: skip


@pytest.mark.cases(fast=8)
@pytest.mark.parametrize(("key", "value"), STATES, ids=lambda value: f"{value!r:.20}")
def test_a_checkpoint_with_an_ill_typed_state_is_set_aside_and_the_one_before_it_taken(run, key, value):
    change(run / LAST / "state.json", key, value)
    renew(run / LAST)
    before = tree(run)
    place, state = saving.find_checkpoint(RunFolder(run))
    assert (place, state.step) == (run / FIRST, 0)
    event = events(run)[-1]
    assert event["kind"] == "bad checkpoint" and "bad-step-000003" in event["message"] and "\n" not in event["message"]
    moved = {name.replace("bad-step-000003", "step-000003"): value for name, value in tree(run).items()}
    assert {**moved, "events.jsonl": None} == {**before, "events.jsonl": None}, "nothing else is changed"


@pytest.mark.parametrize("content", [b"", b"[]", b"\xff\xfe{", b"[" * 100_000, b'{"step": 3}', b'"\xed\xa0\x80"'])
def test_a_checkpoint_whose_state_is_no_json_is_set_aside(run, content):
    (run / LAST / "state.json").write_bytes(content)
    renew(run / LAST)
    assert saving.find_checkpoint(RunFolder(run))[0] == run / FIRST


def test_a_checkpoint_that_was_killed_before_it_got_its_name_takes_that_of_a_damaged_one(run):
    shutil.copytree(run / LAST, run / "checkpoints" / ".step-000003.tmp")
    shutil.copytree(run / FIRST, run / "checkpoints" / ".step-000002.tmp")  # of another step
    (run / "checkpoints" / ".step-000004.tmp").write_text("x")
    (run / LAST / "state.json").write_text("x")
    place, state = saving.find_checkpoint(RunFolder(run))
    assert (place, state.step) == (run / LAST, 3) and "bad-step-000003" in events(run)[-1]["message"]
    assert sorted(path.name for path in (run / "checkpoints").iterdir()) == ["bad-step-000003", "step-000000", "step-000003"]


TENSORS = [
    ("optimizer", "0.exp_avg_sq", lambda t: None), ("optimizer", "99.step", lambda t: torch.zeros(())),
    ("optimizer", "x", lambda t: torch.zeros(1)), ("optimizer", "0.exp_avg", lambda t: t.flatten()),
    ("optimizer", "0.exp_avg", lambda t: t.long()), ("optimizer", "0.exp_avg", lambda t: torch.full_like(t, float("nan"))),
    ("optimizer", "0.exp_avg_sq", lambda t: t - 1), ("optimizer", "0.step", lambda t: t - 100),
    ("adapter", None, lambda t: None), ("adapter", None, lambda t: t.T.contiguous()),
    ("adapter", None, lambda t: t * float("inf")),
    ("adapter", "x", lambda t: torch.zeros(1)), ("adapter", None, lambda t: t.int()),
    ("rng", "python", lambda t: None), ("rng", "python", lambda t: t[:-1]), ("rng", "python", lambda t: -t - 1),
    ("rng", "python", lambda t: t.double()),
    ("rng", "python_gauss", lambda t: torch.full((1,), float("nan"), dtype=torch.float64)),
    ("rng", "numpy", lambda t: t[:-1]), ("rng", "numpy", lambda t: t * 2**32), ("rng", "numpy", lambda t: t[:0]),
    ("rng", "numpy_gauss", lambda t: t[:0]), ("rng", "torch", lambda t: t[:-1]), ("rng", "torch", lambda t: torch.zeros_like(t)),
    ("rng", "torch", lambda t: t.long()),
]  # fmt: skip


@pytest.fixture(scope="module")
def policy(tokenizer, wares):
    from microrl.config import check
    from microrl.models.tiny import build_model
    from microrl.policy.policy import Policy

    config = check(json.loads((wares / "killed" / "config.json").read_text()))
    return Policy(build_model(tokenizer, seed=3), config, fresh=False)


def everything(policy):
    moments = [value.clone() for state in policy.optimizer.state.values() for value in state.values()]
    numbers = (random.getstate(), [part.tobytes() if hasattr(part, "tobytes") else part for part in np.random.get_state()])
    return [*policy.adapter.state().values(), *moments, torch.get_rng_state()], numbers, policy.version


@pytest.mark.cases(fast=6)
@pytest.mark.parametrize(("file", "name", "damage"), TENSORS)
def test_a_checkpoint_is_restored_whole_or_not_at_all(run, policy, file, name, damage):
    checkpoint.restore(run / LAST, policy)
    torch.rand(3), random.random(), np.random.rand()
    tensors, numbers, version = everything(policy)
    tensors = [tensor.clone() for tensor in tensors]
    path = run / LAST / f"{file}.safetensors"
    found = load_file(path)
    name = name or sorted(found)[0]
    change_tensor(path, name, damage(found.get(name)))
    with pytest.raises(UserError) as caught:
        checkpoint.restore(run / LAST, policy)
    assert str(path.parent) in caught.value.message and "\n" not in caught.value.message
    assert ("remove this checkpoint" in caught.value.hint) == (file == "rng" or "not finite" in caught.value.message)
    after, *rest = everything(policy)
    assert all(torch.equal(one, other) for one, other in zip(tensors, after, strict=True)) and rest == [numbers, version]


def metrics(run):
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return [(line["step"], line["policy/entropy"], line["reward/mean"], line["policy/grad_norm"]) for line in lines]


def test_where_no_checkpoint_fits_the_run_is_refused_and_nothing_is_lost(inside, run):
    """It is the run around them that is wrong: with another rank in its config.json none of its checkpoints fits."""
    change(run / "config.json", "adapter.rank", 4)
    before = tree(run)
    done = inside("train", "--resume", run)
    assert done.returncode == 2 and "restore the run's config.json" in done.stderr, done.stderr
    assert "remove this checkpoint" not in done.stderr, "the ones before it do not fit either"
    assert but_for_words(tree(run)) == but_for_words(before)


@pytest.mark.parametrize("how", ["metrics gone", "a newer version", "an older version", "an older guard"])
def test_good_checkpoints_that_cannot_be_used_end_the_run_and_not_themselves(inside, run, how):
    if how == "metrics gone":
        (run / "metrics.jsonl").unlink()
        for name in (FIRST,):
            shutil.rmtree(run / name)
    else:
        for folder in (run / "checkpoints").iterdir():
            state = json.loads((folder / "state.json").read_text())
            if how == "a newer version":
                state["new_key"] = 1
            elif how == "an older version":
                del state["question_history"]
            else:
                del state["guard"]["history"]
            (folder / "state.json").write_text(json.dumps(state))
            renew(folder)
    before = tree(run)
    done = inside("train", "--resume", run)
    assert done.returncode == 2 and "no checkpoint is usable" in done.stderr and "hint:" in done.stderr, done.stderr
    assert ("another version of microrl wrote it" in done.stderr) == (how != "metrics gone")
    assert but_for_words(tree(run)) == but_for_words(before)


def test_a_run_that_begins_again_keeps_what_was_there(inside, run):
    for folder in (run / "checkpoints").iterdir():
        (folder / "SHA256SUMS").write_text("torn")
    seen, best = (run / "metrics.jsonl").read_bytes(), tree(run / "best")
    assert inside("train", "--resume", run).returncode == 0
    assert (run / "metrics.jsonl.before").read_bytes() == seen and tree(run / "best.before") == best
    assert len(list((run / "rollouts.before").iterdir())) == 4


def test_a_damaged_best_is_not_rolled_back_to(inside, run):
    change(run / "config.json", "guard.entropy_rise", 0.0)
    change(run / "config.json", "guard.patience", 0.125)
    change(run / "config.json", "guard.useful_groups", None)
    path = run / FIRST / "optimizer.safetensors"
    change_tensor(path, "0.exp_avg", torch.zeros(3))
    renew(run / FIRST)
    done = inside("train", "--resume", run)
    assert done.returncode == 0, done.stderr
    told = [event["message"] for event in events(run) if event["kind"] == "warning"]
    assert any("cannot roll back to step-000000" in message and "`0.exp_avg`" in message for message in told), told


BEFORE = [
    ("right", []), ("right", {}), ("right", {"x": 3}), ("right", {"x": -1}), ("right", {"x": True}), ("samples", 0),
    ("samples", HUGE), ("samples", 3), ("settings", ...), ("settings.seed", -1), ("settings.temperature", 0),
    ("settings.top_p", "1"),
    ("settings.max_tokens", 7), ("length_mean", float("nan")), ("seconds", -1), ("pass@7", {}), ("truncated", 2),
    ("questions", ...),
]  # fmt: skip


@pytest.mark.cases(fast=5)
@pytest.mark.parametrize(("key", "value"), BEFORE, ids=lambda value: f"{value!r:.20}")
def test_a_damaged_evaluation_before_is_refused(run, key, value):
    path = run / "eval" / "held-out-before.json"
    config = RunFolder(run).settings()
    assert held_out.measured_before(RunFolder(run), config).right
    change(path, key, value)
    with pytest.raises(UserError) as caught:
        held_out.measured_before(RunFolder(run), config)
    assert str(path) in caught.value.message and "\n" not in caught.value.message and f"rm {path}" in caught.value.hint


def test_the_hint_at_a_damaged_evaluation_leads_to_the_same_end(inside, wares, run):
    path = run / "eval" / "held-out-before.json"
    before = json.loads(path.read_text())
    path.write_text("[]")
    seen = tree(run)
    done = inside("train", "--resume", run)
    assert done.returncode == 2 and f"rm {path}" in done.stderr, done.stderr
    assert but_for_words(tree(run)) == but_for_words(seen), "it is said before anything is done"
    path.unlink()
    assert inside("train", "--resume", run).returncode == 0
    assert json.loads(path.read_text())["right"] == before["right"] and metrics(run) == metrics(wares / "done")


@pytest.mark.parametrize("content", ["", "[]", "{}", '{"elapsed_s": NaN}', '{"elapsed_s": -1}', '{"elapsed_s": "9"}',
                                     '{"elapsed_s": 1e400}', '{"elapsed_s": 1, "x": 1}', f'{{"elapsed_s": {HUGE}}}'])  # fmt: skip
def test_a_damaged_heartbeat_is_told_and_counts_nothing(run, content):
    (run / "heartbeat.json").write_text(content)
    assert heartbeat.last_s(run) == 0
    _, state = saving.find_checkpoint(RunFolder(run))
    assert state.step == 3 and state.phases["lost"] == 0
    assert "heartbeat.json is damaged" in events(run)[-1]["message"] and events(run)[-1]["kind"] == "warning"


@pytest.mark.parametrize("content", ["", "[]", "{}", '{"status": 1}', '{"status": ["done"]}', "null", "[" * 100_000])
def test_a_damaged_summary_is_no_end(run, content):
    (run / "summary.json").write_text(content)
    assert not RunFolder.open(run).is_done()


SUMMARIES = [("status", "x | y"), ("hours_spent", float("nan")), ("eval", []), ("eval.after.questions", HUGE)]


def test_a_damaged_record_is_said_by_merge_and_no_folder_is_left(inside, wares, tmp_path):
    changes = [*(("summary.json", *change) for change in SUMMARIES), ("environment.json", "packages", {"a\n": 1})]
    run = shutil.copytree(wares / "done", tmp_path / "run")
    for name, key, value in changes:
        kept = (run / name).read_text()
        change(run / name, key, value)
        done = inside("export", run, "--out", "merged", cwd=tmp_path)
        assert done.returncode == 2 and f"{run / name} is damaged" in done.stderr, (key, value, done.stderr)
        assert sorted(path.name for path in tmp_path.iterdir()) == ["run"]
        (run / name).write_text(kept)


@pytest.mark.parametrize("content", ['{"mode": 3}', '{"mode": "both"}', "[]", "", "{}"])
def test_a_damaged_choice_between_swap_and_merge_is_refused(run, content):
    from microrl.train.fallback import measured_sync

    assert measured_sync(RunFolder(run)) is None
    (run / "sync.json").write_text('{"mode": "swap", "why": "", "table": []}')
    assert measured_sync(RunFolder(run)) == "swap"
    (run / "sync.json").write_text(content)
    with pytest.raises(UserError, match=r"sync\.json is damaged"):
        measured_sync(RunFolder(run))


CONFIGS = [
    b"", b"[]", b"\xff\xfe{", b"[" * 100_000, b'{"budget": {}, "sampling": {}, "adapter": ' + b'{"a":' * 10_000,
    json.dumps({"budget": [], "sampling": {}, "adapter": {}}).encode(),
    json.dumps({"budget": {}, "sampling": {}, "adapter": {"kind": "lora", "rank": "x"}}).encode(),
    json.dumps({"budget": {}, "sampling": 3, "adapter": {}, "sft": []}).encode(),
]  # fmt: skip


@pytest.mark.cases(fast=2)
@pytest.mark.parametrize(
    "command", [["train", "--steps", "5", "--resume"], ["eval"], ["merge", "--out", "merged"], ["warmup", "--resume"]]
)
def test_a_damaged_configuration_is_said_with_its_name(inside, run, command):
    for content in CONFIGS:
        (run / "config.json").write_bytes(content)
        before = tree(run)
        done = inside(*command, run, cwd=run.parent)
        assert done.returncode == 2 and f"{run / 'config.json'}" in done.stderr, (content[:60], done.stderr)
        assert tree(run) == before and not Path("merged").exists()


def test_a_damaged_run_is_not_taken_for_the_one_that_was_begun(inside, wares, run, tmp_path):
    (tmp_path / "runs").mkdir()
    run.rename(tmp_path / "runs" / "damaged")
    (tmp_path / "runs" / "damaged" / "config.json").write_text("[]")
    shutil.copytree(wares / "killed", tmp_path / "runs" / "good")
    done = inside("train", wares / "preset.toml", "--resume", "auto", cwd=tmp_path)
    assert done.returncode == 0 and "run folder: runs/good" in done.stderr, done.stderr
