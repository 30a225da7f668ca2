"""A run that several commands are tried on."""

import pytest
from command_line import in_process


@pytest.fixture(scope="module")
def run(tiny_arguments, tmp_path_factory):
    """A run whose adapter has moved far enough to be told from the base."""
    place = tmp_path_factory.mktemp("eval")
    out = place / "run"
    (place / "letters.py").write_text(
        "def count(prompts, completions, rows):\n    return [text.count('e') for text in completions]\n"
    )
    sets = ["--set", "optim.lr=0.05", "--set", "data.validation=0.2", "--reward", "letters:count"]
    done = in_process("train", *tiny_arguments, *sets, "--steps", 3, "--out", out, cwd=place)
    assert done.returncode == 0, done.stderr
    return out
