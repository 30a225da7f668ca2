"""A run knows its data again, by an absolute path and a hash: with other data it does not go on, and nothing pairs in silence."""

import json
import os
import shutil

import pytest
from command_line import in_process

ROWS = [
    {"question": f"What is {a} + {a + 3}?", "answer": str(2 * a + 3), "solution": f"\\boxed{{{2 * a + 3}}}"} for a in range(60)
]


def write(path, rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    os.utime(path, (1_700_000_000, 1_700_000_000))


@pytest.fixture(scope="module")
def trained(model_folder, tmp_path_factory):
    """A run of one step whose data was named from within its folder; the folder, and the run's name in it."""
    place = tmp_path_factory.mktemp("place")
    write(place / "sums.jsonl", ROWS)
    (place / "elsewhere").mkdir()
    write(place / "elsewhere" / "sums.jsonl", ROWS[::-1][:30])
    sets = [
        "sampling.prompts_per_step=2", "sampling.group_size=2", "sampling.max_completion_tokens=4", "data.held_out=0.3",
        "evaluation.problems=8", "evaluation.samples=1", "evaluation.pass_k=[1]", "validation.problems=0", "sft.steps=1",
        "sft.data=sums.jsonl", "sft.solution=solution", "sft.batch=2", "data.system=",
    ]  # fmt: skip
    flags = [part for key in sets for part in ("--set", key)]
    done = in_process(
        "train", "--model", os.path.relpath(model_folder, place), "--data", "sums.jsonl", "--rank", 2, "--steps", 1,
        "--out", "run", *flags, cwd=place,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return place


@pytest.fixture
def place(trained, tmp_path):
    """A copy of it all, whose paths lead into the copy."""
    copy = tmp_path / "copy"
    shutil.copytree(trained, copy)
    config = copy / "run" / "config.json"
    config.write_text(config.read_text().replace(str(trained), str(copy)))
    return copy


def test_the_run_holds_absolute_paths_and_the_hash(trained, model_folder):
    config, data = (json.loads((trained / "run" / name).read_text()) for name in ("config.json", "data.json"))
    assert config["data"]["name"] == config["sft"]["data"] == str(trained / "sums.jsonl")
    assert os.path.isabs(config["model"]["name"]) and os.path.samefile(config["model"]["name"], model_folder)
    assert data["data"]["rows"] == data["sft"]["rows"] == 60 and data["data"]["sha256"] != data["sft"]["sha256"]


@pytest.mark.cases(fast=2)
@pytest.mark.parametrize("change", ["a question", "an answer", "the order", "a solution", "a row fewer"])
def test_a_run_does_not_go_on_with_other_data(inside, place, change):
    rows = [dict(row) for row in ROWS]
    if change == "the order":
        rows = rows[::-1]
    elif change == "a row fewer":
        rows.pop()
    else:
        rows[7][change.split()[1]] += "0"
    if change == "a solution":  # what is imitated matters for as long as it is imitated
        shutil.rmtree(place / "run" / "checkpoints")
        (place / "run" / "summary.json").unlink()
    write(place / "sums.jsonl", rows)
    metrics = (place / "run" / "metrics.jsonl").read_bytes()
    refused = inside("train", "--resume", place / "run", "--steps", 2)
    assert refused.returncode == 2, refused.stderr
    assert "has changed since the run started" in refused.stderr and str(place / "sums.jsonl") in refused.stderr
    assert "hint: restore the old data" in refused.stderr and "paired gain" not in refused.stderr
    if change == "a question":
        assert (place / "run" / "metrics.jsonl").read_bytes() == metrics
        write(place / "sums.jsonl", ROWS)
        assert inside("train", "--resume", place / "run", "--steps", 2).returncode == 0, "the hint's first half"


def test_a_run_whose_hash_is_gone_does_not_go_on(inside, place):
    (place / "run" / "data.json").unlink()
    refused = inside("train", "--resume", place / "run", "--steps", 2)
    assert refused.returncode == 2 and "data.json is missing" in refused.stderr
    (place / "run" / "data.json").write_text('{"data": 5}')
    refused = inside("train", "--resume", place / "run", "--steps", 2)
    assert refused.returncode == 2 and "data.json is damaged" in refused.stderr


def test_an_evaluation_before_of_other_questions_is_not_paired(inside, place):
    before = place / "run" / "eval" / "held-out-before.json"
    content = json.loads(before.read_text())
    content["right"] = {f"{question}?": right for question, right in content["right"].items()}
    before.write_text(json.dumps(content))
    later = place / "run" / "rollouts" / "step-000007.jsonl.gz"  # of a step after the last checkpoint
    later.write_bytes(b"of a step that would be made again")
    refused = inside("train", "--resume", place / "run", "--steps", 2)
    assert refused.returncode == 2 and "has other problems" in refused.stderr and "only 0 of its" in refused.stderr
    assert later.exists(), "nothing is deleted for a run that does not go on"


def test_eval_and_sample_say_it(inside, place):
    """From a folder where the same relative name is another file, and then with the file itself replaced."""
    same = inside("eval", place / "run", "--json", "--problems", 4, cwd=place / "elsewhere")
    assert json.loads(same.stdout)["benchmarks"]["held-out"]["data"]["same_as_in_training"] is True, same.stderr
    assert "has changed" not in same.stderr + inside("sample", place / "run", "q", "--json").stderr
    other = inside("eval", place / "run", "--data", "sums.jsonl", "--json", "--problems", 4, cwd=place / "elsewhere")
    assert json.loads(other.stdout)["benchmarks"]["sums"]["data"]["same_as_in_training"] is None
    assert "has changed" not in other.stderr

    write(place / "sums.jsonl", [*ROWS[:-1], {**ROWS[-1], "answer": "1e16"}])
    changed = inside("eval", place / "run", "--json", "--problems", 4)
    found = json.loads(changed.stdout)["benchmarks"]["held-out"]["data"]
    assert changed.returncode == 0 and found["same_as_in_training"] is False and found["rows"] == 60
    assert "warning: " in changed.stderr and "has changed since the run started" in changed.stderr
    # The evaluation of the data as it was keeps its file; this one's name ends with a hash.
    stored = [json.loads(path.read_text()) for path in (place / "run" / "eval").glob("held-out-n*-q4-*.json")]
    assert [one["data"] for one in stored] == [found]
    sampled = inside("sample", place / "run", "q", "--json")
    assert sampled.returncode == 0 and "has changed since the run started" in sampled.stderr
    (place / "sums.jsonl").unlink()
    sampled = inside("sample", place / "run", "q", "--json")
    assert sampled.returncode == 0 and "cannot be read any more" in sampled.stderr


def test_a_pair_of_different_questions_is_told(inside, place, model_folder, tmp_path):
    """A base whose template is longer drops questions that the other side is asked."""
    longer = tmp_path / "longer"
    shutil.copytree(model_folder, longer)
    (longer / "chat_template.jinja").write_text(
        "{% for message in messages %}{{ message['content'] + message['content'] }}{% endfor %}"
    )
    sets = ["--set", "data.max_prompt_tokens=47", "--set", "data.long_prompts=drop"]
    rows = [{"question": "7" * length, "answer": "7"} for length in range(5, 45, 5)]
    write(tmp_path / "lengths.jsonl", rows)
    done = inside("eval", model_folder, "--base", longer, "--data", tmp_path / "lengths.jsonl", "--samples", 1, "--pass-k", 1,
                  "--set", "sampling.max_completion_tokens=2", "--set", "data.system=", *sets)  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "warning: the two models answered" in done.stderr and "on the 4 that both" in done.stderr


def test_thinking_is_set_for_every_command_or_refused(inside, place, model_folder, tmp_path):
    setting = ("--set", "data.thinking=false")
    run = ("--data", place / "sums.jsonl", "--steps", 1, "--set", "data.system=none")
    refused = inside("train", "--model", model_folder, *run, "--dry-run", *setting)
    assert (
        refused.returncode == 2 and "does not read enable_thinking" in refused.stderr and "data.thinking=none" in refused.stderr
    )
    switched = tmp_path / "switched"
    shutil.copytree(model_folder, switched)
    (switched / "chat_template.jinja").write_text(
        "{{ messages[-1]['content'] }}{% if enable_thinking is defined and not enable_thinking %}<think></think>{% endif %}"
    )
    for thinking, shown in (("false", True), ("true", False), ("none", False)):
        done = inside("train", "--model", switched, *run, "--dry-run", "--set", f"data.thinking={thinking}")
        assert done.returncode == 0 and ("<think></think>" in done.stdout) is shown
    asked = ("--data", place / "sums.jsonl", "--samples", 1, "--pass-k", 1, "--problems", 1, *setting)
    short = ("--set", "sampling.max_completion_tokens=2", "--set", "data.system=none")
    assert inside("eval", switched, *asked, *short).returncode == 0
    assert inside("eval", model_folder, *asked, *short).returncode == 2


def test_a_question_that_is_no_text_is_told(inside, place):
    done = inside("sample", place / "run", "half \udcff")
    assert done.returncode == 2 and "not valid Unicode" in done.stderr


def test_answers_on_a_terminal_are_safe(inside, place):
    """The question stands in the table's title, and goes through the base model's tokenizer as it is."""
    done = inside("sample", place / "run", "a\x1b[2Jb\u202e<|im_end|>")
    assert done.returncode == 0, done.stderr
    assert not set("\x1b\u202e\x07\x9b") & set(done.stdout) and "\\u001b[2J" in done.stdout.replace("\n", "")


def test_a_model_card_names_the_file_and_not_the_folders_that_it_lies_in(inside, place):
    done = inside("export", place / "run", "--out", place / "published")
    assert done.returncode == 0, done.stderr
    card = (place / "published" / "README.md").read_text()
    assert "`sums.jsonl`" in card and str(place / "sums.jsonl") not in card and "enable_thinking" not in card


def test_a_model_card_asks_the_model_to_think_as_in_training(inside, place):
    config = place / "run" / "config.json"
    config.write_text(config.read_text().replace('"thinking": null', '"thinking": false'))
    done = inside("export", place / "run", "--out", place / "published")
    assert done.returncode == 0, done.stderr
    card = (place / "published" / "README.md").read_text()
    assert "add_generation_prompt=True, enable_thinking=False, return_tensors" in card
    assert '"chat_template_kwargs": {"enable_thinking": false}' in card
