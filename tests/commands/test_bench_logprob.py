"""`microrl bench logprob`: its bounds at a smaller size, and the memory that the plan counts."""

import json

import psutil
import pytest
import torch
from bench_labels import unlabelled

from microrl.commands.bench import logprob, page
from microrl.limits import CPU_BLOCK_ELEMENTS, CPU_CHUNK_ROWS, GPU_CHUNK_ELEMENTS, chunk_elements
from microrl.models.forward import Head, LogitTransform
from microrl.models.onednn import _beats_mkl
from microrl.plan.memory import CHUNK_BUFFERS
from microrl.policy.logprobs import chosen_logprobs

MB = 2**20


def bench(inside, *more):
    done = inside("bench", "logprob", "--json", *more)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.slow
@pytest.mark.one_of_each
def test_memory_and_gradients_meet_the_bar(inside):
    """A 24th of the vocabulary and of the width. The naive pass holds three fp32 tensors of all logits, and little else."""
    found = bench(inside, "--tokens", 3072, "--vocab", 6331, "--hidden", 64, "--pairs", 1)
    assert not unlabelled(found, page.LOGPROB)
    assert found["memory_ratio"] <= 1 / 8 and found["gradient_error"] <= 1e-5
    assert found["logprob_error"] <= 1e-5 and found["entropy_error"] <= 2e-5
    assert found["naive"]["peak_gb"] == pytest.approx(3 * 4 * 3072 * 6331 / 1e9, rel=0.02)
    # a chunk and a block of it, the slope and the gradient, and the head packed for one product or for both
    copies = 2 if _beats_mkl() else 1
    elements = 256 * 6331 + CPU_BLOCK_ELEMENTS + 2 * 3072 * 64 + copies * 6331 * 64
    assert found["ours"]["peak_gb"] == pytest.approx(4 * elements / 1e9, rel=0.1)


@pytest.mark.slow
def test_time_meets_the_bar(inside):
    """Processor time: other processes take the clock's, but not this."""
    found = bench(inside, "--tokens", 512, "--vocab", 75968, "--hidden", 768)
    assert found["processor_ratio"] <= 1.1, found


@pytest.mark.cases(fast=3)
@pytest.mark.parametrize("transform", [None, LogitTransform(scale=0.5), LogitTransform(cap=20.0)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("trained", [False, True])
def test_a_chunk_takes_no_more_tensors_than_the_plan_counts(dtype, transform, trained):
    case = logprob.make_case(torch.device("cpu"), dtype, CPU_CHUNK_ROWS * 2, 8192, 4)
    case.head.requires_grad_(trained)

    def scored(hidden_ND, targets_N, head):
        return chosen_logprobs(hidden_ND, targets_N, Head(head.weight, head.bias, 0.7, fp32=True, transform=transform))

    peak = logprob.peak_bytes(scored, case)
    assert 1.5 <= peak / (4 * chunk_elements(8192, on_cpu=True)) <= CHUNK_BUFFERS + 0.1


def test_chunks_by_hand():
    assert chunk_elements(151_936, on_cpu=False) == GPU_CHUNK_ELEMENTS == 64 * MB
    assert chunk_elements(151_936, on_cpu=True) == 256 * 151_936 and chunk_elements(100, on_cpu=True) == MB


def test_the_naive_pass_is_refused_where_it_does_not_fit(inside, monkeypatch):
    """1.1 x (151,936 x 12 + 1,536 x 16) bytes a token and the head of 0.93 GB: 8,192 tokens take 17.7 GB, 10 GB hold 4,416."""
    memory = psutil.virtual_memory()._replace(available=10_000_000_000)
    monkeypatch.setattr(psutil, "virtual_memory", lambda: memory)
    done = inside("bench", "logprob")
    assert done.returncode == 2 and not done.stdout
    assert "takes 17.7 GB, but only 10.0 GB" in done.stderr and "hint: --tokens 4096" in done.stderr
    assert "use a smaller --vocab" in inside("bench", "logprob", "--vocab", 10**7).stderr
