"""`microrl teach`: what it stores, that it goes on where it was killed, and what can be learned from it."""

import json
import shutil
import signal
import subprocess
import sys

import masking_teacher
import pytest
import torch
from command_line import in_process
from row_files import write
from safetensors.torch import load, load_file
from whole_runs import rows, start

from microrl import clock
from microrl.adapters.folder import read
from microrl.algorithm.batch import Row
from microrl.commands.teach import _Teaching
from microrl.config import resolve
from microrl.config.catalogue import DATASETS
from microrl.config.paths import is_taught
from microrl.data import taught as folders
from microrl.data.load import content_fraction
from microrl.data.sft_examples import load_solutions, to_sft_examples
from microrl.data.sources import own_copy
from microrl.errors import MachineFailure
from microrl.models.load import load_tokenizer
from microrl.models.tiny import build_model, build_tokenizer
from microrl.policy.microbatch import pad
from microrl.policy.teacher import Teacher
from microrl.run.console import RunConsole
from microrl.run.teacher import RAW

ADAPTER = "final/adapter_model.safetensors"


@pytest.fixture(scope="module")
def asked(wares):
    """Arguments: the teacher is a run, which asks without a system message."""
    return ["teach", "--teacher", wares / "done", "--samples", 3, "--top-k", 5]


@pytest.fixture(scope="module")
def taught(asked, tmp_path_factory):
    out = tmp_path_factory.mktemp("teach") / "taught"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("microrl.commands.teach.PART", 30)
        done = in_process(*asked, "--out", out)
    assert done.returncode == 0, done.stderr
    return out, done.stdout


@pytest.fixture(scope="module")
def other_taught(model_folder, wares, tmp_path_factory):
    """By a random model that is far from the student."""
    folder = tmp_path_factory.mktemp("other")
    tokenizer = build_tokenizer()
    build_model(tokenizer, seed=4).save_pretrained(folder / "model")
    tokenizer.save_pretrained(folder / "model")
    sets = ["--set", "data.system=", "--set", "data.held_out=0.2", "--max-tokens", 16]
    done = in_process(
        "teach", "--teacher", folder / "model", "--data", wares / "sums.jsonl", *sets, "--samples", 2, "--out", folder / "taught"
    )
    assert done.returncode == 0, done.stderr
    return folder / "taught"


@pytest.fixture(scope="module")
def loaded(model_folder):
    """The student's tokenizer, as runs load it."""
    return load_tokenizer(resolve((), {"model.name": str(model_folder)}).model)


def lines_of(folder):
    return [json.loads(line) for path in sorted(folder.glob("part-*.jsonl")) for line in path.read_text().splitlines()]


def student(wares, tokenizer, folder, *, key="distill.teacher", **flags):
    """The examples that a run learns."""
    flags = {"data.name": str(wares / "sums.jsonl"), "data.system": "", key: str(folder), "sft.steps": 2, **flags}
    config = resolve((), {"data.held_out": 0.2, "sampling.max_completion_tokens": 40, **flags})
    return to_sft_examples(load_solutions(config), tokenizer, config)


def content(folder):
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir())}


def test_what_a_teacher_leaves(taught, wares, model, tokenizer):
    """Its scores are those of the run's weights, at the training temperature; questions held out are not asked."""
    out, said = taught
    record, lines = folders.read_record(out), lines_of(out)
    assert [part.questions for part in record.parts][:-1] == [10] * (len(record.parts) - 1) and len(record.parts) > 2
    assert len(lines) == 3 * record.questions and record.is_done and record.scored_at == 1
    assert record.teacher.sha256 is not None and record.chat.system is None and record.tokenizer.end == tokenizer.eos_token_id
    held_out = resolve([str(wares / "preset.toml")]).data.held_out
    assert all(content_fraction(line["question"]) >= held_out for line in lines) and len({line["row"] for line in lines}) > 20
    assert {line["sample"] for line in lines} == {0, 1, 2} and {line["accuracy"] for line in lines} == {0.0}
    meant, number = Teacher(model, read(wares / "done" / "final", model)), 0
    for part in range(len(record.parts)):
        scores = load_file(folders.part_files(out, part)[1])
        assert scores["top_ids"].shape == (record.parts[part].tokens, 5)
        assert torch.equal(scores["top_logprobs"], scores["top_logprobs"].sort(1, descending=True)[0])
        start = 0
        for line in lines[number : number + record.parts[part].kept]:
            assert tokenizer.decode(line["token_ids"], skip_special_tokens=True) == line["text"]
            row = Row(tuple(line["prompt_ids"]), tuple(line["token_ids"]), (), 0.0, True, 0)
            logprobs_T = meant.scores(pad([row], (0,), model.device, share_prompts=True)).logprobs_BT[0]
            assert torch.allclose(scores["logprobs"][start : start + row.length], logprobs_T, atol=1e-4)
            start += row.length
        number += record.parts[part].kept
    assert f"{len(lines)} completions of {record.questions} questions, 0% right; {len(lines)} kept" in said
    assert f"--teacher {out} --hours H" in said


def test_parts_that_are_lost_are_written_again_with_the_same_bits(taught, inside, tmp_path, monkeypatch):
    monkeypatch.setattr("microrl.commands.teach.PART", 30)
    whole, out = content(taught[0]), tmp_path / "out"
    shutil.copytree(taught[0], out)
    (out / "part-00002.jsonl").write_bytes(whole["part-00002.jsonl"][:-40])
    calls, part = [], _Teaching._part
    monkeypatch.setattr("microrl.commands.teach._Teaching._part", lambda *given: calls.append(given[1]) or part(*given))
    assert inside("teach", "--resume", out).returncode == 0 and content(out) == whole and calls == [1], "and no other one"
    calls.clear()
    monkeypatch.setattr("microrl.commands.teach._Teaching._part", lambda *given: calls.append(given))
    assert inside("teach", "--resume", out).returncode == 0 and content(out) == whole and not calls


def test_a_folder_whose_end_was_not_written_down_is_finished(taught, inside, tmp_path):
    """A kill between the last part and the last word about it."""
    out = shutil.copytree(taught[0], tmp_path / "out")
    record = json.loads((out / "teach.json").read_text())
    (out / "teach.json").write_text(json.dumps(record | {"is_done": False}))
    assert inside("teach", "--resume", out).returncode == 0
    assert folders.read_record(out).is_done and folders.refuse_cut_short(out).questions == record["questions"]
    (out / "teach.json").write_text(json.dumps(record | {"sampling": record["sampling"] | {"max_tokens": 3}}))
    said = " ".join(inside("teach", "--resume", out).stderr.split())
    assert "cannot be continued: sampling.max_tokens was 3 and is" in said
    (out / "teach.json").write_text(json.dumps(record | {"sampling": record["sampling"] | {"engine": "vllm"}}))
    said = " ".join(inside("teach", "--resume", out).stderr.split())
    assert "vllm is not installed" in said.lower(), said


def test_a_benchmarks_questions_are_not_asked(asked, inside, taught, wares, tmp_path, monkeypatch):
    """And a buffer that only the flag makes room for is not refused."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    question = lines_of(taught[0])[0]["question"]
    write(own_copy(DATASETS["math500"]) / "test.jsonl", [{"problem": question, "answer": "1"}])
    sets = ("--set", 'data.decontaminate=["math500"]', "--max-tokens", 40, "--set", "reward.overlong.buffer=39")
    done = inside(*asked, *sets, "--problems", 40, "--out", tmp_path / "out")
    assert done.returncode == 0 and "1 question left out: near-duplicates of math500" in done.stderr, done.stderr
    asked_now = {line["question"] for line in lines_of(tmp_path / "out")}
    assert question not in asked_now and len(asked_now) > 10
    rows = [{"problem": row["question"], "answer": "1"} for row in map(json.loads, (wares / "sums.jsonl").open())]
    write(own_copy(DATASETS["math500"]) / "test.jsonl", rows)
    done = inside(*asked, *sets, "--out", tmp_path / "none")
    assert done.returncode == 2 and "no question is left" in done.stderr and "data.decontaminate" in done.stderr


def test_a_teacher_that_was_exchanged_does_not_go_on(model_folder, wares, inside, tmp_path):
    model, out = shutil.copytree(model_folder, tmp_path / "model"), tmp_path / "out"
    flags = ["--data", wares / "sums.jsonl", "--set", "data.system=", "--problems", 2, "--samples", 1, "--max-tokens", 4]
    assert inside("teach", "--teacher", model, *flags, "--out", out).returncode == 0
    assert inside("teach", "--resume", out).returncode == 0
    build_model(build_tokenizer(), seed=5).save_pretrained(model)
    done = inside("teach", "--resume", out)
    assert done.returncode == 2 and f"{out} cannot be continued: teacher.sha256 changed" in " ".join(done.stderr.split()), (
        done.stderr
    )


def test_the_limit_of_time_ends_it_between_two_parts(asked, inside, tmp_path, monkeypatch):
    """What is there can be learned from, and more is added later."""
    monkeypatch.setattr("microrl.commands.teach.PART", 30)
    out = tmp_path / "out"
    done = inside(*asked, "--hours", 1e-9, "--out", out)
    record = folders.read_record(out)
    assert done.returncode == 0 and len(record.parts) == 1 and record.is_done and "the time is up: 1 of" in done.stderr
    assert folders.refuse_cut_short(out) == record
    kept = content(out)
    done = inside("teach", "--resume", out, "--hours", 1e-9)
    assert done.returncode == 0 and content(out) == kept, "no part is begun that cannot end in time"
    now = clock.now_s
    monkeypatch.setattr("microrl.commands.teach.clock.now_s", lambda: now() + 3600 * len(drawn))
    monkeypatch.setattr("microrl.commands.teach.MICROBATCH", 200)
    drawn, top = [], Teacher.top
    monkeypatch.setattr(Teacher, "top", lambda *given: drawn.append(1) or top(*given))
    done = inside("teach", "--resume", out, "--hours", 1)
    assert done.returncode == 0 and content(out) == kept and len(drawn) == 1, "one that takes too long is discarded"
    monkeypatch.undo()
    assert inside("teach", "--resume", out).returncode == 0
    assert sum(part.questions for part in folders.read_record(out).parts) == record.questions


def test_an_attempt_to_go_on_leaves_a_folder_that_can_be_trained_on(asked, inside, tmp_path, monkeypatch):
    monkeypatch.setattr("microrl.commands.teach.PART", 30)
    out = tmp_path / "out"
    assert inside(*asked, "--hours", 1e-9, "--out", out).returncode == 0
    kept = content(out)

    def failing(*given):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("microrl.commands.teach._written", failing)
    done = inside("teach", "--resume", out)
    assert done.returncode != 0 and f"finished parts are kept; to continue: microrl teach --resume {out}" in done.stderr
    assert content(out) == kept and folders.refuse_cut_short(out).is_done
    done = inside(*asked, "--out", tmp_path / "new")
    assert done.returncode != 0 and not (tmp_path / "new").exists() and "finished parts" not in done.stderr


def test_a_folder_is_written_by_one_process(taught, inside, asked, tmp_path):
    out = shutil.copytree(taught[0], tmp_path / "out")
    hold = "import sys, time; from pathlib import Path; from microrl.run import locks; lock = locks.take(Path(sys.argv[1])); "
    hold += "print('held', flush=True); time.sleep(60)"
    process = subprocess.Popen([sys.executable, "-c", hold, str(out / ".lock")], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None and process.stdout.readline() == "held\n"
    try:
        said = " ".join(inside("teach", "--resume", out).stderr.split())
        assert f"another process (PID {process.pid}) is writing in {out}" in said
    finally:
        process.kill()
        process.wait()
    assert inside("teach", "--resume", out).returncode == 0 and content(out) == content(taught[0])
    empty = tmp_path / "empty"  # whoever made it was killed before anything was written
    empty.mkdir()
    (empty / ".lock").touch()
    assert inside(*asked, "--problems", 2, "--out", empty).returncode == 0
    assert inside(*asked, "--problems", 2, "--out", empty).returncode == 2


def test_a_teacher_that_runs_out_of_memory_while_it_answers_takes_fewer_at_once(asked, inside, taught, tmp_path, monkeypatch):
    monkeypatch.setattr("microrl.commands.teach.PART", 30)
    failures, plain = [torch.OutOfMemoryError("CUDA out of memory")], _Teaching._sampled
    monkeypatch.setattr(_Teaching, "_sampled", lambda *given: plain(*given) if not failures else failing())

    def failing():
        raise failures.pop()

    done = inside(*asked, "--out", tmp_path / "out")
    assert done.returncode == 0 and "out of memory while sampling: the KV cache is reduced to" in done.stderr, done.stderr
    assert lines_of(tmp_path / "out") == lines_of(taught[0])


@pytest.mark.slow
@pytest.mark.one_of_each
@pytest.mark.parametrize(("place", "count"), [("a teacher's file", 4), ("a teacher's record", 2)])
def test_killed_inside(microrl, wares, tmp_path, place, count):
    """With 48 samples a part has ten questions: it is killed between the two files of a part, and behind the record of one."""
    command = ["teach", "--teacher", wares / "done", "--samples", 48]
    whole, out = tmp_path / "whole", tmp_path / "out"
    done = microrl(*command, "--out", whole)
    assert done.returncode == 0, done.stderr
    process = start([*command, "--out", out], place=place, count=count)
    _, errors = process.communicate(timeout=120)
    assert process.returncode == -signal.SIGKILL, errors
    refused = microrl("train", "--teacher", out, "--hours", 1, "--data", wares / "sums.jsonl", "--set", "data.system=")
    assert refused.returncode == 2 and f"microrl teach --resume {out}" in " ".join(refused.stderr.split()), refused.stderr
    assert microrl("teach", "--resume", out).returncode == 0
    assert content(out) == content(whole) and len(content(whole)) > 5


def test_the_stored_tokens_are_learned_as_they_are(taught, wares, loaded):
    lines = {(line["question"], line["sample"]): line for line in lines_of(taught[0])}
    for key, is_soft in (("sft.data", False), ("distill.teacher", True)):
        examples, left_out = student(wares, loaded, taught[0], key=key)
        assert len(examples) + sum(left_out.values()) == len(lines) and len(examples) > 60
        learned = {(one.prompt.token_ids, one.token_ids) for one in examples}
        assert learned <= {(tuple(line["prompt_ids"]), tuple(line["token_ids"])) for line in lines.values()}
        assert all((one.targets is not None) == is_soft for one in examples)
    scores = load_file(folders.part_files(taught[0], 0)[1])
    one = examples[0]
    assert torch.equal(torch.tensor(one.targets.logprobs_TK), scores["top_logprobs"][: len(one.token_ids)])
    assert torch.equal(torch.tensor(one.targets.ids_TK), scores["top_ids"][: len(one.token_ids)])
    fewer, left_out = student(wares, loaded, taught[0], **{"data.held_out": 0.5})
    assert left_out["held out"] > 0 and len(fewer) + sum(left_out.values()) == len(lines)


def arguments(wares, folder):
    return ["train", wares / "preset.toml", "--teacher", folder]


@pytest.mark.slow
@pytest.mark.one_of_each
def test_a_run_distils_and_a_run_goes_on_by_reinforcement(other_taught, wares, inside, tmp_path):
    """Steps are those of the SFT where it is all; with a bound of its own, reinforcement learning follows in the same run."""
    out, both = tmp_path / "out", tmp_path / "both"
    done = inside(*arguments(wares, other_taught), "--set", "sft.steps=none", "--steps", 8, "--lr", 1e-2, "--out", out)
    assert done.returncode == 0, done.stderr
    found = [json.loads(line) for line in (out / "sft.jsonl").read_text().splitlines()]
    assert len(found) == 8 and all(row["kl"] == row["loss"] for row in found) and found[-1]["kl"] < 0.8 * found[0]["kl"]
    config = resolve((), {}).__class__.model_validate(json.loads((out / "config.json").read_text()))
    assert config.has_stored_teacher and config.asked_teacher is None and config.loss.kind == "grpo" and config.sft.only
    assert not (out / "metrics.jsonl").exists() or not rows(out)
    assert "distillation from the stored scores in `taught`" in merged(inside, out, tmp_path)
    done = inside(*arguments(wares, other_taught), "--steps", 2, "--set", "sft.steps=1", "--out", both)
    assert done.returncode == 0 and len(rows(both)) == 2, done.stderr
    assert len((both / "sft.jsonl").read_text().splitlines()) == 1
    assert "`taught`, and then reinforcement learning with verifiable rewards" in merged(inside, both, tmp_path)


def merged(inside, run, folder):
    target = folder / f"merged-{run.name}"
    assert inside("merge", run, "--out", target).returncode == 0
    return " ".join((target / "README.md").read_text().split())


def test_sft_on_a_folder_needs_no_solutions(taught, tiny_arguments, inside, tmp_path):
    out = tmp_path / "out"
    command = ["train", *tiny_arguments, "--sft-data", taught[0], "--steps", 1]
    done = inside(*command, "--set", "sft.steps=2", "--out", out)
    assert done.returncode == 0, done.stderr
    found = [json.loads(line) for line in (out / "sft.jsonl").read_text().splitlines()]
    assert len(found) == 2 and all("kl" not in row for row in found)
    refused = inside(*command, "--out", tmp_path / "none")
    assert refused.returncode == 2 and "--sft-data has no effect without SFT" in refused.stderr


@pytest.mark.slow
@pytest.mark.one_of_each
def test_a_distillation_that_was_killed_ends_with_the_same_bits(microrl, taught, wares, tmp_path):
    meant, out, folder = tmp_path / "meant", tmp_path / "out", tmp_path / "folder"
    shutil.copytree(taught[0], folder)
    command = [*arguments(wares, folder), "--set", "sft.steps=none", "--steps", 6]
    assert microrl(*command, "--out", meant).returncode == 0
    process = start([*command, "--out", out], place="sft_step", count=4)
    process.communicate(timeout=120)
    assert process.returncode == -signal.SIGKILL
    assert microrl("train", "--resume", out).returncode == 0
    assert (out / ADAPTER).read_bytes() == (meant / ADAPTER).read_bytes()
    kls = [[json.loads(line)["kl"] for line in (run / "sft.jsonl").read_text().splitlines()] for run in (out, meant)]
    assert kls[0] == kls[1] and len(kls[0]) == 6


@pytest.mark.slow
@pytest.mark.one_of_each
def test_trials_of_a_sweep_have_sft_data_of_their_own(other_taught, wares, inside, tmp_path):
    """They share the untouched model's evaluation, and with it what is known of the questions."""
    settings = f'[sweep.settings]\nplain = {{}}\ntaught = {{ distill.teacher = "{other_taught}" }}\n'
    (tmp_path / "study.toml").write_text(f'[sweep]\nbase = ["{wares / "preset.toml"}"]\n{settings}')
    flags = ["--steps", 1, "--set", "sft.steps=1", "--out", tmp_path / "sweep"]
    done = inside("sweep", tmp_path / "study.toml", *flags)
    assert done.returncode == 0, done.stderr
    records = [json.loads(path.read_text()) for path in sorted((tmp_path / "sweep").glob("*/data.json"))]
    assert len(records) == 2 and records[0]["data"] == records[1]["data"] and records[0]["sft"] != records[1]["sft"]


@pytest.mark.slow
def test_only_right_completions_are_kept(microrl, tmp_path):
    out = tmp_path / "out"
    command = ["teach", "--teacher", "quickstart", "--samples", 4, "--problems", 20, "--only-right", "--top-k", 0, "--json"]
    done = microrl(*command, "--out", out)
    assert done.returncode == 0, done.stderr
    told, lines = json.loads(done.stdout), lines_of(out)
    assert 0 < told["right"] == told["kept"] == len(lines) < told["sampled"] == 80
    assert {line["accuracy"] for line in lines} == {1.0}
    assert load_file(folders.part_files(out, 0)[1]).keys() == {"logprobs"}
    assert f"--sft-data {out} --sft-minutes M" in told["next"]
    refused = microrl("train", "quickstart", "--teacher", out, "--steps", 1, "--out", tmp_path / "run")
    said = " ".join(refused.stderr.split())
    assert refused.returncode == 2 and "no soft targets to distil from" in said and f"--sft-data {out}" in said


def test_where_nothing_is_right_an_error_says_so(inside, wares, tmp_path):
    out = tmp_path / "out"
    done = inside("teach", "--teacher", wares / "done", "--samples", 1, "--problems", 3, "--only-right", "--out", out)
    said = " ".join(done.stderr.split())
    assert done.returncode == 2 and f"{out} has no completion: none of the teacher's 3 is right" in said
    assert "without --only-right" in said
    refused = inside("train", wares / "preset.toml", "--teacher", out, "--steps", 1)
    assert refused.returncode == 2 and "none of the teacher's 3 is right" in " ".join(refused.stderr.split())


@pytest.mark.parametrize(("weight", "is_all"), [(-9.2e37, False), (-3e38, True)])
def test_completions_that_no_run_can_learn_are_counted(inside, wares, loaded, tmp_path, weight, is_all):
    """Scores of -inf: of all completions, or of those in whose single position two tokens are impossible."""
    teacher, out = masking_teacher.make(tmp_path / "teacher", (150, 151), weight), tmp_path / "taught"
    sets = ["--set", "data.system=", "--set", "data.held_out=0.2", "--max-tokens", 1, "--samples", 2, "--top-k", 300]
    done = inside("teach", "--teacher", teacher, "--data", wares / "sums.jsonl", *sets, "--out", out)
    (part,) = folders.read_record(out).parts
    said, told = " ".join(done.stderr.split()), f"completions {folders.BROKEN}"
    assert f"warning: {RAW}" in said and folders.read_record(out).teacher.is_rl is False
    if is_all:
        assert done.returncode == 2 and part.broken == part.kept, done.stderr
        assert f"all {part.kept} completions in {out} come {folders.BROKEN}" in said and f"microrl train --sft-data {out}" in said
        assert inside("teach", "--resume", out).returncode == 2
    else:
        assert done.returncode == 0 and 0 < part.broken < part.kept, done.stderr
        assert f"{part.broken} {told}: a run that learns from scores leaves these out" in done.stdout
        assert student(wares, loaded, out).left_out[folders.BROKEN] == part.broken


def test_a_teacher_that_runs_out_of_memory_scores_fewer_at_once(taught, wares, model, monkeypatch):
    record = folders.read_record(taught[0])
    lines = [folders.Line.model_validate_json(json.dumps(line)) for line in lines_of(taught[0])[:9]]
    teacher, sizes, plain = Teacher(model, read(wares / "done" / "final", model)), [], Teacher.top
    teaching = _Teaching(taught[0], record, None, None, teacher, 288, RunConsole())
    whole, broken = teaching._scored(lines)

    def failing(self, batch, *given):
        sizes.append(len(batch.rows))
        if len(batch.rows) > most:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return plain(self, batch, *given)

    monkeypatch.setattr(Teacher, "top", failing)
    most = 3
    fewer, still_broken = teaching._scored(lines)
    assert broken == still_broken == 0 and sizes == [9, 4, 2, 2, 5, 2, 3]
    for name, tensor in load(whole).items():
        assert torch.allclose(load(fewer)[name], tensor, atol=1e-4), name
    most = 0
    with pytest.raises(MachineFailure, match="while the teacher scores one completion at a time: CUDA out of memory"):
        teaching._scored(lines)


def test_a_name_is_that_of_a_folder_of_completions(taught, wares, tmp_path):
    assert is_taught(str(taught[0])) and not is_taught(str(wares / "done")) and not is_taught(str(tmp_path / "none"))
    assert not is_taught("x" * 5000) and not is_taught("\0")


@pytest.mark.parametrize(
    ("flags", "drawn", "scored"), [(["--temperature", 0.5], 0.5, 1.0), (["--set", "sampling.temperature=0.6"], 0.6, 0.6)]
)
def test_scores_are_at_the_training_temperature(wares, model, inside, tmp_path, flags, drawn, scored):
    done = inside("teach", "--teacher", wares / "done", "--samples", 1, "--problems", 3, *flags, "--out", tmp_path / "out")
    record = folders.read_record(tmp_path / "out")
    assert done.returncode == 0 and (record.sampling.temperature, record.scored_at) == (drawn, scored)
    (line, *_), scores = lines_of(tmp_path / "out"), load_file(tmp_path / "out" / "part-00001.safetensors")
    row = Row(tuple(line["prompt_ids"]), tuple(line["token_ids"]), (), 0.0, True, 0)
    meant = Teacher(model, read(wares / "done" / "final", model), temperature=scored)
    logprobs_T = meant.scores(pad([row], (0,), model.device, share_prompts=True)).logprobs_BT[0]
    assert torch.allclose(scores["logprobs"][: row.length], logprobs_T, atol=1e-4)


def test_no_question_is_refused_before_the_model_is_loaded(inside, tmp_path):
    done = inside("teach", "--teacher", "quickstart", "--problems", 0, "--out", tmp_path / "out")
    assert done.returncode == 2 and "--problems 0" in done.stderr and "loading" not in done.stderr, done.stderr


@pytest.mark.slow
@pytest.mark.one_of_each
def test_a_plan_and_a_sweep_know_that_no_teacher_is_in_memory(other_taught, wares, inside, tmp_path):
    plan = inside("plan", wares / "preset.toml", "--gpu", "h100", "--hours", 1, "--teacher", other_taught)
    planned = " ".join(plan.stdout.split())
    assert plan.returncode == 0 and "note: " not in planned, planned
    sets = ["--set", f"distill.teacher={other_taught}", "--set", "sft.steps=none"]
    flags = ["--ranks", "2,4", "--steps", 3, *sets, "--out", tmp_path / "sweep"]
    done = inside("sweep", wares / "preset.toml", *flags)
    assert done.returncode == 0, done.stderr
    for rank in (2, 4):
        (path,) = (tmp_path / "sweep").glob(f"r{rank}-*/sft.jsonl")
        assert len(path.read_text().splitlines()) == 3
    (other_taught / "part-00001.jsonl").rename(tmp_path / "part")
    gone = inside("sweep", wares / "preset.toml", *flags[:-1], tmp_path / "none")
    (tmp_path / "part").rename(other_taught / "part-00001.jsonl")
    assert gone.returncode == 2 and "part-00001.jsonl is missing" in " ".join(gone.stderr.split())
    assert not (tmp_path / "none").exists()
