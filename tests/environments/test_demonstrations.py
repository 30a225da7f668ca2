"""SFT before training with an environment: whole conversations, of which the model's turns alone are trained on."""

import json
from contextlib import closing

import pytest
import torch
from command_line import in_process
from places import HELPERS
from random_models import random_model, with_adapter

from microrl.algorithm.batch import Row
from microrl.config import resolve
from microrl.data.sft_examples import load_solutions, to_sft_examples
from microrl.environments.conversation import Environment
from microrl.environments.demonstration import Demonstrations
from microrl.policy.sft import sft_step
from microrl.types import Prompt, SftExample

ASKED, ANSWER = {"role": "user", "content": "What is 1 + 2?"}, {"role": "assistant", "content": "\\boxed{3}"}
HEARD = {"role": "tool", "content": "3"}


def call(name="add", **arguments):
    return {"role": "assistant", "content": "", "tool_calls": [{"function": {"name": name, "arguments": arguments}}]}


@pytest.fixture(scope="module")
def examples(told, tmp_path_factory):
    """Makes the examples of these conversations, as a run would."""
    path = tmp_path_factory.mktemp("shown") / "shown.jsonl"
    sets = {"env.target": "made_tools:Calculator", "env.path": HELPERS, "sft.data": str(path), "sft.steps": 1, "data.system": "",
            "data.held_out": 0.0, "data.validation": 0.0, "data.max_prompt_tokens": 2000}  # fmt: skip
    config = resolve((), {key: str(value) if key == "env.path" else value for key, value in sets.items()})
    with closing(Environment(config.env)) as environment:
        environment.use_template(told, config.data)

        def made(*conversations, speaks=True):
            path.write_text("".join(json.dumps({"messages": messages}) + "\n" for messages in conversations))
            converse = Demonstrations(environment.only, told, None).example if speaks else None
            return to_sft_examples(
                load_solutions(config), told, config, tools=environment.only.interface.tools, converse=converse
            )

        yield made


def test_an_example_is_the_conversation_of_an_episode(told, examples):
    """Token by token what the template writes; the tool's answer, and what opens the next turn, is only read."""
    (one,), left_out = examples([{"role": "system", "content": "Be brief."}, ASKED, call(a=1, b=2), HEARD, ANSWER])
    said = '<tool_call>\n{"name": "add", "arguments": {"a": 1, "b": 2}}\n</tool_call>'
    chat = [ASKED, {"role": "assistant", "content": said}, HEARD, ANSWER]
    assert not left_out and "Add two numbers." in one.prompt.text and "brief" not in one.prompt.text
    whole = told.decode((*one.prompt.token_ids, *one.token_ids))
    body = told.apply_chat_template(chat, tokenize=False)
    assert whole.endswith(body.removesuffix("\n")), "behind what tells of the tools"
    trained = told.decode([token for token, drawn in zip(one.token_ids, one.drawn, strict=True) if drawn])
    assert trained == said + "<|im_end|>\\boxed{3}<|im_end|>"


def test_arguments_may_be_text_or_have_the_nulls_of_a_columnar_file(examples):
    text = {"role": "assistant", "tool_calls": [{"function": {"name": "add", "arguments": '{"a": 1, "b": 2}'}}]}
    found, _ = examples(*([ASKED, said, HEARD, ANSWER] for said in (call(a=1, b=2), call(a=1, b=2, c=None), text)))
    assert len({one.token_ids for one in found}) == 1 and len(found) == 3


def test_a_single_turn_is_an_example_with_or_without_an_environment(told, examples):
    for speaks in (True, False):
        (one,), _ = examples([ASKED, ANSWER], speaks=speaks)
        assert told.decode(one.token_ids) == "\\boxed{3}<|im_end|>" and one.drawn is None


def test_what_is_no_conversation_with_these_tools_is_left_out_and_counted(examples):
    good = [ASKED, call(a=1, b=2), HEARD, ANSWER]
    bad = {
        "with a tool call that is unknown, or that the chat template cannot express": [
            ASKED,
            call("subtract", a=1),
            HEARD,
            ANSWER,
        ],
        "with a tool call that has no tool message": [
            ASKED,
            {**call(a=1), "tool_calls": call(a=1)["tool_calls"] * 2},
            HEARD,
            ANSWER,
        ],
        "with more tool messages than tool calls": [ASKED, call(a=1, b=2), HEARD, HEARD, ANSWER],
        "with a conversation that does not end with the model's answer": [ASKED, call(a=1, b=2), HEARD],
        "with a conversation that is not a question, turns of the model and answers of tools": [ASKED, ANSWER, ASKED, ANSWER],
        "without a solution": [ANSWER],
        "with a turn whose content is not a string": [ASKED, {"role": "assistant", "content": [{"text": "3"}]}],
    }
    found, left_out = examples(good, *bad.values())
    assert len(found) == 1 and left_out == dict.fromkeys(bad, 1)
    found, left_out = examples(good, [ASKED, ANSWER], speaks=False)
    assert len(found) == 1 and left_out == {"without a solution": 1}, "no tools, no conversation"


def test_the_loss_is_the_mean_over_the_models_own_tokens():
    prompt = Prompt("q", "1", "q", (5, 6, 7))
    drawn = (True, True, False, False, True)
    shown = [SftExample(prompt, (9, 8, 40, 41, 2), drawn), SftExample(prompt, (9, 2))]
    policy = with_adapter(random_model("qwen2"))
    rows = [Row(prompt.token_ids, one.token_ids, (), 0.0, True, 0, drawn=one.drawn) for one in shown]
    logprobs = policy.logprobs(rows)
    expected = -(logprobs[0][torch.tensor(drawn)].sum() + logprobs[1].sum()) / 5
    done = sft_step(policy, shown, 1e-3)
    assert done.tokens == 5 and done.loss == pytest.approx(float(expected), rel=1e-5)


@pytest.mark.slow
@pytest.mark.one_of_each
def test_a_run_that_is_shown_conversations_and_screens_its_questions(told_folder, data_file, tmp_path):
    shown = tmp_path / "shown.jsonl"
    questions = [json.loads(line) for line in data_file.read_text().splitlines()]
    with shown.open("w") as file:
        for row in questions:
            a, b = row["question"].removeprefix("What is ").removesuffix("?").split(" + ")
            asked, heard = ({"role": "user", "content": row["question"]}, {"role": "tool", "content": row["answer"]})
            said = {"role": "assistant", "content": f"\\boxed{{{row['answer']}}}"}
            talk = [asked, call(a=int(a), b=int(b)), heard, said]
            file.write(json.dumps({"messages": talk}) + "\n")
    sets = {"env.path": HELPERS, "sft.data": shown, "sft.steps": 2, "sft.batch": 4, "data.screen_minutes": 1, "data.system": "",
            "sampling.prompts_per_step": 2, "sampling.group_size": 2, "sampling.max_completion_tokens": 140,
            "evaluation.problems": 0, "adapter.rank": 4}  # fmt: skip
    given = [part for key, value in sets.items() for part in ("--set", f"{key}={value}")]
    asked = ["--model", told_folder, "--data", data_file, "--env", "made_tools:Calculator", "--steps", 1, *given]
    done = in_process("train", *asked, "--out", tmp_path / "run")
    assert done.returncode == 0, done.stderr
    steps = [json.loads(line) for line in (tmp_path / "run/sft.jsonl").read_text().splitlines()]
    assert len(steps) == 2 and all(step["tokens"] > 4 * 40 for step in steps)
    screened = json.loads((tmp_path / "run/screening.json").read_text())
    assert screened["seen"] and screened["left_out"]
