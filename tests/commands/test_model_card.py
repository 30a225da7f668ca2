"""The model card: what it says that a model was trained by."""

from pathlib import Path

import pytest

from microrl.commands.model_card import ModelCard
from microrl.config import resolve
from microrl.run.folder import RunFolder

SFT, THEN_RL = {"sft.steps": 4}, "reinforcement learning with verifiable rewards"
SHUFFLED = "reinforcement learning with shuffled rewards, as a control"


@pytest.mark.parametrize(
    ("flags", "how", "tags"),
    [
        ({}, THEN_RL, "grpo, reinforcement-learning, rlvr"),
        ({"reward.shuffle": True}, SHUFFLED, "grpo, reinforcement-learning, rlvr"),
        (SFT | {"sft.only": True}, "supervised fine-tuning", "sft"),
        (SFT, f"supervised fine-tuning, and then {THEN_RL}", "grpo, reinforcement-learning, rlvr"),
        ({"distill.teacher": "big"}, "on-policy distillation from `big`", "distill, distillation"),
        ({"distill.teacher": "/a/run/best"}, "on-policy distillation from `run/best`", "distill, distillation"),
        (
            {"distill.teacher": "big", "distill.reward_weight": 0.5},
            "on-policy distillation from `big` and by verifiable rewards",
            "distill, reinforcement-learning, rlvr",
        ),
    ],
)
def test_it_says_what_has_trained_the_model(flags, how, tags, tmp_path):
    config = resolve(("quickstart",), flags)
    run = RunFolder.create(tmp_path / "run", config.model_dump(mode="json"))
    card = ModelCard("lora", "base", Path("mine"), config, run, run.path / "final", 4, "float32", has_template=True).text()
    assert f"Trained by {how}, with microrl." in card
    assert f"tags:\n- {tags.replace(', ', chr(10) + '- ')}\n- microrl\n" in card
    assert ("| batch per step |" in card) is ("sft.only" not in flags)
    assert ("| learning rate | steered: a step KL of 0.0002 nats per token |" in card) is ("sft.only" not in flags)
