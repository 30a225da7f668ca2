"""The plan's time: both ways in which vLLM gets the trained weights, ranges, and groups an hour."""

import dataclasses

import pytest
from planned import A40, planned

from microrl import guide
from microrl.config import resolve
from microrl.plan import devices, make, show
from microrl.plan.calibration import Calibration, Point
from microrl.plan.source import shape_of

MEASURED = dataclasses.replace(
    A40,
    calibration=Calibration(
        device="a40", memory_gb=A40.memory_gb, versions={}, source="measured here", date="2026-11-26",
        start_s=40.0, points=[
            Point(shape="1.5b", parameters=1_543_714_304, rank=64, decode={"swap": 1.0, "merge": 2.0}, update=1.5)
        ],
    ),
)  # fmt: skip


def test_both_ways_are_priced_by_hand():
    """A swap adds to each decode step A and B (rank 64, 28 layers, sides of 41,216), two kernels for each of 7 targets, and for
    each token inputs, twice the outputs, and the product of the rank, written and read. A merge adds a push to each step."""
    device = devices.Device("x", "x", 1000, 1000, 1e9, 0.0, 1e9)
    both = planned("micro-r64", device=device)
    parts = {mode: planned("micro-r64", device=device, sets=[f"engine.sync={mode}"]).step_parts_s for mode in ("swap", "merge")}
    steps, tokens = 0.9 * 3584, 128 * 0.5 * 3584
    a_row = 28 * (7 * 2 * 64 + 18_176 + 2 * 23_040) * 2
    moved = steps * 64 * 28 * 41_216 * 2 + tokens * a_row
    added = moved / (1000e9 * 0.72) + steps * 7 * 28 * 2 * 3e-6
    assert parts["swap"]["generate"] - parts["merge"]["generate"] == pytest.approx(added, rel=1e-3)
    assert parts["swap"]["sync"] == 0.3
    assert parts["merge"]["sync"] == pytest.approx(0.3 + 10 * 2 * 1_543_714_304 / (1000e9 * 0.7), rel=1e-3)
    sums = {mode: sum(found.values()) for mode, found in parts.items()}
    assert both.sync_step_s == pytest.approx(sums) and both.sync == "merge" and both.step_s == pytest.approx(sums["merge"])


@pytest.mark.parametrize(
    ("sets", "device", "modes", "why"),
    [
        ([], "a40", ["merge", "swap"], "measures both in its first steps and keeps the faster"),
        (["engine.sync=swap"], "a40", ["swap"], "as engine.sync says"),
        (["engine.sync=merge"], "a40", ["merge"], "as engine.sync says"),
        (["adapter.kind=dora"], "a40", ["merge"], "dora is not a LoRA pair"),
        ([], "t4", ["merge"], "T4"),
        (["engine.kind=transformers"], "a40", ["shared"], "shares the trainer's weights"),
    ],
)
def test_the_way_of_the_weights_is_the_runs_and_says_why(sets, device, modes, why):
    found = planned("micro-r64", device=devices.DEVICES[device], sets=sets)
    assert sorted(found.sync_step_s) == modes and why in found.sync_why and found.sync in modes
    assert found.step_s == min(found.sync_step_s.values())
    assert ("merged weights" in found.served) is (found.sync == "merge")


def test_a_slow_push_makes_the_swap_the_faster_one():
    """Short completions of few rows: what the pair adds to 58 decode steps is less than a push of 15 GB."""
    few = ["sampling.max_completion_tokens=64", "sampling.prompts_per_step=1", "sampling.group_size=2"]
    found = planned(model__name="Qwen2.5-7B-Instruct", adapter__rank=8, sets=few)
    assert found.sync == "swap" and found.served == "as a LoRA pair of rank 8"
    assert f"{found.step_s:,.1f} s with swap (the LoRA pair stays beside each weight as two dense matmuls), " in found.sync_why


def test_the_range_is_that_of_the_parts_and_a_point_where_it_is_calibrated():
    found = planned("micro-r64", budget__hours=24.0)
    parts = found.step_parts_s
    for step_s, (sampling, updating) in ((found.step_low_s, (0.8, 0.75)), (found.step_high_s, (1.2, 1.25))):
        expected = found.step_s + (sampling - 1) * parts["generate"] + (updating - 1) * parts["update"]
        assert step_s == pytest.approx(expected)
    assert found.steps_low < found.steps < found.steps_high
    assert found.steps_low == pytest.approx(found.steps * found.step_s / found.step_high_s, rel=0.01)
    assert (found.hours_low, found.hours_high, found.cost_low_usd) == (24.0, 24.0, found.cost_usd)
    by_steps = planned("micro-r64", budget__steps=100, budget__hours=None)
    assert by_steps.steps_low == by_steps.steps_high == 100 and by_steps.hours_low < by_steps.hours < by_steps.hours_high
    sure = planned("micro-r64", device=MEASURED, budget__hours=24.0)
    assert sure.step_low_s == sure.step_s == sure.step_high_s and sure.steps_low == sure.steps == sure.steps_high
    assert sure.sync == "swap", "each way by its own factor: merged sampling takes twice as long on this card"
    assert sure.step_parts_s["update"] == pytest.approx(1.5 * parts["update"], rel=1e-3)


def test_groups_an_hour_and_the_useful_ones():
    found = planned("micro-r64")
    assert found.groups_hour == pytest.approx(16 * 3600 / found.step_s)
    shares = {
        (): 0.5, ("data.curriculum=true",): 0.7, ("data.screen_minutes=10",): 0.7, ("loss.kind=dapo",): 1.0,
        ("data.name=arithmetic",): 0.9,
    }  # fmt: skip
    for sets, share in shares.items():
        plan = planned("micro-r64", sets=sets)
        assert plan.useful_share == share and plan.useful_groups_hour == pytest.approx(share * plan.groups_hour)


@pytest.mark.parametrize("device", ["a40", "4090", "l4"])
@pytest.mark.parametrize("micro", ["micro-r64", "micro-r256"])
@pytest.mark.parametrize("budget", ["budget-6h", "budget-24h"])
def test_a_budgets_batch_gives_more_groups_than_half_of_it_and_steps_enough(budget, micro, device):
    """A twentieth more in an hour at least, and still the 150 updates that the shortest run of the papers has."""
    whole = planned(micro, budget, device=devices.DEVICES[device])
    half = planned(micro, budget, device=devices.DEVICES[device], sampling__prompts_per_step=16)
    assert whole.completions == 256 and whole.groups_hour > 1.05 * half.groups_hour and whole.steps >= 150
    assert planned("ortho-7b").steps == 150


@pytest.mark.parametrize("device", [A40, MEASURED], ids=["estimated", "measured"])
def test_the_answer_shows_both_ways_and_ranges_only_where_nothing_is_measured(device):
    config = resolve(["micro-r64"], {"budget.hours": 24.0})
    found = planned("micro-r64", device=device, budget__hours=24.0)
    page, day = show.page(config, found), f"{found.steps:,} steps"
    for mode in ("merge", "swap"):
        assert f"{found.sync_step_s[mode]:.1f} s with {mode} (" in " ".join(page.split())
    assert (f"{day} ({found.steps_low:,} to {found.steps_high:,})" in page) is (device is A40)
    groups = f"about {found.groups_hour:,.0f} groups (the completions of one prompt) per hour of training steps; "
    assert f"{groups}{found.useful_groups_hour:,.0f} of them give a gradient" in page
    assert ("an update 0.75 to 1.25 times" in " ".join(page.split())) is (device is A40)
    row = next(line for line in show.comparison(config, [found]).splitlines() if line.startswith("a40"))
    assert (f" {found.steps_low:,}-{found.steps_high:,} " in row) is (device is A40)
    for cell in (found.useful_groups_hour, *found.sync_step_s.values()):
        assert f" {cell:.3g} " in row


def test_settings_that_do_not_fit_are_shown_without_time_and_price_and_with_the_seconds_of_the_advice():
    flags = {"model.name": "Qwen2.5-7B-Instruct", "adapter.rank": 64, "budget.hours": 24.0}
    config, l4 = resolve((), flags), devices.DEVICES["l4"]
    found = make(config, shape_of(config.model.name), l4)
    after = resolve((), flags | {"engine.kind": "transformers"})
    advised = make(after, shape_of(config.model.name), l4)
    assert not found.fits and found.advice_step_s == advised.step_s and advised.fits and advised.advice_step_s is None
    for text in (show.page(config, found), "\n".join(show.brief(config, found))):
        assert f"with this change a step takes about {found.advice_step_s:,.0f} s by the plan" in text
        assert f"of {l4.memory_gb:.1f} GB" in text
        assert not [word for word in ("$", "groups (", "weight sync", "time, s", "the KV cache holds") if word in text]
    assert "the numbers are those without the change" in show.comparison(config, [found])
    assert "the numbers are those" not in show.comparison(after, [advised])


def test_the_note_on_the_cache_names_as_many_completions_as_the_page():
    found = planned("peft-1.5b", device=devices.DEVICES["l4"])
    (note,) = [text for text in found.notes if "KV cache" in text]
    assert f"holds about {found.concurrency} of {found.completions} completions" in note


def test_the_guide_says_how_much_slower_the_plan_expects_transformers_to_be():
    """On every GPU that the page names, for a rank of 256 and for the preset of six hours."""
    ratios = {"generate": [], "step": []}
    for device in map(devices.find, ("t4", "l4", "4090", "a40", "a100", "h100")):
        for presets in (("micro-r256",), ("micro-r64", "budget-6h")):
            vllm, slow = (planned(*presets, device=device, engine__kind=kind) for kind in ("vllm", "transformers"))
            assert vllm.fits and slow.fits
            ratios["generate"].append(slow.step_parts_s["generate"] / vllm.step_parts_s["generate"])
            ratios["step"].append(slow.step_s / vllm.step_s)
    sampling, step = (f"{min(found):.1f} to {max(found):.1f} times" for found in ratios.values())
    said = " ".join(guide.text("engine").split())
    assert f"sampling takes {sampling} as long with transformers as with vLLM, and a whole step {step}" in said


def test_the_guide_says_what_activation_recomputation_takes_by_the_plan():
    ratios = []
    for device in map(devices.find, ("l4", "4090", "a40", "a100")):
        for presets in (("micro-r64",), ("micro-r256",), ("micro-r64", "budget-6h")):
            kept, again = (planned(*presets, device=device, model__gradient_checkpointing=value) for value in (False, True))
            ratios.append(again.step_parts_s["update"] / kept.step_parts_s["update"])
    said = " ".join(guide.text("budget").split())
    assert f"by the plan, an update takes {min(ratios):.1f} to {max(ratios):.1f} times as long" in said


def test_the_guides_table_of_both_ways_is_the_plans():
    said = guide.text("plan")
    for prompts in (16, 32):
        for mode in ("swap", "merge"):
            found = planned("micro-r256", sampling__prompts_per_step=prompts, engine__sync=mode)
            groups = f"{found.groups_hour:,.0f} | {found.useful_groups_hour:,.0f} |"
            assert f"| {prompts} prompts, `{mode}` | {found.step_s:.3g} | {groups}" in said
