"""Data files of others: every digit is kept, nothing stale is read, and what is no data is refused by its row, at once."""

import csv
import json
import os
import time
from decimal import Decimal

import pytest

from microrl.config import resolve
from microrl.config.schema import DataConfig
from microrl.data.load import Question, gold_answer, load_questions
from microrl.data.prompts import render_all
from microrl.data.sft_examples import load_solutions
from microrl.errors import UserError
from microrl.rewards.answer_checker import AnswerChecker


def answers(path, content):
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return [question.answer for question in load_questions(DataConfig(name=str(path)))]


def refused(path, content=None, **changes):
    """What is said of a file, in one line with a hint."""
    if content is not None:
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(UserError) as caught:
        load_questions(DataConfig(name=str(path), **changes))
    assert caught.value.hint and "\n" not in caught.value.message and len(caught.value.message) < 600
    return caught.value.message


WRITTEN = [
    ("1e16", "10000000000000000"),
    ("1E+16", "10000000000000000"),
    ("0.1", "0.1"),
    ("1e-7", "0.0000001"),
    ("7", "7"),
    ("-42.50", "-42.50"),
    ("12345678901234567890.5", "12345678901234567890.5"),
    ("9" * 5000, "9" * 5000),
]


@pytest.mark.parametrize(("written", "plain"), WRITTEN)
def test_numbers_of_json_keep_every_digit(tmp_path, written, plain):
    row = f'{{"question": "q", "answer": {written}}}'
    assert answers(tmp_path / "data.jsonl", f"{row}\n{row}\n") == [plain, plain]
    assert answers(tmp_path / "data.json", f"[{row},\n {row}]") == [plain, plain]


def test_cells_of_csv_are_text(tmp_path):
    rows = "".join(f"q{number},{written}\n" for number, (written, _) in enumerate(WRITTEN))
    assert answers(tmp_path / "data.csv", f"question,answer\n{rows}") == [written for written, _ in WRITTEN]
    content = '\ufeffquestion,answer\r\n"one, ""two""\nthree",007\r\n\r\nq,\\frac{1}{2}\r\n'
    assert answers(tmp_path / "more.csv", content) == ["007", r"\frac{1}{2}"]
    assert load_questions(DataConfig(name=str(tmp_path / "more.csv")))[0].text == 'one, "two"\nthree'


def test_numbers_of_parquet_are_plain_decimals(tmp_path):
    import pyarrow
    from pyarrow import parquet

    kinds = [
        (pyarrow.int64(), [2**62 + 1, 7], [str(2**62 + 1), "7"]),
        (pyarrow.float64(), [1e16, 1e-7], ["10000000000000000", "0.0000001"]),
        (pyarrow.float32(), [0.1, 1234.5], ["0.1", "1234.5"]),
        (pyarrow.decimal128(30, 2), [Decimal("12345678901234567890.50"), Decimal(1)], ["12345678901234567890.50", "1.00"]),
    ]
    for kind, values, expected in kinds:
        path = tmp_path / "data.parquet"
        table = pyarrow.table({"question": ["a", "b"], "answer": pyarrow.array(values, kind)})
        parquet.write_table(table, path)
        assert [question.answer for question in load_questions(DataConfig(name=str(path)))] == expected
    for kind in (pyarrow.float32(), pyarrow.float64()):
        parquet.write_table(pyarrow.table({"question": ["a", "b"], "answer": pyarrow.array([1.0, float("nan")], kind)}), path)
        assert "row 2: `answer` is not a finite number" in refused(path)
    parquet.write_table(pyarrow.table({"question": ["a"], "answer": [True]}), path)
    assert "row 1: `answer` is a boolean" in refused(path)


@pytest.fixture(scope="module")
def checker():
    checker = AnswerChecker(deadline_s=5.0, children=1)
    yield checker
    checker.close()


@pytest.mark.parametrize("gold", ["1e16", "1E16", "1e+16"])
def test_scientific_notation_is_a_number_and_not_eulers(checker, gold):
    """Read as e + 16 it would be 18.718..., and an answer of 18.7 right."""
    assert checker.parses(gold)
    assert checker.check(gold, "10000000000000000") == checker.check("10000000000000000", gold) == (True, False)
    assert not any(checker.check(gold, answer).right for answer in ("e+16", "18.7", "18.718281828459045"))
    assert not any(checker.check(other, gold).right for other in ("e+16", "18.7", "18.718281828459045"))


def test_so_are_small_numbers_and_what_cannot_be_written_out_is_nothing(checker):
    assert checker.check("0.00015", "1.5e-4").right
    assert not checker.check("1", "1e99999999999").right and not checker.parses("1e99999999999")


@pytest.mark.parametrize(
    ("raw", "gold"),
    [
        ("#### 1,234,567", "1234567"), ("#### -1,234.5", "-1234.5"), ("#### $1,000", "$1000"), ("#### 1,000 pens", "1000 pens"),
        ("#### (1,2)", "(1,2)"), ("#### 1,2", "1,2"), ("#### {1,234}", "{1,234}"), ("#### 1,234, 5", "1,234, 5"),
        ("#### 12,34", "12,34"), ("#### 1234,567", "1234,567"),
    ],
)  # fmt: skip
def test_commas_go_only_between_groups_of_digits(raw, gold):
    assert gold_answer(raw) == gold


NOT_PLAIN = ["true", "[1, 2]", '{"a": 1}', "NaN", "Infinity", "-Infinity", "1e5000", '["1"]']


@pytest.mark.parametrize("cell", NOT_PLAIN)
@pytest.mark.parametrize("column", ["question", "answer"])
def test_what_has_no_one_spelling_is_refused_by_row_and_column(tmp_path, column, cell):
    good, other = '{"question": "q", "answer": "1"}', "answer" if column == "question" else "question"
    for suffix, content in (
        ("jsonl", f'{good}\n{{"{other}": "1", "{column}": {cell}}}\n'),
        ("json", f'[{good}, {{"{other}": "1", "{column}": {cell}}}]'),
    ):
        said = refused(tmp_path / f"data.{suffix}", content)
        assert "row 2" in said and f"`{column}`" in said


def test_so_is_a_solution_to_imitate(tmp_path):
    path = tmp_path / "data.jsonl"
    path.write_text('{"question": "q", "answer": "1", "solution": "s"}\n{"question": "q", "answer": "1", "solution": {"a": 1}}\n')
    with pytest.raises(UserError, match=r"row 2: `solution` is an object"):
        load_solutions(resolve((), {"data.name": str(path), "sft.steps": 1, "budget.steps": 1}))


def test_a_chat_is_a_question(tmp_path):
    chat = [{"role": "system", "content": "s"}, {"role": "user", "content": "1+1?"}]
    path = tmp_path / "data.jsonl"
    path.write_text(json.dumps({"prompt": chat, "answer": 2}) + "\n")
    assert load_questions(DataConfig(name=str(path)))[0].text == "1+1?"


@pytest.mark.parametrize("suffix", ["json", "jsonl", "csv", "parquet"])
def test_a_file_is_read_anew_though_its_path_and_time_are_the_same(tmp_path, suffix):
    from datasets import Dataset

    path, seen = tmp_path / f"data.{suffix}", []
    for answer in ("1", "2"):
        rows = Dataset.from_list([{"question": "q", "answer": answer}])
        getattr(rows, f"to_{suffix.removesuffix('l')}")(str(path))
        os.utime(path, (1_700_000_000, 1_700_000_000))
        seen += [question.answer for question in load_questions(DataConfig(name=str(path)))]
    assert seen == ["1", "2"]


@pytest.mark.parametrize("name", ["br[1].json", "a*b?.csv", "100%.parquet", "s3:x.json", "{a,b}.jsonl", "naïve 🙂.csv"])
def test_a_name_is_no_pattern(tmp_path, name):
    from datasets import Dataset

    path, kind = tmp_path / name, name.rpartition(".")[2]
    rows = Dataset.from_list([{"question": "q", "answer": "1"}])
    getattr(rows, f"to_{kind.removesuffix('l')}")(str(tmp_path / f"plain.{kind}"))
    (tmp_path / f"plain.{kind}").rename(path)
    assert len(load_questions(DataConfig(name=str(path)))) == 1


def test_a_link_that_a_person_names_is_followed(tmp_path):
    (tmp_path / "real.jsonl").write_text('{"question": "q", "answer": "1"}\n')
    (tmp_path / "link.jsonl").symlink_to(tmp_path / "real.jsonl")
    assert len(load_questions(DataConfig(name=str(tmp_path / "link.jsonl")))) == 1


GOOD = '{"question": "q", "answer": "1"}\n'
DEEP = "[" * 10_000 + "]" * 10_000
BROKEN = {
    "nothing.jsonl": (b"", "contains no problems"),
    "nothing.json": (b" \n", "contains no problems"),
    "nothing.csv": (b"", "contains no problems"),
    "header alone.csv": (b"question,answer\n", "contains no problems"),
    "nothing.parquet": (b"", "cannot be read as parquet"),
    "damaged.parquet": (b"PAR1" + b"\xff" * 64 + b"PAR1", "cannot be read as parquet"),
    "nul.jsonl": (b'{"question": "q\0", "answer": "1"}', "NUL"),
    "nul.csv": (b"question,answer\nq,\0\n", "NUL"),
    "utf-16.json": (GOOD.encode("utf-16"), "NUL"),
    "latin.csv": ("question,answer\ncafé,1\n".encode("latin-1"), "not UTF-8"),
    "deep.jsonl": (f'{{"question": "q", "answer": {DEEP}}}', "nested too deeply"),
    "deep.json": (DEEP, "nested too deeply"),
    "list.json": ("[1, 2]", "row 1 is not a JSON object"),
    "half.json": ('[{"question": "q"', "is not JSON"),
    "twice.csv": ("question,answer,answer\nq,1,2\n", "two columns `answer`"),
    "twice.jsonl": ('{"question": "q", "answer": "1", "answer": "2"}', "`answer` occurs twice"),
    "surrogate.jsonl": ('{"question": "q", "answer": "\\ud800"}', "row 1: `answer` is not valid Unicode"),
    "open.csv": ('question,answer\n"q,1\nr,2\n', "is not CSV"),
    "many columns.csv": (
        ",".join(f"{n}" * 99 for n in range(99)) + "\n" + ",".join("1" * 99),
        "cannot tell which column is the question",
    ),
    "wide.csv": ("question,answer\none, two,3\n", "row 1: 3 cells, but the header has 2 columns"),
}


@pytest.mark.parametrize("name", BROKEN)
def test_what_is_no_data_is_one_line_and_a_hint(tmp_path, name):
    content, words = BROKEN[name]
    assert words in refused(tmp_path / name, content)


def test_two_columns_of_one_name_in_parquet(tmp_path):
    import pyarrow
    from pyarrow import parquet

    columns = [pyarrow.array(["q"]), pyarrow.array(["1"]), pyarrow.array(["2"])]
    parquet.write_table(pyarrow.Table.from_arrays(columns, ["question", "answer", "answer"]), tmp_path / "twice.parquet")
    assert "two columns `answer`" in refused(tmp_path / "twice.parquet")


@pytest.mark.parametrize("suffix", ["json", "csv", "jsonl", "parquet"])
@pytest.mark.parametrize("kind", ["folder", "pipe", "device", "loop", "missing", "unreadable"])
def test_only_regular_files_are_read_and_nothing_is_waited_for(tmp_path, kind, suffix):
    path = tmp_path / f"data.{suffix}"
    if kind == "folder":
        path.mkdir()
    elif kind == "pipe":
        os.mkfifo(path)
    elif kind == "device":
        path.symlink_to("/dev/zero")
    elif kind == "loop":
        path.symlink_to(path)
    elif kind == "unreadable":
        path.write_text("")
        path.chmod(0)
        if os.access(path, os.R_OK):
            return  # the superuser reads everything
    assert str(path) in refused(path)


@pytest.mark.slow
@pytest.mark.parametrize("suffix", ["jsonl", "csv"])
def test_a_question_of_50_megabytes_is_told_by_its_length(tmp_path, suffix):
    path, long = tmp_path / f"data.{suffix}", "many words " * 4_800_000
    lines = ['{"question": "q", "answer": "1"}', f'{{"question": "{long}", "answer": "1"}}']
    path.write_text("\n".join(lines) if suffix == "jsonl" else f"question,answer\nq,1\n{long},1\n")
    began = time.process_time()
    said = refused(path)
    refusing_s, began = time.process_time() - began, time.process_time()
    limit = csv.field_size_limit(10**9)
    sum(len(row) for row in csv.reader(path.open()))
    reading_s = time.process_time() - began
    csv.field_size_limit(limit)
    assert refusing_s < 4 * reading_s, "little more than reading the file; it took two minutes once"
    assert "row 2" in said and "52,800,000 characters" in said and "512 tokens" in said


def test_far_too_long_a_question_is_dropped_or_cut_as_the_configuration_says(tmp_path, tokenizer):
    path, long = tmp_path / "data.jsonl", "many words " * 2_000
    path.write_text("".join(json.dumps({"question": text, "answer": "1"}) + "\n" for text in ("q", long)))
    settings = {"name": str(path), "system": None, "max_prompt_tokens": 16}
    dropped, cut = (DataConfig(**settings, long_prompts=what) for what in ("drop", "truncate_left"))
    assert [question.text for question in load_questions(dropped)] == ["q"]
    prompt = render_all(load_questions(cut), tokenizer, cut)[1]
    whole = render_all([Question(2, long, "1")], tokenizer, cut)[0]
    assert len(prompt.question) < len(long) and prompt.token_ids == whole.token_ids and len(whole.token_ids) == 16


def test_so_is_a_gold_answer(tmp_path):
    assert "row 1: `answer` has 2,000,000 characters" in refused(
        tmp_path / "data.jsonl", json.dumps({"question": "q", "answer": "{" * 2_000_000})
    )
