"""Algorithms: what each makes of the same tokens, worked out by hand, and those of other packages."""

import json
import math
from types import SimpleNamespace

import pytest
import torch
from places import FIXTURES

from microrl import algorithm
from microrl.algorithm.grpo import Algorithm, Tokens
from microrl.config import plugins, resolve
from microrl.errors import UserError
from microrl.types import Group, Prompt, Score

PRIME_RL = json.loads((FIXTURES / "prime_rl_losses.json").read_text())
TENSORS = json.loads((FIXTURES / "trl_losses.json").read_text())["tensors"]
MODULE = """
import torch
from microrl.algorithm import grpo
from microrl.algorithm import loss as terms

class Cispo(grpo.Algorithm):
    '''The ratio is a weight without a gradient, cut at 1 + clip_high (MiniMax-M1 2025, eq. 4 and 5).'''

    def token_weights(self, counted_NT):
        return terms.token_mean(counted_NT)

    def objective(self, tokens):
        ratio_BT = (tokens.new_BT.detach() - tokens.old_BT).exp()
        top = 1 + self.config.options.get("cut", 4.0)
        return -ratio_BT.clamp(max=top) * tokens.advantages_B[:, None] * tokens.new_BT, ratio_BT > top

class NoAlgorithm:
    pass
"""


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A folder with somebody's module, which is the current one."""
    name = f"losses_{tmp_path.name}"
    (tmp_path / f"{name}.py").write_text(MODULE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(plugins.sys, "path", list(plugins.sys.path))
    return SimpleNamespace(path=tmp_path, name=name)


def made(**flags) -> Algorithm:
    return algorithm.make(resolve((), {"loss.importance_cap": None, **flags}))


def loss(of: Algorithm) -> float:
    """Of two completions of 2 tokens and 1 token, with ratios (1.5, 0.5) and (1.5), and advantages +1 and -2."""
    mask_BT = torch.tensor([[1, 1], [1, 0]])
    new_BT = torch.tensor([[1.5, 0.5], [1.5, 1.0]], dtype=torch.float64).log()
    old_BT, advantages_B = torch.zeros_like(new_BT), torch.tensor([1.0, -2.0], dtype=torch.float64)
    return float(of.loss(Tokens(new_BT, old_BT, old_BT, None, advantages_B, mask_BT.bool(), of.token_weights(mask_BT))).loss)


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        ("grpo", -((1.2 + 0.5) / 2 - 3) / 2),
        ("dapo", -(1.28 + 0.5 - 3) / 3),
        ("dr_grpo", -(1.2 + 0.5 - 3) / (2 * 10)),
        ("gspo", -(math.sqrt(0.75) - 3) / 2),
        ("maxrl", -(1.2 + 0.5 - 3) / 3),
        ("cispo", -(1.4 * math.log(1.5) + 0.5 * math.log(0.5) - 2 * 1.4 * math.log(1.5)) / 3),
        # Engine and old weights give every token p = 1. A > 0 masks the first, risen by 0.5, and keeps the second, fallen by 0.5;
        # A < 0 keeps the third, risen by 0.5.
        ("dppo", -(0.5 - 2 * 1.5) / 3),
        # sigmoid(2 * 0.5) + sigmoid(2 * -0.5) = 1, so the first completion's mean is 4/2 * 1/2; the other has A = -2 and tau 1.
        ("sapo", -(1 - 2 * 4 / (1 + math.exp(-0.5))) / 2),
    ],
)
def test_each_algorithm_by_hand(kind, expected):
    """The numbers are explained in `test_losses.py`."""
    own = {
        "cispo": {"ratio_cap": 1.4},
        "sapo": {"temperature_positive": 2.0, "temperature_negative": 1.0},
        "dppo": {"mask_high": 0.4, "mask_low": 0.4},
    }
    flags = {f"loss.{key}": value for key, value in own.get(kind, {}).items()}
    of = made(**{"loss.kind": kind, "sampling.max_completion_tokens": 10}, **flags)
    assert loss(of) == pytest.approx(expected, abs=1e-12)


def test_cispo_gives_every_token_a_gradient_and_refuses_the_keys_of_a_clip():
    """Above the cap the weight is the cap, not 0, as a clip leaves of a right answer's token."""
    new_BT = torch.tensor([[math.log(9.0), 0.0]], dtype=torch.float64, requires_grad=True)
    zeros_BT, of = torch.zeros(1, 2, dtype=torch.float64), made(**{"loss.kind": "cispo"})
    mask_BT, ones_B = torch.ones(1, 2, dtype=torch.bool), torch.ones(1, dtype=torch.float64)
    of.loss(Tokens(new_BT, zeros_BT, zeros_BT, None, ones_B, mask_BT, of.token_weights(mask_BT))).loss.backward()
    assert new_BT.grad.tolist() == [[-2.5, -0.5]]
    with pytest.raises(UserError, match="clip_low` cannot be set"):
        made(**{"loss.kind": "cispo", "loss.clip_low": 0.1})


def test_the_gradient_at_ratio_1_is_the_same_for_all_that_average_alike():
    """With one optimizer step a batch: -A times the token's weight."""
    mask_BT, advantages_B = torch.tensor([[1, 1], [1, 0]]), torch.tensor([1.0, -2.0], dtype=torch.float64)
    for kinds in (("grpo", "gspo", "sapo"), ("dapo", "cispo", "dppo", "maxrl")):
        gradients = []
        for kind in kinds:
            of, old_BT = made(**{"loss.kind": kind}), -torch.rand(2, 2, dtype=torch.float64)
            new_BT = old_BT.clone().requires_grad_()
            tokens = Tokens(new_BT, old_BT, old_BT, None, advantages_B, mask_BT.bool(), of.token_weights(mask_BT))
            of.loss(tokens).loss.backward()
            gradients.append(new_BT.grad)
        expected = -advantages_B[:, None] * of.token_weights(mask_BT)
        assert all(torch.allclose(gradient, expected) for gradient in gradients), kinds


@pytest.mark.parametrize(
    ("one", "other", "are_same", "flags"),
    [
        ("grpo", "sapo", True, {}),
        ("dapo", "cispo", True, {}),
        ("grpo", "gspo", False, {}),
        ("grpo", "gspo", True, {"loss.importance_cap": "none"}),
        ("grpo", "gspo", True, {"loss.importance_mode": "sequence_mask"}),
        ("grpo", "gspo", True, {"loss.importance_mode": "sequence_truncate"}),
        ("cispo", "dppo", True, {"mismatch": 0.01}),
        ("cispo", "dppo", False, {"mismatch": 3.0}),
        ("grpo", "dapo", False, {}),
    ],
)
def test_which_are_the_same_on_policy_where_engine_and_trainer_differ(one, other, are_same, flags):
    """At the default cap of 2, with importance weights from e^-1.5 to e^1.5 a token, unless the flags say otherwise."""
    mask_BT, advantages_B = torch.tensor([[1, 1, 1], [1, 0, 0]]), torch.tensor([1.0, -2.0], dtype=torch.float64)
    differences_BT = torch.tensor([[1.5, -1.5, 0.3], [-0.7, 0.0, 0.0]], dtype=torch.float64) * flags.get("mismatch", 1.0)
    gradients, sets = [], [f"{key}={value}" for key, value in flags.items() if key != "mismatch"]
    for kind in (one, other):
        of = algorithm.make(resolve((), {"loss.kind": kind}, sets))
        new_BT = torch.full((2, 3), -1.5, dtype=torch.float64, requires_grad=True)
        engine_BT, weights_BT = new_BT.detach() - differences_BT, of.token_weights(mask_BT)
        of.loss(Tokens(new_BT, new_BT.detach(), engine_BT, None, advantages_B, mask_BT.bool(), weights_BT)).loss.backward()
        gradients.append(new_BT.grad)
    assert torch.allclose(*gradients, rtol=1e-12) is are_same


def test_dppo_masks_by_the_engine_even_on_policy():
    """Probabilities of trainer and engine 0.6 and 0.3, 0.3 and 0.6: with A > 0 the first is masked, with A < 0 the second."""
    of, engine_BT = made(**{"loss.kind": "dppo"}), torch.tensor([[0.3, 0.6]], dtype=torch.float64).log()
    for advantage, expected in ((1.0, [0.0, -0.25]), (-1.0, [1.0, 0.0])):
        new_BT = torch.tensor([[0.6, 0.3]], dtype=torch.float64).log().requires_grad_()
        mask_BT, advantages_B = torch.ones(1, 2, dtype=torch.bool), torch.tensor([advantage], dtype=torch.float64)
        tokens = Tokens(new_BT, new_BT.detach(), engine_BT, None, advantages_B, mask_BT, of.token_weights(mask_BT))
        done = of.loss(tokens)
        done.loss.backward()
        # Half of -A times the importance weights 2 and 0.5.
        assert new_BT.grad.tolist() == [pytest.approx(expected)]
        assert done.clipped_BT.tolist() == [[not gradient for gradient in expected]]


@pytest.mark.parametrize("case", PRIME_RL["dppo"], ids=lambda case: str(case["masked"]))
def test_dppo_agrees_with_prime_rl(case):
    """Loss and gradient without its KL term, on the tensors of TRL's cases (recorded by fixtures/record_prime_rl_losses.py)."""
    of = made(
        **{"loss.kind": "dppo", "loss.importance_cap": 1e9} | {f"loss.{key}": case[key] for key in ("mask_low", "mask_high")}
    )
    take = {name: torch.tensor(TENSORS[name], dtype=torch.float64) for name in ("new", "old", "engine")}
    mask_BT, advantages_B = torch.tensor(case["mask"]), torch.tensor(case["advantages"], dtype=torch.float64)
    new_BT = take["new"].requires_grad_()
    done = of.loss(Tokens(new_BT, take["old"], take["engine"], None, advantages_B, mask_BT.bool(), of.token_weights(mask_BT)))
    done.loss.backward()
    assert done.loss.item() == pytest.approx(case["loss"], abs=1e-9)
    assert torch.allclose(new_BT.grad, torch.tensor(case["grad"], dtype=torch.float64), rtol=1e-9, atol=1e-12)
    assert int((done.clipped_BT & mask_BT.bool()).sum()) == case["masked"]


def advantages_of(of: Algorithm, rewards: list[float | None]) -> list[float]:
    """Of one group with these rewards; None: it does not count."""
    scores = tuple(Score(reward or 0.0, 0.0, float(reward == 1), is_valid=reward is not None) for reward in rewards)
    return of.advantages([Group(Prompt("q", "1", "", (5,)), (), scores)])[0]


@pytest.mark.parametrize(
    ("rewards", "expected"),
    [
        ([1.0, 0.0, 0.0, 0.0], [3, -1, -1, -1]),
        ([1.0, 1.0, 0.0, 0.0], [1, 1, -1, -1]),
        ([0.0, 0.0], [0, 0]),
        ([0.1, 0.1, 0.1], [0, 0, 0]),
        ([1.0, -0.5, -0.5], [0, 0, 0]),  # a mean of 0 divides nothing
        ([0.1, 0.2, -0.3], [0, 0, 0]),  # nor does one that is above 0 by rounding alone
        ([1.0, None, 0.0], [1, 0, -1]),
        ([None, None], [0, 0]),
    ],
)
def test_maxrl_divides_by_the_mean_reward(rewards, expected):
    assert advantages_of(made(**{"loss.kind": "maxrl"}), rewards) == expected


@pytest.mark.parametrize("case", PRIME_RL["maxrl"], ids=lambda case: str(case["rewards"]))
def test_maxrl_agrees_with_prime_rl(case):
    """To the float32 in which prime-rl computes them."""
    assert advantages_of(made(**{"loss.kind": "maxrl"}), case["rewards"]) == pytest.approx(case["advantages"], abs=1e-6)


def test_what_a_mask_of_the_importance_weights_leaves_out_is_counted():
    """Two completions, likelier in the trainer by a factor of 8 and of 2: above the cap of 3, a completion is left out."""
    of = made(**{"loss.importance_cap": 3.0, "loss.importance_mode": "sequence_mask"})
    new_BT, mask_BT = torch.zeros(2, 2, dtype=torch.float64), torch.ones(2, 2, dtype=torch.bool)
    engine_BT = -torch.tensor([[2.0, 4.0], [1.0, 2.0]], dtype=torch.float64).log()
    tokens = Tokens(new_BT, new_BT, engine_BT, None, torch.ones(2), mask_BT, of.token_weights(mask_BT))
    assert of.loss(tokens).clipped_BT.tolist() == [[True, True], [False, False]]


def test_distillation_takes_completions_without_a_reward():
    """What has no reward has a teacher. What is cut at the limit is left out where that is asked for."""
    unknown, cut = Score(0.0, 0.0, 0.0, is_valid=False), SimpleNamespace(finish="length")
    flags = {"loss.kind": "distill", "distill.teacher": "quickstart"}
    assert made(**flags).counts(cut, unknown) and not made(**{"loss.kind": "grpo"}).counts(cut, unknown)
    assert not made(**flags, **{"loss.mask_truncated": True}).counts(cut, unknown)


def test_maxrl_has_no_deviation_to_divide_by():
    with pytest.raises(UserError, match="scale_by_std` cannot be set: `maxrl` has no"):
        made(**{"loss.kind": "maxrl", "loss.scale_by_std": True})


def test_a_class_of_another_module_is_taken_by_its_name(folder):
    of = made(**{"loss.kind": f"{folder.name}:Cispo", "loss.options": {"cut": 0.25}})
    # The ratio 1.5 is cut to 1.25, and log-probabilities are those of the ratios: A (1.25 ln 1.5 + 0.5 ln 0.5) and so on.
    expected = -(1.25 * math.log(1.5) + 0.5 * math.log(0.5) - 2 * 1.25 * math.log(1.5)) / 3
    assert loss(of) == pytest.approx(expected, abs=1e-12)
    config = resolve((), {"loss.kind": f"{folder.name}:Cispo"})
    assert (config.loss.kind, config.loss.target, config.loss.path) == ("custom", f"{folder.name}:Cispo", str(folder.path))


def test_an_entry_point_is_taken_by_its_name(folder):
    installed = folder.path / "losses-1.0.dist-info"
    installed.mkdir()
    (installed / "METADATA").write_text("Metadata-Version: 2.1\nName: losses\nVersion: 1.0\n")
    (installed / "entry_points.txt").write_text(f"[microrl.algorithms]\ncapped = {folder.name}:Cispo\n")
    plugins.sys.path.append(str(folder.path))
    assert type(made(**{"loss.kind": "capped"})).__name__ == "Cispo"
    plugins.sys.path.remove(str(folder.path))
    with pytest.raises(UserError, match="invalid value 'capped' for"):
        resolve((), {"loss.kind": "capped"})


def test_a_whole_run_with_it_repeats_its_training_by_its_record_alone(folder, inside, tiny_arguments, tmp_path, monkeypatch):
    out = tmp_path / "run"
    done = inside("train", *tiny_arguments, "--loss", f"{folder.name}:Cispo", "--steps", 2, "--out", out)
    assert done.returncode == 0, done.stderr
    assert json.loads((out / "config.json").read_text())["loss"]["target"] == f"{folder.name}:Cispo"
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    assert inside("train", "--resume", out, "--steps", 3).returncode == 0
    assert len((out / "metrics.jsonl").read_text().splitlines()) == 3


@pytest.mark.parametrize(
    ("target", "said"),
    [
        ("nowhere_at_all:Cispo", "the algorithm `nowhere_at_all:Cispo` cannot be imported: there is no module `nowhere_at_all`"),
        ("{name}:Cispa", "has no algorithm `Cispa`"),
        ("{name}:NoAlgorithm", "is not an algorithm"),
        ("cispoo", "invalid value 'cispoo' for --loss"),
    ],
)
def test_what_cannot_be_used_is_one_line(folder, inside, tiny_arguments, tmp_path, target, said):
    done = inside("train", *tiny_arguments, "--loss", target.format(name=folder.name), "--steps", 1, "--out", tmp_path / "run")
    assert done.returncode == 2 and said in done.stderr and "Traceback" not in done.stderr, done.stderr


def test_a_key_that_an_algorithm_does_not_read_is_refused():
    for key in ("dynamic_sampling", "options", "averaging"):
        with pytest.raises(UserError, match=f"`grpo` has no `{key}`|unknown key"):
            resolve((), {"loss.kind": "grpo"}, [f"loss.{key}=true"])


def test_a_key_of_a_custom_algorithm_is_sent_to_its_options(folder):
    for key in ("floor", "ratio_cap"):  # nobody's, and another loss's
        with pytest.raises(UserError) as raised:
            resolve((), {"loss.kind": f"{folder.name}:Cispo"}, [f"loss.{key}=2"])
        assert raised.value.hint.startswith(f"set its own keys as loss.options.{key}; ")
