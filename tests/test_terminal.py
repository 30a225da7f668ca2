"""Numbers of things and times in words."""

import pytest

from microrl.terminal import alike, counted, time_in_words


@pytest.mark.parametrize(
    ("hours", "said"),
    [
        (24.0, "24 hours"), (1000.0, "1,000 hours"), (1.0, "1 hour"), (1.256, "1.26 hours"), (0.73, "44 minutes"),
        (1 / 30, "2 minutes"), (0.0277, "100 seconds"), (0.00420886, "15 seconds"), (1.5 / 3600, "1.5 seconds"),
        (1 / 3600, "1 second"), (1e-5, "0.036 seconds"), (0.0, "0 seconds"),
    ],
)  # fmt: skip
def test_a_time_has_the_unit_and_the_digits_that_one_would_say(hours, said):
    assert time_in_words(hours) == said


def test_one_thing_is_no_plural():
    assert [counted(count, "step") for count in (0, 1, 2, 1228)] == ["0 steps", "1 step", "2 steps", "1,228 steps"]


def test_one_thing_and_several_are_alike_and_other_things_are_not():
    said = [f"{counted(count, 'answer')} counted as wrong" for count in (1, 2, 1228)]
    assert len(set(map(alike, said))) == 1
    assert alike("1 answer counted as right") != alike(said[0]) != alike("1 row counted as wrong")
