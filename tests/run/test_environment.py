"""The record of versions and machine, and what is read of an earlier one."""

import json

import pytest

from microrl.run import environment
from microrl.run.environment import Environment, record

TRAINED = {"engine": "transformers", "gpu": None, "trainable_params": 8, "adapter": {"kind": "lora"}}


def test_each_attempt_is_recorded_after_the_earlier_ones(tmp_path, monkeypatch):
    path = tmp_path / "environment.json"
    assert record(path, **TRAINED) is None and record(path, **TRAINED) is None
    monkeypatch.setattr(environment, "packages", lambda: {"torch": "2.9.0 (custom)"})
    assert "torch" in record(path, **TRAINED), "any version can be written"
    written = Environment.model_validate_json(path.read_text())
    assert len(written.attempts) == 3 and written.packages == written.attempts[-1].packages == {"torch": "2.9.0 (custom)"}


@pytest.mark.parametrize("version", ["1.0", None])
def test_a_record_without_attempts_is_itself_the_earlier_one(tmp_path, version):
    path = tmp_path / "environment.json"
    record(path, **TRAINED)
    earlier = json.loads(path.read_text())
    del earlier["attempts"]
    earlier["packages"]["torch"] = version or earlier["packages"]["torch"]
    path.write_text(json.dumps(earlier))
    warning = record(path, **TRAINED)
    assert warning is None if version is None else "torch 1.0, now" in warning
    assert len(Environment.model_validate_json(path.read_text()).attempts) == 2
