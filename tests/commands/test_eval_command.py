"""`microrl eval`: what it evaluates, on what, what it leaves behind, and how it goes on after it was killed."""

import contextlib
import csv
import gzip
import io
import json
import shutil
import signal
import sys
from pathlib import Path

import numpy as np
import processes
import pytest
from places import HELPERS

from microrl.config import catalogue, protocols
from microrl.config.schema import DataConfig
from microrl.data.load import load_questions, split
from microrl.types import Completion, Group


def copied(run, tmp_path):
    return Path(shutil.copytree(run, tmp_path / "run"))


def evaluated(inside, *arguments):
    done = inside("eval", *arguments, "--json")
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)["benchmarks"]


def completions(folder, pattern="*.jsonl.gz"):
    (path,) = folder.glob(pattern)
    return [json.loads(line) for line in gzip.decompress(path.read_bytes()).splitlines()]


def texts(folder, pattern="*.jsonl.gz"):
    return [line["completion"] for line in completions(folder, pattern)]


@pytest.mark.slow
@pytest.mark.one_of_each
def test_a_run_its_parts_and_its_adapter_elsewhere_are_the_same_weights(inside, run, data_file, tmp_path):
    here = copied(run, tmp_path)
    shutil.copytree(here / "final", tmp_path / "adapter")
    found = {}
    for name in (here, here / "final", here / "step-000003", here / "checkpoints" / "step-000003", tmp_path / "adapter",
                 here / "step-000000"):  # fmt: skip
        out = tmp_path / f"out-{len(found)}"
        evaluated(inside, name, "--data", data_file, "--problems", 6, "--samples", 4, "--max-tokens", 12, "--out", out,
                  "--set", "data.system=")  # fmt: skip
        found[name] = texts(out)
    *same, first = found.values()
    assert len(same[0]) == 24 and all(texts == same[0] for texts in same), "the trained adapter, wherever it lies"
    assert first != same[0], "the checkpoint before training is another one"


def test_a_part_that_is_not_there_is_told_with_those_that_are(inside, run):
    done = inside("eval", run / "step-000017")
    assert done.returncode == 2 and "hint: its parts: final" in done.stderr and "step-000003" in done.stderr


def test_the_record(inside, run, tmp_path):
    here = copied(run, tmp_path)
    base = str(json.loads((here / "config.json").read_text())["model"]["name"])
    result = evaluated(inside, here, "--samples", 4, "--pass-k", "1,4", "--base", base)["held-out"]
    stem = f"held-out-n4-t1-p1-m12-s0-q4-vs-{Path(base).name}"
    stored = json.loads((here / "eval" / f"{stem}.json").read_text())
    assert {key: value for key, value in stored.items() if key not in ("right", "cluster_of", "base")} == {
        key: value for key, value in result.items() if key != "base"
    }
    assert stored["engine"] == "transformers" and "torch" in stored["packages"] and len(stored["prompts_sha256"]) == 64
    assert (stored["model"], stored["model_sha256"]) == (stored["base"]["model"], stored["base"]["model_sha256"])
    assert stored["adapter_sha256"] and stored["base"]["adapter_sha256"] is None
    entropies = stored["base"]["entropy"], stored["entropy"]
    assert stored["entropy_change_pct"] == pytest.approx((entropies[1] / entropies[0] - 1) * 100)
    for name, side in ((f"{stem}.jsonl.gz", stored), (f"{stem}-base.jsonl.gz", stored["base"])):
        lines = completions(here / "eval", name)
        assert len(lines) == 4 * 4 and [line["sample"] for line in lines] == [0, 1, 2, 3] * 4
        assert side["length_mean"] == pytest.approx(sum(line["tokens"] for line in lines) / 16)
        assert side["truncated"] == sum(line["finish"] == "length" for line in lines) / 16
        weighted = sum(line["entropy"] * line["tokens"] for line in lines) / sum(line["tokens"] for line in lines)
        assert side["entropy"] == pytest.approx(weighted, abs=1e-4)
        by_question = {question: 0 for question in side["right"]}
        for line in lines:
            by_question[line["question"]] += line["right"]
        assert by_question == side["right"]


def test_several_limits_are_evaluations_of_their_own(inside, run, tmp_path):
    """Each is the same, to the byte of its answers, as without the other; and has the parts of its own gain."""
    base = json.loads((run / "config.json").read_text())["model"]["name"]
    asked = ["--samples", 3, "--base", base]
    both = evaluated(inside, copied(run, tmp_path), *asked, "--max-tokens", "3,9,3")
    assert list(both) == ["held-out-m3", "held-out-m9"]
    for limit in (3, 9):
        one = evaluated(inside, run, *asked, "--max-tokens", limit, "--out", tmp_path / str(limit))
        assert list(one) == ["held-out"], "as ever"
        for path in (tmp_path / str(limit)).glob("*.jsonl.gz"):
            assert path.read_bytes() == (tmp_path / "run" / "eval" / path.name).read_bytes()
        told, alone = both[f"held-out-m{limit}"], one["held-out"]
        assert told["settings"]["max_tokens"] == limit and told["truncated"] == alone["truncated"]
        assert told["gain_parts"] == alone["gain_parts"]
        for side, name in ((told, "trained"), (told["base"], "base")):
            parts, count = told["gain_parts"][name], told["questions"] * 3
            assert sum(parts[one] for one in ("right", "form", "length", "answer")) == count
            assert parts["length"] + parts["right"] >= round(side["truncated"] * count)
    rows = {row["settings"] for row in csv.DictReader(io.StringIO(inside("compare", tmp_path / "run", "--as", "csv").stdout))}
    assert {"n3 T1.0 p1.0 3 tok", "n3 T1.0 p1.0 9 tok"} <= rows
    done = inside("eval", run, "--max-tokens", "3,9", "--set", "evaluation.max_completion_tokens=3")
    assert done.returncode == 2 and "contradict" in done.stderr
    assert inside("eval", run, "--max-tokens", "0").returncode == 2


def test_the_same_seed_gives_the_same_file_and_other_settings_another_one(inside, run, tmp_path):
    here = copied(run, tmp_path)
    evaluated(inside, here, "--samples", 2)
    (path,) = (here / "eval").glob("held-out-n*.jsonl.gz")
    first = path.read_bytes()
    path.unlink()
    evaluated(inside, here, "--samples", 2)
    assert path.read_bytes() == first
    evaluated(inside, here, "--samples", 2, "--seed", 5)
    evaluated(inside, here / "step-000000", "--samples", 2)
    assert len(list((here / "eval").glob("held-out-n*.jsonl.gz"))) == 3 and path.read_bytes() == first


def test_the_seed_changes_the_samples_and_the_question_seed_the_questions(inside, run, tmp_path):
    here, data = copied(run, tmp_path), written(tmp_path / "many.jsonl", *((f"What is {n} + 1?", str(n + 1)) for n in range(30)))
    asked, said = [], []
    for number, seeds in enumerate(([], ["--seed", 1], ["--question-seed", 1])):
        out = tmp_path / f"out-{number}"
        options = ["--data", data, "--problems", 8, "--samples", 2, "--max-tokens", 4, "--out", out]
        evaluated(inside, here, *options, *seeds)
        asked.append([line["question"] for line in completions(out)])
        said.append(texts(out))
    assert asked[0] == asked[1] != asked[2] and said[0] != said[1]
    (path,) = (tmp_path / "out-2").glob("*.json")
    stored = json.loads(path.read_text())
    assert path.stem == "many-n2-t1-p1-m4-s0-qs1-q8" and (stored["settings"]["seed"], stored["question_seed"]) == (0, 1)


def test_clusters_of_the_data_are_told_and_recorded(inside, run, tmp_path):
    here, data, out = copied(run, tmp_path), tmp_path / "translated.jsonl", tmp_path / "out"
    lines = [{"question": f"{word} {n}", "answer": "1", "cluster": n} for n in range(3) for word in ("two", "zwei")]
    data.write_text("".join(json.dumps(line) + "\n" for line in lines))
    done = inside("eval", here, "--data", data, "--samples", 2, "--max-tokens", 4, "--out", out)
    assert done.returncode == 0 and "translated: 6 problems in 3 clusters, 2 samples each" in done.stdout, done.stderr
    (path,) = out.glob("*.json")
    stored = json.loads(path.read_text())
    assert (stored["questions"], stored["clusters"]) == (6, 3) and stored["cluster_of"]["zwei 2"] == "2"
    assert {line["question"]: line["cluster"] for line in completions(out)} == stored["cluster_of"]


def test_greedy_decoding_needs_one_sample(inside, run, tmp_path):
    here = copied(run, tmp_path)
    result = evaluated(inside, here, "--temperature", 0)["held-out"]
    assert result["samples"] == 1 and result["settings"]["temperature"] == 0
    evaluated(inside, here, "--temperature", 0, "--samples", 3)
    lines = texts(here / "eval", "held-out-n3-*.gz")
    assert all(len(set(lines[start : start + 3])) == 1 for start in range(0, len(lines), 3))
    assert lines[::3] == texts(here / "eval", "held-out-n1-*.gz")
    refused = inside("eval", here, "--temperature", 0.001)
    assert refused.returncode == 2 and "0 (greedy) or at least 0.01" in refused.stderr


def killed(*arguments):
    done = processes.run([sys.executable, HELPERS / "killed.py", *arguments], timeout=600)
    assert done.returncode == -signal.SIGKILL, done.stderr


@pytest.mark.slow
@pytest.mark.cases(one_of_each=1)
@pytest.mark.parametrize("torn", [False, True], ids=["between lines", "within a line"])
def test_a_killed_evaluation_goes_on_where_it_died_and_ends_as_a_whole_one(microrl, inside, run, tmp_path, torn):
    """With room for one group at a time, so that questions are answered one after the other."""
    here = copied(run, tmp_path)
    options = ["--samples", 4, "--problems", 6, "--set", "engine.max_kv_gb=0.000001", "--set", "data.held_out=0.3"]
    evaluated(inside, here, *options)
    (path,) = (here / "eval").glob("held-out-n4*.jsonl.gz")
    whole, value = path.read_bytes(), json.loads(path.with_name(path.name.replace("jsonl.gz", "json")).read_text())
    path.unlink()
    killed("journal", 3, "eval", here, *options)
    (journal,) = (here / "eval").glob(".*.partial.jsonl")
    assert len(journal.read_text().splitlines()) == 1 + 3 and not path.exists()
    if torn:
        journal.write_bytes(journal.read_bytes()[:-40])
    done = inside("eval", here, *options)
    assert f"after {2 if torn else 3} of 6 problems" in done.stderr
    assert path.read_bytes() == whole and not journal.exists()
    again = json.loads(path.with_name(path.name.replace("jsonl.gz", "json")).read_text())
    assert {key: value for key, value in again.items() if key not in ("seconds", "decode_steps")} == {
        key: value for key, value in value.items() if key not in ("seconds", "decode_steps")
    }
    assert again["decode_steps"] < value["decode_steps"]


@pytest.mark.slow
def test_a_journal_of_other_weights_counts_for_nothing(inside, run, tmp_path):
    here = copied(run, tmp_path)
    killed("journal", 2, "eval", here, "--samples", 2)
    shutil.rmtree(here / "final")
    shutil.copytree(run / "best", here / "final")
    tensors = here / "final" / "adapter_config.json"
    tensors.write_text(tensors.read_text() + "\n")
    done = inside("eval", here, "--samples", 2)
    assert done.returncode == 0 and "problems; going on" not in done.stderr and "that was killed" not in done.stderr


def written(path, *pairs):
    path.parent.mkdir(exist_ok=True)
    path.write_text("".join(json.dumps({"question": question, "answer": answer}) + "\n" for question, answer in pairs))
    return path


@pytest.mark.slow
@pytest.mark.one_of_each
def test_no_evaluation_replaces_one_of_other_data_prompts_weights_or_base(inside, run, tmp_path):
    here, out = copied(run, tmp_path), tmp_path / "out"
    first = written(tmp_path / "a" / "x.jsonl", ("What is 1 + 1?", "2"))
    other = written(tmp_path / "b" / "x.jsonl", ("What is 1 + 2?", "3"))
    shorter = ["--samples", 2, "--max-tokens", 4, "--out", out]
    given = [[first], [other], [first, "--set", "data.system=Be brief."], [first, "--base", here / "step-000000"], [first]]
    for data, *more in given:
        evaluated(inside, here, "--data", data, *more, *shorter)
    evaluated(inside, here / "step-000000", "--data", first, *shorter)
    stored = {path.name: json.loads(path.read_text()) for path in out.glob("*.json")}
    assert len(stored) == 5, "the fifth one is the first one again"
    identity = {(one["data"]["sha256"], one["prompts_sha256"], one["adapter_sha256"], "base" in one) for one in stored.values()}
    assert len(identity) == 5
    whole = json.loads((out / "x-n2-t1-p1-m4-s0.json").read_text())
    assert whole["data"]["source"] == {"local": str(first), "subset": None, "split": "train"} and whole["questions_planned"] == 1


def test_a_run_can_be_the_base_and_a_base_that_is_not_there_is_found_first(inside, run, tmp_path):
    here = copied(run, tmp_path)
    done = inside("eval", here, "--base", here / "step-000000", "--samples", 2)
    assert done.returncode == 0 and "paired gain, accuracy" in done.stdout and "p-value of no gain" in done.stdout, done.stderr
    (path,) = (here / "eval").glob("held-out-*-vs-run-step-000000.json")
    stored = json.loads(path.read_text())
    assert stored["base"]["adapter_sha256"] not in (None, stored["adapter_sha256"]) and 0 < stored["paired_gain_p"] <= 1
    before = set((here / "eval").iterdir())
    done = inside("eval", here, "--base", "no/such-model", "--samples", 2)
    assert done.returncode == 2 and "no/such-model" in done.stderr and set((here / "eval").iterdir()) == before


def test_without_an_argument_the_newest_finished_run_is_evaluated(inside, run, tmp_path):
    shutil.copytree(run, tmp_path / "runs" / "a")
    shutil.copytree(run, tmp_path / "runs" / "b")
    shutil.rmtree(tmp_path / "runs" / "b" / "final")
    done = inside("eval", "--samples", 2, cwd=tmp_path)
    assert done.returncode == 0 and "using the newest run that is finished: runs/a" in done.stderr
    done = inside("eval", "runs/b", cwd=tmp_path)
    assert done.returncode == 2 and "microrl train --resume runs/b" in done.stderr


def test_a_file_is_evaluated_as_it_is_and_the_training_data_with_a_warning(inside, run, data_file, tmp_path):
    here = copied(run, tmp_path)
    data = written(tmp_path / "same.jsonl", ("Which letter?", "3"), ("Which letter?", "4"), ("Which letter?", "4"))
    found = evaluated(inside, here, "--data", data, "--samples", 2, "--max-tokens", 4)["same"]
    assert found["questions"] == 3 and found["data"]["contamination"]["overlapping"] == 0
    sums = [(row["question"], row["answer"]) for row in map(json.loads, data_file.read_text().splitlines())]
    both = written(tmp_path / "both.jsonl", ("Which letter?", "3"), *sums)
    found = evaluated(inside, here, "--data", both, "--samples", 2, "--max-tokens", 4, "--problems", 2)["both"]
    shared = found["data"]["contamination"]
    parts = split(load_questions(DataConfig(name=str(data_file))), 0.2, 0.2)
    assert shared == {"questions": 41, "overlapping": len(parts.training), "near": len(parts.training), "removed": 0}
    done = inside("eval", here, "--data", data_file, "--samples", 2, "--problems", 2)
    assert done.returncode == 0 and "is the data that" in done.stderr and "was trained on" in done.stderr


def test_what_is_asked_of_weights_that_name_no_data_is_said(inside, model_folder, data_file, tmp_path):
    """A run's adapter that was exported no longer knows the run's data."""
    limits = ["--problems", 2, "--samples", 1, "--max-tokens", 4, "--out", tmp_path / "out"]
    for more, is_said in ((["--set", f"data.name={data_file}"], True), (["--data", data_file], False)):
        done = inside("eval", model_folder, *more, *limits)
        assert done.returncode == 0, done.stderr
        assert (f"evaluated on problems held out of {data_file}; for others, pass --data FILE" in done.stderr) == is_said


def test_a_model_with_few_positions_is_evaluated_where_the_prompts_fit(inside, model_folder, tmp_path):
    """However long the prompts of a benchmark may be."""
    config = json.loads((model_folder / "config.json").read_text())
    longest = config["max_position_embeddings"]
    data = written(tmp_path / "few.jsonl", ("What is 1 + 1?", "2"))
    limits = ["--max-tokens", 4, "--set", f"data.max_prompt_tokens={longest}"]
    assert (
        evaluated(inside, model_folder, "--data", data, "--samples", 2, *limits, "--out", tmp_path / "out")["few"]["questions"]
        == 1
    )


def test_a_time_limit_that_fits_nothing(inside, run, tmp_path):
    done = inside("eval", copied(run, tmp_path), "--hours", 1e-6)
    assert done.returncode == 2 and "hint: pass larger --hours" in done.stderr


@pytest.mark.parametrize("name", protocols.PROTOCOLS)
def test_every_protocol_dry_runs_with_its_papers_settings(inside, name):
    """Without a network: the numbers of questions are the catalogue's."""
    done = inside("eval", "Qwen2.5-1.5B-Instruct", "--protocol", name, "--dry-run", "--json")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)["benchmarks"]
    assert found.keys() == protocols.PROTOCOLS[name].benchmarks.keys()
    for benchmark, settings in protocols.PROTOCOLS[name].benchmarks.items():
        one = found[benchmark]
        assert (one["samples"], one["max_tokens"], one["temperature"]) == (
            settings.samples, settings.max_tokens, settings.temperature
        )  # fmt: skip
        assert one["questions"] == catalogue.benchmark(benchmark).rows["test"] and one["seconds"] > 0


@pytest.mark.parametrize(("arguments", "samples", "ks"), [
    (["--protocol", "peft", "--bench", "amc23"], 32, [32]),
    (["--protocol", "peft", "--bench", "amc23", "--samples", 8], 8, [8]),
    (["--protocol", "peft", "--bench", "math500", "--pass-k", "1,16"], 16, [1, 16]),
    (["--protocol", "ortho", "--bench", "gsm8k"], 1, [1]),
    (["--bench", "math500", "--temperature", 0], 1, [1]),
    (["--bench", "math500", "--pass-k", 16], 16, [16]),
    (["--bench", "MATH-500"], 8, [8]),
    (["--bench", "MATH-500,math500"], 8, [8]),
])  # fmt: skip
def test_flags_come_before_a_protocol_and_k_goes_with_the_samples(inside, arguments, samples, ks):
    done = inside("eval", "Qwen2.5-1.5B-Instruct", *arguments, "--dry-run", "--json")
    (one,) = json.loads(done.stdout)["benchmarks"].values()
    assert (one["samples"], one["pass_k"]) == (samples, ks)


@pytest.mark.parametrize(("arguments", "error", "hint"), [
    (["--bench", "math501"], "unknown benchmark `math501`", "did you mean `math500`"),
    (["--protocol", "pefd"], "unknown protocol `pefd`", "did you mean `peft`"),
    (["--protocol", "kl", "--bench", "aime24"], "has no settings for aime24", "gsm8k, gpqa-diamond, math500"),
    (["--bench", ","], "--bench ',': a value is empty", "--bench A,B"),
    (["--bench", "math500,"], "--bench 'math500,': a value is empty", "--bench A,B"),
    (["--bench", "open-rs"], "open-rs has no test split", "one of:"),
    (["--bench", "math500", "--data", "x.jsonl"], "--data cannot be combined", "one of them"),
    (["--samples", 4, "--pass-k", 8], "pass@8 needs at least 8 samples", "--samples 8"),
    (["--samples", 0], "error: invalid value '0' for --samples", "greater than or equal to 1"),
    (["--samples", 4, "--set", "evaluation.samples=0"], "error: invalid value '0' for `evaluation.samples`", "equal to 1"),
    (["--seed", -1], "error: invalid value '-1' for --seed", "greater than or equal to 0"),
    (["--temperature", 0.001], "error: --temperature must be 0 (greedy) or at least 0.01", "--temperature 0"),
    (["--problems", 0], "error: --problems is 0", "--problems N"),
    (["--pass-k", 0], "invalid value '0' for --pass-k", "at least 1"),
    (["--hours", 0], "--hours must be above 0", "no time limit"),
    (["--base", ""], "--base is empty", "leave it out"),
    (["--base", "./none"], "there is no run and no model at ./none", "pass a model"),
])  # fmt: skip
def test_what_cannot_be_evaluated_is_told_with_a_hint(inside, arguments, error, hint):
    done = inside("eval", "quickstart", *arguments)
    assert done.returncode == 2 and error in done.stderr and hint in done.stderr.partition("hint: ")[2], done.stderr


@pytest.mark.parametrize(("changes", "option"), [
    ({"data": {"name": "aime24", "split": "train"}}, "--bench"),
    ({"data": {"name": "aime24", "split": "train"}}, "--data"),
    ({"data": {"name": catalogue.benchmark("aime24").hub_id, "split": "train"}}, "--bench"),
    ({"sft": {"data": "aime24", "steps": 1}}, "--bench"),
])  # fmt: skip
def test_a_benchmark_that_is_the_training_data_is_refused(inside, run, tmp_path, changes, option):
    here = copied(run, tmp_path)
    config = json.loads((here / "config.json").read_text())
    for section, values in changes.items():
        config[section] |= values
    (here / "config.json").write_text(json.dumps(config))
    done = inside("eval", here, option, "aime24")
    assert done.returncode == 2 and "was trained on aime24" in done.stderr and "hint: " in done.stderr


class ScriptedEngine:
    """Answers each question rightly at the rate that its text names; the draws follow from the stream."""

    name = "scripted"

    def __init__(self):
        self.decode_steps = 0

    @contextlib.contextmanager
    def awake(self, snapshot, *, is_training=False):
        yield self

    def close(self):
        pass

    def groups(self, prompts, sampling, *, stream, positions, pace, environment=None):
        for position, prompt in zip(positions, prompts, strict=True):
            draws = np.random.default_rng((*stream, position)).random(sampling.group_size)
            rate = float(prompt.question.rpartition(" ")[2])
            texts = [r"\boxed{1}" if draw < rate else r"\boxed{2}" for draw in draws]
            yield position, Group(prompt, tuple(Completion((1, 2), (-0.5, -0.5), "stop", 1, text) for text in texts))


@pytest.mark.slow
@pytest.mark.parametrize("repetitions", [60, 1000])
def test_intervals_hold_the_truth_through_the_command(inside, model_folder, tmp_path, monkeypatch, repetitions):
    """Thirty questions drawn from a population whose mean success rate is 1/3, four samples each, again and again."""
    monkeypatch.setattr("microrl.commands.weights.make_engine", lambda *_, **__: ScriptedEngine())
    draw = np.random.default_rng(7)
    held = {"avg@4": 0, "pass@2": 0}
    truth = {"avg@4": 1 / 3, "pass@2": 1 - np.mean((1 - draw.beta(1, 2, 10**6)) ** 2)}
    for repetition in range(repetitions):
        rows = [{"question": f"question {n}: {rate:.6f}", "answer": "1"} for n, rate in enumerate(draw.beta(1, 2, 30))]
        data = tmp_path / "rates.jsonl"
        data.write_text("".join(json.dumps(row) + "\n" for row in rows))
        found = evaluated(inside, model_folder, "--data", data, "--samples", 4, "--pass-k", 2, "--seed", repetition,
                          "--out", tmp_path / "out", "--set", "data.system=", "--max-tokens", 8)["rates"]  # fmt: skip
        for name, value in truth.items():
            low, high = found[name]["ci95"]
            held[name] += low <= value <= high
    for name, count in held.items():
        share = count / repetitions
        assert 0.935 - 2 * (0.05 * 0.95 / repetitions) ** 0.5 <= share <= 0.99, (name, share)
