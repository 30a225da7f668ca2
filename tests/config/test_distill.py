"""A teacher and its loss: one implies the other, and what contradicts is refused."""

import pytest

from microrl.config import check, resolve
from microrl.errors import UserError


def test_a_teacher_implies_the_loss_and_keeps_what_it_shares():
    config = resolve(["ortho-1.5b"], {"distill.teacher": "Qwen2.5-7B-Instruct"}, ["loss.importance_cap=3"])
    assert (config.loss.kind, config.loss.importance_cap, config.loss.scale_by_std) == ("distill", 3.0, True)
    assert not config.loss.drops_equal_groups and config.distill.reward_weight == 0
    assert resolve((), {"distill.teacher": "quickstart", "loss.kind": "distill"}).loss.kind == "distill"
    assert resolve((), {}, ["distill={teacher='quickstart', reward_weight=2}"]).loss.kind == "distill"
    assert resolve().loss.kind == "grpo"


def test_a_teachers_path_is_absolute(tmp_path, monkeypatch):
    (tmp_path / "runs").mkdir()
    monkeypatch.chdir(tmp_path)
    assert resolve((), {"distill.teacher": "runs"}).distill.teacher == str(tmp_path / "runs")


@pytest.mark.parametrize("given", [{"flags": {"distill.teacher": "none"}}, {"sets": ["distill.teacher=none"]}])
def test_a_presets_teacher_can_be_taken_away(given, tmp_path):
    """With its loss and all keys of `distill`; the keys that losses share stay."""
    preset = tmp_path / "towards.toml"
    preset.write_text("[distill]\nteacher = 'quickstart'\nreward_weight = 0.5\ntop_k = 8\n[loss]\nimportance_cap = 3.0\n")
    assert resolve([str(preset)]).loss.kind == "distill"
    config = resolve([str(preset)], **given)
    assert (config.loss.kind, config.loss.importance_cap, config.distill) == ("grpo", 3.0, resolve().distill)
    assert resolve((), {"distill.teacher": "none"}) == resolve()


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        ({"loss.kind": "distill"}, "--loss distill needs a teacher"),
        ({"distill.teacher": "quickstart", "loss.kind": "grpo"}, "--teacher has no effect with --loss grpo"),
        ({"distill.reward_weight": 0.5}, "distill.reward_weight has no effect with --loss grpo"),
        ({"distill.teacher": "quickstart", "distill.reward_weight": -1}, "invalid value '-1' for `distill.reward_weight`"),
        ({"distill.teacher": "quickstart", "distill.top_k": 0}, "invalid value '0' for `distill.top_k`"),
        ({"distill.teacher": "quickstart", "distill.top_k": "most"}, "invalid value 'most' for `distill.top_k`"),
        ({"distill.top_k": 8}, "distill.top_k has no effect with --loss grpo"),
        ({"distill.teacher": "none", "loss.kind": "distill"}, "--loss distill needs a teacher"),
        ({"distill.teacher": "quickstart", "distill.quant": "int8"}, "invalid value 'int8' for `distill.quant`"),
        ({"distill.teacher": "quickstart", "loss.clip_low": 0.1}, "`loss.clip_low` cannot be set"),
        ({"distill.teacher": ""}, "invalid value '' for `distill.teacher`"),
        ({"distill.teacher": "quickstart", "sft.only": True, "sft.steps": 1}, "no effect in a run of SFT alone"),
        ({"distill.teacher": "quickstart", "data.curriculum": True}, "data.curriculum chooses questions by their rewards"),
        ({"distill.teacher": "quickstart", "data.screen_minutes": 1}, "data.screen_minutes chooses questions by their rewards"),
        ({"distill.teacher": "quickstart", "loss.scale_by_std": False}, "loss.scale_by_std has no effect"),
        ({"distill.teacher": "quickstart", "reward.normalise": "apart"}, "reward.normalise has no effect"),
        ({"distill.teacher": "quickstart", "distill.top_k": 8, "loss.importance_cap": 3.0}, "and distill.top_k is set"),
        ({"distill.teacher": "quickstart", "distill.top_k": 8, "loss.importance_mode": "token_mask"}, "and distill.top_k is set"),
    ],
)
def test_what_contradicts_is_refused(flags, said):
    with pytest.raises(UserError) as caught:
        resolve((), flags)
    assert said in caught.value.message and caught.value.hint


def test_with_a_reward_beside_the_teacher_its_keys_are_read():
    flags = {"distill.teacher": "quickstart", "distill.top_k": 8, "distill.reward_weight": 0.5, "data.curriculum": True}
    assert resolve((), flags | {"loss.scale_by_std": False, "loss.importance_cap": 3.0}).loss.importance_cap == 3.0
    del flags["distill.top_k"], flags["distill.reward_weight"], flags["data.curriculum"]
    assert resolve((), flags | {"loss.importance_mode": "token_mask"}).loss.importance_mode == "token_mask"


def test_an_earlier_run_with_a_key_that_is_now_refused_stays_readable():
    tree = resolve((), {"distill.teacher": "quickstart"}).model_dump()
    tree["loss"]["scale_by_std"] = False
    assert check(tree).loss.scale_by_std is False
