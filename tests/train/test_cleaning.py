"""What is left out of the questions before the first step, what is said about it, and where the instruction stands."""

import json

import pytest
from row_files import write

from microrl.cli.target import prepare_hub
from microrl.config import RunConfig, check, resolve
from microrl.config.catalogue import DATASETS
from microrl.config.data import BOXED, DataConfig
from microrl.data.load import content_fraction, load_questions, split
from microrl.data.prompts import messages, render, render_all
from microrl.data.sources import own_copy
from microrl.errors import UserError
from microrl.files import BadFile
from microrl.models import hub
from microrl.rewards.scorer import make_scorer
from microrl.run import contamination, names
from microrl.run.checkpoint import State
from microrl.run.console import RunConsole
from microrl.run.folder import RunFolder
from microrl.train.questions import check_golds, pick_questions, read_questions, render_prompts

DISTILLED = "deepseek-ai/DeepSeek-R1-Distill-Qwen-1.5B"
LONG = "A farmer has {} hens and every hen lays two eggs on each of the five working days of a week so how many eggs are there"


def text_in(low, high, pattern="question {}", start=0):
    """The first text of this pattern that the split puts between these shares."""
    return next(found for n in range(start, start + 10_000) if low <= content_fraction(found := pattern.format(n)) < high)


@pytest.fixture
def prepared(tmp_path, tokenizer):
    """Reads and renders a file's questions as a run does: its questions, prompts, notes, events and folder."""

    class Prepared:
        def __init__(self, given, *sets):
            path = tmp_path / "data.jsonl"
            write(path, given)
            config = resolve((), {"data.name": str(path), "budget.steps": 1}, ["data.answer_kind=text", "data.system=", *sets])
            self.config = config
            self.folder = RunFolder.create(tmp_path / f"run-{len(list(tmp_path.glob('run-*')))}", config.model_dump(mode="json"))
            self.notes = []
            console = RunConsole(log=self.notes.append)
            scorer = make_scorer(config)
            try:
                self.questions = read_questions(config, self.folder, console, scorer, State())
                self.prompts = render_prompts(self.questions, tokenizer, config, self.folder, console)
            finally:
                scorer.close()
            lines = (self.folder.path / "events.jsonl").read_text().splitlines()
            self.events = {event["kind"]: event for event in map(json.loads, lines)}

    return Prepared


def given(*texts, answer="1"):
    return [{"question": text, "answer": answer} for text in texts]


def test_repeated_questions_are_trained_on_once(prepared):
    once, twice = text_in(0.2, 1), text_in(0.2, 1, start=50)
    held = text_in(0, 0.1)
    data = [*given(once, twice), *given(f"  {twice.replace(' ', '   ')}", answer="2"), *given(twice, held, held)]
    found = prepared(data, "data.held_out=0.1", "data.validation=0.1")
    assert [(one.row, one.text, one.answer) for one in found.questions.training] == [(1, once, "1"), (2, twice, "1")]
    assert [one.row for one in found.questions.held_out] == [5]
    assert found.events["questions left out"]["counts"] == {"training": {"repeated": 2}, "held-out": {"repeated": 1}}
    assert "questions left out: training: 2 repeated; held-out: 1 repeated" in found.notes
    assert "1 question is repeated with a different gold answer" in found.events["warning"]["message"]


def test_warnings_about_the_data_are_of_all_of_its_parts_together(prepared):
    texts = [text_in(low, high, "{} and more") for low, high in ((0, 0.2), (0.2, 0.4), (0.4, 1))]
    data = [*given(*texts), *given(*texts, answer="2"), *given(*(f"{text} still" for text in texts), answer="?!")]
    sets = ("data.held_out=0.2", "data.validation=0.2", "data.answer_kind=math", "data.bad_answers=drop")
    found = prepared(data, *sets)
    warnings = [note for note in found.notes if note.startswith("warning: ")]
    assert warnings == [
        "warning: 3 problems dropped: no gold answer that parses as mathematics",
        "warning: 3 questions are repeated with a different gold answer; the first one is used",
    ]
    with pytest.raises(UserError, match=r"row 7: the gold answer `\?!` does not parse as mathematics \(3 rows in total\)"):
        prepared(data, *sets[:-1])


def test_distinct_questions_stay_as_they_were(prepared):
    found = prepared(given(*(f"question {n}" for n in range(200))), "data.held_out=0.1", "data.validation=0.1")
    parts = split(load_questions(found.config.data), 0.1, 0.1)
    assert (found.questions.training, found.questions.held_out, found.questions.validation) == tuple(parts)
    assert [one.question for one in found.prompts.held_out] == [one.text for one in pick_questions(parts.held_out, 64, 0)]
    assert "questions left out" not in found.events and "contamination" not in found.events


def test_dropped_questions_are_counted_by_part_and_reason(prepared):
    fits, long = text_in(0.2, 1), text_in(0.2, 1, "long {0} " * 9)
    held, long_held = text_in(0, 0.1), text_in(0, 0.1, "long {0} " * 9)
    huge = "x" * (60 * 1024 + 1)
    sets = ("data.held_out=0.1", "data.validation=0.1", "data.max_prompt_tokens=60", "data.long_prompts=drop")
    found = prepared(
        [*given(fits, long, held, long_held, huge), *given(f"{fits} more", answer=" ")], *sets, "data.bad_answers=drop"
    )
    assert found.events["questions left out"]["counts"] == {
        "data": {"too long": 1},
        "training": {"without a usable gold answer": 1, "too long": 1},
        "held-out": {"too long": 1},
    }
    assert [one.question for one in found.prompts.training] == [fits]


def test_guessed_columns_are_shown_once(prepared):
    data = [{"id": n, "problem": f"question {n}", "solution": "1"} for n in range(9)]
    found = prepared(data, "data.held_out=0", "data.validation=0")
    assert found.events["columns guessed"]["columns"] == {"question": "problem", "answer": "solution"}
    said = (
        "columns, guessed from their names: question from `problem`, answer from `solution` "
        "(to choose others: --set data.question=COLUMN --set data.answer=COLUMN)"
    )
    assert found.notes.count(said) == 1


def test_named_columns_are_no_news(prepared):
    found = prepared(given("question 1"), "data.question=question", "data.answer=answer", "data.held_out=0", "data.validation=0")
    assert "columns guessed" not in found.events


def test_overlaps_with_the_runs_own_evaluations_are_kept(prepared):
    training = text_in(0.5, 1, LONG)
    held = text_in(0, 0.25, f"{LONG} then")
    other = text_in(0.25, 0.5, "Of 26 letters {} are " + " ".join("abcdefghijklmnop"))
    found = prepared(given(training, held, other), "data.held_out=0.25", "data.validation=0.25")
    record = found.folder.read_if_there(names.CONTAMINATION, contamination.Record)
    near = record.of("held-out")
    assert record.training_questions == 1 and (near.questions, near.overlapping, near.near, near.removed) == (1, 1, 1, 0)
    assert [(pair.row, pair.training_row) for pair in near.pairs] == [(2, 1)] and 0.6 <= near.pairs[0].share < 1
    assert str(near) == "1 of 1 questions overlap with training questions, 1 of them nearly the same"
    assert record.of("validation").overlapping == 0 and record.of("math500") is None
    assert "none of 1 questions overlaps" in str(record.of("validation"))
    assert found.events["contamination"]["benchmark"] == "held-out"
    assert f"warning: held-out: {near} (contamination.json)" in found.notes
    (found.folder.path / "contamination.json").write_text('{"benchmarks": 1}')
    with pytest.raises(BadFile):
        found.folder.read_if_there(names.CONTAMINATION, contamination.Record)


def test_questions_of_a_named_benchmark_are_left_out(prepared, monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    rows = [
        {"problem": LONG.format(7), "answer": "70"},
        {"problem": f"{LONG.format(8)[:80]} and more of other words", "answer": "1"},
    ]
    write(own_copy(DATASETS["math500"]) / "test.jsonl", rows)
    found = prepared(
        given(LONG.format("7").upper(), f"{LONG.format(8)[:80]} with a quite different end that asks for the hens of next year"),
        "data.held_out=0", "data.validation=0", 'data.decontaminate=["MATH-500"]',
    )  # fmt: skip
    assert found.config.data.decontaminate == ("math500",)
    assert [one.row for one in found.questions.training] == [2]  # which overlaps, but is not nearly the same
    assert found.events["questions left out"]["counts"] == {"training": {"near-duplicates of math500": 1}}
    of = found.folder.read_if_there(names.CONTAMINATION, contamination.Record).of("MATH-500")
    assert (of.questions, of.overlapping, of.near, of.removed) == (2, 2, 1, 1)

    write(tmp_path / "solved.jsonl", [row | {"solution": "so"} for row in given(LONG.format(7), "question 1", LONG.format(7))])
    found = prepared(
        given("question 2"), "data.held_out=0", "data.validation=0", 'data.decontaminate=["math500"]',
        f"sft.data={tmp_path / 'solved.jsonl'}", "sft.steps=1",
    )  # fmt: skip
    assert [one.prompt.question for one in found.prompts.sft_examples] == ["question 1"], "answers of others are no way around it"
    assert found.events["solutions left out"]["reasons"] == {"near-duplicates of math500": 2}


def test_a_benchmark_that_is_not_there_or_not_known(prepared):
    with pytest.raises(UserError, match="the hub cannot be reached"):
        prepared(given("question 1"), "data.held_out=0", "data.validation=0", "data.decontaminate=math500")
    with pytest.raises(UserError) as caught:
        resolve((), {}, ["data.decontaminate=maths500"])
    assert "unknown benchmark `maths500`" in caught.value.message and "did you mean `math500`" in caught.value.hint
    with pytest.raises(UserError, match=r"data\.decontaminate"):
        resolve((), {}, ["data.decontaminate=5"])


def test_a_benchmarks_unreadable_golds_are_counted_where_there_is_no_run(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    rows = [{"question": "one?", "answer": "no plain mathematics here"}, {"question": "two?", "answer": "2"}]
    write(own_copy(DATASETS["minerva"]) / "test.jsonl", rows)
    config = RunConfig().model_copy(update={"data": DataConfig().for_benchmark("minerva")})
    notes, scorer = [], make_scorer(config)
    try:
        good = check_golds(load_questions(config.data), scorer, config, None, RunConsole(log=notes.append))
    finally:
        scorer.close()
    assert [one.text for one in good] == ["two?"]
    assert notes[-1] == "warning: 1 problem dropped: no gold answer that parses as mathematics"


def test_the_hub_is_asked_for_named_benchmarks_but_not_for_copies(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    asked = []
    monkeypatch.setattr(hub, "prepare", lambda *names, local: asked.extend(names))
    config = resolve(["quickstart"], {}, ['data.decontaminate=["math500", "aime24"]'])
    prepare_hub(config, loads_model=False)
    assert asked == ["arithmetic", "HuggingFaceH4/MATH-500", "HuggingFaceH4/aime_2024"]
    write(own_copy(DATASETS["aime24"]) / "train.jsonl", given("question 1"))
    prepare_hub(config, loads_model=False)
    assert asked[-1] == str(own_copy(DATASETS["aime24"]))


def test_training_on_a_benchmark_warns(prepared, monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    for split_name in ("train", "test"):
        write(own_copy(DATASETS["gsm8k"]) / "main" / f"{split_name}.jsonl", given("question 1", "question 2"))
    sets = ("data.held_out=0", "data.validation=0", "data.name=gsm8k")
    said = "warning: gsm8k is a benchmark: a model that was trained on it cannot be compared on it with others"
    assert said in prepared([], *sets, "data.split=test").notes
    assert said not in prepared([], *sets, "data.split=train").notes


# ---- where the instruction stands


@pytest.mark.parametrize(
    ("model", "sets", "role"),
    [
        (DISTILLED, (), "user"),
        ("DeepSeek-R1-Distill-Qwen-7B", (), "user"),
        ("unsloth/DeepSeek-R1-Distill-Llama-8B", (), "user"),
        (DISTILLED, ("data.system_role=system",), "system"),
        (DISTILLED, (f"data.system={BOXED}",), "system"),
        ("Qwen2.5-1.5B-Instruct", (), "system"),
        ("Qwen2.5-1.5B-Instruct", ("data.system_role=user",), "user"),
    ],
)
def test_the_models_makers_decide_unless_the_user_does(model, sets, role):
    config = resolve((), {"model.name": model}, sets)
    assert (config.data.system, config.data.system_role) == (BOXED, role)
    again = resolve((), {}, [f"model.name={model}", *sets])
    assert again.data == config.data
    assert check(config.model_dump(mode="json")) == config
    old = config.model_dump(mode="json")  # of a run from before there was a choice
    del old["data"]["system_role"]
    assert check(old).data.system_role == "system"


def test_presets_of_distilled_models():
    assert resolve(["peft-1.5b", "budget-6h"]).data.system_role == "user" == resolve(["ortho-1.5b"]).data.system_role
    assert resolve(["micro-r64"]).data.system_role == "system"
    assert resolve((), {"model.name": DISTILLED}).data.for_benchmark("math500").system_role == "user"


def test_the_instruction_in_the_users_message(tokenizer):
    assert messages("q", "s", "user") == [{"role": "user", "content": "s\n\nq"}]
    assert messages("q", "s") == [{"role": "system", "content": "s"}, {"role": "user", "content": "q"}]
    assert messages("q", None, "user") == messages("q", "") == [{"role": "user", "content": "q"}]
    apart, joined = (render("q?", "1", tokenizer, "Be brief.", role).text for role in ("system", "user"))
    assert (
        "Be brief.\n\nq?" in joined
        and "Be brief.\n\nq?" not in apart
        and joined == render("Be brief.\n\nq?", "1", tokenizer, None).text
    )
    (prompt,) = render_all(
        [load_questions(DataConfig(name="arithmetic"))[0]], tokenizer, DataConfig(system="Be brief.", system_role="user")
    )
    assert "Be brief.\n\nWhat is 10 + 10?" in prompt.text
