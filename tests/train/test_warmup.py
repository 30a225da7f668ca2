"""Supervised steps, the phase that takes them before the first step, and runs that start from another one's adapter."""

import json
import shlex
import shutil
import signal
from itertools import pairwise

import pytest
import torch
from command_line import in_process
from every_adapter import alike_are_slow, config_of
from random_models import ARCHITECTURES, random_model, relative_gap, small, with_adapter
from safetensors.torch import load_file
from simulated import Machine
from whole_runs import rows, start

from microrl.config import check, resolve
from microrl.config.adapters import KINDS
from microrl.config.resolve import override
from microrl.data import arithmetic
from microrl.data.load import content_fraction
from microrl.data.sft_examples import load_solutions, sft_example, to_sft_examples
from microrl.errors import UserError
from microrl.plan import devices, plan
from microrl.plan.shapes import Shape
from microrl.policy import policy as policy_module
from microrl.policy.policy import Policy
from microrl.policy.sft import sft_step
from microrl.train import init_from
from microrl.types import Prompt, SftExample

TRACES = [
    SftExample(
        Prompt("q", "1", "", tuple(range(5, 5 + prompt))), tuple((7 * place + length) % 290 + 3 for place in range(length))
    )
    for prompt, length in ((4, 9), (11, 1), (6, 16), (4, 5), (9, 12))
]
ADAPTER = "final/adapter_model.safetensors"


def gradients(policy, traces=TRACES, **attributes):
    for name, value in attributes.items():
        setattr(policy, name, value)
    found = []
    policy.optimizer_step = lambda has_gradient, tally, progress: found.extend(
        parameter.grad.clone() for parameter in policy.parameters
    )
    return found, sft_step(policy, traces, 1e-3)


@pytest.mark.cases(fast=2)
@pytest.mark.parametrize("kind", ["lora", "full"])
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_the_gradient_is_plain_cross_entropys_however_it_is_cut(architecture, kind, tokenizer):
    """In float64, one solution at a time through the whole model; micro-batches of one row, of some, and of all."""
    model = small(architecture).double()
    policy = with_adapter(model) if kind == "lora" else Policy(model, resolve((), {"adapter.kind": "full"}))
    total, tokens = 0.0, sum(len(one.token_ids) for one in TRACES)
    for one in TRACES:
        ids = torch.tensor([[*one.prompt.token_ids, *one.token_ids]])
        logits = policy.adapter.model(input_ids=ids).logits[0, len(one.prompt.token_ids) - 1 : -1]
        total = total + torch.nn.functional.cross_entropy(logits, torch.tensor(one.token_ids), reduction="sum") / tokens
    policy.adapter.model.zero_grad()
    total.backward()
    plain = [parameter.grad.clone() for parameter in policy.parameters]
    for most in (1, 40, 10**9):
        ours, found = gradients(policy, max_tokens=most)
        assert relative_gap(ours, plain) < 1e-6
        assert found.tokens == tokens == 43 and found.loss == pytest.approx(float(total.detach()), rel=1e-12)


EACH_FORM = ("lora", "dora", "adalora", "ia3", "full")
IMITATING = [pytest.param(kind, marks=() if kind in EACH_FORM else pytest.mark.slow) for kind in KINDS]


@pytest.mark.cases(fast=1)
@pytest.mark.parametrize("kind", IMITATING)
def test_every_adapter_imitates(kind, tokenizer):
    model = small("qwen2")
    config = resolve((), {"optim.max_grad_norm": 100.0}).model_copy(update={"adapter": config_of(kind)})
    policy = Policy(model, config)
    with policy.adapter.off():
        base = policy.score([(5, 6, 7, 8)])[0]
    fast = kind in ("vera", "tinylora", "ia3", "ln", "adalora")
    losses = [sft_step(policy, TRACES, 0.05 if fast else 0.005).loss for _ in range(8)]
    assert losses[-1] < losses[0] - 0.05, losses
    assert policy.version == 8 and not policy.is_consistent
    with policy.adapter.off():
        assert torch.equal(policy.score([(5, 6, 7, 8)])[0], base), "the reference stays the untouched base"


def test_out_of_memory_halves_the_micro_batches_and_changes_nothing(tokenizer, monkeypatch):
    found = []
    for fails in (False, True):
        events, calls, forward = [], [], policy_module.hidden_states

        def failing(model, batch, *, share_prompts, fails=fails, calls=calls, forward=forward):
            calls.append(1)
            if fails and len(batch.rows) > 2:
                raise torch.OutOfMemoryError("CUDA out of memory.")
            return forward(model, batch, share_prompts=share_prompts)

        monkeypatch.setattr(policy_module, "hidden_states", failing)
        # With AdamW's usual epsilon its first step is the gradient's sign, also of elements that are rounding alone: the model's
        # norms compute in float32.
        policy = with_adapter(random_model("qwen2").double(), **{"optim.eps": 1e-3})
        policy.on_event = lambda kind, message, events=events, **more: events.append(kind)
        sft_step(policy, TRACES, 1e-2)
        found.append(torch.cat([parameter.detach().flatten() for parameter in policy.parameters]))
        assert bool(events) == fails
        monkeypatch.undo()
    assert torch.allclose(found[0], found[1], atol=1e-9)


def test_moments_are_forgotten(tokenizer):
    policy = with_adapter(random_model("qwen2"))
    sft_step(policy, TRACES, 1e-2)
    weights = [parameter.detach().clone() for parameter in policy.parameters]
    policy.forget_moments()
    states = list(policy.optimizer.state.values())
    assert len(states) == len(policy.parameters) and all(float(value.abs().max()) == 0 for s in states for value in s.values())
    assert all(torch.equal(a, b) for a, b in zip(weights, policy.parameters, strict=True))


# ---- the data


def solved(path, count=81, **more):
    """Every hundredth sum with its solution worked out."""
    lines = [{"question": q, "answer": a, "solution": arithmetic.solve(q).worked, **more} for q, a in arithmetic.problems()]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines[:: 8100 // count]))
    return path


@pytest.fixture(scope="module")
def traces_file(tmp_path_factory):
    return solved(tmp_path_factory.mktemp("traces") / "traces.jsonl")


@pytest.mark.slow
@pytest.mark.one_of_each
def test_nothing_that_is_measured_is_imitated(tokenizer):
    config = resolve((), {"data.name": "arithmetic", "data.held_out": 0.2, "data.validation": 0.1})
    found = to_sft_examples(load_solutions(config), tokenizer, config)
    shares = [content_fraction(one.prompt.question) for one in found.examples]
    assert min(shares) >= 0.3 and len(shares) == sum(content_fraction(q) >= 0.3 for q, _ in arithmetic.problems())
    assert found.left_out == {"held out": 8100 - len(shares)}
    one = found.examples[0]
    assert tokenizer.decode(one.token_ids) == arithmetic.solve(one.prompt.question).worked + tokenizer.eos_token
    assert one.prompt.text.startswith("<|im_start|>system\nThink step by step")


def test_rows_that_cannot_be_imitated_are_counted(tokenizer, tmp_path):
    path = tmp_path / "mixed.jsonl"
    lines = [
        {"problem": "first", "answer": "1"},
        {"problem": "second", "answer": "1", "response": "<think>so</think> \\boxed{1}"},
        {"problem": "third", "answer": "1", "response": "  "},
        {"problem": "fourth", "answer": "1", "response": "x" * 200},
        {"problem": "y" * 600, "answer": "1", "response": "a"},
    ]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    flags = {"data.name": str(path), "data.held_out": 0.0, "data.validation": 0.0, "sampling.max_completion_tokens": 100}
    config = resolve((), flags, ["data.system="])
    found = to_sft_examples(load_solutions(config), tokenizer, config)
    assert [one.prompt.question for one in found.examples] == ["second"]
    assert found.left_out == {"without a solution": 2, "with a solution that is too long": 1, "with a prompt that is too long": 1}
    with pytest.raises(UserError, match=r"no usable solution in .* 1 near-duplicates of math500"):
        to_sft_examples(load_solutions(config), tokenizer, config, refused={"second": "near-duplicates of math500"})
    with pytest.raises(UserError, match=r"no usable solution in") as caught:
        to_sft_examples(load_solutions(config)[2:], tokenizer, config)
    assert "1 with a solution that is too long" in caught.value.message


def test_an_opened_think_is_not_opened_again(tokenizer):
    opened = Prompt("q", "1", "<|im_start|>assistant\n<think>\n", (1, 2))
    assert tokenizer.decode(sft_example(opened, "<think>\nso</think> 1", tokenizer).token_ids) == "so</think> 1<|im_end|>"
    closed = Prompt("q", "1", "<|im_start|>assistant\n", (1, 2))
    assert tokenizer.decode(sft_example(closed, "<think>\nso</think> 1", tokenizer).token_ids).startswith("<think>\nso")


def test_solutions_may_come_from_another_file_and_column(tokenizer, traces_file, data_file, tmp_path):
    other = tmp_path / "other.jsonl"
    other.write_text(json.dumps({"q": "What?", "answer": "1", "how": "like this"}) + "\n")
    sets = ["data.question=q", "sft.solution=how", "data.held_out=0", "data.validation=0"]
    config = resolve((), {"data.name": str(data_file), "sft.data": str(other)}, sets)
    assert [(one.question, one.text) for one in load_solutions(config)] == [("What?", "like this")]
    config = resolve((), {"data.name": str(other), "sft.data": str(traces_file)}, sets[:1])
    assert len(load_solutions(config)) == 81, "the question has another name there, one of the usual ones"


# ---- runs


@pytest.fixture(scope="module")
def arguments(model_folder, traces_file):
    """The smallest real run with solutions to imitate."""
    sets = ["sampling.prompts_per_step=4", "sampling.group_size=4", "sampling.max_completion_tokens=32", "data.system=",
            "data.held_out=0.2", "evaluation.problems=4", "evaluation.samples=2", "evaluation.pass_k=[2]", "loss.beta=0.05",
            "optim.lr=0.003", "sft.batch=8"]  # fmt: skip
    flags = [part for key in sets for part in ("--set", key)]
    return ["--data", str(traces_file), "--rank", "8", *flags]


@pytest.fixture(scope="module")
def model(model_folder):
    return str(model_folder)


WARM = ["--set", "sft.steps=6", "--steps", "3"]


@pytest.fixture(scope="module")
def whole(arguments, model, tmp_path_factory):
    out = tmp_path_factory.mktemp("warm") / "whole"
    done = in_process("train", "--model", model, *arguments, *WARM, "--out", out)
    assert done.returncode == 0, done.stderr
    assert "SFT finished: 6 SFT steps" in done.stderr and "6 SFT steps, 3 steps in" in done.stderr
    return out


def warm_rows(folder):
    lines = [json.loads(line) for line in (folder / "sft.jsonl").read_text().splitlines()]
    return [{name: value for name, value in line.items() if name != "seconds"} for line in lines]


def test_a_run_with_a_warm_up(whole):
    lines = warm_rows(whole)
    assert [line["step"] for line in lines] == list(range(6))
    assert [line["lr"] for line in lines] == pytest.approx([0.003 * (1 - step / 6) for step in range(6)])
    assert lines[-1]["loss"] < lines[0]["loss"] - 0.1 and all(line["tokens"] > 100 for line in lines)
    trained = rows(whole)
    assert [line["step"] for line in trained] == [0, 1, 2]
    assert trained[0]["policy/entropy_change_pct"] == 0
    assert trained[0]["policy/kl_ref"] > 1e-4, "the reference is the base, and step 0 samples from warmed up weights"
    assert trained[0]["policy/kl_sampler"] < 1e-6
    summary = json.loads((whole / "summary.json").read_text())
    assert summary["steps"] == 3 and summary["seconds_by_phase"]["sft"] > 0
    assert summary["sft"]["steps"] == 6 and summary["sft"]["last_loss"] == lines[-1]["loss"]
    events = [json.loads(line) for line in (whole / "events.jsonl").read_text().splitlines()]
    left_out = next(event for event in events if event["kind"] == "solutions left out")
    assert left_out["reasons"].keys() == {"held out"}


KILLED = [
    ("sft_step", 4),
    pytest.param("sft_step", 1, marks=pytest.mark.slow),
    pytest.param("name of a checkpoint", 5, marks=pytest.mark.slow),
    pytest.param("behind the warm-up", 1, marks=pytest.mark.slow),
    pytest.param("row", 2, marks=pytest.mark.slow),
]


@pytest.mark.cases(one_of_each=1)
@pytest.mark.slow
@pytest.mark.parametrize(("place", "count"), KILLED)
def test_killed_in_the_warm_up_or_behind_it_the_run_comes_to_the_same_end(
    inside, arguments, model, whole, tmp_path, place, count
):
    out = tmp_path / "killed"
    process = start(["train", "--model", model, *arguments, *WARM, "--out", out], place=place, count=count)
    _, errors = process.communicate(timeout=300)
    assert process.returncode == -signal.SIGKILL, errors
    done = inside("train", "--resume", out)
    assert done.returncode == 0, done.stderr
    assert ("continuing at SFT step" in done.stderr) == (place != "row")
    assert warm_rows(out) == warm_rows(whole)
    assert rows(out, times=False) == rows(whole, times=False)
    assert (out / ADAPTER).read_bytes() == (whole / ADAPTER).read_bytes()


@pytest.fixture(scope="module")
def warmed(arguments, model, tmp_path_factory):
    """`microrl warmup` alone."""
    out = tmp_path_factory.mktemp("warm") / "alone"
    done = in_process("warmup", model, *arguments, "--steps", 4, "--out", out)
    assert done.returncode == 0, done.stderr
    return out


def test_a_run_of_the_warm_up_alone(inside, warmed, model, tmp_path):
    assert len(warm_rows(warmed)) == 4 and not (warmed / "metrics.jsonl").exists()
    summary = json.loads((warmed / "summary.json").read_text())
    assert (summary["status"], summary["steps"], summary["sft"]["steps"]) == ("done", 0, 4)
    assert summary["eval"]["before"]["questions"] == summary["eval"]["after"]["questions"] == 4
    assert summary["eval"]["paired_gain"] is not None and (warmed / ADAPTER).is_file()
    more = tmp_path / "more"
    shutil.copytree(warmed, more)
    assert "is already finished" in inside("warmup", "--resume", more).stderr
    fewer = inside("warmup", "--resume", more, "--steps", 3)
    assert (fewer.returncode, "has already made 4 steps" in fewer.stderr) == (2, True), fewer.stderr
    done = inside("warmup", "--resume", more, "--steps", 6)
    assert done.returncode == 0 and "steered" not in done.stderr, done.stderr
    assert [line["step"] for line in warm_rows(more)] == list(range(6)) and warm_rows(more)[:4] == warm_rows(warmed)
    assert json.loads((more / "summary.json").read_text())["sft"]["steps"] == 6


@pytest.mark.slow
@pytest.mark.one_of_each
def test_init_starts_where_the_other_run_stands(inside, warmed, arguments, model, tmp_path):
    out = tmp_path / "from"
    shutil.copytree(warmed, tmp_path / "warmed")
    frozen = ["--set", "optim.lr=0", "--steps", "1", "--seed", "5", "--set", "loss.beta=0.05"]
    done = inside(
        "train", "--model", model, *arguments, *frozen, "--init", "warmed", "--out", out, "--resume", "auto", cwd=tmp_path
    )
    assert done.returncode == 0, done.stderr
    theirs, ours = load_file(warmed / ADAPTER), load_file(out / ADAPTER)
    assert theirs.keys() == ours.keys() and all(torch.equal(theirs[name], ours[name]) for name in theirs)
    assert rows(out)[0]["policy/kl_ref"] > 1e-4, "the reference is the base still"
    assert json.loads((out / "config.json").read_text())["init"] == str(tmp_path / "warmed")
    assert '"kind": "init"' in (out / "events.jsonl").read_text()
    shutil.rmtree(tmp_path / "warmed")
    again = inside("train", "--resume", out, "--steps", 2)
    assert again.returncode == 0 and len(rows(out)) == 2, "on resuming the checkpoint counts"


BAD = {
    "no solutions": (["train", "--model", "{model}", "--data", "{plain}", "--steps", "1", "--set", "sft.steps=2"],
                     "the columns are: question, answer"),
    "wrong column": (["warmup", "{model}", "--data", "{plain}", "--steps", "1", "--set", "sft.solution=anser"],
                     "did you mean `answer`"),
    "longer than the run": (["train", "--model", "{model}", "--hours", "1", "--sft-minutes", "60"],
                            "no time is left for training within 1 hour: SFT takes 1 hour"),
    "negative": (
        ["train", "--model", "{model}", "--hours", "1", "--sft-minutes", "-1"],
        "error: invalid value '-1.0' for --sft-minutes",
    ),
    "no end": (["warmup", "{model}", "--data", "{traces}"], "no budget given for SFT"),
    "no steps": (["warmup", "{model}", "--data", "{traces}", "--steps", "0"], "error: invalid value '0' for --steps"),
    "no model": (["warmup", "--steps", "1"], "missing argument MODEL"),
    "resume a training run": (["warmup", "--resume", "{whole}"], "is a run of `microrl train`"),
    "resume with other data": (["warmup", "--resume", "{warmed}", "--data", "{traces}"], "uses the settings of the run"),
    "too few hours": (
        ["warmup", "{model}", "--data", "{traces}", "--hours", "0.0001", "--set", "sampling.max_completion_tokens=64"],
        "error: a time limit of 0.36 seconds is too short",
    ),
    "init of no run": (["{train}", "--init", "{model}"], "is not a run folder"),
    "init of another variant": (["{train}", "--adapter", "rslora", "--init", "{warmed}"], "adapter.kind is `lora` there"),
    "init of another rank": (["{train}", "--set", "adapter.rank=4", "--init", "{warmed}"], "adapter.rank is `8` there"),
    "init of another scale": (["{train}", "--set", "adapter.alpha=8", "--init", "{warmed}"], "adapter.alpha is `64.0` there"),
    "init of another model": (["{train}", "--model", "{other}", "--init", "{warmed}"], "but this run's model is"),
    "init without a checkpoint": (["{train}", "--init", "{bare}"], "has no intact checkpoint"),
    "init of other shapes": (["{train}", "--init", "{reshaped}"], "of another shape"),
}  # fmt: skip


@pytest.mark.parametrize("case", BAD)
def test_bad_input_is_one_line_and_a_hint(
    inside, arguments, model, traces_file, data_file, whole, warmed, tmp_path, tokenizer, case
):
    words, expected = BAD[case]
    bare, reshaped = tmp_path / "bare", tmp_path / "reshaped"
    if "bare" in str(words):
        shutil.copytree(warmed, bare, ignore=shutil.ignore_patterns("checkpoints"))
    if "other" in str(words):
        shutil.copytree(model, tmp_path / "other")
    if "reshaped" in str(words):  # what its config.json says is not what its checkpoint holds
        shutil.copytree(warmed, reshaped)
        reshape(next((reshaped / "checkpoints").iterdir()))
    places = {"model": model, "plain": data_file, "traces": traces_file, "whole": whole, "warmed": warmed, "bare": bare,
              "other": tmp_path / "other", "reshaped": reshaped}  # fmt: skip
    if words[0] == "{train}":
        words = ["train", *([] if "--model" in words else ["--model", model]), *arguments, "--steps", "1", *words[1:]]
    done = inside(*(str(word).format(**places) for word in words), cwd=tmp_path)
    assert done.returncode == 2, done.stderr
    assert expected in done.stderr and "Traceback" not in done.stderr
    told = [line.split(":")[0] for line in done.stderr.splitlines() if line.startswith(("error: ", "hint: "))]
    assert told == ["error", "hint"], done.stderr
    assert not (tmp_path / "runs").exists() or not list((tmp_path / "runs").iterdir()) or case == "too few hours"


def reshape(checkpoint):
    import hashlib

    from safetensors.torch import save_file

    file = checkpoint / "adapter.safetensors"
    old = hashlib.sha256(file.read_bytes()).hexdigest()
    save_file({name: torch.zeros(3, 3) for name in load_file(file)}, file)
    sums = checkpoint / "SHA256SUMS"
    sums.write_text(sums.read_text().replace(old, hashlib.sha256(file.read_bytes()).hexdigest()))


@pytest.mark.cases(fast=3)
@pytest.mark.parametrize("kind", alike_are_slow(KINDS))
def test_a_state_carries_all_that_another_seed_would_have_drawn(kind, tokenizer):
    """What --init loads into a run of another seed computes what it did: nothing frozen is left behind."""
    scores = {}
    for seed in (0, 1):
        config = resolve((), {"seed": seed}).model_copy(update={"adapter": config_of(kind)})
        policy = Policy(small("qwen2"), config, fresh=seed == 0)
        if seed == 0:
            sft_step(policy, TRACES, 0.01)
            state = {name: tensor.clone() for name, tensor in policy.adapter.state().items()}
        else:
            policy.adapter.load(state, "the other")
        scores[seed] = policy.score([(5, 6, 7, 8, 9, 10)])[0]
    assert torch.equal(scores[0], scores[1])


def test_the_plan_counts_the_minutes():
    shape = Shape.from_config(random_model("qwen2").config.to_dict())
    card = devices.find("a40")
    steps = {}
    for minutes in (None, 30.0):
        config = resolve((), {"adapter.rank": 8, "budget.hours": 1.0, "sft.minutes": minutes})
        steps[minutes] = plan.make(config, shape, card, load_s=0.0).steps
    assert steps[30.0] == pytest.approx(steps[None] / 2, rel=0.05)
    alone = check({**config.model_dump(), "sft": {"only": True}})
    assert plan.make(alone, shape, card).steps == 0


# ---- the clock, and what it is for: minutes long


@pytest.mark.slow
def test_the_minutes_come_out_of_the_hours(inside, arguments, model, tmp_path, monkeypatch):
    """An hour of which twelve minutes are supervised, then an hour of nothing else; in simulated time."""
    out, machine = tmp_path / "timed", Machine(monkeypatch)
    done = inside("train", "--model", model, *arguments, "--hours", 1, "--sft-minutes", 12, "--out", out)
    assert done.returncode == 0, done.stderr
    summary = json.loads((out / "summary.json").read_text())
    assert 720 - 2 * Machine.MICROBATCH_S <= summary["seconds_by_phase"]["sft"] <= 720
    ends_s = [row["budget/elapsed_s"] for row in rows(out)]
    assert len(ends_s) > 5 and 1 - max(b - a for a, b in pairwise(ends_s)) / 3600 < summary["hours_spent"] <= 1
    machine.restarted()
    done = inside("warmup", model, *arguments, "--hours", 1, "--out", tmp_path / "alone")
    assert done.returncode == 0, done.stderr
    summary = json.loads((tmp_path / "alone" / "summary.json").read_text())
    assert summary["sft"]["steps"] > 5 and 0.95 <= summary["hours_spent"] <= 1
    assert warm_rows(tmp_path / "alone")[-1]["lr"] < 0.1 * 0.003


@pytest.mark.slow
def test_a_cold_model_warms_up(microrl, tokenizer, tmp_path):
    """A model of random weights, on generated sums worked out: never right before, right some of the time after."""
    from microrl.models.tiny import build_model

    build_model(tokenizer, seed=7).save_pretrained(tmp_path / "cold")
    tokenizer.save_pretrained(tmp_path / "cold")
    sets = ["data.system=", "data.held_out=0.1", "sampling.max_completion_tokens=32", "optim.lr=0.003", "sft.batch=64",
            "evaluation.problems=64", "evaluation.samples=4", "evaluation.pass_k=[4]"]  # fmt: skip
    flags = [part for key in sets for part in ("--set", key)]
    out = tmp_path / "run"
    done = microrl("warmup", tmp_path / "cold", "--data", "arithmetic", "--adapter", "full", "--steps", 250, *flags, "--out", out)
    assert done.returncode == 0, done.stderr
    summary = json.loads((out / "summary.json").read_text())
    print(summary["eval"], summary["sft"])
    assert summary["eval"]["before"]["accuracy"] < 0.02 and summary["eval"]["after"]["accuracy"] > 0.3
    assert summary["eval"]["paired_gain"]["ci95"][0] > 0.2
    assert summary["sft"]["last_loss"] < 0.5 < 5 < summary["sft"]["first_loss"]


@pytest.mark.parametrize(
    "theirs", [{"adapter.kind": "adalora", "adapter.rank": 8}, {"adapter.kind": "ln"}, {"adapter.alpha": 3.0}]
)
@pytest.mark.parametrize("ours", [{}, {"adapter.kind": "dora", "adapter.alpha": 5.0}, {"adapter.kind": "tinylora"}])
def test_the_flags_that_init_asks_for_lead_to_its_adapter(theirs, ours):
    sets = [] if theirs.get("adapter.kind") == "ln" else ['adapter.targets=["q_proj", "v_proj"]']
    wanted, config = resolve((), theirs, sets).adapter, resolve((), ours)
    words = shlex.split(init_from._flags(wanted.model_dump(), config.adapter.model_dump()))
    given = list(zip(words[::2], words[1::2], strict=True))
    flags = {{"--adapter": "adapter.kind", "--rank": "adapter.rank"}[name]: value for name, value in given if name != "--set"}
    found = override(config.model_dump(), flags, [value for name, value in given if name == "--set"])
    assert found.adapter == wanted
