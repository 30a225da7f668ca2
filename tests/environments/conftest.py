"""Models that are told of tools: one that has learned to call them, and one that has not; and a run with the first."""

import calling_model
import pytest
from command_line import in_process
from places import HELPERS
from tool_templates import BRIEF, GOOD


@pytest.fixture(scope="session")
def calling(made_once):
    return made_once("calling", lambda folder: calling_model.save(folder / "model")) / "model"


@pytest.fixture(scope="session")
def told():
    """The tiny model's tokenizer, with a chat template that tells of tools in full."""
    from microrl.models.tiny import build_tokenizer

    tokenizer = build_tokenizer()
    tokenizer.chat_template = GOOD
    return tokenizer


@pytest.fixture(scope="session")
def told_folder(tmp_path_factory):
    """The random tiny model, with a chat template that tells of tools. It calls none."""
    from microrl.models.tiny import build_model, build_tokenizer

    folder, tokenizer = tmp_path_factory.mktemp("told"), build_tokenizer()
    tokenizer.chat_template = BRIEF
    build_model(tokenizer, seed=3).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


@pytest.fixture(scope="session")
def called(calling, tmp_path_factory):
    """A run of two steps, about half of whose completions call the calculator."""
    out = tmp_path_factory.mktemp("called") / "run"
    sets = {
        "env.path": HELPERS, "model.dtype": "float32", "data.system": "", "adapter.rank": 8, "sampling.prompts_per_step": 4,
        "sampling.group_size": 4, "sampling.max_completion_tokens": 140, "reward.format_weight": 0, "evaluation.problems": 4,
        "evaluation.samples": 2, "evaluation.pass_k": 2,
    }  # fmt: skip
    given = [part for key, value in sets.items() for part in ("--set", f"{key}={value}")]
    done = in_process(
        "train", "--model", calling, "--data", "arithmetic", "--env", "made_tools:Calculator", "--steps", 2, "--seed", 1, *given,
        "--out", out,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return out
