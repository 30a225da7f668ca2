"""Overlaps of training questions with benchmarks: hand-made texts, and brute force over all pairs."""

import random

import pytest

from microrl.data.contamination import LENGTH, NEAR, STOCK, Overlap, overlaps, sequences, words

ALPHABET = "abcdefghijklmnopqrstuvwxyz"


def text(*letters):
    return " ".join("".join(letters))


def test_words_are_compared_without_case_signs_and_sizes():
    assert words(r"Find $\left(\dfrac{1}{2}\right)^3 - X_1$, please!") == (
        "find", "frac", "1", "2", "^", "3", "-", "x", "1", "please",
    )  # fmt: skip
    assert words("the right way") == ("the", "right", "way")
    assert sequences(words("")) == set() and sequences(words(text(ALPHABET[:12]))) == {tuple(ALPHABET[:12])}
    assert len(sequences(words(text(ALPHABET)))) == 26 - LENGTH + 1


@pytest.mark.parametrize(
    ("training", "question", "share"),
    [
        (text(ALPHABET), text(ALPHABET).upper(), 1.0),
        (text(ALPHABET[:13]), text(ALPHABET), 1.0),  # all of the shorter one
        (text(ALPHABET[:13], "0123456789"), text(ALPHABET), 1 / 11),  # of 11 and 14 sequences
        (text(ALPHABET[:12], "0123456789"), text(ALPHABET), None),
        ("What is 47 + 38?", "what is 47+38", 1.0),
        ("What is 47 + 38?", "What is 47 - 38?", None),
        ("What is 47 + 38?", "What is 38 + 47?", None),
    ],
)
def test_the_share_of_two_questions(training, question, share):
    found = overlaps(["other words", training], {"bench": ["nothing", question]})["bench"]
    assert found == ([] if share is None else [Overlap(1, 1, pytest.approx(share))])
    assert [pair.is_near for pair in found] == ([] if share is None else [share >= NEAR])


@pytest.mark.parametrize("copies", [STOCK, STOCK + 1])
def test_a_stock_phrase_does_not_count(copies):
    phrase = text(ALPHABET[:15])
    training = [f"{phrase} {number}" for number in range(copies)]
    found = overlaps(training, {"bench": [f"{phrase} and no more"]})["bench"]
    assert len(found) == (copies if copies <= STOCK else 0)


def test_as_all_pairs_would_give():
    draw = random.Random(5)
    base = [draw.choices(ALPHABET, k=draw.randint(3, 40)) for _ in range(60)]
    spliced = [draw.choice(base)[: draw.randint(5, 40)] + draw.choices(ALPHABET, k=draw.randint(0, 9)) for _ in range(60)]
    training, bench = (
        [text(*one) for one in spliced],
        {"a": [text(*one) for one in base[:30]], "b": [text(*one) for one in base[20:]]},
    )
    found = overlaps(training, bench)
    tried = 0
    for name, questions in bench.items():
        expected = []
        for place, question in enumerate(questions):
            for other, candidate in enumerate(training):
                one, two = sequences(words(question)), sequences(words(candidate))
                if one & two:
                    expected.append(Overlap(place, other, pytest.approx(len(one & two) / min(len(one), len(two)))))
        assert found[name] == expected
        tried += len(expected)
    assert tried > 20  # and none of them is a stock phrase, since no sequence is that frequent


def test_nothing_to_compare():
    assert overlaps([], {"a": ["x"], "b": []}) == {"a": [], "b": []}
    assert overlaps(["", "x"], {}) == {}
