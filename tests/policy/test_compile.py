"""`optim.compile`: the same update but for rounding, nothing else compiled, and a failure that ends no run."""

import json
import shutil
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from planned import planned
from random_models import random_model

from microrl.algorithm.batch import Batch, Row
from microrl.algorithm.grpo import Algorithm
from microrl.config import resolve
from microrl.models.load import use_own_parts
from microrl.plan import devices
from microrl.policy import compiled
from microrl.policy.policy import Policy

SHAPES = ((2, 3, 7, 9), (3, 4, 12, 20), (2, 2, 9, 5), (1, 4, 6, 8), (3, 2, 5, 40), (1, 2, 9, 60))
"""Prompts, completions of each, tokens of the first prompt and of the longest completion."""
GRAPHS = 8
"""At most, for all of them: norms and MLPs, with merged LoRA pairs and without, and with one row or several."""

UNEVEN = ("--set", "reward.overlong.buffer=8")
"""Rewards that differ within a group: the random model answers nothing."""


def batch_of(prompts, group, prompt_tokens, tokens):
    generator = torch.Generator().manual_seed(0)

    def ids(count):
        return tuple(torch.randint(5, 250, (count,), generator=generator).tolist())

    rows = []
    for number in range(prompts):
        prompt = ids(prompt_tokens + number)
        for place in range(group):
            completion = ids(max(1, tokens - place))
            rows.append(Row(prompt, completion, (-5.0,) * len(completion), (-1.0) ** place, True, number))
    return Batch(tuple(rows), prompts, 0)


def policy_of(architecture="qwen2", kind="lora", **flags):
    """A policy whose adapter is not zero; its optimizer steps change nothing. `heard` are its events."""
    model = random_model(architecture)
    use_own_parts(model)
    rank = {} if kind == "full" else {"adapter.rank": 8}
    heard = []
    policy = Policy(
        model, resolve((), {"adapter.kind": kind, "sampling.max_completion_tokens": 64, **rank, **flags}),
        lambda kind, message, **details: heard.append((kind, message)),
    )  # fmt: skip
    policy.heard = heard
    generator = torch.Generator().manual_seed(1)
    for parameter in policy.parameters:
        parameter.data += 0.05 * torch.randn(parameter.shape, generator=generator)
    policy.optimizer_step = lambda has_gradient, metrics, progress: None
    return policy


def updated(policy, batch):
    """The loss and the gradient of an update."""
    for parameter in policy.parameters:
        parameter.grad = None
    done = policy.update(batch, 1e-3)
    policy.version = 0
    return done.loss, torch.cat([parameter.grad.flatten() for parameter in policy.parameters if parameter.grad is not None])


@pytest.fixture
def calls(monkeypatch):
    """What stands in for compiled functions: it rounds differently, and counts its calls."""
    count = SimpleNamespace(number=0)

    def compile_(forward, **options):
        assert options == {"backend": "inductor", "fullgraph": True, "dynamic": True}

        def run(*arguments):
            count.number += 1
            assert torch.is_grad_enabled()
            return forward(*arguments) * (1 + 1e-6)

        return run

    monkeypatch.setattr(torch, "compile", compile_)
    return count


@pytest.fixture
def failing(monkeypatch):
    """A compiler that fails, in a module of torch's compiler or in another."""

    def install(module):
        names = {"__name__": module}
        exec("def run(*arguments):\n    raise RuntimeError('no C++ compiler\\nand a page')", names)
        monkeypatch.setattr(torch, "compile", lambda forward, **options: names["run"])

    return install


def test_the_update_alone_is_compiled(calls):
    off, on = policy_of(), policy_of(**{"optim.compile": True})
    batch = batch_of(*SHAPES[0])
    expected, rows = off.logprobs(batch.rows), batch.rows
    assert all(map(torch.equal, on.logprobs(rows), expected))
    assert torch.equal(on.score([rows[0].prompt_ids])[0], off.score([rows[0].prompt_ids])[0])
    assert calls.number == 0
    (loss, gradient), (other_loss, other) = updated(off, batch), updated(on, batch)
    layers = on._model.config.num_hidden_layers
    assert calls.number == 3 * layers - 1  # two norms and an MLP a layer; what comes into the first has no gradient
    assert abs(loss - other_loss) < 1e-4 and not torch.equal(gradient, other)
    assert torch.allclose(gradient, other, rtol=1e-3, atol=1e-4)
    assert all(map(torch.equal, on.logprobs(rows), expected)) and calls.number == 3 * layers - 1
    assert not any("forward" in vars(module) for module in on._model.modules())


@pytest.mark.usefixtures("calls")
def test_minibatches_are_clipped_against_log_probabilities_that_round_alike(monkeypatch):
    gaps, loss = [], Algorithm.loss

    def noting(self, tokens):
        gaps.append(float((tokens.new_BT.detach() - tokens.old_BT).abs().max()))
        return loss(self, tokens)

    monkeypatch.setattr(Algorithm, "loss", noting)
    updated(policy_of(**{"optim.compile": True, "optim.prompts_per_update": 1}), batch_of(*SHAPES[0]))
    assert gaps == [0.0, 0.0]


def test_a_compiler_that_fails_is_reported_once(failing):
    batch = batch_of(*SHAPES[0])
    failing("torch._inductor.stand_in")
    policy, expected = policy_of(**{"optim.compile": True}), updated(policy_of(), batch)
    for _ in range(2):
        assert torch.equal(updated(policy, batch)[1], expected[1])
    said = "torch.compile failed, and the run goes on uncompiled: RuntimeError: no C++ compiler"
    assert policy.heard == [("not compiled", said)]
    failing("somebody.elses")
    with pytest.raises(RuntimeError, match="no C"):
        updated(policy_of(**{"optim.compile": True}), batch)


def test_a_run_whose_compiler_fails_ends_well(failing, inside, tiny_arguments, tmp_path):
    failing("triton.stand_in")
    ended = inside("train", *tiny_arguments, *UNEVEN, "--steps", 1, "--set", "optim.compile=true", "--out", tmp_path / "run")
    assert ended.returncode == 0, ended.stderr
    assert ended.stderr.count("not compiled: torch.compile failed, and the run goes on uncompiled") == 1
    events = [json.loads(line) for line in (tmp_path / "run/events.jsonl").read_text().splitlines()]
    assert [event["error"] for event in events if event["kind"] == "not compiled"] == ["no C++ compiler\nand a page"]


@pytest.mark.slow
@pytest.mark.cases(one_of_each=1)
@pytest.mark.parametrize(
    ("architecture", "kind", "flags"),
    [
        ("qwen2", "lora", {}),
        ("gemma3", "lora", {}),
        ("llama", "full", {}),
        ("llama", "lora", {"model.gradient_checkpointing": True}),
    ],
)
def test_compiled_updates_are_the_uncompiled_ones_with_few_graphs(architecture, kind, flags, monkeypatch):
    monkeypatch.setattr(compiled, "BACKEND", "aot_eager")
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    off, on = (policy_of(architecture, kind, **flags, **{"optim.compile": asked}) for asked in (False, True))
    for shape in SHAPES:
        (loss, gradient), (other_loss, other) = updated(off, batch_of(*shape)), updated(on, batch_of(*shape))
        assert abs(loss - other_loss) < 1e-6 and (gradient - other).norm() < 1e-5 * gradient.norm()
    assert 0 < torch._dynamo.utils.counters["stats"]["unique_graphs"] <= GRAPHS and on.heard == []


@pytest.mark.slow
@pytest.mark.one_of_each
def test_what_cannot_be_traced_runs_uncompiled(monkeypatch):
    """DoRA keeps PEFT's forward pass."""
    monkeypatch.setattr(compiled, "BACKEND", "aot_eager")
    torch._dynamo.reset()
    off, on = policy_of(kind="dora"), policy_of(kind="dora", **{"optim.compile": True})
    for shape in SHAPES[:2]:
        assert torch.equal(updated(on, batch_of(*shape))[1], updated(off, batch_of(*shape))[1])
    assert [kind for kind, _ in on.heard] == ["not compiled"]


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("g++") is None, reason="there is no C++ compiler")
@pytest.mark.parametrize("has_compiler", [True, pytest.param(False, marks=pytest.mark.one_of_each)])
def test_a_run_is_compiled_where_there_is_a_compiler(has_compiler, microrl, tiny_arguments, tmp_path):
    found, environment = {}, {"TORCHINDUCTOR_CACHE_DIR": str(tmp_path / "cache")}
    if not has_compiler:
        environment["PATH"] = str(Path(sys.executable).parent)
    for asked in ("true", "false"):
        sets = (*UNEVEN, "--set", f"optim.compile={asked}")
        ended = microrl("train", *tiny_arguments, *sets, "--steps", 3, "--out", tmp_path / asked, **environment)
        assert ended.returncode == 0, ended.stderr
        found[asked] = [json.loads(line) for line in (tmp_path / asked / "metrics.jsonl").read_text().splitlines()]
    assert ("not compiled" in (tmp_path / "true/events.jsonl").read_text()) == (not has_compiler)
    assert any((tmp_path / "cache").rglob("*.so")) == has_compiler
    for key in ("policy/entropy", "policy/grad_norm"):
        assert found["true"][0][key] == pytest.approx(found["false"][0][key], rel=1e-4)


@pytest.mark.parametrize(
    ("preset", "device", "few", "many"),
    [("micro-r64", devices.DEVICES["a40"], 1, 100), ("quickstart", devices.cpu(2, 24.0), 100, 100_000)],
)
def test_the_plan_says_where_compiling_will_not_pay(preset, device, few, many):
    def said(steps, asked):
        sets = (f"optim.compile={asked}", f"budget.steps={steps}")
        return [text for text in planned(preset, device=device, sets=sets).notes if "optim.compile" in text]

    (note,) = said(few, "true")
    assert note.startswith("optim.compile=true will not pay off: compiling takes about 47 s, and ")
    assert said(many, "true") == said(few, "false") == []
