"""`microrl diff`: what the trained model answers and the base model does not."""

import gzip
import json
import time

import pytest
from made_run import HOSTILE, make

from microrl.report import figures, transcripts
from microrl.report.history import History
from microrl.report.page import page


@pytest.fixture(autouse=True)
def no_figures(monkeypatch):
    """Drawing takes most of the time, and is tested elsewhere."""
    monkeypatch.setattr(figures, "FIGURES", ())


def record(path, answers, **more):
    with gzip.open(path, "wt", errors="surrogatepass") as file:
        for number, (text, right) in enumerate(answers):
            line = {"question": f"question {number // 2}", "row": 7, "answer": "4", "sample": number % 2, "right": right,
                    "completion": text, **more}  # fmt: skip
            file.write(json.dumps(line) + "\n")


BASE = [("so 2 and 2 is 5", False), ("it is 4", True), ("the same", True), ("a b c", False)]
TRAINED = [("so 2 and 2 is 4", True), ("it is 41", False), ("the same", True), ("a b d", False)]


@pytest.fixture
def run(tmp_path):
    folder = make(tmp_path / "run", steps=3)
    record(folder / "eval/held-out-before.jsonl.gz", BASE)
    record(folder / "eval/held-out-after.jsonl.gz", TRAINED)
    return folder


@pytest.mark.parametrize(
    ("one", "other", "shared"),
    [
        ("so it is 4", "so it is 5", "so it is "),
        ("so it is 41", "so it is 4", "so it is "),
        ("same", "same", "same"),
        ("", "x", ""),
        ("abc", "xbc", ""),
        ("<a>guess", "<a>1+2", "<a>"),
        ("é 中文", "é 中国", "é "),
    ],
)
def test_what_two_texts_share_is_cut_at_a_word(one, other, shared):
    assert one[: transcripts.common(one, other)] == shared == other[: transcripts.common(other, one)]


def test_the_first_that_are_shown_answer_different_questions(run, inside):
    """Of questions 0, 0, 1 and 1, the second answer to the first comes after the first answer to the second."""
    record(run / "eval/held-out-before.jsonl.gz", [("no", False)] * 4)
    record(run / "eval/held-out-after.jsonl.gz", [(f"answer {number}", True) for number in range(4)])
    shown = inside("diff", run, "--count", 2).stdout
    assert "answer 0" in shown and "answer 2" in shown and "answer 1" not in shown and "answer 3" not in shown
    shown = inside("diff", run).stdout
    assert [shown.index(f"answer {number}") for number in (0, 2, 1, 3)] == sorted(shown.index(f"answer {n}") for n in range(4))


def test_long_words_take_no_time():
    began = time.process_time()
    assert transcripts.common("9" * 200_000 + " a", "9" * 200_000 + " b") == 200_001
    assert transcripts.common("9" * 200_000, "9" * 199_999 + "8") == 0
    assert time.process_time() - began < 2


def test_answers_are_paired_by_question_and_sample(run):
    (name, sides), *others = transcripts.evaluations(run).items()
    assert name == "held-out-after" and not others
    found = list(transcripts.pairs(*sides, []))
    assert [pair.kind for pair in found] == ["became right", "became wrong", "same text", "other text"]
    assert (found[0].same, found[0].base, found[0].trained) == ("so 2 and 2 is ", "5", "4")
    assert transcripts.counts(found) == dict.fromkeys(transcripts.KINDS, 1)


def test_the_command(inside, run, monkeypatch):
    monkeypatch.setenv("COLUMNS", "100")
    done = inside("diff", run)
    assert done.returncode == 0, done.stderr
    assert "1 became right, 1 became wrong, 1 other text, 1 same text" in done.stdout
    assert "base, wrong" in done.stdout and "trained, right" in done.stdout and "other text:" not in done.stdout
    assert "it is 41" in done.stdout and "a b d" not in done.stdout
    assert "a b d" in inside("diff", run, "--only", "changed").stdout
    only = json.loads(inside("diff", run, "--only", "wrong", "--json").stdout)
    assert [pair["kind"] for pair in only["pairs"]] == ["became wrong"] and only["answers"] == 4
    monkeypatch.setenv("COLUMNS", "40")
    assert max(map(len, inside("diff", run).stdout.splitlines()[1:])) <= 40


def test_an_evaluation_with_a_base_is_another_pair(inside, run):
    record(run / "eval/gsm8k-n2-base.jsonl.gz", TRAINED)
    record(run / "eval/gsm8k-n2.jsonl.gz", BASE)
    assert list(transcripts.evaluations(run)) == ["held-out-after", "gsm8k-n2"]
    found = json.loads(inside("diff", run, "--evaluation", "gsm8k-n2", "--json").stdout)
    assert found["evaluation"] == "gsm8k-n2" and found["pairs"][0]["base"]["rest"] == "41"
    done = inside("diff", run, "--evaluation", "gsm8k")
    assert done.returncode == 2 and "gsm8k-n2" in done.stderr


def test_bad_input(inside, run, tmp_path):
    done = inside("diff", run, "--only", "rihgt")
    assert done.returncode == 2 and "right" in done.stderr
    (run / "eval/held-out-before.jsonl.gz").write_bytes((run / "eval/held-out-before.jsonl.gz").read_bytes()[:-9])
    done = inside("diff", run)
    assert done.returncode == 0 and "held-out-before.jsonl.gz is damaged" in done.stderr
    (run / "eval/held-out-before.jsonl.gz").unlink()
    (run / "final").mkdir()
    done = inside("diff", run)
    assert done.returncode == 2 and "microrl eval" in done.stderr
    assert inside("diff", tmp_path).returncode == 2


def test_hostile_answers_are_only_text(inside, run):
    record(run / "eval/held-out-before.jsonl.gz", [(text, False) for text in HOSTILE], extracted="x")
    record(run / "eval/held-out-after.jsonl.gz", [(text[::-1], True) for text in HOSTILE])
    done = inside("diff", run, "--count", 99)
    assert done.returncode == 0 and not {"\x1b", "\u202e", "\x00", "\x07"} & set(done.stdout)
    text = page([History.load(run)])
    assert "<img src=x" not in text and "onload=window" not in text.replace("&lt;svg onload=window", "")


def test_json_has_the_answers_as_they_were_given(inside, run):
    """The console and the page cut long texts and write control characters out; a program wants neither."""
    texts = ["a " + "x" * 20_000 + "\x1b[31m", "it \x9b is \u202e \t 4"]
    record(run / "eval/held-out-before.jsonl.gz", [("a b", False), ("it c", False)])
    record(run / "eval/held-out-after.jsonl.gz", [(text, True) for text in texts])
    done = inside("diff", run, "--json")
    assert not {"\x1b", "\x9b", "\u202e"} & set(done.stdout)
    assert [pair["same"] + pair["trained"]["rest"] for pair in json.loads(done.stdout)["pairs"]] == texts
    shown = inside("diff", run).stdout
    assert not {"\x1b", "\x9b", "\u202e"} & set(shown) and "more characters" in shown


def test_the_page_shows_what_turned(run):
    text = page([History.load(run)])
    assert "4 answers to held-out questions" in text and "1 became right, 1 became wrong" in text
    assert '<span class="same">so 2 and 2 is </span>4' in text


def test_without_both_models_answers_the_hint_names_the_base_model(run, inside):
    for path in (run / "eval").glob("*.gz"):
        path.unlink()
    done = inside("diff", run)
    assert done.returncode == 2 and f"make one: microrl train --resume {run}\n" in done.stderr, "eval would refuse it"
    (run / "final").mkdir()
    done = inside("diff", run)
    assert done.returncode == 2 and f"make one: microrl eval {run} --base quickstart" in done.stderr
