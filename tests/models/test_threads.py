"""The number of threads: fixed by the model and by what the process may use, and put back after an update."""

import pytest
import torch
from random_models import random_model

from microrl import limits
from microrl.config.resolve import resolve
from microrl.limits import available_cores
from microrl.models import threads
from microrl.models.tensors import parameter_count
from microrl.policy.policy import Policy


@pytest.fixture(autouse=True)
def put_back():
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


@pytest.fixture
def small():
    return random_model("qwen2")


@pytest.mark.parametrize("cores, expected", [(1, 1), (2, 2), (8, 2)])
def test_a_small_model_has_two_threads_in_an_update_and_one_elsewhere(small, cores, expected, monkeypatch):
    monkeypatch.setattr(threads, "available_cores", lambda: cores)
    threads.use_sensible_threads(small)
    assert torch.get_num_threads() == 1
    with pytest.raises(ZeroDivisionError), threads.threads(threads.update_threads(small)):
        assert torch.get_num_threads() == expected
        raise ZeroDivisionError
    assert torch.get_num_threads() == 1


def test_a_large_model_has_a_thread_a_core_throughout(small, monkeypatch):
    monkeypatch.setattr(threads, "available_cores", lambda: 3)
    monkeypatch.setattr(limits, "CPU_SMALL_PARAMETERS", 0)
    threads.use_sensible_threads(small)
    assert torch.get_num_threads() == threads.update_threads(small) == 3


def test_an_adapter_does_not_make_a_model_large(small, monkeypatch):
    monkeypatch.setattr(threads, "available_cores", lambda: 3)
    monkeypatch.setattr(limits, "CPU_SMALL_PARAMETERS", parameter_count(small) + 1)
    policy = Policy(small, resolve((), {"adapter.rank": 8}))
    assert parameter_count(small) > limits.CPU_SMALL_PARAMETERS
    with policy.threads():
        assert torch.get_num_threads() == 2


@pytest.mark.parametrize("value, expected", [("1", 1), ("1,4", 1), ("100000", None), ("0", 1), ("many", None), (None, None)])
def test_no_more_cores_than_omp_num_threads(value, expected, monkeypatch):
    monkeypatch.delenv("OMP_NUM_THREADS")
    all_cores = available_cores()
    if value is not None:
        monkeypatch.setenv("OMP_NUM_THREADS", value)
    assert available_cores() == (all_cores if expected is None else expected)
