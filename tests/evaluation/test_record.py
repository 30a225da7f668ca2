"""The name under which an evaluation is stored, and what is read back of a stored one."""

import json

import pytest
from pydantic import ValidationError

from microrl.data.fingerprint import Fingerprint, fingerprint
from microrl.evaluation.record import free_stem
from microrl.evaluation.result import Result, Stored
from microrl.files import BadFile, read_json
from microrl.types import Sampling

DATA = fingerprint("gsm8k", [("6 * 7", "42")]).model_dump()
WEIGHTS = {"prompts_sha256": "p", "model": "m", "model_sha256": "w", "adapter_sha256": None}
RESULT = Result(Sampling(2, 8), 0, (1,), {"6 * 7": 1}).to_json()


def stored(place, **changes):
    tree = {**RESULT, **WEIGHTS, "data": {**DATA, "source": {"local": "x"}, "same_as_in_training": None}, **changes}
    (place / "x.json").write_text(json.dumps({name: value for name, value in tree.items() if value != "left out"}))


def test_an_evaluation_replaces_only_one_of_the_same_data_prompts_weights_and_environment(tmp_path):
    own = {**WEIGHTS, "data": DATA["sha256"]}
    assert free_stem(tmp_path, "x", own) == "x", "there is none"
    stored(tmp_path)
    assert free_stem(tmp_path, "x", own) == "x"
    other = free_stem(tmp_path, "x", {**own, "env": "calculator"})
    assert other.startswith("x-") and len(other) == 10
    for name in own:
        assert free_stem(tmp_path, "x", {**own, name: "another"}) not in ("x", other), name
    for name in ("model_sha256", "data"):
        stored(tmp_path, **{name: "left out"})
        assert free_stem(tmp_path, "x", own) != "x", "another version's, of which it is not known"
    stored(tmp_path, env="calculator")
    assert free_stem(tmp_path, "x", own) != "x" == free_stem(tmp_path, "x", {**own, "env": "calculator"})
    (tmp_path / "x.json").write_text("{}")
    assert free_stem(tmp_path, "x", own) == "x", "damage"


def test_a_stored_evaluation_says_what_it_is_of_and_its_base_has_its_own_result(tmp_path):
    stored(tmp_path, base={**RESULT, "right": {"6 * 7": 0}, "model": "b"}, **{"pass@1": RESULT["pass@1"]})
    whole = read_json(tmp_path / "x.json", Stored)
    assert whole.result() == Result.read(tmp_path / "x.json") and whole.result().pass_k == (1,)
    assert (whole.data.name, whole.data.rows, whole.adapter_sha256) == ("gsm8k", 1, None)
    assert Result.of(whole.base).right == {"6 * 7": 0} and whole.result().right == {"6 * 7": 1}
    stored(tmp_path, data={**DATA, "rows": "1"})
    with pytest.raises(BadFile, match=r"`data\.rows`: Input should be a valid integer"):
        Result.read(tmp_path / "x.json")


@pytest.mark.parametrize("change", [{"rows": "1"}, {"rows": -1}, {"sha256": "42"}, {"more": 1}])
def test_a_fingerprint_is_read_strictly(change):
    assert Fingerprint.model_validate(DATA).sha256 == DATA["sha256"]
    with pytest.raises(ValidationError):
        Fingerprint.model_validate({**DATA, **change})
