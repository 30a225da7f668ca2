"""Questions that are alike: recognised, carried through prompts, results and records, and counted once by intervals."""

import gzip
import json
import random

import pytest

from microrl.config.schema import DataConfig
from microrl.data.alike import FEWEST, alike
from microrl.data.load import Question, Reading, load_questions
from microrl.data.prompts import to_prompt
from microrl.errors import UserError
from microrl.evaluation.evaluate import clusters_of
from microrl.evaluation.record import write_completions
from microrl.evaluation.result import Result, by_text, gains
from microrl.evaluation.seeds import hierarchical_gain, p_value
from microrl.types import Completion, Group, Prompt, Sampling, Score

TEMPLATES = (
    "{name} has {a} apples and buys {b} more at the market. How many apples does {name} have in the end?",
    "A train leaves the station at {a} km/h. After {b} hours, how far is it from {name}'s home town?",
    "{name} reads {a} pages of a long book every day. How many pages has {name} read after {b} days?",
    "There are {a} red and {b} blue marbles in the bag of {name}. How many marbles are there in the bag?",
    "{name} bakes {a} loaves of bread in the morning and gives away {b} of them. How many loaves are left?",
    "The sides of {name}'s garden are {a} m and {b} m long. What is its area, in square metres?",
    "{name} earns {a} euros an hour and works for {b} hours this week. What does {name} earn in total?",
    "A pack of {a} pencils is shared equally by {name} and {b} friends. How many pencils does each of them get?",
    "It takes {name} {a} minutes to paint one chair. How many minutes do {b} chairs of that kind take?",
    "{name} swims {a} lengths on Monday and {b} lengths on Tuesday. How many lengths does {name} swim on both days?",
)
NAMES = ("Ann", "Bob", "Chidi", "Dana", "Mary Lou")


def rows(count, each, seed=0):
    draw = random.Random(seed)
    return [
        template.format(name=draw.choice(NAMES), a=draw.choice(["3", "1,250", "4.5"]), b=draw.randint(2, 99))
        for template in TEMPLATES[:count]
        for _ in range(each)
    ]


def partition(labels):
    return {tuple(place for place, other in enumerate(labels) if other == label) for label in labels}


def test_questions_of_one_template_are_alike_and_others_are_not():
    texts = rows(10, 4)
    by_template = {tuple(range(start, start + 4)) for start in range(0, 40, 4)}
    assert partition(alike(texts)) == by_template
    order = random.Random(1).sample(range(40), 40)
    shuffled = alike([texts[place] for place in order])
    assert {tuple(sorted(order[place] for place in one)) for one in partition(shuffled)} == by_template, "in any order"


def test_short_questions_are_alike_if_they_differ_in_numbers_alone():
    texts = ["What is 3 + 4?", "What is 12 + 1.5?", "What is 3 - 4?", "What is 9 - 2?", "Name a prime.", "Name a square.", ""]
    assert partition(alike(texts)) == {(0, 1), (2, 3), (4,), (5,), (6,)}


def test_what_most_questions_share_makes_none_alike():
    """A preface of 20 words, or one template for all: it is what is asked, not a sample of what might be."""
    preface = "Solve the following problem step by step, and give the final answer as a number without any units at the end. "
    assert len(set(alike([preface + text for text in rows(10, 1)]))) == 10
    assert len(set(alike([f"What is {a} + {b}?" for a in range(8) for b in range(8)]))) == 64
    assert by_text([f"What is {a} + {b}?" for a in range(8) for b in range(8)]) == {}


def test_fewer_than_eight_kinds_of_questions_are_not_clusters():
    assert by_text(rows(FEWEST - 1, 4)) == {} and len(set(by_text(rows(FEWEST, 4)).values())) == FEWEST


def test_thousands_are_compared_in_no_time():
    import time

    words = [f"w{number}" for number in range(400)]
    draw = random.Random(0)
    texts = [" ".join(draw.choices(words, k=40)) for _ in range(2000)]
    began = time.process_time()
    assert len(set(alike(texts))) == 2000
    assert time.process_time() - began < 10


def written(path, lines):
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return str(path)


def test_a_column_names_the_clusters(tmp_path):
    lines = [{"question": f"q {n}", "answer": "1", "cluster": n // 2, "group": "x"} for n in range(4)]
    lines[3]["cluster"] = None
    lines.append({"question": "q 4", "answer": "1", "cluster": ["a", 1]})
    data, reading = written(tmp_path / "own.jsonl", lines), Reading()
    questions = load_questions(DataConfig(name=data), reading=reading)
    assert [one.cluster for one in questions] == ["0", "0", "1", "", "['a', '1']"]
    assert reading.guessed == {"question": "question", "answer": "answer", "cluster": "cluster"}
    assert [one.cluster for one in load_questions(DataConfig(name=data, cluster="group"))] == ["x"] * 4 + [""]
    assert clusters_of([to_prompt(one) for one in questions]) == {"q 0": "0", "q 1": "0"}
    own = load_questions(DataConfig(name=data, cluster="question"))
    assert [one.cluster for one in own] == [one.text for one in own] and clusters_of([to_prompt(one) for one in own]) == {}
    for name in (data, "arithmetic"):
        with pytest.raises(UserError, match="the data has no column `gruop`"):
            load_questions(DataConfig(name=name, cluster="gruop"))


def test_sums_are_independent():
    for cluster in (None, "question"):
        found = load_questions(DataConfig(name="arithmetic", cluster=cluster))
        assert clusters_of([to_prompt(one) for one in found[::200]]) == {}


def test_programs_have_clusters_too(tmp_path):
    lines = [{"prompt": f"Write f{n}.", "test_list": [f"assert f{n}() == 1"], "cluster": "same"} for n in range(2)]
    data = written(tmp_path / "code.jsonl", lines)
    assert [one.cluster for one in load_questions(DataConfig(name=data, answer_kind="code"))] == ["same"] * 2


@pytest.mark.slow
def test_many_procedural_tasks_are_clusters_and_few_are_not():
    pytest.importorskip("reasoning_gym")
    many = ("chain_sum", "gcd", "lcm", "count_bits", "leg_counting", "products", "decimal_chain_sum", "number_sorting")
    found = load_questions(DataConfig(name=f"reasoning-gym:{','.join(many)}", problems=2))
    assert [one.cluster for one in found] == [task for task in many for _ in range(2)]
    found = load_questions(DataConfig(name="reasoning-gym:chain_sum,gcd", problems=3))
    assert len({one.cluster for one in found}) == 6, "draws of two generators, which are what is asked"
    found = load_questions(DataConfig(name="reasoning-gym:chain_sum,gcd", problems=3, cluster="task"))
    assert {one.cluster for one in found} == {"chain_sum", "gcd"}
    with pytest.raises(UserError, match="procedural tasks have no `level`"):
        load_questions(DataConfig(name="reasoning-gym:gcd", cluster="level"))


def result(questions, right, clusters=None, samples=8):
    return Result(Sampling(samples, 8), 0, (4,), dict(zip(questions, right, strict=True)), clusters=clusters or {})


def test_a_result_says_its_clusters_and_reads_them_back_or_finds_them():
    texts = rows(10, 4)
    right = [8 * (place // 4 % 2) for place in range(40)]
    found = result(texts, right, by_text(texts))
    stored = json.loads(json.dumps(found.to_json()))
    assert stored["questions"] == 40 and stored["clusters"] == 10 == found.summary()["clusters"]
    low, high = stored["avg@8"]["ci95"]
    independent = result(texts, right).accuracy().ci95
    assert high - low > 1.5 * (independent[1] - independent[0])
    assert Result.of(stored).accuracy() == found.accuracy()
    none = Result.of({**stored, "cluster_of": {}})
    assert none.accuracy().ci95 == independent and none.cluster_count == 40


def test_gains_and_their_p_value_go_by_clusters():
    """Four copies of ten questions, of which seven got better: as 40 questions this would be beyond doubt."""
    questions = [f"{cluster}.{copy}" for cluster in range(10) for copy in range(4)]
    clusters = {question: question.partition(".")[0] for question in questions}
    better = [4 if int(clusters[question]) < 4 else 0 for question in questions]
    worse = [4 if int(clusters[question]) == 9 else 0 for question in questions]
    for named, is_sure in ((clusters, False), ({}, True)):
        before, after = result(questions, worse, named), result(questions, better, named)
        found = gains(before, after)
        assert (found["paired_gain"]["ci95"][0] > 0) == is_sure
        p = p_value(hierarchical_gain([before.by_question()], [after.by_question()], samples=8, clusters=named))
        assert (p < 0.05) == is_sure


def test_the_record_of_completions_has_the_cluster_where_there_is_one(tmp_path):
    def group(cluster):
        completion = Completion((1, 2), (-0.5, -0.5), "stop", 1, "1")
        return Group(Prompt("q", "1", "q", (1,), 1, "", cluster), (completion,), (Score(1.0, 1.0, 1.0),))

    write_completions(tmp_path / "x.jsonl.gz", [group("twins"), group("")])
    first, second = map(json.loads, gzip.decompress((tmp_path / "x.jsonl.gz").read_bytes()).splitlines())
    assert first["cluster"] == "twins" and "cluster" not in second and Question(1, "a", "b").cluster == ""
