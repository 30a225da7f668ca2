"""A folder of `microrl teach` that a run cannot learn from: what is wrong is said, and what to do."""

import hashlib
import json
import shutil
from functools import partial

import numpy as np
import pytest
from command_line import in_process
from safetensors.numpy import load_file, save

from microrl.config import resolve
from microrl.data.sft_examples import load_solutions
from microrl.data.taught import IDS, LOGPROBS, TOP, Content, refuse_cut_short, stored
from microrl.errors import UserError
from microrl.models.tiny import build_tokenizer
from microrl.run.data_record import record_or_verify
from microrl.run.folder import RunFolder
from microrl.run.teacher import RAW


@pytest.fixture(scope="module")
def taught(wares, tmp_path_factory):
    """Two parts, with five completions in all."""
    out = tmp_path_factory.mktemp("taught") / "taught"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("microrl.commands.teach.PART", 3)
        done = in_process(
            "teach", "--teacher", wares / "done", "--samples", 1, "--problems", 5, "--top-k", 4, "--out", out,
            "--set", "data.validation=0.2",
        )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return out


@pytest.fixture
def folder(taught, tmp_path):
    return shutil.copytree(taught, tmp_path / "taught")


@pytest.fixture
def train(inside, wares, tmp_path):
    """Train on a folder; returns the exit status, and what was said as one line."""

    def run(folder, *more, flag="--teacher"):
        done = inside("train", wares / "preset.toml", flag, folder, "--steps", 1, *more, cwd=tmp_path)
        return done.returncode, " ".join(done.stderr.split())

    return run


def rewrite(folder, change):
    """Change the record."""
    record = json.loads((folder / "teach.json").read_text())
    change(record)
    (folder / "teach.json").write_text(json.dumps(record))


def with_sums(folder, number, suffix, key, content):
    """Write a file of a part, and its sum into the record, as if it had been made so."""
    (folder / f"part-0000{number}.{suffix}").write_bytes(content)
    made = Content(bytes=len(content), sha256=hashlib.sha256(content).hexdigest()).model_dump()
    rewrite(folder, lambda record: record["parts"][number - 1].update({key: made}))


def with_scores(folder, number, name, change):
    tensors = load_file(folder / f"part-0000{number}.safetensors")
    tensors[name] = np.array(tensors[name])
    change(tensors[name])
    with_sums(folder, number, "safetensors", "scores", save(tensors))


def with_lines(folder, number, **changes):
    lines = [json.loads(line) | changes for line in (folder / f"part-0000{number}.jsonl").read_text().splitlines()]
    with_sums(folder, number, "jsonl", "lines", "".join(json.dumps(line) + "\n" for line in lines).encode())


def missing(folder):
    (folder / "part-00002.safetensors").unlink()


def truncated(folder):
    path = folder / "part-00001.jsonl"
    path.write_bytes(path.read_bytes()[:-9])


def unfinished(folder):
    rewrite(folder, lambda record: (record["parts"].pop(), record.update(is_done=False)))


def without_record(folder):
    (folder / "teach.json").unlink()


def broken_record(folder):
    rewrite(folder, lambda record: record.update(format=2))


def empty(folder):
    rewrite(folder, lambda record: record.update(parts=[]))


def changed(folder):
    path = folder / "part-00001.safetensors"
    content = path.read_bytes()
    path.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))


def fewer_scores(folder):
    tensors = {name: tensor[:-1] for name, tensor in load_file(folder / "part-00001.safetensors").items()}
    with_sums(folder, 1, "safetensors", "scores", save(tensors))


def other_system(folder):
    rewrite(folder, lambda record: record["chat"].update(system="Be brief."))


def other_vocabulary(folder):
    rewrite(folder, lambda record: record["tokenizer"].update(sha256="0" * 64, tokens=7))


def other_end(folder):
    rewrite(folder, lambda record: record["tokenizer"].update(end=5))


def other_prompts(folder):
    with_lines(folder, 1, prompt_ids=[1, 5, 6])


def other_temperature(folder):
    rewrite(folder, lambda record: record.update(scored_at=0.7))


def unknown_token(folder, token=300):
    lines = [json.loads(line) for line in (folder / "part-00001.jsonl").read_text().splitlines()]
    lines[0]["token_ids"][0] = token
    with_sums(folder, 1, "jsonl", "lines", "".join(json.dumps(line) + "\n" for line in lines).encode())


def unknown_top(folder, token=400):
    with_scores(folder, 2, IDS, lambda ids: ids.__setitem__((0, 0), token))


EARLY = (missing, truncated, unfinished, without_record, broken_record, empty, other_system, other_temperature)


@pytest.mark.parametrize(
    ("damage", "said", "hint"),
    [
        (missing, "part-00002.safetensors is missing", "microrl teach --resume"),
        (truncated, "part-00001.jsonl has", "microrl teach --resume"),
        (unfinished, "is not finished: it has 3 of 5 questions", "finish it: microrl teach --resume"),
        (without_record, "teach.json cannot be read", "make a new folder: microrl teach"),
        (broken_record, "teach.json is damaged: `format`", "make a new folder: microrl teach"),
        (empty, "has no completion", "make a new one"),
        (changed, "part-00001.safetensors is not what the record says", "restore the file"),
        (fewer_scores, "part-00001.safetensors does not have scores for", "restore"),
        (other_system, "was asked with data.system=Be brief., and this run asks with none", "--set=data.system=Be brief."),
        (other_vocabulary, "the teacher has a different vocabulary, of 7 tokens", "one of the same model family"),
        (other_end, "the teacher ends a text with the token", "both base models, or both instruct models"),
        (other_prompts, "the teacher was asked in another way: the prompt of the question", "the same chat template"),
        (other_temperature, "the scores are at the temperature 0.7, and this run trains at 1", "--set sampling.temperature=0.7"),
        (unknown_token, "has the token 300, and the student's vocabulary ends before", "make a new folder"),
        (unknown_top, "has the token 400, and the student's vocabulary ends before", "make a new folder"),
        (partial(unknown_token, token=-3), "has the token -3, and the student's vocabulary begins with 0", "make a new folder"),
        (partial(unknown_top, token=-4), "has the token -4, and the student's vocabulary begins with 0", "make a new folder"),
    ],
)  # fmt: skip
def test_a_folder_that_does_not_fit_is_refused(folder, train, damage, said, hint):
    damage(folder)
    status, text = train(folder)
    assert damage not in EARLY or "reading the data" not in text, "it takes no torch to see that"
    assert status == 2 and said in text and "hint: " in text and hint in text.partition("hint: ")[2], text


@pytest.mark.cases(fast=2)
@pytest.mark.parametrize("value", [float("nan"), -float("inf"), 0.5])
@pytest.mark.parametrize("name", [LOGPROBS, TOP])
def test_completions_with_broken_scores_are_left_out_and_counted(folder, train, name, value, tmp_path):
    for number in (1, 2):  # one of three, and one of two
        with_scores(folder, number, name, lambda scores: scores.reshape(-1).__setitem__(0, value))
    status, text = train(folder, "--out", tmp_path / "run")
    assert status == 0 and "SFT: 3 solutions; left out: 2 with log-probabilities that are not finite, or positive" in text, text
    assert "2 with log-probabilities" in (tmp_path / "run" / "events.jsonl").read_text()
    status, text = train(folder, "--out", tmp_path / "hard", flag="--sft-data")
    assert status == 0 and "SFT: 5 solutions" in text, "scores do not matter there"
    for number in (1, 2):
        with_scores(folder, number, name, lambda scores: scores.fill(value))
    status, text = train(folder)
    assert status == 2 and "no usable solution in" in text and "5 with log-probabilities" in text
    assert "make the folder again, microrl teach" in text


def test_a_folder_that_is_cut_at_any_byte_is_refused(folder):
    config = resolve(("quickstart",), {"distill.teacher": str(folder), "sft.steps": 1})
    assert len(list(stored(folder, config))) == 5
    for path in sorted(folder.glob("*.json*")) + sorted(folder.glob("*.safetensors")):
        content = path.read_bytes()
        for size in {0, 1, len(content) - 1, *range(0, len(content), max(len(content) // 60, 1))}:
            path.write_bytes(content[:size])
            if content[:size].strip() != content.strip():  # a record without its last line's end is whole
                with pytest.raises(UserError):
                    refuse_cut_short(folder)
        path.write_bytes(content)
    refuse_cut_short(folder)


def test_a_folder_that_is_gone_is_said_to_be(folder):
    """As when a run is resumed: to read it as a data set would be another error."""
    config = resolve(("quickstart",), {"distill.teacher": str(folder), "sft.steps": 1})
    shutil.rmtree(folder)
    with pytest.raises(UserError, match="there is no folder"):
        load_solutions(config)


def test_answers_to_other_data_are_learned_and_it_is_said(folder, train, wares, tmp_path):
    more = tmp_path / "more.jsonl"
    more.write_text((wares / "sums.jsonl").read_text() + '{"question": "What is 1 + 1?", "answer": "2"}\n')
    status, text = train(folder, "--data", more, "--out", tmp_path / "run")
    assert status == 0 and f"note: {folder} has answers to questions of other data: {wares / 'sums.jsonl'}, 40 rows" in text
    status, text = train(folder, "--out", tmp_path / "same")
    assert status == 0 and "other data" not in text


@pytest.mark.parametrize(("is_rl", "is_said"), [(True, False), (False, True), (None, False)])
def test_scores_of_a_teacher_that_rewards_have_not_trained_are_learned_with_a_warning(folder, train, tmp_path, is_rl, is_said):
    assert json.loads((folder / "teach.json").read_text())["teacher"]["is_rl"], "a quickstart"
    rewrite(folder, lambda record: record["teacher"].update(is_rl=is_rl))
    status, text = train(folder, "--out", tmp_path / "run")
    assert status == 0 and (f"warning: {RAW}" in text) is is_said


@pytest.mark.parametrize(
    ("arguments", "said", "hint"),
    [
        (["--sft-data", "other.jsonl"], "and --sft-data names another: other.jsonl", "leave one of them out"),
        (["--loss", "distill"], "--loss distill needs a teacher in memory, not stored scores", "remove --loss"),
        (["--set", "sft.only=false", "--set", "sft.steps=none"], "are learned by SFT, but SFT is off", "--sft-minutes"),
        (["--set", "distill.reward_weight=1"], "distill.reward_weight has no effect with --loss grpo", "remove it"),
        (
            ["--set", "sft.steps=none", "--control", "shuffle"],
            "a run of SFT alone has no rewards to shuffle",
            "leave out --control",
        ),
    ],
)
def test_settings_that_contradict_a_folder_are_refused(taught, train, arguments, said, hint):
    status, text = train(taught, *arguments)
    assert status == 2 and said in text and hint in text.partition("hint: ")[2], text


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([], "no teacher given"),
        (["--teacher", "{done}", "--samples", 0], "invalid value '0' for --samples"),
        (["--teacher", "{done}", "--hours", 0], "--hours must be above 0"),
        (["--teacher", "{done}", "--temperature", 0], "at temperature 0, all samples of a question are equal"),
        (["--teacher", "{done}", "--out", "{done}"], "already exists"),
        (["--teacher", "{done}", "--set", "env.target=calculator"], "calls tools"),
        (["--teacher", "{done}", "--set", "reward.functions=my:own=2"], "by their accuracy alone, not by my:own=2"),
        (["--teacher", "{killed}"], "has no trained adapter yet"),
        (["--resume", "{done}"], "teach.json cannot be read"),
        (["--resume", "{taught}", "--samples", 2], "it cannot be combined with --samples"),
    ],
)
def test_what_cannot_be_taught_is_refused(taught, wares, inside, tmp_path, arguments, said):
    places = {"done": wares / "done", "killed": wares / "killed", "taught": taught}
    done = inside("teach", *(str(one).format(**places) for one in arguments), cwd=tmp_path)
    text = " ".join(done.stderr.split())
    assert done.returncode == 2 and said in text and "hint: " in text, text
    assert not (tmp_path / "runs").exists()


def test_reward_functions_of_a_teachers_run_are_left_out_only_if_asked(inside, wares, tmp_path):
    run = shutil.copytree(wares / "done", tmp_path / "run")
    config = json.loads((run / "config.json").read_text())
    (run / "config.json").write_text(json.dumps(config | {"reward": config["reward"] | {"functions": ["gone:own"]}}))
    command = ["teach", "--teacher", run, "--samples", 1, "--problems", 2]
    done = inside(*command, cwd=tmp_path)
    text = " ".join(done.stderr.split())
    assert done.returncode == 2 and "not by gone:own" in text and "--set 'reward.functions=[]'" in text
    assert inside(*command, "--set", "reward.functions=[]", "--out", tmp_path / "out").returncode == 0


def test_a_teacher_that_has_changed_does_not_go_on(folder, inside, wares, tmp_path):
    run = shutil.copytree(wares / "done", tmp_path / "run")
    rewrite(folder, lambda record: record.update(adapter=str(run / "final")))
    assert inside("teach", "--resume", folder).returncode == 0
    settings = json.loads((run / "final" / "adapter_config.json").read_text())
    (run / "final" / "adapter_config.json").write_text(json.dumps(settings, indent=7))
    done = inside("teach", "--resume", folder)
    assert done.returncode == 2 and "cannot be continued: teacher.sha256 changed" in " ".join(done.stderr.split())
    shutil.rmtree(run)
    done = inside("teach", "--resume", folder)
    assert done.returncode == 2 and "is gone: there is no folder" in " ".join(done.stderr.split())


def test_a_start_that_fails_leaves_no_folder(wares, inside, tmp_path):
    bad = tmp_path / "bad.jsonl"
    bad.write_text('{"question": "What is 1 + 1?", "answer": "2 +* ("}\n')
    done = inside("teach", "--teacher", wares / "done", "--data", bad, "--set", "data.held_out=0", "--out", tmp_path / "out")
    assert done.returncode == 2 and "does not parse as mathematics" in done.stderr and not (tmp_path / "out").exists()


def test_a_student_with_another_template_is_refused(folder, inside, model_folder, wares, tmp_path):
    student = shutil.copytree(model_folder, tmp_path / "student")
    tokenizer = build_tokenizer()
    tokenizer.chat_template = tokenizer.chat_template.replace("assistant", "model")
    tokenizer.save_pretrained(student)
    done = inside("train", wares / "preset.toml", "--model", student, "--teacher", folder, "--steps", 1, cwd=tmp_path)
    text = " ".join(done.stderr.split())
    assert done.returncode == 2 and "the teacher was asked in another way" in text and "this run's" in text


def test_changed_scores_are_other_data_to_a_run_that_goes_on(folder, wares, tmp_path):
    flags = {"distill.teacher": str(folder), "sft.steps": 1, "data.name": str(wares / "sums.jsonl"), "data.system": ""}
    run, config = RunFolder.create(tmp_path / "run", {}), resolve((), flags)
    for _ in range(2):
        record_or_verify(run, config, [], load_solutions(config))
    with_scores(folder, 2, TOP, lambda scores: scores.__isub__(1))
    with pytest.raises(UserError, match=r"the SFT data of .* has changed since the run started"):
        record_or_verify(run, config, [], load_solutions(config))


@pytest.mark.parametrize(
    ("preset", "flags", "sets", "expected"),
    [  # only, sft.steps, loss
        ("", {"distill.teacher": "FOLDER", "budget.steps": 5}, [], (True, 5, "grpo")),
        ("", {"distill.teacher": "FOLDER", "budget.steps": 5}, ["sft.steps=3"], (False, 3, "grpo")),
        ("distill.teacher = 'FOLDER'", {"budget.steps": 5}, [], (True, 5, "grpo")),
        ("distill.teacher = 'FOLDER'", {"sft.minutes": 5.0}, [], (False, None, "grpo")),
        ("distill.teacher = 'FOLDER'", {"distill.teacher": "none"}, [], None),
        ("distill.teacher = 'FOLDER'", {"distill.teacher": "quickstart"}, ["distill.reward_weight=1"], "distill"),
        ("distill.teacher = 'quickstart'", {"distill.teacher": "FOLDER", "budget.steps": 5}, [], (True, 5, "grpo")),
        ("sft.steps = 32", {"distill.teacher": "FOLDER", "budget.hours": 1.0}, [], (False, 32, "grpo")),
        ("budget.steps = 7\nbudget.hours = 1.0", {"distill.teacher": "FOLDER"}, [], (True, None, "grpo")),
        ("", {"distill.teacher": "FOLDER", "budget.steps": 5, "loss.kind": "dapo"}, ["sft.steps=3"], (False, 3, "dapo")),
    ],
)
def test_a_stored_teacher_is_what_all_layers_say_together(taught, tmp_path, preset, flags, sets, expected):
    (tmp_path / "preset.toml").write_text(preset.replace("FOLDER", str(taught)) + "\n")
    flags = {key: str(taught) if value == "FOLDER" else value for key, value in flags.items()}
    config = resolve([str(tmp_path / "preset.toml")], flags, sets)
    if isinstance(expected, tuple):
        assert config.has_stored_teacher and (config.sft.only, config.sft.steps, config.loss.kind) == expected
        assert config.budget.steps is None or not config.sft.only
    else:
        assert not config.has_stored_teacher and not config.sft.is_on and config.sft.data is None
        assert config.loss.kind == (expected or "grpo") and (config.distill.teacher is None) == (expected is None)
