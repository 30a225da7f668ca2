"""The engine's contract tests on the model runner that vLLM has on a GPU; see `v2_runner`."""

import os
import subprocess
import sys

import pytest
import torch
import v2_runner
from places import ROOT

FOLDER = "tests/rollout/vllm"
ALWAYS = [
    "test_vllm_swap.py::test_logprobs_agree_with_the_trainer[lora-swap]",
    "test_vllm_proof.py::test_a_skipped_push_is_caught[bytes-swap]",
]
"""Weights and adapters arrive, and a push that did not happen is seen."""
ALL = (
    "building_leaves or logprobs_agree or base_comes_back or one_mode or ten_swaps or before_and_after or skipped_push or canary "
    "or below_the_noise or fails_once or second_try or engines_buffers or order_of_waking or groups_stream or stops_early "
    "or own_key or generators_alone or measures_and_decides or poison"
)

pytestmark = [
    pytest.mark.vllm,
    pytest.mark.slow,
    pytest.mark.skipif(torch.cuda.is_available(), reason="on a GPU it is the usual runner"),
]


def contract(*selection: str) -> str:
    """The last line that pytest prints for these tests."""
    pytest.importorskip("vllm", reason="vLLM is not installed")
    command = [sys.executable, "-m", "pytest", "-m", "vllm", "-n", "0", "-p", "no:cacheprovider", *selection]
    done = subprocess.run(
        command, cwd=ROOT, env={**os.environ, **v2_runner.ENVIRONMENT}, capture_output=True, text=True, timeout=7200
    )
    assert done.returncode == 0, done.stdout[-5000:]
    return done.stdout.splitlines()[-1]


@pytest.mark.one_of_each
def test_a_few_always():
    assert f"{len(ALWAYS)} passed" in contract(*(f"{FOLDER}/{name}" for name in ALWAYS))


def test_all_that_need_no_process_of_their_own():
    assert "failed" not in contract(
        *(f"{FOLDER}/test_vllm_{topic}.py" for topic in ("proof", "sampling", "sleep", "swap")), "-k", ALL
    )


def test_dense_products():
    assert "8 passed" in contract(f"{FOLDER}/test_dense_lora.py")
