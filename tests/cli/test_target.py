"""What a command is told to work on: a run, a part of it, an adapter or a model."""

import pytest

from microrl.cli.target import find_weights
from microrl.config import resolve
from microrl.errors import UserError
from microrl.run.folder import RunFolder


def test_a_checkpoint_that_a_run_lacks_is_no_model_on_the_hub(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    RunFolder.create(tmp_path / "mine", resolve(["quickstart"]).model_dump(mode="json"))
    with pytest.raises(UserError, match="mine/step-000009 is not a part of the run"):
        find_weights("mine/step-000009")
    monkeypatch.chdir(tmp_path / "mine")
    assert find_weights("owner/name").config.model.name == "owner/name", "inside a run, too"
