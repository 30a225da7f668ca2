"""What the plan says of a teacher, against what one takes that is loaded, and numbers worked out by hand."""

import json

import pytest
import torch
from command_line import in_process
from planned import A40
from random_models import as_loaded, small

from microrl.adapters.attach import attach
from microrl.commands.bench import logprob
from microrl.config import resolve
from microrl.limits import CPU_CHUNK_ROWS, chunk_elements
from microrl.models.forward import Head
from microrl.models.nf4 import quantize
from microrl.models.tensors import weight_sharing_copy
from microrl.plan import Shape, make
from microrl.plan.devices import DEVICES
from microrl.plan.memory import CHUNK_BUFFERS, DIVERGENCE_BUFFERS
from microrl.plan.source import shape_of
from microrl.plan.workload import TeacherSize
from microrl.policy.divergence import Divergence
from microrl.policy.logprobs import chosen_logprobs
from microrl.policy.teacher import Teacher
from microrl.run.teacher import find, size
from microrl.types import BASE


def held(model):
    """Storages of a model's tensors by address, with their bytes."""
    tensors = [*model.parameters(), *model.buffers()]
    return {one.untyped_storage().data_ptr(): one.untyped_storage().nbytes() for one in tensors}


def trained(model, kind):
    adapter = {} if kind == "full" else {"adapter.rank": 4}
    return attach(weight_sharing_copy(model), resolve((), {"adapter.kind": kind, **adapter}).adapter, seed=1).snapshot(1)


@pytest.mark.parametrize(("kind", "quant"), [(None, None), ("dora", None), ("full", None), (None, "nf4"), ("dora", "nf4")])
@pytest.mark.parametrize("is_shared", [False, True])
def test_bytes_are_those_of_a_teacher_that_is_loaded(kind, quant, is_shared):
    """Beyond the student's own. Not counted here are the scales of 4 bits, 4 per cent of so small a model."""
    student, shape = as_loaded(small("qwen2")), Shape.from_config(small("qwen2").config.to_dict())
    base = student if is_shared else as_loaded(small("qwen2"))
    update = BASE if kind is None else trained(base, kind)
    if quant is not None:
        quantize(base, torch.device("cpu"))
    before = held(student)
    teacher = Teacher(base, update)
    own = {place: taken for place, taken in held(teacher._model).items() if place not in before}
    if quant is not None and not is_shared:  # the base's changed layers are still there
        own |= held(base)
    changed = {None: 0, "dora": shape.body_weights, "full": shape.parameters}[kind]
    said = TeacherSize(shape, is_shared, quant, changed=changed).bytes(4)
    assert said == pytest.approx(sum(own.values()), rel=0.02 if quant is None else 0.05, abs=2000)


def test_a_runs_adapter_is_counted_by_its_pairs(wares, model_folder, monkeypatch):
    config = resolve((), {"model.name": str(model_folder), "distill.teacher": str(wares / "done")})
    rank = find(str(wares / "done")).config.adapter.rank
    shape = shape_of(str(model_folder))
    sides = shape.layers * sum(linear.n_in + linear.n_out for linear in shape.linears)
    assert size(config) == TeacherSize(shape, True, None, 4.0 * rank * sides)
    adapter = config.model_copy(update={"distill": config.distill.model_copy(update={"teacher": str(wares / "adapter")})})
    (weights,) = (wares / "adapter").glob("*.safetensors")
    assert size(adapter).pair_bytes == weights.stat().st_size and size(resolve()) is None
    monkeypatch.setattr("microrl.plan.source.is_at_hand", lambda name: False)
    assert size(config, is_at_hand=True) is None


def of(teacher, **flags):
    config = resolve((), {"model.name": "Qwen2.5-1.5B-Instruct", "distill.teacher": "Qwen2.5-7B-Instruct", **flags})
    return make(config, shape_of("Qwen2.5-1.5B-Instruct"), A40, teacher=teacher)


def test_a_second_model_by_hand():
    """7,615,616,512 parameters: 15.2 GB in 16 bits, in both phases. In 4 bits 28 x 233,046,016 weights are 6.4 GB less a bit."""
    large, without = shape_of("Qwen2.5-7B-Instruct"), of(None)
    found = of(size(resolve((), {"distill.teacher": "Qwen2.5-7B-Instruct"})))
    for parts in (found.sampling_gb, found.updating_gb):
        assert parts["teacher"] == pytest.approx(2 * 7_615_616_512 / 1e9, abs=1e-3)
    assert "teacher" not in without.sampling_gb and not any("teacher" in note for note in found.notes)
    quantized = of(TeacherSize(large, False, "nf4"))
    assert large.body_weights == 28 * 233_046_016
    assert quantized.sampling_gb["teacher"] == pytest.approx(
        (2 * 7_615_616_512 - (2 - 0.5625) * large.body_weights) / 1e9, rel=0.02
    )
    assert of(TeacherSize(large, True)).sampling_gb == without.sampling_gb, "a base that is shared takes nothing"
    assert found.load_s > without.load_s == of(TeacherSize(large, True)).load_s


def test_a_teacher_that_does_not_fit_is_put_into_4_bits():
    """Qwen2.5-14B has 29.5 GB in 16 bits, more than an RTX 4090."""
    large = Shape.from_config(
        {
            "model_type": "qwen2", "vocab_size": 152064, "hidden_size": 5120, "intermediate_size": 13824,
            "num_hidden_layers": 48, "num_attention_heads": 40, "num_key_value_heads": 8, "tie_word_embeddings": False,
        }
    )  # fmt: skip
    config = resolve((), {"model.name": "Qwen2.5-1.5B-Instruct", "distill.teacher": "large"})
    found = make(config, shape_of("Qwen2.5-1.5B-Instruct"), DEVICES["4090"], teacher=TeacherSize(large, False))
    assert not found.fits and any("distill.quant=nf4: the teacher in 4 bits" in advice for advice in found.advice), found.advice


def test_sft_does_not_ask_the_teacher():
    """Nor does it compute what only mini-batches and steering need."""
    teacher, more = size(resolve((), {"distill.teacher": "Qwen2.5-7B-Instruct"})), {"optim.prompts_per_update": 8}
    with_it = of(teacher, **{"sft.steps": 32, **more}).sft_s
    alone = make(
        resolve((), {"model.name": "Qwen2.5-1.5B-Instruct", "sft.steps": 32, "optim.lr": 1e-5}),
        shape_of("Qwen2.5-1.5B-Instruct"),
        A40,
    ).sft_s
    assert with_it == pytest.approx(alone, rel=0.1), "a tenth for other micro-batches"


def test_its_time_is_a_pass_over_the_batch():
    """As long as the reference's, where the teacher has the student's shape. The larger one's layers have 5.0 times the
    parameters, and its head, which sees completions only, 2.3 times."""
    own, large = shape_of("Qwen2.5-1.5B-Instruct"), shape_of("Qwen2.5-7B-Instruct")
    same = of(TeacherSize(own, True), **{"loss.beta": 0.1})
    assert same.update_parts_s["teacher"] == pytest.approx(same.step_parts_s["reference"])
    larger = of(TeacherSize(large, False)).update_parts_s["teacher"]
    assert 3.5 < larger / same.update_parts_s["teacher"] < 4.5
    wide = of(TeacherSize(large, False), **{"distill.top_k": "all"})
    chunk = "log-probability chunk"
    assert wide.update_parts_s["teacher"] > larger
    assert wide.updating_gb[chunk] == pytest.approx(of(None).updating_gb[chunk] * 7 / 5, rel=0.01)


@pytest.mark.parametrize("place", ["cpu", "gpu"])
@pytest.mark.parametrize("trained", [False, True])
def test_a_chunk_beside_the_teachers_takes_no_more_tensors_than_the_plan_counts(place, trained, monkeypatch):
    vocab, rows = 8192, CPU_CHUNK_ROWS * 2
    if place == "gpu":  # its blocks: a fourth of a chunk, and the whole of it
        monkeypatch.setattr("microrl.policy.divergence.CPU_BLOCK_ELEMENTS", CPU_CHUNK_ROWS * vocab // 4)
        monkeypatch.setattr("microrl.policy.logprobs.CPU_BLOCK_ELEMENTS", CPU_CHUNK_ROWS * vocab)
    student, teacher = (logprob.make_case(torch.device("cpu"), torch.bfloat16, rows, vocab, 4) for _ in range(2))
    student.head.requires_grad_(trained)

    def scored(hidden_ND, targets_N, head):
        compared = Divergence(teacher.hidden_ND.detach(), targets_N, Head(teacher.head.weight, teacher.head.bias), top_k=16)
        logprobs_N, entropy_N = chosen_logprobs(hidden_ND, targets_N, Head(head.weight, head.bias, 0.7), compared=compared)
        return logprobs_N + compared.divergence_N, entropy_N

    taken = logprob.peak_bytes(scored, student) / (4 * chunk_elements(vocab, on_cpu=True))
    assert CHUNK_BUFFERS - 1 < taken <= CHUNK_BUFFERS + DIVERGENCE_BUFFERS[place] + 0.1


def test_the_command_counts_a_teacher(inside):
    done = inside("plan", "--model", "Qwen2.5-1.5B-Instruct", "--teacher", "Qwen2.5-7B-Instruct", "--gpu", "a40", "--json")
    found = json.loads(done.stdout)
    assert found["sampling_gb"]["teacher"] == pytest.approx(15.231, abs=0.01) and found["update_parts_s"]["teacher"] > 0


def test_a_run_of_sft_alone_is_said_not_to_be_estimated():
    done = in_process("plan", "quickstart", "--gpu", "h100", "--hours", "1", "--set", "sft.only=true", "--set", "sft.lr=3e-4")
    page = " ".join(done.stdout.split())
    assert done.returncode == 0 and "a run of SFT alone: its steps are not estimated" in page
    assert " min of SFT, 1 h at $" in page and "groups (" not in page and "learning rate 0.0003, falling to 0" in page
    assert "too slow" not in in_process("plan", "quickstart", "--hours", "1", "--set", "sft.only=true").stdout
