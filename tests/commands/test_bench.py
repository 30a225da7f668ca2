"""The comparison with TRL against an interpreter that only pretends to have it, and what the other benchmarks refuse."""

import inspect
import json
import subprocess
import sys
from pathlib import Path

import pytest
from bench_labels import unlabelled
from command_line import without_heavy_libraries
from places import HELPERS

from microrl import clock
from microrl.cli import app, bench
from microrl.commands.bench import engine, page, synthetic, to_accuracy, trl_step, turns
from microrl.commands.bench import peer as peers
from microrl.commands.bench.step import bench_prompts
from microrl.errors import UserError
from microrl.limits import SPINS_BEFORE_SLEEP
from microrl.models.tiny import build_model
from microrl.policy.teacher import Teacher
from microrl.rollout import preflight

VERSIONS = {"trl": "1.16.0", "torch": "2.13.0", "transformers": "5.23.0", "peft": "0.21.2", "datasets": "5.2.0"}
FAKE = """\
#!{python}
import json, sys
with open({calls!r}, "a") as file:
    print("peer", *sys.argv[3:], file=file)
if "--versions" in sys.argv:
    print(json.dumps({versions}))
else:
    {steps}
"""


@pytest.fixture
def calls(tmp_path):
    """What was called, in this order: `peer ARGUMENTS` and `microrl ARGUMENTS`."""
    return tmp_path / "calls.txt"


@pytest.fixture
def peer(tmp_path, calls):
    """An interpreter that says it has TRL; `steps` is what it does when it is asked for steps."""

    def write(steps="pass", versions=VERSIONS):
        path = tmp_path / "python"
        path.write_text(FAKE.format(python=sys.executable, calls=str(calls), versions=versions, steps=steps))
        path.chmod(0o755)
        return path

    return write


def answers(step_s, peak_rss_gb, **more):
    """A step's result, printed below what a library prints."""
    result = {"step_s_median": step_s, "steps_s": [9.0, step_s], "peak_rss_gb": peak_rss_gb, **more}
    return f"print('{{}}'); print(json.dumps({result}))"


@pytest.fixture
def ours(monkeypatch, calls):
    """Have `microrl bench step` take these seconds, one after the other, and 2 GB."""

    def install(*seconds):
        left = list(seconds)

        def steps(folder, work):
            with calls.open("a") as file:
                print("microrl", folder, *work.options(), file=file)
            second = left.pop(0)
            called = {} if work.env is None else {"tokens_per_step": 500, "calls": 0.25}
            measured = {"step_s_median": second, "steps_s": [9.0, second], "peak_rss_gb": 2.0}
            return {**measured, **called, "device": "cpu", "threads": 3}

        monkeypatch.setattr(peers, "_our_steps", steps)

    return install


def table(printed):
    """The values of two pairs by their label."""
    _, _, *rows = [line.rsplit(None, 2) for line in printed.splitlines() if ": " not in line]
    return {label: [first, second] for label, first, second in rows}


def test_the_ratios_are_those_of_the_pairs(inside, model_folder, peer, ours):
    """By hand: 6/4, 1/4 and 2/4 have the median 0.5, and the mean 0.75."""
    ours(6.0, 1.0, 2.0)
    done = inside("bench", "peer", "--peer", peer(answers(4.0, 8.0)), "--model", model_folder, "--pairs", 3, "--json")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert [pair["step_ratio"] for pair in found["pairs"]] == [1.5, 0.25, 0.5]
    assert (found["step_ratio"], found["step_ratio_range"]) == (0.5, [0.25, 1.5])
    assert (found["memory_ratio"], found["memory_ratio_range"]) == (0.25, [0.25, 0.25])
    assert found["pairs"][0]["peer"] == {"step_s": 4.0, "steps_s": [9.0, 4.0], "peak_rss_gb": 8.0}
    assert found["pairs"][2]["microrl"]["step_s"] == 2.0 and not unlabelled(found, page.PEER)
    assert found["versions"]["peer"] == VERSIONS and "torch" in found["versions"]["microrl"]
    settings = found["settings"]
    assert (settings["threads"], settings["device"], settings["rank"], settings["steps"]) == (3, "cpu", 64, 2)


def test_the_table_shows_every_pair_and_the_spread(inside, model_folder, peer, ours):
    ours(1.0, 3.0)
    done = inside("bench", "peer", "--peer", peer(answers(4.0, 8.0)), "--model", model_folder, "--pairs", 2)
    assert table(done.stdout) == {
        "microrl, median time of a step, s": ["1", "3"],
        "microrl, peak memory (RSS), GB": ["2", "2"],
        "TRL, median time of a step, s": ["4", "4"],
        "TRL, peak memory (RSS), GB": ["8", "8"],
        "microrl's time divided by TRL's": ["0.25", "0.75"],
        "microrl's memory divided by TRL's": ["0.25", "0.25"],
    }
    assert "microrl's time divided by TRL's, median and range: 0.5 (0.25 to 0.75)\n" in done.stdout
    assert "microrl's peak memory divided by TRL's, median and range: 0.25 (0.25 to 0.25)\n" in done.stdout
    assert "pair 2 of 2: TRL 1.16.0 4 s per step, 8 GB" in done.stderr


def test_both_sides_alternate_and_do_the_same_work(inside, model_folder, peer, ours, calls):
    ours(1.0, 1.0, 1.0)
    words = ["--prompts", 2, "--group", 4, "--tokens", 16, "--rank", 8, "--steps", 5, "--pairs", 3]
    done = inside("bench", "peer", "--peer", peer(answers(4.0, 8.0)), "--model", model_folder, *words)
    assert done.returncode == 0, done.stderr
    said, *called = calls.read_text().splitlines()
    work = "--prompts 2 --group 4 --tokens 16 --rank 8 --steps 5"
    assert said == "peer --versions"
    assert [line.split()[0] for line in called] == ["microrl", "peer", "peer", "microrl", "microrl", "peer"]
    assert set(called) == {
        f"microrl {model_folder} {work}", f"peer --model {model_folder} {work} --device cpu --threads 3"
    }  # fmt: skip


@pytest.mark.parametrize(
    ("target", "theirs"),
    [
        ("calculator", f"microrl.environments.builtin.calculator:Calculator --device cpu --threads 3 --path {peers.ROOT}"),
        ("made_tools:Calculator", f"made_tools:Calculator --device cpu --threads 3 --path {HELPERS}"),
    ],
)
def test_both_sides_have_the_same_tools(target, theirs, inside, model_folder, peer, ours, calls):
    """The peer is told where the class is; how often it was called stands in the table, by side."""
    ours(1.0, 3.0)
    spoken = peer(answers(4.0, 8.0, tokens_per_step=600, calls=0.5))
    done = inside("bench", "peer", "--peer", spoken, "--model", model_folder, "--pairs", 2, "--env", target, cwd=HELPERS)
    assert done.returncode == 0, done.stderr
    work = "--prompts 4 --group 8 --tokens 64 --rank 64 --steps 2 --env"
    assert set(calls.read_text().splitlines()[1:]) == {
        f"microrl {model_folder} {work} {target}", f"peer --model {model_folder} {work} {theirs}"
    }  # fmt: skip
    shown = table(done.stdout)
    names = ("tool calls per completion", "tokens per step")
    counted = [[shown[f"{side}, {name}"][0] for name in names] for side in ("microrl", "TRL")]
    assert counted == [["0.25", "500"], ["0.5", "600"]]


def test_both_sides_have_the_same_teacher(inside, model_folder, peer, ours, calls):
    ours(1.0)
    words = ["--model", model_folder, "--pairs", 1, "--teacher", model_folder]
    done = inside("bench", "peer", "--peer", peer(answers(4.0, 8.0)), *words)
    assert done.returncode == 0 and f"teacher: {model_folder}" in done.stdout, done.stderr
    work = f"--prompts 4 --group 8 --tokens 64 --rank 64 --steps 2 --teacher {model_folder}"
    assert set(calls.read_text().splitlines()[1:]) == {
        f"microrl {model_folder} {work}", f"peer --model {model_folder} {work} --device cpu --threads 3"
    }  # fmt: skip


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--env", "calc"], "bench peer takes no entry point"),
        (["--env", "nowhere:Tools"], "there is no module `nowhere`"),
        (["--env", "calculator", "--to-accuracy", 0.6], "--env cannot be combined with --to-accuracy"),
        (["--teacher", "Qwen2.5-7B-Instruct"], "--teacher Qwen2.5-7B-Instruct: the comparison needs a local model"),
        (["--teacher", "quickstart", "--env", "calculator"], "--teacher cannot be combined with --env"),
        (["--teacher", "quickstart", "--to-accuracy", 0.6], "--teacher cannot be combined with --to-accuracy"),
    ],
)
def test_work_that_trl_cannot_be_given(words, says, inside, model_folder):
    done = inside("bench", "peer", "--peer", "never-asked", "--model", model_folder, *words)
    assert done.returncode == 2 and says in done.stderr


@pytest.mark.parametrize(("given", "seen"), [(SPINS_BEFORE_SLEEP, "None"), ("7", "7")])
def test_the_peer_waits_as_it_would_without_microrl(given, seen, monkeypatch):
    """microrl's own number of spins is not handed on; one that the user has set is."""
    monkeypatch.setenv("GOMP_SPINCOUNT", given)
    done = peers._run([sys.executable, "-c", "import os; print(os.environ.get('GOMP_SPINCOUNT'))"])
    assert done.stdout.strip() == seen


@pytest.mark.parametrize(
    ("steps", "says"),
    [
        (
            "print('first', file=sys.stderr); print('RuntimeError: no room', file=sys.stderr); sys.exit(1)",
            "RuntimeError: no room",
        ),
        ("import os; os.kill(os.getpid(), 9)", "killed by SIGKILL, often for lack of memory"),
        ("print('no result')", "exit status 0 without a result"),
        (answers(4.0, 8.0) + "; sys.exit(3)", "exit status 3 without a result"),
    ],
)
def test_a_peer_that_crashes_is_status_1(inside, model_folder, peer, ours, steps, says):
    ours(1.0)
    done = inside("bench", "peer", "--peer", peer(steps), "--model", model_folder, "--json")
    assert done.returncode == 1 and f"error: TRL failed: {says}\n" in done.stderr and not done.stdout, done.stderr


def test_an_interpreter_without_trl_is_status_2(inside, model_folder, peer, tmp_path):
    old = tmp_path / "old"
    old.write_text("#!/bin/sh\necho 'No module named x' >&2\nexit 1\n")
    old.chmod(0o755)
    text = tmp_path / "text"
    text.write_text("words")
    text.chmod(0o755)
    without = peer(versions={**VERSIONS, "trl": None, "peft": None})
    for name, says in (
        (tmp_path / "nowhere", "there is no program"),
        (tmp_path, "there is no program"),
        (text, "is not a Python interpreter"),
        (old, "is not a Python interpreter: No module named x"),
        (without, "lacks trl, peft"),
    ):
        done = inside("bench", "peer", "--peer", name, "--model", model_folder)
        assert done.returncode == 2 and says in done.stderr, done.stderr
        assert "ENV/bin/pip install 'trl>=1.16' 'torch<2.14' peft datasets" in done.stderr and not done.stdout


@pytest.mark.parametrize(
    ("model", "says", "hint"),
    [
        ("Qwen2.5-1.5B-Instruct", "needs a local model", "hf download Qwen/Qwen2.5-1.5B-Instruct"),
        ("owner/name", "needs a local model", "hf download owner/name"),
        ("./nowhere", "there is no model `./nowhere`", "quickstart"),
        ("nothing.gguf", "there is no file", "relative to the current folder"),
    ],
)
def test_a_model_that_is_not_local_is_status_2(inside, tmp_path, model, says, hint):
    done = inside("bench", "peer", "--peer", "never-asked", "--model", model, cwd=tmp_path)
    assert done.returncode == 2 and says in done.stderr and hint in done.stderr, done.stderr


def test_a_step_can_distil(inside, model_folder, tokenizer, tmp_path, monkeypatch):
    """The teacher is asked once in each step, the untimed one included, and for the whole vocabulary."""
    build_model(tokenizer, seed=9).save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    asked, compared = [], Teacher.compared

    def asking(teacher, batch, top_k, has_policy_gradient):
        asked.append((top_k, has_policy_gradient))
        return compared(teacher, batch, top_k, has_policy_gradient)

    monkeypatch.setattr(Teacher, "compared", asking)
    words = ["--prompts", 2, "--group", 2, "--tokens", 4, "--rank", 8, "--steps", 1, "--json"]
    done = inside("bench", "step", "--model", model_folder, "--teacher", tmp_path, *words)
    assert done.returncode == 0 and json.loads(done.stdout)["tokens_per_step"] == 16, done.stderr
    assert asked == [("all", False)] * 2


@pytest.mark.slow
def test_our_steps_are_those_of_bench_step(model_folder):
    work = peers.Work(prompts=2, group=2, tokens=4, rank=8, steps=1)
    found = peers._our_steps(model_folder, work)
    assert found["tokens_per_step"] == 16 and len(found["steps_s"]) == 2 and found["step_s_median"] == found["steps_s"][1]
    assert (found["device"], found["threads"]) == ("cpu", 1) and 0.1 < found["peak_rss_gb"] < 5


def test_an_error_of_our_steps_keeps_its_words(tmp_path):
    work = peers.Work(prompts=2, group=2, tokens=4, rank=8, steps=1)
    with pytest.raises(UserError, match=r"bench step failed: .*is not a model folder") as caught:
        peers._our_steps(tmp_path, work)
    assert caught.value.hint == "pass a folder, a .gguf file or a hub id"


def test_a_gguf_file_is_converted_for_both(monkeypatch, tmp_path, model, tokenizer):
    """Both sides get a folder in float32, which is gone afterwards."""
    monkeypatch.setattr("microrl.models.load.load", lambda config: (model, tokenizer) if config.dtype == "float32" else None)
    (tmp_path / "model.gguf").touch()
    with peers.local_folder(str(tmp_path / "model.gguf"), lambda text: None) as folder:
        assert json.loads((folder / "config.json").read_text())["dtype"] == "float32"
        assert (folder / "model.safetensors").is_file() and (folder / "tokenizer.json").is_file()
    assert not folder.exists()


def test_the_peers_questions_are_ours(tokenizer):
    asked = [(row["prompt"][0]["content"], row["gold"]) for row in trl_step.questions()]
    assert asked == [(prompt.question, prompt.answer) for prompt in bench_prompts(tokenizer)]


def test_every_completion_of_the_peer_has_a_gradient():
    """Rewards differ within a group, and the right answer is worth 1."""
    rewards = trl_step.reward([[{"content": text}] for text in ("\\boxed{3}", "\\boxed{4}", "\\boxed{5}")], ["4"] * 3)
    assert rewards == pytest.approx([0.09, 1.091, 0.092])


def test_the_peers_script_needs_nothing_of_microrl(tmp_path):
    """In an interpreter without any library it names all that are missing."""
    command = [sys.executable, "-I", "-S", trl_step.__file__, "--versions"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path)
    assert json.loads(done.stdout) == dict.fromkeys(VERSIONS), done.stderr
    assert Path(clock.__file__) == trl_step.CLOCK


def test_peak_memory_is_that_of_the_process_alone():
    """Linux lets `ru_maxrss` of a process begin at the peak of the one that started it: this one, with torch."""
    code = f"import runpy; print(runpy.run_path({trl_step.__file__!r})['peak_rss_gb']())"
    done = subprocess.run([sys.executable, "-I", "-S", "-c", code], capture_output=True, text=True)
    assert trl_step.peak_rss_gb() > 0.2 and 0.005 < float(done.stdout) < 0.1, done


@pytest.mark.parametrize("command", ["rollout", "sync"])
def test_without_vllm_there_is_a_hint(inside, monkeypatch, command):
    monkeypatch.setattr(preflight, "installed", lambda: None)
    done = inside("bench", command)
    assert done.returncode == 2 and f"bench {command} measures vLLM, which is not installed" in done.stderr
    assert "hint: in your clone of microrl: pip install -e '.[gpu]'" in done.stderr and not done.stdout


@pytest.mark.slow
@pytest.mark.one_of_each
def test_turns_are_measured_without_vllm(inside, monkeypatch):
    """Two turns of eight tokens, the last one cut at the limit; a real tool that takes half a second adds at least that."""
    monkeypatch.setattr(preflight, "installed", lambda: None)
    words = ["--turns", 2, "--tokens", 16, "--prompts", 2, "--group", 2, "--pairs", 2, "--tool-seconds", 0.5]
    done = inside("bench", "rollout", *words, "--json")
    assert done.returncode == 0, done.stderr
    (found,) = json.loads(done.stdout)["rollouts"]
    assert (found["turns"], found["sampled_tokens"], found["arch"]) == (2, 15, "qwen2") and found["answer_tokens"] > 4
    ratios = [pair["episodes_s"] / pair["single_s"] for pair in found["pairs"]]
    assert len(ratios) == 2 and found["ratio_range"] == [min(ratios), max(ratios)] and found["ratio"] == sum(ratios) / 2
    assert all(pair["added_s"] == pair["tool_s"] - pair["episodes_s"] for pair in found["pairs"])
    assert found["added_s"] > 0.4 and not unlabelled(found, page.EPISODES)


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("--turns", 3, "--tokens", 5), "too small for 3 turns"),
        (("--tool-seconds", 1), "has no effect without --turns"),
        (("--turns", 3, "--rank", 8), "--rank has no effect with --turns"),
    ],
)
def test_turns_that_cannot_be_measured_are_refused(inside, words, says):
    done = inside("bench", "rollout", *words)
    assert done.returncode == 2 and says in done.stderr and "hint:" in done.stderr


def test_names_that_do_not_exist(inside):
    for words, hint in (
        (("rollout", "--arch", "qwen2,lama"), "did you mean `llama`"),
        (("sync", "--adapters", "lora,drora"), "did you mean `dora`"),
        (("rollout", "--shape", "2b"), "one of: tiny, 135m, 1.5b"),
    ):
        done = inside("bench", *words)
        assert done.returncode == 2 and hint in done.stderr, done.stderr


def test_a_paragraph_of_the_help_is_broken_by_the_terminal_alone():
    paragraphs = app.commands["bench"].commands["peer"].help.split("\n\n")
    assert len(paragraphs) == 2 and not any("\n" in paragraph for paragraph in paragraphs)


@pytest.mark.parametrize(
    ("words", "says"),
    [(["--tokens", 1_000_000], "hint: --tokens "), (["--env", "nowhere"], "there is no environment `nowhere`")],
)
def test_steps_that_cannot_be_timed_are_refused(inside, model_folder, words, says):
    done = inside("bench", "step", "--model", model_folder, *words)
    assert done.returncode == 2 and says in done.stderr, done.stderr


@pytest.mark.slow
@pytest.mark.cases(one_of_each=1)
@pytest.mark.parametrize("command", ["peer", "rollout", "sync"])
def test_help_loads_nothing_heavy(command):
    assert without_heavy_libraries(["bench", command, "--help"]).returncode == 0


@pytest.mark.parametrize(
    ("command", "function", "renamed"),
    [
        (bench.rollout, engine.rollout, {"arch": "architecture"}),
        (bench.sync, engine.sync, {}),
        (bench.peer, peers.compare, {}),
        (bench.rollout, turns.episodes, {"arch": "architecture"}),
    ],
)
def test_the_commands_defaults_are_the_functions(command, function, renamed):
    def defaults(one):
        return {name: found.default for name, found in inspect.signature(one).parameters.items()}

    ours, theirs = defaults(command), defaults(function)
    shared = {name for name in ours if renamed.get(name, name) in theirs} - {"peer", "turns"}
    assert shared
    for name in shared:
        assert (ours[name] or None) == (theirs[renamed.get(name, name)] or None), name


def test_a_synthetic_model_has_the_shape_that_is_asked_for(tokenizer):
    """By hand: layers of 128 x 128 (q, o), 128 x 64 (k, v) and 3 x 128 x 256, biases of q, k and v, norms; a table of 320."""
    layer = 2 * 128 * 128 + 2 * 128 * 64 + 3 * 128 * 256 + (128 + 64 + 64) + 2 * 128
    one, same, short = (synthetic.build(tokenizer, layers=layers, device="cpu") for layers in (None, None, 1))
    assert sum(weight.numel() for weight in one.parameters()) == 2 * layer + 128 + 320 * 128
    assert sum(weight.numel() for weight in short.parameters()) == layer + 128 + 320 * 128
    assert all(first.equal(second) and not first.requires_grad for first, second in zip(one.parameters(), same.parameters()))
    assert str(one.dtype) == "torch.float32"
    assert str(synthetic.build(tokenizer, dtype="bfloat16", device="cpu").dtype) == "torch.bfloat16"
    with pytest.raises(UserError, match="there is no shape `2b`"):
        synthetic.build(tokenizer, shape="2b")


def result(step_s, is_reached=True):
    return {"reached": is_reached, "steps": 3, "step_s": step_s, "process_s": 9.0, "accuracy": 0.7}


@pytest.fixture
def our_training(monkeypatch):
    """Have `microrl train` reach the goal after these seconds of steps, or, where None, not."""

    def install(*seconds):
        left, seen = list(seconds), []

        def train(presets, flags, goal, out):
            seen.append(flags)
            second = left.pop(0)
            return result(second or 60.0, second is not None)

        monkeypatch.setattr(to_accuracy, "_ours", train)
        return seen

    return install


@pytest.mark.parametrize(
    ("ours", "theirs", "ratios", "said"),
    [
        ([6.0, 1.0, 2.0], True, [1.5, 0.25, 0.5], "divided by TRL's, median and range: 0.500 (0.250 to 1.500)\n"),
        ([6.0, 1.0, 2.0], False, [1.5, 0.25, 0.5], "an upper bound in 3 of 3 pairs, where TRL did not reach the accuracy\n"),
        ([6.0, None, 2.0], True, [1.5, None, 0.5], "no ratio: microrl did not reach the accuracy in every pair\n"),
    ],
)
def test_time_to_accuracy(inside, model_folder, peer, our_training, calls, ours, theirs, ratios, said):
    """Ratios by hand; seeds, and which side is first, alternate by pair; both train the same questions."""
    seen = our_training(*ours)
    spoken = peer(f"print(json.dumps({result(4.0, theirs)}))")
    words = ["bench", "peer", "--peer", spoken, "--model", model_folder, "--pairs", 3, "--to-accuracy", 0.6, "--lr", 1e-3]
    done = inside(*words, "--rank", 8, "--json")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert [pair["ratio"] for pair in found["pairs"]] == ratios
    assert [pair["is_bound"] for pair in found["pairs"]] == [not theirs and ratio is not None for ratio in ratios]
    assert [flags["seed"] for flags in seen] == [0, 1, 2] and {flags["optim.lr"] for flags in seen} == {1e-3}
    asked = [line.split() for line in calls.read_text().splitlines() if "--until" in line]
    assert [words[words.index("--seed") + 1] for words in asked] == ["0", "1", "2"]
    assert all(" ".join(words).endswith("--until 0.6 --seconds 600.0 --lr 0.001") for words in asked)
    assert found["settings"]["rank"] == 8 and found["settings"]["accuracy"] == 0.6
    our_training(*ours)
    assert inside(*words).stdout.endswith(said)


def test_each_sides_defaults_are_its_own(inside, peer, our_training, calls, monkeypatch, model_folder):
    """Without --lr, the options of the work reach neither side."""
    seen = our_training(1.0)
    done = inside(
        "bench", "peer", "--peer", peer(f"print(json.dumps({result(4.0)}))"), "--model", model_folder, "--pairs", 1,
        "--to-accuracy", 0.6, "--json",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert not {"optim.lr", "adapter.rank", "sampling.group_size"} & set(seen[0])
    assert "--lr" not in calls.read_text() and "rank" not in json.loads(done.stdout)["settings"]


@pytest.mark.slow
@pytest.mark.one_of_each
def test_a_presets_questions_are_asked_without_its_sft_and_curriculum(model_folder):
    """TRL gets each with its right answer as text, which a procedural task holds inside what its scorer needs."""
    goal, work = to_accuracy.Goal(0.3, 1.0, 5e-5), peers.Work(prompts=4, group=8, tokens=40, rank=64, steps=1)
    flags = to_accuracy._flags(goal, work, str(model_folder), model_folder, "laptop") | {"data.problems": 20}
    config = to_accuracy._config(("laptop",), flags)
    assert not config.sft.is_on and not config.data.curriculum and config.model.name == str(model_folder)
    for question in to_accuracy._questions(("laptop",), flags):
        system, user = question["prompt"]
        assert "<answer>" in system["content"]
        words = user["content"].strip().rpartition(": ")[2].split(", ")
        assert question["gold"] == ", ".join(reversed(words))


@pytest.mark.parametrize(
    ("text", "is_right"),
    [
        ("so \\boxed{12}", True), ("<answer> 12\n</answer>", True), ("\\boxed{1} or <answer>12</answer>", True),
        ("<answer>12</answer> or \\boxed{1}", False), ("12", False), ("<answer>12", False), ("<answer>12.0</answer>", False),
    ],
)  # fmt: skip
def test_trl_is_paid_for_the_last_answer(text, is_right):
    assert trl_step.is_right(text, "12") == is_right


def test_the_window_is_whole_before_a_goal_is_reached():
    """Four steps of 160 completions fill it; the mean of the last four decides."""
    assert not trl_step.reached([1.0] * 3, 160, 0.5)
    assert trl_step.reached([0.0, 0.4, 0.5, 0.6, 0.5], 160, 0.5) and not trl_step.reached([0.9, 0.4, 0.5, 0.5, 0.5], 160, 0.5)
    assert trl_step.reached([0.6], 10_000, 0.6)


@pytest.mark.slow
@pytest.mark.parametrize(("accuracy", "minutes", "is_reached"), [(0.15, 30, True), (1.0, 1, False)])
def test_our_training_ends_at_the_goal_or_with_its_time(model_folder, tmp_path, accuracy, minutes, is_reached):
    """The quickstart's model begins at 0.3, which one step of 640 completions shows; all of them right is out of its reach."""
    goal = to_accuracy.Goal(accuracy, minutes, 1e-3)
    work = peers.Work(prompts=16, group=40, tokens=32, rank=2, steps=1)
    found = to_accuracy._ours(("quickstart",), to_accuracy._flags(goal, work, "quickstart", model_folder), goal, tmp_path / "run")
    assert found["reached"] == is_reached and found["steps"] >= 1
    assert 0 < found["step_s"] < found["process_s"]


def test_what_belongs_to_an_accuracy_is_refused_without_one(inside, model_folder):
    for option, value in (("--lr", 1e-3), ("--minutes", 1), ("--preset", "laptop")):
        done = inside("bench", "peer", "--peer", "never-asked", "--model", model_folder, option, value)
        assert done.returncode == 2 and f"{option} has no effect without --to-accuracy" in done.stderr and "hint:" in done.stderr
