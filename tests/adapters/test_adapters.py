"""Every adapter: what it trains, where it starts, and that what leaves it is what it computes."""

import json

import pytest
import torch
from architectures import tiny
from every_adapter import ALIKE, IDS, ORTHONORMAL, TRAINED, alike_are_slow, config_of, logits, ten_steps, train
from peft import PeftModel
from random_models import random_model, small
from safetensors.torch import load_file, save_file
from samples import PROMPTS, collect, rows_of
from transformers import AutoModelForCausalLM

from microrl.adapters import folder, starts
from microrl.adapters.adalora import RankAllocator
from microrl.adapters.attach import attach
from microrl.config import resolve
from microrl.config.adapter import kind_of
from microrl.config.adapters import KINDS, FullConfig, documentation
from microrl.errors import UserError
from microrl.models.forward import adapted
from microrl.models.tensors import dequantize, weight_sharing_copy
from microrl.policy.policy import Policy
from microrl.rollout.transformers import TransformersEngine
from microrl.types import AdapterSnapshot, Sampling

EXPORTED = [(kind, architecture) for kind in KINDS for architecture in ("llama", "qwen2", "qwen3")]
ON_ALL = ("lora", "dora", "full")


@pytest.mark.cases(fast=4)
@pytest.mark.parametrize(
    ("kind", "architecture"),
    [
        pytest.param(*pair, marks=[] if pair[0] in ON_ALL or (pair[1] == "qwen2" and pair[0] not in ALIKE) else pytest.mark.slow)
        for pair in EXPORTED
    ],
)
def test_base_and_export_make_the_trained_model(kind, architecture, tmp_path):
    """After some steps: its own logits, those of the untouched base with its export, and those of its folder on disk."""
    model = small(architecture)
    untouched = {name: tensor.clone() for name, tensor in model.named_parameters()}
    base, before = weight_sharing_copy(model), logits(model)
    attached = attach(model, config_of(kind), seed=1)
    assert (logits(model) - before).abs().max() < 1e-5, "the first forward is the base's"
    assert set(attached.counts()) == TRAINED[kind] - ({"bias"} if architecture != "qwen2" else set())
    assert {id(p) for p in model.parameters() if p.requires_grad} == {id(p) for p in attached.parameters.values()}
    train(attached)
    after = logits(model)
    assert (after - before).abs().max() > 0.01, "it has learned something"
    snapshot = attached.snapshot(3)
    with adapted(base, snapshot):
        assert (logits(base) - after).abs().max() < 1e-4
    assert all(torch.equal(tensor, untouched[name]) for name, tensor in base.named_parameters()), "the base is never written"
    with attached.off(), torch.no_grad():
        assert torch.equal(logits(model), before), "the reference is the untouched base"
    assert {id(p) for p in model.parameters() if p.requires_grad} == {id(p) for p in attached.parameters.values()}
    folder.write(tmp_path, attached)
    if (path := tmp_path / "adapter_config.json").exists():
        names = [value for value in json.loads(path.read_text()).values() if isinstance(value, list)]
        assert names and all(value == sorted(value) for value in names), "not in hash order, which differs by process"
    with adapted(base, folder.read(tmp_path, base)):
        assert (logits(base) - after).abs().max() < 1e-4
    pair_rank = attached.config.pair_rank
    assert bool(snapshot.pairs) == (pair_rank is not None) != bool(snapshot.merged)
    assert all(len(pair.A_RI) == pair_rank for pair in snapshot.pairs.values())


@pytest.mark.cases(fast=5)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, pytest.param(torch.float16, marks=pytest.mark.slow)])
@pytest.mark.parametrize("kind", alike_are_slow(KINDS))
def test_what_is_trained_does_not_depend_on_the_type_of_the_base(kind, dtype):
    model = small("qwen2").to(dtype)
    attached = attach(model, config_of(kind), seed=1)
    assert set(attached.counts()) == TRAINED[kind]
    assert {p.dtype for p in attached.parameters.values()} == {torch.float32}
    trained = {id(p) for p in attached.parameters.values()}
    with attached.off():
        pass
    assert {id(p) for p in model.parameters() if p.requires_grad} == trained


def test_adaloras_scale_is_not_rounded_to_the_type_of_the_base():
    """bfloat16 has no 301: a rank counter of that type would give another scale."""
    found = {}
    for dtype in (torch.float32, torch.bfloat16):
        model = small("qwen2").to(dtype)
        layer = torch.nn.Linear(320, 320, bias=False, dtype=dtype).requires_grad_(False)
        model.get_submodule("model.layers.0.mlp").add_module("up_proj", layer)
        config = config_of("adalora", rank=301, alpha=301.0, targets=["up_proj"])
        model.model.layers = model.model.layers[:1]
        (pair,) = attach(model, config, seed=1).snapshot(0).pairs.values()
        found[dtype] = pair.scale
    assert found[torch.bfloat16] == found[torch.float32] == pytest.approx(1.0, abs=1e-6)


def test_every_kind_says_what_it_is():
    assert set(KINDS) == set(TRAINED)
    for kind, cls in KINDS.items():
        form, source, served = documentation(cls)
        assert form and source and len(cls.__doc__.strip().splitlines()) == 2, kind
        config = config_of(kind)
        expected = {None: "merged weights", 6: "a pair", 12: "a pair of rank 2r"}[config.pair_rank]
        assert served == expected, kind


@pytest.mark.cases(one_of_each=3)
@pytest.mark.slow
@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "lora"])
def test_no_kind_is_lora_in_disguise(kind):
    """At the same seed after the same steps every other kind has made another change than plain LoRA."""
    found = {}
    for name in ("lora", kind):
        model = small("qwen2")
        attached = attach(model, config_of(name), seed=1)
        train(attached)
        found[name] = logits(model)
    assert (found[kind] - found["lora"]).abs().max() > 1e-3


def known_spectrum(out, width, values):
    generator = torch.Generator().manual_seed(0)
    size = min(out, width)
    U = torch.linalg.qr(torch.randn(out, size, generator=generator, dtype=torch.float64)).Q
    V = torch.linalg.qr(torch.randn(width, size, generator=generator, dtype=torch.float64)).Q
    return U, V, ((U * values) @ V.t())


def layer_of(weight):
    layer = torch.nn.Linear(weight.shape[1], weight.shape[0], bias=False)
    layer.weight = torch.nn.Parameter(weight.float(), requires_grad=False)
    return layer


@pytest.mark.parametrize(("out", "width"), [(48, 30), (30, 48), (30, 30)])
@pytest.mark.parametrize("rank", [1, 7, 30])
def test_singular_vectors_of_a_known_spectrum(out, width, rank):
    values = torch.linspace(3.0, 0.01, 30, dtype=torch.float64)
    U, V, weight = known_spectrum(out, width, values)
    for end, part in (("largest", slice(0, rank)), ("smallest", slice(30 - rank, 30))):
        found = starts.singular(weight.float(), rank, end)
        assert torch.allclose(found.S_R, values[part], atol=1e-6)
        for mine, theirs in ((found.V_IR, V[:, part]), (found.U_OR, U[:, part])):
            assert torch.allclose(mine.t() @ mine, torch.eye(rank, dtype=torch.float64), atol=1e-6)
            assert torch.allclose((mine * theirs).sum(0).abs(), torch.ones(rank, dtype=torch.float64), atol=1e-4)
        assert torch.allclose(weight @ found.V_IR, found.U_OR * found.S_R, atol=1e-5)


def test_a_weight_without_full_rank_has_orthonormal_starts_all_the_same():
    values = torch.cat([torch.linspace(2, 1, 10), torch.zeros(20)]).double()
    _, _, weight = known_spectrum(48, 30, values)
    found = starts.singular(weight.float(), 15, "smallest")
    for vectors in (found.U_OR, found.V_IR):
        assert torch.allclose(vectors.t() @ vectors, torch.eye(15, dtype=torch.float64), atol=1e-6)
    assert found.S_R.abs().max() < 1e-5


def test_starts_by_the_definitions():
    """On one known layer: which end, which factor, which scale."""
    values = torch.linspace(3.0, 0.5, 30, dtype=torch.float64)
    U, V, weight = known_spectrum(48, 30, values)
    layers = {"x": layer_of(weight)}

    def start(kind):
        pair = starts.compute(layers, config_of(kind, rank=4, alpha=8.0), seed=0).pairs["x"]
        return pair.A_RI.double(), None if pair.B_OR is None else pair.B_OR.double()

    top, low = slice(0, 4), slice(26, 30)
    for kind, part, scale in (("pissa", top, 2.0), ("milora", low, 2.0)):
        A, B = start(kind)
        assert torch.allclose(scale * B @ A, (U[:, part] * values[part]) @ V[:, part].t(), atol=1e-5), kind
        assert torch.allclose((B.t() @ B).diagonal(), values[part] / scale, atol=1e-5), "S is shared out evenly"
    for kind, part in (("olora", top), ("olora-tail", low)):
        A, B = start(kind)
        assert torch.allclose(B @ A, U[:, part] @ V[:, part].t(), atol=1e-5), kind
    A, B = start("olora-qr")
    Q, R = torch.linalg.qr(weight)
    assert torch.allclose(B @ A, Q[:, :4] @ R[:4], atol=1e-5)
    for kind, part in (("lora-rlpo", top), ("lora-rlmo", low)):
        A, B = start(kind)
        assert B is None and torch.allclose(A.t() @ A, V[:, part] @ V[:, part].t(), atol=1e-5), kind


@pytest.mark.parametrize("kind", ORTHONORMAL)
def test_orthonormal_starts(kind):
    """A A^T = I, at ranks that divide no layer, in every layer of a model."""
    model = random_model("llama")
    attached = attach(model, config_of(kind, rank=13), seed=0)
    for pair in attached.snapshot(0).pairs.values():
        assert torch.allclose(pair.A_RI @ pair.A_RI.t(), torch.eye(13), atol=1e-5) and not pair.B_OR.any()
    assert attached.start is not None and attached.start.seconds > 0


def test_the_cosine_and_haar_transforms_by_hand():
    half = 0.5**0.5
    assert torch.allclose(starts.dct(2, 2), torch.tensor([[half, half], [half, -half]]).double())
    assert torch.allclose(starts.dct(8, 8) @ starts.dct(8, 8).t(), torch.eye(8).double(), atol=1e-12)
    # The transform is orthonormal: a whole basis stays one, and widths that halve once or never work.
    for width in (8, 6, 7):
        A = starts.wavelet(5, width, torch.Generator().manual_seed(1))
        assert torch.allclose(A @ A.t(), torch.eye(5).double(), atol=1e-12)


def test_starts_come_from_the_cache_the_second_time(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(starts, "MIN_CACHED_S", 0.0)
    found = [attach(random_model("llama"), config_of(kind), seed=0) for kind in ("lora-rlpo", "lora-rlpo", "pissa", "milora")]
    assert [attached.start.cached for attached in found] == [False, True, True, False], "pissa needs the same singular vectors"
    first, again = (attached.snapshot(0).pairs for attached in found[:2])
    assert all(torch.allclose(first[name].A_RI, again[name].A_RI, atol=1e-7) for name in first)
    (kept, *_) = sorted((tmp_path / "microrl" / "starts").iterdir())
    kept.write_bytes(kept.read_bytes()[:100])
    model = random_model("llama")
    model.get_parameter("model.layers.0.self_attn.q_proj.weight").mul_(1.001)
    assert not attach(model, config_of("lora-rlpo"), seed=0).start.cached, "other weights"
    for kind in ("lora-rlpo", "lora-rlmo"):
        attach(random_model("llama"), config_of(kind), seed=0)  # the torn file is computed again


def plain_step(model, config, eta):
    """Delta W of a plain gradient step of size eta in every factor, [name: (before, after)] as dense updates."""
    attached = attach(model, config, seed=0)
    before = dense_updates(attached)
    out = attached.model(input_ids=IDS).logits[:, :-1]
    torch.nn.functional.cross_entropy(out.flatten(0, 1), IDS[:, 1:].flatten()).backward()
    with torch.no_grad():
        for parameter in attached.parameters.values():
            parameter -= eta * parameter.grad
    return {name: after - before[name] for name, after in dense_updates(attached).items()}


def dense_updates(attached):
    if isinstance(attached.config, FullConfig):
        return {n.removesuffix(".weight"): p.detach().clone() for n, p in attached.parameters.items() if "_proj.weight" in n}
    return {name: pair.scale * pair.B_OR @ pair.A_RI for name, pair in attached.snapshot(0).pairs.items()}


def test_theorem_4_1_and_proposition_5_3():
    """ortho: pissa's first update is at least sigma_r times olora's; one from an orthonormal A no longer than full tuning's."""
    rank, eta = 5, 1e-6
    config = {kind: config_of(kind, rank=rank, alpha=float(rank)) for kind in ("pissa", "olora", *ORTHONORMAL)}
    models = {kind: small("llama").double() for kind in (*config, "full")}
    sigma = {
        name.removesuffix(".weight"): float(torch.linalg.svdvals(weight)[rank - 1])
        for name, weight in models["full"].named_parameters()
        if "_proj.weight" in name
    }
    found = {kind: plain_step(model, config.get(kind, FullConfig()), eta) for kind, model in models.items()}
    for name, value in sigma.items():
        pissa, olora = found["pissa"][name].norm(), found["olora"][name].norm()
        assert pissa / olora >= value * (1 - 1e-3), name
        for kind in ORTHONORMAL:
            assert found[kind][name].norm() <= found["full"][name].norm() * (1 + 1e-3), (kind, name)


def test_residual_starts_have_a_norm_and_others_none():
    values = {kind: attach(small("llama"), config_of(kind), seed=0).start_norm() for kind in ("lora", "pissa", "olora", "milora")}
    assert values["lora"] == 0 and values["olora"] == pytest.approx(6**0.5, rel=1e-5), "r singular values of 1"
    assert values["pissa"] > values["milora"] > 0


def test_a_rank_above_a_layers_is_capped_only_where_that_is_the_definition():
    attached = attach(small("qwen2"), config_of("tinylora", rank=40), seed=0)
    (note,) = attached.notes
    assert "rank 40 exceeds the full rank of 6 layers, such as model.layers.0.self_attn.k_proj" in note
    assert {len(pair.A_RI) for pair in attached.snapshot(0).pairs.values()} == {32, 40}
    for kind in ("pissa", "lora-rlmo", "vera", "miss"):
        with pytest.raises(UserError, match="rank 40 is above 32, the smaller side of model"):
            attach(small("qwen2"), config_of(kind, rank=40), seed=0)
    (note,) = attach(small("qwen2"), config_of("lora-rlpo", rank=32), seed=0).notes
    assert "span the same space" in note


@pytest.mark.cases(fast=3)
@pytest.mark.parametrize("kind", alike_are_slow(KINDS))
def test_a_state_goes_back_bit_by_bit_and_no_other_kind_takes_it(kind, tmp_path):
    attached = attach(small("qwen2"), config_of(kind), seed=1)
    train(attached, steps=3)
    state = {name: tensor.clone() for name, tensor in attached.state().items()}
    other = attach(small("qwen2"), config_of(kind), seed=2, fresh=False)
    other.load(state, tmp_path)
    assert torch.equal(logits(other.model), logits(attached.model)), kind
    wrong = attach(small("qwen2"), config_of("ia3" if kind != "ia3" else "lora"), seed=1)
    with pytest.raises(UserError, match="does not hold an adapter of this kind"):
        wrong.load(state, tmp_path)


def test_adalora_cuts_to_its_budget_and_keeps_what_matters():
    config = config_of("adalora", hold_first=0.2, hold_last=0.3)
    attached = attach(small("qwen2"), config, seed=1)
    allocator: RankAllocator = attached.allocator
    layers = len(attached.snapshot(0).pairs)
    assert [allocator.kept(progress) for progress in (0.0, 0.2, 0.7, 1.0)] == [6 * layers, 6 * layers, 4 * layers, 4 * layers]
    # halfway between the holds: 4 + 2 / 8 a layer
    assert allocator.kept(0.45) == int(layers * 4.25)
    train(attached, steps=6, progress=0.9)
    left = sum(int((attached.parameters[name] != 0).sum()) for name in attached.parameters if "lora_E" in name)
    assert left == 4 * layers
    assert attached.regulariser().item() > 0


def test_lora_plus_has_two_rates(tokenizer):
    policy = Policy(random_model("qwen2"), resolve((), {"adapter.kind": "lora+", "adapter.rank": 4}, ["adapter.ratio=4"]))
    assert [group["factor"] for group in policy.optimizer.param_groups] == [1.0, 4.0]
    names = {id(parameter): name for name, parameter in policy.adapter.parameters.items()}
    sides = [{"lora_B" in names[id(p)] for p in group["params"]} for group in policy.optimizer.param_groups]
    assert sides == [{False}, {True}]


@pytest.mark.cases(fast=3)
@pytest.mark.parametrize("kind", alike_are_slow(KINDS))
@torch.no_grad()
def test_the_first_forward_on_a_narrow_base_is_the_bases(kind):
    """Whatever PEFT rounds to the base's type at its start (DoRA's m, VeRA's d) begins where the definition says."""
    model = small("qwen2").to(torch.bfloat16)
    before = logits(model)
    attached = attach(model, config_of(kind), seed=1)
    with attached.precision():
        after = logits(model)
    assert (after - before).abs().max() < (0.03 if kind == "full" else 1e-6), "full's residual stream is wider"
    if kind in ("ia3", "ln"):
        assert "are rounded away" in attached.notes[0]
    if kind == "vera":
        assert all((p == 0.1).all() for name, p in attached.parameters.items() if "lambda_d" in name)


def test_an_update_of_a_residual_base_is_refused(tmp_path):
    """PEFT's own PiSSA writes the base: without that base its pair is another update."""
    settings = {"peft_type": "LORA", "init_lora_weights": "pissa_niter_4", "r": 4, "lora_alpha": 4}
    (tmp_path / "adapter_config.json").write_text(json.dumps(settings))
    with pytest.raises(UserError, match="is relative to a modified base model"):
        folder.read(tmp_path, small("qwen2"))


@pytest.mark.parametrize("kind", ["full", "ln"])
@torch.no_grad()
def test_trained_base_weights_are_scored_as_the_base_was(kind):
    """bfloat16 with a float32 head: under autocast the logits would be rounded, and the probe would see a difference."""
    model = small("qwen2").to(torch.bfloat16)
    policy = Policy(model, resolve((), {"adapter.kind": kind, "model.head_dtype": "float32"}))
    (ours,) = policy.score([tuple(IDS[0].tolist())])
    with policy.adapter.precision():
        states = model.base_model(input_ids=IDS[:1]).last_hidden_state[0].to(torch.bfloat16)
    exact = (states.double() @ model.get_output_embeddings().weight.to(torch.bfloat16).double().t()).log_softmax(-1)
    expected = exact[:-1].gather(1, IDS[0, 1:, None])[:, 0]
    assert (ours.double() - expected).abs().max() < 1e-5


AGREEING = ("lora", "dora", "adalora", "pissa", "ia3", "full")
IN_BFLOAT16 = [pytest.param(kind, marks=() if kind in AGREEING else pytest.mark.slow) for kind in KINDS]


@pytest.mark.cases(fast=2)
@pytest.mark.parametrize("kind", IN_BFLOAT16)
def test_engine_and_trainer_agree_in_bfloat16(kind, tokenizer):
    """Trained tensors are float32 whatever the base is; the engine follows to bfloat16's accuracy."""
    model = small("qwen2").to(torch.bfloat16)
    engine = TransformersEngine(model, tokenizer, max_kv_gb=1)
    flags = {f"adapter.{name}": value for name, value in config_of(kind).model_dump().items()}
    policy = Policy(model, resolve((), {"sampling.max_completion_tokens": 16, **flags}))
    assert {parameter.dtype for parameter in policy.parameters} == {torch.float32}
    train(policy.adapter, steps=2, lr=0.01)
    rows = rows_of(collect(engine, policy.snapshot(), PROMPTS, Sampling(2, 8)))
    for row, logprobs in zip(rows, policy.logprobs(rows), strict=True):
        assert torch.allclose(torch.tensor(row.engine_logprobs), logprobs.float(), atol=0.2)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--adapter", "ia3", "--rank", "8"], "`ia3` has no `rank`"),
        (["--adapter", "ln", "--rank", "8"], "`ln` has no `rank`"),
        (["--adapter", "full", "--set", "adapter.alpha=3"], "`full` has no `alpha`"),
        (["--adapter", "lora", "--set", "adapter.ratio=3"], "`lora` has no `ratio`"),
        (["--adapter", "lorra"], "did you mean `lora`"),
        (["--adapter", "lora", "--set", 'adapter.targets=["q_prj"]'], "q_proj"),
        (["--adapter", "ia3", "--set", 'adapter.targets=["wq"]'], "q_proj"),
        (["--adapter", "pissa", "--rank", "900"], "rank 900 is above"),
        (["--adapter", "adalora", "--rank", "4", "--set", "adapter.target_rank=5"], "target_rank 5 is above"),
        (["--set", "model.quant=nf4"], "GPU"),
        (["--teacher", "quickstart", "--set", "distill.quant=nf4"], "distill.quant=nf4 needs a GPU"),
        (["--set", "optim.name=adamw_8bit"], "GPU"),
        (["--adapter", "full", "--set", "model.quant=nf4"], "frozen"),
    ],
)
def test_what_cannot_be_is_refused_with_a_hint(inside, model_folder, data_file, tmp_path, arguments, said):
    done = inside("train", "--model", model_folder, "--data", data_file, "--steps", 1, "--out", tmp_path / "x", *arguments)
    assert done.returncode == 2 and said in done.stderr and "hint:" in done.stderr, done.stderr
    assert not (tmp_path / "x").exists()


@pytest.mark.slow
@pytest.mark.parametrize("kind", [pytest.param(kind, marks=pytest.mark.one_of_each if kind == "dora" else ()) for kind in KINDS])
def test_ten_steps_of_every_kind(inside, tiny_arguments, tmp_path, kind):
    ten_steps(inside, tiny_arguments, tmp_path, kind, "transformers")


def test_an_adapter_of_another_model_is_refused(tmp_path):
    attached = attach(small("llama"), config_of("lora"), seed=0)
    folder.write(tmp_path / "pair", attached)
    other = small("qwen2")
    settings = json.loads((tmp_path / "pair" / "adapter_config.json").read_text())
    assert settings["r"] == 6 and settings["lora_alpha"] == 12 and settings["peft_type"] == "LORA"
    folder.read(tmp_path / "pair", other)  # the shapes are the same
    wider = torch.nn.Linear(80, 64, bias=False)
    other.get_submodule("model.layers.1.mlp").add_module("up_proj", wider)
    with pytest.raises(UserError, match=r"for another model: `model.layers.1.mlp.up_proj`"):
        folder.read(tmp_path / "pair", other)
    with pytest.raises(UserError, match="neither an adapter nor a model"):
        folder.read(tmp_path, other)


@pytest.mark.parametrize("model_type", ["qwen3_next", "glm4_moe"])
def test_an_adapter_of_a_mixture_of_experts_is_on_what_peft_tells_from_them(model_type, tmp_path):
    """PEFT takes these names for those of all experts, which are one tensor: what has a rank spares them, and others need not."""
    experts = {"gate_proj", "up_proj", "down_proj"}
    model, base = tiny(model_type), tiny(model_type)
    attached = attach(model, config_of("lora"), seed=0)
    assert not experts & {kind_of(name) for name in attached.snapshot(1).pairs}
    train(attached)
    folder.write(tmp_path, attached)
    again = PeftModel.from_pretrained(base, tmp_path)
    assert (logits(again) - logits(model)).abs().max() < 1e-4
    assert any("down_proj" in name for name in attach(tiny(model_type), config_of("ia3"), seed=0).parameters)
    with pytest.raises(UserError, match=r"`up_proj` .*for an expert") as error:
        attach(tiny(model_type), config_of("lora", targets=["q_proj", "up_proj"]), seed=0)
    assert "q_proj" in error.value.hint


@pytest.mark.parametrize("model_type", ["qwen3_moe", "granitemoehybrid"])
def test_a_mixture_of_experts_that_was_trained_whole_is_read_back(model_type, tmp_path):
    """A checkpoint has each expert by itself, or under another name, and the model has all in one tensor."""
    model, base = tiny(model_type), tiny(model_type)
    attached = attach(model, FullConfig(), seed=0)
    train(attached)
    folder.write(tmp_path, attached)
    merged = folder.read(tmp_path, base).merged
    assert merged.keys() == attached.parameters.keys()
    assert all(torch.equal(merged[name](None), tensor) for name, tensor in attached.parameters.items())
    tensors = load_file(tmp_path / "model.safetensors")
    first = next(name for name in tensors if "expert" in name or "block_sparse_moe" in name)
    for damaged in ({first: tensors[first][..., :-1].contiguous()}, {first + "s": tensors[first]}):
        save_file(
            {**{name: tensor for name, tensor in tensors.items() if name != first}, **damaged}, tmp_path / "model.safetensors"
        )
        with pytest.raises(UserError, match=r"is for another model: .* (do|does) not fit"):
            folder.read(tmp_path, base)


def test_a_saved_model_has_the_buffers_that_its_checkpoint_had(tmp_path):
    """Gemma 4 has a scalar for each layer, which is no parameter."""
    model = tiny("gemma4_text")
    attached = attach(model, FullConfig(), seed=0)
    train(attached)
    folder.write(tmp_path, attached)
    assert (logits(AutoModelForCausalLM.from_pretrained(tmp_path)) - logits(model)).abs().max() < 1e-4


def test_dense_leaves_ordinary_weights_alone():
    weight = torch.nn.Parameter(torch.ones(2, 2))
    assert dequantize(weight) is weight
    assert AdapterSnapshot(1).is_base
