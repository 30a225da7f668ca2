"""Where a gain comes from: models that only lack the box, only run out of tokens, or really cannot; and what adds up."""

import gzip
import json
import random
from fractions import Fraction

import pytest
from made_answers import BOXED, UNBOXED, UNFINISHED, WRONG, WRONG_UNBOXED, store

from microrl.answers import lenient_answer
from microrl.config import resolve
from microrl.evaluation.gain_parts import PARTS, GainParts
from microrl.evaluation.intervals import Estimate
from microrl.evaluation.result import Result, gains
from microrl.evaluation.seeds import over_runs
from microrl.report.transcripts import gain_parts
from microrl.rewards.scorer import make_scorer
from microrl.types import Sampling


def parts(tmp_path, base, trained, *, kind="math", clusters=None, **made):
    """The parts of the gain of made completions."""
    paths, notes = [tmp_path / f"{side}.jsonl.gz" for side in ("base", "trained")], []
    for path, texts in zip(paths, (base, trained), strict=True):
        store(path, texts, kind=kind, **made)
    scorer = make_scorer(resolve((), {"data.answer_kind": kind}))
    try:
        found = gain_parts(*paths, scorer, notes, clusters or {})
    finally:
        scorer.close()
    assert not notes
    return found


def means(found):
    return [None if getattr(found, part) is None else getattr(found, part).mean for part in PARTS]


def test_a_base_that_only_lacks_the_box(tmp_path):
    found = parts(tmp_path, [[UNBOXED, UNBOXED]] * 6, [[BOXED, BOXED]] * 6)
    assert means(found) == [1.0, 0.0, 0.0] and found.gain.mean == 1.0
    assert found.base.form == 12 and found.trained.form == 0
    assert found.base.lenient.mean == found.trained.lenient.mean == 1.0 and found.over_lenient.mean == 0.0
    assert found.base.well_formed_accuracy is None and found.trained.well_formed_accuracy == 1.0


def test_a_base_that_only_runs_out_of_tokens(tmp_path):
    """Whatever a text that was cut says until there: it had not finished."""
    found = parts(tmp_path, [[UNFINISHED, BOXED]] * 6, [[BOXED, BOXED]] * 6)
    assert means(found) == [0.0, 0.5, 0.0] and found.form_and_length.mean == 0.5
    assert found.base.well_formed_accuracy == 1.0, "what it finished was right"
    assert found.base.lenient.mean == 0.5 == found.over_lenient.mean


def test_a_base_that_really_cannot(tmp_path):
    found = parts(tmp_path, [[WRONG, WRONG_UNBOXED]] * 6, [[BOXED, BOXED]] * 6)
    assert means(found) == [0.0, 0.0, 1.0] and found.base.lenient.mean == 0.0 and found.over_lenient.mean == 1.0
    assert found.base.well_formed_accuracy == 0.0 and found.base.well_formed == 6


def test_what_was_lost_counts_against_the_part_that_it_was_lost_to(tmp_path):
    """Of 4 answers, one gained its box, one lost it, one ran out of tokens, one was right and is wrong."""
    found = parts(tmp_path, [[UNBOXED, BOXED], [BOXED, BOXED]], [[BOXED, UNBOXED], [UNFINISHED, WRONG]])
    assert means(found) == [0.0, -0.25, -0.25] and found.gain.mean == -0.5
    assert (found.trained.right, found.trained.form, found.trained.length, found.trained.answer) == (1, 1, 1, 1)


@pytest.mark.parametrize("seed", range(5))
def test_the_parts_add_up_to_the_paired_gain_of_the_evaluation(tmp_path, seed):
    draw = random.Random(seed)
    texts = [BOXED, UNBOXED, UNFINISHED, WRONG, WRONG_UNBOXED, ""]
    base, trained = ([[draw.choice(texts) for _ in range(3)] for _ in range(17)] for _ in range(2))
    found = parts(tmp_path, base, trained)
    counts = [Fraction(getattr(found.base, part) - getattr(found.trained, part), 51) for part in PARTS]
    right = [sum(text == BOXED for said in side for text in said) for side in (base, trained)]
    assert sum(counts) == Fraction(right[1] - right[0], 51)
    assert [float(count) for count in counts] == pytest.approx(means(found), abs=1e-15)
    results = [
        Result(Sampling(3, 8), 0, (1,), {f"question {number}": said.count(BOXED) for number, said in enumerate(side)})
        for side in (base, trained)
    ]
    paired = gains(*results)["paired_gain"]
    assert (found.gain.mean, list(found.gain.ci95)) == (paired["mean"], paired["ci95"]), "the same interval, too"


def test_which_sample_became_right_does_not_matter(tmp_path):
    """Half of the base's answers lack the box, the others are wrong; of the trained model's, half are right, in any order. So
    all of the gain is form, though three of four samples that became right had the number of a wrong one."""
    base = [[UNBOXED, UNBOXED, WRONG, WRONG]] * 12
    trained = [[BOXED, WRONG, WRONG, BOXED], [WRONG, WRONG, BOXED, BOXED], [WRONG, BOXED, BOXED, WRONG]] * 4
    found = parts(tmp_path, base, trained)
    assert means(found) == [0.5, 0.0, 0.0] == [found.gain.mean, 0.0, 0.0]
    assert found.form.ci95 == found.gain.ci95 == found.form_and_length.ci95 and found.over_lenient.mean == 0.0


def test_an_answer_that_is_finished_and_wrong_is_no_gain_but_no_longer_cut_off(tmp_path):
    found = parts(tmp_path, [[UNFINISHED] * 4] * 10, [[BOXED, WRONG, WRONG, WRONG]] * 10)
    assert means(found) == [0.0, 1.0, -0.75] and found.gain.mean == 0.25


def test_parts_that_were_paired_by_sample_are_not_read(tmp_path):
    stored = parts(tmp_path, [[UNBOXED]] * 4, [[BOXED]] * 4).model_dump(mode="json")
    assert GainParts.read(stored) is not None
    old = {name: value for name, value in stored.items() if name != "format"}
    assert GainParts.read(old) is GainParts.read(old | {"format": 1}) is None


def test_programs_have_no_lenient_reading(tmp_path):
    found = parts(tmp_path, [["no program"], [UNFINISHED]], [["no program"], ["no program"]], kind="code")
    assert found.form is None and found.base.lenient is None and found.over_lenient is None
    assert (found.base.form, found.base.length, found.base.answer) == (0, 1, 1)


def test_answers_that_are_text_are_read_leniently_too(tmp_path):
    found = parts(tmp_path, [["The answer is Paris."]], [["\\boxed{paris}"]], kind="text", gold="Paris")
    assert means(found) == [1.0, 0.0, 0.0]


def test_questions_with_the_same_text_are_told_apart_and_clusters_widen_the_intervals(tmp_path):
    base, trained = [[WRONG]] * 4 + [[BOXED]] * 16, [[BOXED]] * 20
    found = parts(tmp_path, base, trained, names=["same"] * 20)
    assert found.questions == 20 and found.gain.mean == 0.2
    names = [f"question {number}" for number in range(20)]
    clusters = {name: str(number // 4) for number, name in enumerate(names)}
    assert parts(tmp_path, base, trained, names=names, clusters=clusters).answer.ci95[1] > 1.2 * found.answer.ci95[1]


def test_only_answers_that_both_have_count(tmp_path):
    found = parts(tmp_path, [[UNBOXED]] * 4, [[BOXED]] * 4)
    assert found.questions == 4
    scorer = make_scorer(resolve((), {}))
    lines = gzip.decompress((tmp_path / "trained.jsonl.gz").read_bytes()).splitlines(keepends=True)
    (tmp_path / "short.jsonl.gz").write_bytes(gzip.compress(b"".join(lines[:2])))
    assert gain_parts(tmp_path / "base.jsonl.gz", tmp_path / "short.jsonl.gz", scorer, [], {}).questions == 2
    (tmp_path / "other.jsonl.gz").write_bytes(gzip.compress(json.dumps({"question": "another"}).encode() + b"\n"))
    assert gain_parts(tmp_path / "base.jsonl.gz", tmp_path / "other.jsonl.gz", scorer, [], {}) is None
    scorer.close()


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("The answer is 4.", "4"),
        ("The final answer is x+1, as we saw.", "x+1"),
        ("So the answer is the number of cats, which is 12.", "12"),
        ("I computed 2+2=4", "4"),
        ("Thus x = \\(\\frac{3}{4}\\).", "\\frac{3}{4}"),
        ("It costs $5 and then $1,234.50.", "1,234.50"),
        ("<think>so \\boxed{7}", "7"),
        ("<think>\\boxed{7}</think> It is 3/4 of it.", "3/4"),
        ("The answer is B.", "B"),
        ("It is -3 degrees", "-3"),
        ("It is \u22123 degrees", "\u22123"),
        ("from 10-4", "4"),
        ("x2 and v1.5b", None),
        ("I do not know", None),
        ("", None),
    ],
)
def test_a_lenient_reading(text, answer):
    assert lenient_answer(text) == answer


@pytest.mark.parametrize("text", ["$", "\\(", "\\[", "answer ", "answer:", "1,", "1", "<think>", "\\frac{1}{", "</think>"])
def test_a_lenient_reading_takes_no_longer_than_the_text_is_long(text):
    from time import process_time

    def spent(count):
        began = process_time()
        for _ in range(3):
            lenient_answer(text * count)
        return process_time() - began

    assert spent(80_000) < 40 * spent(8_000) + 0.2


def test_over_several_runs_the_questions_count_once_and_the_seeds_by_their_spread():
    """With t(2) = 4.3027, and 0.01 as the deviation of the three means: sqrt(0.05^2 + (4.3027 x 0.01)^2 / 3)."""
    runs = [Estimate(mean=mean, ci95=(mean - 0.04, mean + 0.05)) for mean in (0.19, 0.20, 0.21)]
    assert over_runs(runs).mean == pytest.approx(0.2)
    assert over_runs(runs).ci95 == pytest.approx((0.2 - 0.0471, 0.2 + 0.0559), abs=1e-4)
    assert over_runs(runs[:1]).ci95 == pytest.approx(runs[0].ci95)
    apart = [Estimate(mean=mean, ci95=(mean, mean)) for mean in (-0.5, 0.9)]
    assert over_runs(apart).ci95 == (-1.0, 1.0)
