"""QLoRA and 8-bit moments with the real bitsandbytes, which computes on a CPU too: only the command line refuses it there."""

import pytest
import torch
from every_adapter import IDS, alike_are_slow, config_of, logits, train
from random_models import random_model, small, with_adapter
from samples import PROMPTS, collect, rows_of
from whole_runs import rows

from microrl.adapters import folder, starts
from microrl.adapters.attach import attach
from microrl.algorithm.batch import Batch, Row
from microrl.config import resolve
from microrl.config.adapters import KINDS
from microrl.config.schema import ModelConfig
from microrl.errors import UserError
from microrl.models import gpu
from microrl.models.forward import adapted
from microrl.models.load import load
from microrl.models.nf4 import Nf4Linear, bytes_in_4_bits, quantize
from microrl.models.tensors import linears, parameter_count, weight_sharing_copy, weights
from microrl.plan.devices import DEVICES
from microrl.plan.shapes import Shape
from microrl.plan.workload import NF4_BYTES, Workload
from microrl.policy.policy import Policy
from microrl.rollout import sync_check
from microrl.rollout.factory import make_engine
from microrl.rollout.sync import SyncChoice
from microrl.rollout.transformers import TransformersEngine
from microrl.run import checkpoint
from microrl.run.checkpoint import State
from microrl.types import BASE, Sampling

REFUSED = {"full", "tinylora"}
CPU = torch.device("cpu")
EIGHT_BITS = {"optim.name": "adamw_8bit", "adapter.rank": 60, "adapter.targets": ["q_proj", "up_proj", "down_proj"]}
"""bitsandbytes keeps tensors from 4,096 numbers on in 8 bits: here those with a side of 96, and not those with one of 64."""


def in_4_bits(architecture="qwen2", dtype=torch.float32):
    model = small(architecture).to(dtype)
    quantize(model, CPU)
    return model.requires_grad_(False)


def numbers(model):
    """An ordinary model with the 4-bit one's weights as numbers."""
    plain = small(model.config.model_type)
    plain.load_state_dict(dict(weights(model, BASE)), strict=False)
    return plain


@pytest.mark.parametrize("architecture", ["llama", "qwen2", "qwen3"])
def test_logits_are_those_of_the_dequantised_weights(architecture):
    model = in_4_bits(architecture)
    assert all(type(layer) is Nf4Linear for layer in linears(model).values()) and len(linears(model)) == 3 * 7
    assert type(model.get_output_embeddings()) is torch.nn.Linear and model.dtype is torch.float32
    plain = numbers(model)
    assert (logits(model) - logits(plain)).abs().max() < 1e-4
    assert (logits(model) - logits(small(architecture))).abs().max() > 0.01, "4 bits are another model"


def test_a_folder_is_loaded_in_4_bits(model_folder):
    """Frozen and in eval mode, as any other; sizes are told in bytes stored, bytes as numbers, and numbers."""
    plain = load(ModelConfig(name=str(model_folder))).model
    expected = bytes_in_4_bits(plain)
    model = load(ModelConfig(name=str(model_folder), quant="nf4")).model
    assert not model.training and not any(parameter.requires_grad for parameter in model.parameters())
    assert gpu.weight_bytes(model) == gpu.weight_bytes(plain) and parameter_count(model) == parameter_count(plain)
    stored = sum(parameter.numel() * parameter.element_size() for parameter in model.parameters())
    scales = sum(layer.weight.quant_state.absmax.numel() * 4 for layer in linears(model).values())
    assert stored + scales == expected < 0.5 * gpu.weight_bytes(plain)
    assert {layer.weight.quant_state.absmax.dtype for layer in linears(model).values()} == {torch.float32}
    in_layers = sum(layer.weight.numel() for layer in linears(plain).values())
    assert gpu.weight_bytes(plain) - expected == in_layers * (4 - NF4_BYTES)
    shape, config = Shape.from_config(plain.config.to_dict()), resolve((), {"model.dtype": "float32", "model.quant": "nf4"})
    assert Workload.from_config(config, shape, DEVICES["a40"]).base_bytes == expected, "and so the plan has it"


def test_a_twin_shares_the_4_bit_weights_and_their_scales():
    model = in_4_bits()
    other = weight_sharing_copy(model)
    for name, layer in linears(model).items():
        theirs = other.get_submodule(name)
        assert theirs is not layer and theirs.weight is layer.weight and theirs.quant_state is layer.quant_state
        assert theirs.quant_state.absmax.data_ptr() == layer.weight.quant_state.absmax.data_ptr()


@pytest.mark.cases(fast=2)
@pytest.mark.parametrize("kind", alike_are_slow(kind for kind in KINDS if kind not in REFUSED))
def test_every_allowed_kind_trains_on_4_bits_and_leaves_exactly(kind, tmp_path):
    """Base and export make the trained model, in memory and from disk; the base's bytes are never written."""
    model = in_4_bits()
    untouched = {name: parameter.clone() for name, parameter in weight_sharing_copy(model).named_parameters()}
    base, before = weight_sharing_copy(model), logits(model)
    attached = attach(model, config_of(kind), seed=1)
    assert (logits(model) - before).abs().max() < 1e-4, "the first forward is the base's"
    train(attached)
    after = logits(model)
    assert (after - before).abs().max() > 0.01, "it has learned something: gradients flow"
    with adapted(base, attached.snapshot(3)):
        assert (logits(base) - after).abs().max() < 1e-4
    assert all(torch.equal(parameter, untouched[name]) for name, parameter in base.named_parameters())
    assert torch.equal(logits(base), before)
    with attached.off():
        assert torch.equal(logits(model), before)
    folder.write(tmp_path, attached)
    with adapted(base, folder.read(tmp_path, base)):
        assert (logits(base) - after).abs().max() < 1e-4


@pytest.mark.parametrize("kind", sorted(REFUSED))
def test_refused_kinds_are_those_that_cannot_be(kind):
    """Said before anything is loaded; and it is true."""
    with pytest.raises(UserError, match="nf4") as refused:
        resolve((), {"adapter.kind": kind, "model.quant": "nf4"})
    assert refused.value.hint
    with pytest.raises(RuntimeError):
        train(attach(in_4_bits(), config_of(kind), seed=1))


@pytest.mark.cases(fast=1)
@pytest.mark.parametrize(
    "kind", ["lora", "dora", *(pytest.param(kind, marks=pytest.mark.slow) for kind in ("pissa", "ia3", "ln", "miss"))]
)
@pytest.mark.parametrize(("dtype", "close"), [(torch.float32, 1e-4), (torch.bfloat16, 0.2)])
def test_engine_and_trainer_agree(kind, dtype, close, tokenizer):
    model = in_4_bits(dtype=dtype)
    engine = TransformersEngine(model, tokenizer, max_kv_gb=1)
    flags = {f"adapter.{name}": value for name, value in config_of(kind).model_dump().items()}
    policy = Policy(model, resolve((), {"sampling.max_completion_tokens": 16, **flags}))
    assert {parameter.dtype for parameter in policy.parameters} == {torch.float32}
    train(policy.adapter, steps=3, lr=0.02)
    rows = rows_of(collect(engine, policy.snapshot(), PROMPTS, Sampling(2, 8)))
    of_base = rows_of(collect(engine, BASE, PROMPTS, Sampling(2, 8)))
    for row, logprobs in zip(rows, policy.logprobs(rows), strict=True):
        assert torch.allclose(torch.tensor(row.engine_logprobs), logprobs.float(), atol=close)
    assert [row.engine_logprobs for row in rows] != [row.engine_logprobs for row in of_base]


def test_the_trainer_computes_in_the_models_type_with_trained_norms():
    """Trained gains are float32, and would make every linear layer's input so; an ordinary layer does not follow there."""
    attached = attach(in_4_bits(dtype=torch.bfloat16), config_of("ln"), seed=0)
    seen = set()
    for layer in linears(attached.model).values():
        layer.register_forward_hook(lambda _module, _inputs, output: seen.add(output.dtype))
    with attached.precision():
        attached.model(input_ids=IDS)
    assert seen == {torch.bfloat16}


def test_the_canary_is_as_large_on_4_bits_as_on_their_numbers():
    """Its first strength follows from the weights' norms, which packed bytes do not have."""
    model = in_4_bits()
    found = {}
    for which, one in (("packed", model), ("numbers", numbers(model))):
        asked = []
        with pytest.raises(ArithmeticError):
            sync_check.canary(one, list(linears(one)), 4, lambda pairs, asked=asked: asked.append(pairs) or 0.0, 1.0)
        found[which] = next(iter(asked[0].values())).scale
    assert found["packed"] == pytest.approx(found["numbers"], rel=1e-6)


def test_kept_starts_are_told_apart_by_scales_too():
    model, other = in_4_bits(), in_4_bits()
    first = starts._cache_path(linears(model), "largest", 4)
    assert first == starts._cache_path(linears(other), "largest", 4)
    next(iter(linears(other).values())).weight.quant_state.absmax.mul_(2)
    assert first != starts._cache_path(linears(other), "largest", 4)


def test_a_merged_model_is_written_as_numbers(tmp_path):
    model = in_4_bits()
    base = weight_sharing_copy(model)
    attached = attach(model, config_of("lora"), seed=1)
    train(attached)
    folder.write_model(tmp_path, base, attached.snapshot(1))
    with adapted(base, folder.read(tmp_path, base)):
        assert (logits(base) - logits(model)).abs().max() < 1e-3


@pytest.mark.slow
@pytest.mark.parametrize("kind", [pytest.param("lora", marks=pytest.mark.one_of_each), "dora"])
def test_a_whole_run_in_4_and_8_bits(kind, inside, tiny_arguments, tmp_path, monkeypatch):
    """Through the command line, which is told that this machine may: trained, saved, evaluated."""
    monkeypatch.setattr("microrl.rollout.preflight._check_bitsandbytes", lambda config: None)
    keys = ["model.quant=nf4", "optim.name=adamw_8bit", "optim.prompts_per_update=2", "model.gradient_checkpointing=true"]
    keys += ["optim.lr=0.002", "sampling.max_completion_tokens=40", "sampling.group_size=8", "reward.overlong.buffer=39"]
    flags = ["--adapter", kind, *(part for key in keys for part in ("--set", key))]
    run = tmp_path / "run"
    done = inside("train", *tiny_arguments, *flags, "--steps", 2, "--out", run)
    assert done.returncode == 0, done.stderr
    lines = rows(run)
    assert sum(line["update/skipped"] for line in lines) < 2, "some updates have a gradient"
    assert max(line["policy/kl_sampler"] for line in lines) < 1e-5
    done = inside("eval", run)
    assert done.returncode == 0, done.stderr


@pytest.mark.vllm
@pytest.mark.xdist_group("engine")
def test_vllm_on_the_dequantised_weights_over_two_updates(model_folder):
    """Its base is the trainer's 4-bit one bit by bit, and every swap and every merge is proved."""
    pytest.importorskip("vllm", reason="vLLM is not installed")
    on_card = torch.cuda.is_available()
    dtype, close, near = ("float16", 0.05, 0.05) if on_card else ("float32", 1e-4, 0.01)
    flags = {
        "engine.kind": "vllm", "adapter.rank": 6, "adapter.alpha": 12.0, "model.dtype": dtype, "data.max_prompt_tokens": 160,
        "sampling.max_completion_tokens": 24, "sampling.prompts_per_step": 4, "sampling.group_size": 4,
    }  # fmt: skip
    config = resolve((), flags)
    model, tokenizer = load(ModelConfig(name=str(model_folder), quant="nf4", dtype=dtype))
    events = []
    engine = make_engine(config, model, tokenizer, on_event=lambda kind, message, **_: events.append(kind))
    policy = Policy(model, config)
    gaps, slopes = [], []
    try:
        with engine.awake(BASE):
            assert engine.driver.weights_difference(BASE) is None
        for _ in range(2):
            step(policy, lr=0.02)
            for mode in ("swap", "merge"):
                engine.choice = SyncChoice(mode, None, lambda *_: None)
                rows = rows_of(collect(engine, policy.snapshot(), PROMPTS, Sampling(4, 24)))
                gaps += [
                    float((torch.tensor(row.engine_logprobs) - logprobs.cpu()).abs().max())
                    for row, logprobs in zip(rows, policy.logprobs(rows), strict=True)
                ]
                slopes.append(engine.report.slope)
                assert engine.report.mode == mode
    finally:
        engine.close()
    assert max(gaps) < close and slopes == [pytest.approx(1, abs=near)] * 4
    assert events == ["probe calibrated", "probe"], "nothing had to be tried again"


# ---- 8-bit moments


def batch(groups=2):
    rows = tuple(
        Row((5, 6, 7 + n), (8 + n, 9, 10 + n, 40 + n), (-5.0,) * 4, (1.0, -1.0)[n % 2], True, n // 2) for n in range(2 * groups)
    )
    return rows, groups


def step(policy, lr=1e-3):
    rows, groups = batch()
    policy.update(Batch(rows, groups, policy.version), lr=lr)
    policy.is_consistent = True


def everything(policy):
    """Weights and the optimiser's whole state, in order."""
    found = [parameter.detach().clone() for parameter in policy.parameters]
    for parameter in policy.parameters:
        found += [torch.as_tensor(value).clone() for _, value in sorted(policy.optimizer.state[parameter].items())]
    return found


def same(left, right):
    return len(left) == len(right) and all(torch.equal(a, b) for a, b in zip(left, right, strict=True))


def test_8_bit_moments_are_there_from_the_start_and_small():
    policy = with_adapter(random_model("qwen2"), **EIGHT_BITS)
    types = {}
    for parameter in policy.parameters:
        state = policy.optimizer.state[parameter]
        types.setdefault(parameter.numel() >= 4096, set()).add(state["state1"].dtype)
        assert state["state1"].shape == state["state2"].shape == parameter.shape and state["step"] == 0
    assert types == {True: {torch.uint8}, False: {torch.float32}}
    large = [parameter for parameter in policy.parameters if parameter.numel() >= 4096]
    taken = sum(policy.optimizer.state[p][part].nbytes for p in large for part in ("state1", "state2", "absmax1", "absmax2"))
    work = Workload(resolve((), {"optim.name": "adamw_8bit"}), None, None, sum(p.numel() for p in large), "float32")
    assert work.moment_bytes == pytest.approx(taken, rel=0.01), "and so the plan has it"
    moments = {id(policy.optimizer.state[p]["state1"]) for p in policy.parameters}
    step(policy)
    assert {id(policy.optimizer.state[p]["state1"]) for p in policy.parameters} == moments, "none is made anew"


def test_an_8_bit_step_is_close_to_adamws():
    policies = {}
    for name in ("adamw", "adamw_8bit"):
        policies[name] = with_adapter(random_model("qwen2"), **EIGHT_BITS | {"optim.name": name, "optim.weight_decay": 0.1})
        before = torch.cat([parameter.detach().flatten() for parameter in policies[name].parameters])
        for _ in range(4):
            step(policies[name])
    after = {name: torch.cat([p.detach().flatten() for p in policy.parameters]) for name, policy in policies.items()}
    moved = (after["adamw"] - before).norm()
    assert moved > 0 and (after["adamw_8bit"] - after["adamw"]).norm() < 0.1 * moved
    assert not torch.equal(after["adamw_8bit"], after["adamw"])


@pytest.mark.cases(fast=1)
@pytest.mark.parametrize("kind", ["lora", "lora+"])
@pytest.mark.parametrize("name", ["adamw", "adamw_8bit"])
def test_a_checkpoint_brings_every_bit_back(name, kind, tmp_path):
    flags = EIGHT_BITS | {"optim.name": name, "adapter.kind": kind}
    policy = with_adapter(random_model("qwen2"), **flags)
    for _ in range(3):
        step(policy)
    saved = everything(policy)
    path = checkpoint.save(tmp_path, policy, State(step=3))
    other = with_adapter(random_model("qwen2"), **flags)
    assert not same(everything(other), saved)
    checkpoint.restore(path, other)
    assert same(everything(other), saved)
    step(policy), step(other)
    assert same(everything(other), everything(policy)) and not same(everything(policy), saved)


def test_lora_plus_keeps_its_two_rates_with_8_bit_moments():
    policy = with_adapter(random_model("qwen2"), **EIGHT_BITS | {"adapter.kind": "lora+", "adapter.ratio": 4.0})
    before = {name: parameter.detach().clone() for name, parameter in policy.adapter.parameters.items()}
    step(policy, lr=1e-3)
    # AdamW's first step is the rate itself, wherever there is a gradient
    moved = {
        name: float((parameter.detach() - before[name]).abs().max()) for name, parameter in policy.adapter.parameters.items()
    }
    for name, distance in moved.items():
        assert distance == pytest.approx(4e-3 if "lora_B" in name else 1e-3, rel=0.02), name


def test_an_update_that_ends_halfway_leaves_no_trace_in_8_bit_moments(monkeypatch):
    policy = with_adapter(random_model("qwen2"), **EIGHT_BITS | {"optim.prompts_per_update": 1})
    step(policy)
    before = everything(policy)
    calls = []
    real = policy.optimizer.step

    def once():
        if calls:
            raise KeyboardInterrupt
        calls.append(real())

    monkeypatch.setattr(policy.optimizer, "step", once)
    with pytest.raises(KeyboardInterrupt):
        step(policy)
    assert calls and same(everything(policy), before), "moments, and the steps that they have seen"
