"""Adapters of every kind: their configuration, what they train, a few steps of training, and whole runs."""

import json

import pytest
import torch

from microrl.config.adapter import ResidualConfig
from microrl.config.adapters import KINDS

IDS = torch.tensor([[5, 9, 17, 33, 65, 129, 3, 250], [77, 78, 12, 11, 10, 200, 201, 202]])
ORTHONORMAL = ["lora-rlpo", "lora-rlmo", "dct", "wavelet"]
RESIDUAL = [kind for kind, cls in KINDS.items() if issubclass(cls, ResidualConfig)]
TRAINED = {
    "lora": {"lora_A", "lora_B"}, "rslora": {"lora_A", "lora_B"}, "lora+": {"lora_A", "lora_B"}, "lora-fa": {"lora_B"},
    "dora": {"lora_A", "lora_B", "lora_magnitude_vector"}, "adalora": {"lora_A", "lora_B", "lora_E"}, "miss": {"miss_block"},
    "vera": {"vera_lambda_b", "vera_lambda_d"}, "ia3": {"ia3_l"}, "ln": {"norm"}, "full": {"weight", "bias"},
    "tinylora": {"tinylora_v"}, **{kind: {"lora_A", "lora_B"} for kind in [*RESIDUAL, *ORTHONORMAL]},
}  # fmt: skip
ALIKE = {"lora+", "rslora", "lora-rlmo", "dct", "wavelet", "milora", "olora", "olora-qr", "olora-tail"}
"""Kinds that run the code of another one from other numbers: among the slow tests where that is enough."""


def alike_are_slow(kinds):
    return [pytest.param(kind, marks=pytest.mark.slow) if kind in ALIKE else kind for kind in kinds]


def config_of(kind, **fields):
    cls = KINDS[kind]
    wanted = {"rank": 6, "alpha": 12.0, "size": 5} | fields
    return cls(**{name: value for name, value in wanted.items() if name in cls.model_fields})


def logits(model):
    with torch.no_grad():
        return model(input_ids=IDS.to(model.device)).logits


def train(attached, steps=4, lr=0.02, progress=0.0):
    """A few plain AdamW steps on next-token losses, in place."""
    optimizer = torch.optim.AdamW([{**group, "lr": lr * group["factor"]} for group in attached.groups()])
    for step in range(steps):
        with attached.precision():
            ids = IDS.to(attached.model.device)
            out = attached.model(input_ids=ids).logits.float()[:, :-1]
            loss = torch.nn.functional.cross_entropy(out.flatten(0, 1), ids[:, 1:].flatten())
        if (penalty := attached.regulariser()) is not None:
            loss = loss + penalty
        loss.backward()
        optimizer.step()
        attached.allocate(progress if progress else step / steps)
        optimizer.zero_grad()


def ten_steps(run, tiny_arguments, tmp_path, kind, engine):
    """Whole runs by the command line, rewarded by length: what is written down of them, and that they can be evaluated."""
    place = tiny_arguments.index("--rank")
    rank = ["--rank", 4] if "rank" in KINDS[kind].model_fields else []
    sets = ["reward.overlong.buffer=10", "optim.lr=1e-3", "sampling.max_completion_tokens=24", "sampling.group_size=8"]
    arguments = [*tiny_arguments[:place], *tiny_arguments[place + 2 :], *rank, *(part for key in sets for part in ("--set", key))]
    out = tmp_path / "run"
    done = run("train", *arguments, "--adapter", kind, "--engine", engine, "--steps", 10, "--out", out)
    assert done.returncode == 0, done.stderr
    lines = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    assert len(lines) == 10 and sum(line["update/skipped"] for line in lines) < 10
    assert max(line["policy/kl_sampler"] for line in lines) < 1e-5, "engine and trainer agree"
    if engine == "vllm":
        assert all(line["sync/probe_gap"] is not None for line in lines)
    described = json.loads((out / "environment.json").read_text())["adapter"]
    assert described["name"].split()[0] == kind and set(described["trained"]) == TRAINED[kind]
    assert described["line"] in done.stderr
    assert 0 < described["trained_share"] <= 1
    again = run("eval", out, "--json")
    assert again.returncode == 0, again.stderr
    (found,) = json.loads(again.stdout)["benchmarks"].values()
    after = json.loads((out / "summary.json").read_text())["eval"]["after"]
    assert found["avg@2"]["mean"] == pytest.approx(after["accuracy"])
