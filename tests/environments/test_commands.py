"""What the commands other than `train` do with a run that has an environment, or with `--env`."""

import gzip
import json
import re
import shutil
import signal
import sys
from contextlib import closing

import calling_model
import made_run
import processes
import pytest
from bench_labels import unlabelled
from command_line import in_process
from places import HELPERS
from transformers import AutoTokenizer

from microrl.commands.bench.page import STEP
from microrl.commands.cheats.tools import simplest, try_tools
from microrl.config import resolve
from microrl.config.environment import EnvironmentConfig
from microrl.data.load import Question
from microrl.environments.conversation import Environment
from microrl.environments.transcript import as_text, said, turns
from microrl.evaluation.record import FileJournal
from microrl.report.completions import sample
from microrl.report.findings import findings
from microrl.report.history import History
from microrl.report.page import page
from microrl.rollout.engine import Sampler
from microrl.run import follow, rollouts
from microrl.types import Completion, Group, Prompt, Sampling

CONVERSATION = r"call: (\{.*\}\ntool: \d+|.*\ntool: \{\"error\": .*\})\nmodel: "
"""The tiny model also writes calls that are no JSON, which an error answers."""


def stored(folder, pattern):
    (path,) = folder.glob(pattern)
    return [json.loads(line) for line in gzip.decompress(path.read_bytes()).splitlines()]


def evaluated(*arguments):
    done = in_process("eval", *arguments, "--json")
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)["benchmarks"]


@pytest.mark.slow
@pytest.mark.one_of_each
def test_a_run_and_its_base_are_evaluated_with_the_runs_tools(called, calling, tmp_path):
    """Paired, question by question; the base's own evaluation, with the tools named, is the same to the byte."""
    run = shutil.copytree(called, tmp_path / "run")
    result = evaluated(run, "--base", calling)["held-out"]
    assert result["env"] == result["base"]["env"] == "made_tools:Calculator"
    assert result["paired_gain"]["mean"] == result["avg@2"]["mean"] - result["base"]["avg@2"]["mean"]
    base = stored(run / "eval", "*-vs-model-base.jsonl.gz")
    for lines in (base, stored(run / "eval", "*-vs-model.jsonl.gz")):
        told = [line for line in lines if "transcript" in line]
        assert len(lines) == 8 and told
        assert all("<|im_start|>tool\n" in line["transcript"] and line["completion"] in line["transcript"] for line in told)
    before = stored(run / "eval", "held-out-before.jsonl.gz")
    assert [line["transcript"] for line in base if "transcript" in line] == [
        line["transcript"] for line in before if "transcript" in line
    ]


@pytest.mark.slow
def test_a_killed_evaluation_goes_on_with_its_conversations(calling, tmp_path):
    """And one with other tools is another evaluation."""
    asked = [
        "eval", calling, "--data", "arithmetic", "--problems", 12, "--samples", 2, "--set", "data.system=", "--env",
        "made_tools:Slow", "--set", f"env.path={HELPERS}", "--max-tokens", 140, "--set", "engine.max_kv_gb=0.0005",
    ]  # fmt: skip
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    assert in_process(*asked, "--out", whole).returncode == 0
    process = processes.popen([sys.executable, "-m", "microrl", *map(str, asked), "--out", str(killed)], stdout=-3, stderr=-3)
    journal = None
    while process.poll() is None:
        journal = next(killed.glob(".*.partial.jsonl"), None)
        if journal is not None and len(journal.read_text().splitlines()) > 4:
            process.send_signal(signal.SIGKILL)
            process.wait()
    assert process.returncode == -signal.SIGKILL and '"env": "made_tools:Slow"' in journal.read_text().splitlines()[0]
    done = in_process(*asked, "--out", killed)
    assert "continuing an evaluation that was killed" in done.stderr
    (name,) = (path.name for path in whole.glob("*.jsonl.gz"))
    assert stored(killed, name) == stored(whole, name) and any("transcript" in line for line in stored(killed, name))
    assert len(list(killed.glob("*.json"))) == 1
    asked[asked.index("made_tools:Slow")] = "made_tools:Calculator"
    assert in_process(*asked, "--out", killed).returncode == 0
    assert len(list(killed.glob("*.json"))) == 2, "neither replaces the other"


@pytest.mark.slow
@pytest.mark.one_of_each
def test_a_model_is_evaluated_with_tools_at_two_limits(told_folder, data_file, tmp_path):
    asked = ["--data", data_file, "--problems", 2, "--samples", 1, "--max-tokens", "4,9", "--set", "data.system=", "--out"]
    tools = ["--env", "made_tools:Calculator", "--set", f"env.path={HELPERS}"]
    result = evaluated(told_folder, *asked, tmp_path / "with", *tools)
    assert {one["settings"]["max_tokens"]: one["env"] for one in result.values()} == dict.fromkeys(
        (4, 9), "made_tools:Calculator"
    )
    without = evaluated(told_folder, *asked, tmp_path / "without")
    for name, one in without.items():
        assert "env" not in one and one["prompts_sha256"] != result[name]["prompts_sha256"], "the prompts tell of the tools"


def test_a_class_that_is_no_environment_is_refused_before_a_model_is_loaded(told_folder):
    for name, why in (("made_tools:Nowhere", "has no class `Nowhere`"), ("no_such_module:Tools", "there is no module")):
        done = in_process("eval", told_folder, "--env", name, "--set", f"env.path={HELPERS}")
        assert done.returncode == 2 and why in done.stderr and "loading" not in done.stderr


def test_sft_needs_one_environment_and_an_evaluation_after_it_takes_several(wares):
    targets = '["made_tools:Calculator", "made_tools:Suggests"]'
    two = ("--set", f"env.target={targets}", "--set", f"env.path={HELPERS}")
    for command in ("train", "plan", "sweep"):
        done = in_process(command, wares / "preset.toml", *two)
        assert done.returncode == 2 and "SFT with several environments is not supported" in done.stderr, command
    done = in_process("eval", wares / "done", *two, "--dry-run")
    assert done.returncode == 0, done.stderr


def test_a_journal_keeps_conversations(tmp_path):
    prompts = [Prompt("q", "1", "q", (1,))]
    plain, talked = (Completion((1, 2), (-0.5, -1.5), "stop", 0, "b", transcript=text) for text in (None, "a tool b"))
    FileJournal(tmp_path / "j", {"samples": 2}, prompts, pytest.fail).add(0, Group(prompts[0], (plain, talked)))
    saved = FileJournal(tmp_path / "j", {"samples": 2}, prompts, pytest.fail).saved()
    assert [(one.transcript, one.length) for one in saved[0].completions] == [(None, 2), ("a tool b", 2)]


@pytest.mark.slow
def test_a_sample_is_shown_as_a_conversation(called, calling):
    done = in_process("sample", called, "What is 47 + 38?", "--samples", 3)
    assert done.returncode == 0, done.stderr
    assert 'call  {"name": "add",' in done.stdout and "tool  1" in done.stdout and "model \\boxed{" in done.stdout
    asked = ("sample", called, "What is 47 + 38?", "--samples", 3, "--json")
    told = json.loads(in_process(*asked).stdout)
    assert told["said"] == "" and len(told["turns"]["base"]) == 3
    for side in ("base", "trained"):
        assert [one[-1]["text"] for one in told["turns"][side]] == told[side]
        speakers = [[turn["who"] for turn in one] for one in told["turns"][side]]
        assert ["call", "tool", "model"] in speakers and all(one[-1] == "model" for one in speakers)
    told = json.loads(in_process(*asked, "--env", "made_tools:Suggests", cwd=HELPERS).stdout)
    assert told["said"] == " Use the tool for 'What is 47 + 38?'."
    assert "turns" not in json.loads(in_process(*asked, "--env", "none").stdout)


@pytest.mark.parametrize(
    "transcript",
    [
        "Sum:\n<tool_call>\n{}\n</tool_call><|im_end|>\n<|im_start|>tool\n3<|im_end|>\n<|im_start|>assistant\nIt is 3.<|im_end|>",
        "Sum:\n<tool_call>{}</tool_call><|im_end|>\n<|im_start|>user\n<tool_response>\n3\n</tool_response><|im_end|>\n"
        "<|im_start|>assistant\nIt is 3.<|im_end|>",
        "Sum:<|tool_call_start|>{}<|tool_call_end|><|im_end|>\n<|im_start|>tool\n<|tool_response_start|>3<|tool_response_end|>"
        "<|im_end|>\n<|im_start|>assistant\nIt is 3.<|im_end|>",
        "Sum:<tool_call>{}</tool_call><|eot_id|><|start_header_id|>ipython<|end_header_id|>\n\n3<|eot_id|>"
        "<|start_header_id|>assistant<|end_header_id|>\n\nIt is 3.<|eot_id|>",
    ],
)
def test_a_transcript_is_read_as_its_turns(transcript):
    assert turns(transcript) == [("model", "Sum:"), ("call", "{}"), ("tool", "3"), ("model", "It is 3.")]
    assert as_text(transcript) == "model: Sum:\ncall: {}\ntool: 3\nmodel: It is 3."
    assert turns("<tool_call>{") == [("call", "{")], "cut at the limit"


def test_a_bare_call_is_told_from_an_answer_in_json():
    """As Llama 3.1 writes calls: without a mark, or after one."""
    call = '{"name": "add", "parameters": {"a": 1}}'
    head = "<|start_header_id|>{}<|end_header_id|>\n\n"
    talk = f"{call}<|eot_id|>{head.format('ipython')}3<|eot_id|>{head.format('assistant')}It is {{3}}.<|eot_id|>"
    assert turns(talk) == [("call", call), ("tool", "3"), ("model", "It is {3}.")]
    assert turns(f"<|python_tag|>{call}<|eom_id|>") == [("call", call)]
    assert turns('{"name": "Bob"}<|im_end|>') == [("model", '{"name": "Bob"}')]


def test_two_answers_to_one_turn_are_two():
    answers = (
        "<|im_end|>\n<|im_start|>user\n<tool_response>\n3\n</tool_response>\n<tool_response>\n4\n</tool_response><|im_end|>\n"
    )
    assert turns(f"a{answers}<|im_start|>assistant\nb")[1:3] == [("tool", "3"), ("tool", "4")]


@pytest.mark.slow
@pytest.mark.one_of_each
def test_a_plan_counts_the_tools_in_every_prompt_and_says_what_it_leaves_out():
    asked = ("plan", "quickstart", "--steps", 10, "--gpu", "l4", "--json")
    plain = json.loads(in_process(*asked).stdout)
    told = json.loads(in_process(*asked, "--env", "made_tools:Calculator", cwd=HELPERS).stdout)
    (note,) = told["notes"]
    count = int(re.search(r"about (\d+) tokens of each prompt describe the tools", note)[1])
    assert 60 < count < 120 and "not included" in note and not plain["notes"]
    assert told["step_parts_s"]["update"] > plain["step_parts_s"]["update"] and told["step_s"] > plain["step_s"]
    several = in_process("plan", "quickstart", "--steps", 10, "--env", "made_tools:Calculator", cwd=HELPERS)
    assert several.returncode == 0 and (f"note: {note}" in several.stdout or note[:60] in several.stdout)


def test_the_plan_of_an_evaluation_says_it_too(told_folder, data_file):
    asked = ["eval", told_folder, "--data", data_file, "--env", "made_tools:Calculator", "--dry-run"]
    done = in_process(*asked, cwd=HELPERS)
    assert done.returncode == 0 and "tokens of each prompt describe the tools" in done.stdout


@pytest.mark.slow
@pytest.mark.one_of_each
def test_a_report_and_a_diff_show_conversations(called, tmp_path):
    history = History.load(called)
    text = page([history])
    assert re.search(r"made_tools:Calculator: 1\.\d turns and 0\.\d tool calls for each completion, of which \d+% failed", text)
    assert "Turns and tool calls" in text
    shown = [one for one in sample(history).shown if one.get("talk")]
    assert shown and all(re.match(CONVERSATION, one["completion"], re.DOTALL) for one in shown)
    assert any("pieces" in one for one in shown)
    done = in_process("diff", called, "--only", "all", "--json")
    texts = [pair["same"] + pair["trained"]["rest"] for pair in json.loads(done.stdout)["pairs"]]
    assert any(text.startswith("call: ") and "\ntool: " in text for text in texts)
    with gzip.open(called / "rollouts" / rollouts.name(1), "rt") as lines:
        assert follow.completion(called, 1) == said(json.loads(next(lines)))


def test_tools_that_often_fail_are_found(tmp_path):
    folder = made_run.make(tmp_path / "run", steps=20, kept=())
    config = json.loads((folder / "config.json").read_text())
    config["env"]["target"] = "made_tools:Calculator"
    (folder / "config.json").write_text(json.dumps(config))
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    for share, is_found in ((0.6, True), (0.2, False)):
        made = [row | {"tools/calls": 1 + row["step"] % 2, "tools/failures": share * (row["step"] % 2)} for row in rows]
        (folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in made))
        history = History.load(folder)
        assert history.failed_calls() == pytest.approx(share * 2 / 3), "weighted by the calls"
        assert [one.kind for one in findings(history)].count("tools fail") == is_found


@pytest.mark.slow
def test_stored_answers_are_judged_again_and_the_environments_reward_is_kept(called):
    done = in_process("regrade", called, "--json")
    assert done.returncode == 0 and "`Calculator`, is as it was stored" in done.stderr
    again = json.loads(done.stdout)
    assert again["kept"] == ["Calculator"] and again["reward"]["now"] == "0 format + 1 accuracy + 1 Calculator"
    assert all(step["then"] == step["now"] and step["now"]["reward"] > 0 for step in again["steps"])
    less = json.loads(in_process("regrade", called, "--json", "--set", "env.target=none").stdout)
    assert all(step["now"]["reward"] == step["now"]["accuracy"] for step in less["steps"]) and "kept" not in less
    other = in_process("regrade", called, "--set", "env.target=made_tools:Slow")
    assert other.returncode == 2 and "hold no reward of made_tools:Slow" in other.stderr


@pytest.mark.parametrize(("name", "found"), [("Leaky", ["get_reward"] * 3 + ["peek"] * 3), ("Calculator", [])])
def test_tools_that_give_the_answer_away_are_found(name, found):
    """Each says nothing of another question's answer; and a sum of zeros is 0, whatever was asked."""
    rows = [{"question": "What is it?", "answer": answer} for answer in ("63", "0", "154")]
    asked = [(Question(n, row["question"], row["answer"], json.dumps(row)), row["answer"]) for n, row in enumerate(rows, 1)]
    calls, holes = try_tools(EnvironmentConfig(target=f"made_tools:{name}", path=str(HELPERS)), asked)
    assert calls == 3 and [hole.where for hole in holes] == found


def test_an_episode_whose_model_never_stops_calling_ends_at_the_limit(told_folder):
    """As the audit says."""
    tokenizer = AutoTokenizer.from_pretrained(told_folder)
    text = '<tool_call>{"name": "add", "arguments": {"a": 1, "b": 2}}</tool_call>'
    ids = tuple(tokenizer(text + "<|im_end|>")["input_ids"])

    class Caller(Sampler):
        def complete(self, queue, sampling):
            while (ready := queue.ready()) or queue.hurry():
                queue.start(ready)
                for request in ready:
                    said = ids[: sampling.max_tokens - request.written]
                    finish = "stop" if said == ids else "length"
                    for number in range(request.count):
                        yield request, number, Completion(said, (0.0,) * len(said), finish, 0, text)

    config = resolve((), {"env.target": "made_tools:Calculator", "env.path": str(HELPERS)})
    with closing(Environment(config.env)) as environment:
        environment.use_template(tokenizer, config.data)
        prompt = Prompt("q", "1", "q", (1,), 1, "{}")
        ((_, group),) = Caller().groups([prompt], Sampling(2, 500), stream=(0,), environment=environment)
    for one in group.completions:
        assert one.finish == "length" and 300 < len(one.token_ids) <= 500 and one.episode.calls >= 4


@pytest.mark.slow
def test_steps_with_tools_are_timed(tmp_path, monkeypatch):
    """About half of the completions call the calculator, and none has a forced length."""
    calling_model.save(tmp_path / "calling", calling_model.sums_to_be_boxed)
    monkeypatch.chdir(HELPERS)
    work = ("--prompts", 4, "--group", 4, "--tokens", 140, "--rank", 4, "--steps", 2)
    given = ("--model", tmp_path / "calling", "--dtype", "float32", "--env", "made_tools:Calculator")
    done = in_process("bench", "step", *given, *work, "--json")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert 0.2 < found["calls"] < 1.5 and 16 * 4 < found["tokens_per_step"] < 16 * 120 and len(found["steps_s"]) == 3
    assert not unlabelled(found, STEP)


@pytest.mark.slow
@pytest.mark.one_of_each
def test_an_audit_finds_what_an_environment_gives_away(data_file):
    asked = ("audit", "quickstart", "--data", data_file, "--json", "--env")
    done = in_process(*asked, "made_tools:Leaky", cwd=HELPERS)
    told = json.loads(done.stdout)
    assert done.returncode == 2 and told["tools"]["tried"] == 3 and not told["cheats"]["paid"] and not told["golds"]["unpaid"]
    found = [(one["what"], one["where"]) for one in told["tools"]["found"]]
    assert found == [("unearned reward", "get_reward")] * 3 + [("answer leaks", "peek")] * 3
    assert re.search(r"answer leaks +peek +row \d+: it says '\d+', the right answer: The answer is", done.stderr)
    assert told["cheats"]["by_kind"]["a tool's answer"] == 3, "which earned nothing"
    honest = in_process(*asked, "made_tools:Calculator", cwd=HELPERS)
    told = json.loads(honest.stdout)
    assert honest.returncode == 0 and told["tools"] == {"tried": 3, "found": []}
    assert "ends at 32 tokens" in honest.stderr and "+ 1 Calculator" in told["reward"]


def test_the_simplest_arguments_that_a_schema_allows():
    kinds = {"a": "integer", "b": "string", "c": ["number", "null"], "d": "boolean", "e": "array", "unasked": "string"}
    properties = {name: {"type": kind} for name, kind in kinds.items()} | {"f": {"type": "string", "enum": ["x", "y"]}}
    schema = {"type": "object", "properties": properties, "required": ["a", "b", "c", "d", "e", "f"]}
    assert simplest(schema) == {"a": 0, "b": "", "c": 0.0, "d": False, "e": [], "f": "x"}
    assert simplest({"type": "object", "properties": {}}) == {}
