"""A run's folder: what it says of the parts that it lacks."""

import json

import pytest

from microrl.config import resolve
from microrl.errors import UserError
from microrl.run.folder import RunFolder


def test_the_untouched_model_is_not_offered_as_the_best_checkpoint(tmp_path):
    folder = RunFolder.create(tmp_path / "run", resolve(["quickstart"]).model_dump(mode="json"))
    best = folder.path / "best"
    best.mkdir()
    for updates, is_offered in ((0, False), (3, True)):
        (best / "state.json").write_text(json.dumps({"version": updates}))
        with pytest.raises(UserError, match="no trained adapter yet") as caught:
            folder.final()
        assert (str(best) in caught.value.hint) == is_offered


def test_a_folder_that_only_says_what_a_run_would_have_learned_from_is_removed(tmp_path):
    folder = RunFolder.create(tmp_path / "run", {})
    for name in ("data.json", "teacher.json"):
        folder.write_json(name, {})
    folder.discard()
    assert not folder.path.exists()
