"""`microrl plan --detect`: how many questions, samples and seeds show a gain, and what their evaluation takes."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from rich.console import Group
from rich.table import Table

from microrl.cli.output import emit, say
from microrl.config import RunConfig
from microrl.errors import UserError
from microrl.evaluation.power import MOST, POWER, Study, power, questions_needed
from microrl.plan import Device, Shape, make
from microrl.tables import as_text, table

SAMPLES = (1, 4, 16)
SEEDS = (1, 3, 5)


def study_of(gain: float, accuracy: float) -> Study:
    """Raises UserError for a gain or an accuracy that no evaluation could have."""
    if not 0 < gain < 1:
        raise UserError(f"--detect {gain:g} is not between 0 and 1", "a gain of three percentage points is --detect 0.03")
    if not 0 < accuracy < 1:
        raise UserError(f"--accuracy {accuracy:g} is not between 0 and 1", "give the accuracy before training: --accuracy 0.3")
    if accuracy + gain >= 1:
        raise UserError(
            f"an accuracy of {accuracy:g} cannot gain {gain:g}", f"--detect below {1 - accuracy:.2g}, or a lower --accuracy"
        )
    study = Study(gain, accuracy)
    if questions_needed(study, samples=max(SAMPLES)) is None:
        raise UserError(f"--detect {gain:g} takes more than {MOST:,} questions", "give a larger gain, such as --detect 0.03")
    return study


def show(config: RunConfig, shape: Shape, study: Study, devices: list[Device], *, as_json: bool) -> None:
    """Print the designs, and their cost on each device."""
    designs = [_design(config, shape, study, devices, samples, seeds) for seeds in SEEDS for samples in SAMPLES]
    if as_json:
        emit({"detect": study.gain, "power": POWER, "assumptions": asdict(study), "designs": designs})
        return
    print(_page(study, designs, devices))
    say("the cost is that of evaluating both sides; each further seed also takes a training run")


def _design(config: RunConfig, shape: Shape, study: Study, devices: list[Device], samples: int, seeds: int) -> dict[str, Any]:
    questions = questions_needed(study, samples=samples, seeds=seeds)
    design: dict[str, Any] = {"seeds": seeds, "samples": samples, "questions": questions}
    if questions is not None:
        design["power"] = power(study, questions=questions, samples=samples, seeds=seeds)
        design["completions"] = questions * samples * (1 + seeds)
        design["cards"] = {device.name: _cost(config, shape, device, questions, samples, seeds) for device in devices}
    return design


def _cost(config: RunConfig, shape: Shape, device: Device, questions: int, samples: int, seeds: int) -> dict[str, float]:
    """Hours and US dollars of evaluating the untouched model and `seeds` trained ones."""
    evaluation = config.evaluation.model_copy(update={"problems": questions, "samples": samples, "pass_k": ()})
    plan = make(config.model_copy(update={"evaluation": evaluation}), shape, device)
    hours = (1 + seeds) * plan.evaluation_s / 3600
    return {"hours": hours, "cost_usd": hours * plan.price}


def _page(study: Study, designs: list[dict[str, Any]], devices: list[Device]) -> str:
    alone = devices[0].name if len(devices) == 1 else None
    columns = (">seeds", ">samples", ">questions", ">completions", *((f">hours on {alone}", ">$") if alone else ()))
    rows = []
    for design in designs:
        cells = ["never"]
        if design["questions"] is not None:
            costs = _hours_and_dollars(design["cards"][alone]) if alone else ()
            cells = [f"{design['questions']:,}", f"{design['completions']:,}", *costs]
        rows.append([str(design["seeds"]), str(design["samples"]), *cells])
    parts: list[Any] = [table(columns, rows), *([] if alone else ["", _cards(designs, devices)])]
    head = (
        f"To detect a gain of {100 * study.gain:g} points from an accuracy of {study.accuracy:g} with a power of {POWER:.0%} "
        "(how often the gain's 95 % interval lies above 0):"
    )
    tail = (
        f"Assumed: success rates of problems with a Beta(a, b) distribution, a + b = {study.size:g}, and a correlation of "
        f"{study.correlation:g} between before and after; a standard deviation of {study.seed_sd:g} between the accuracies of "
        "seeds. With one seed, the result holds for that run alone. never: no number of problems outweighs the spread between "
        "so few seeds."
    )
    return as_text(Group(head, "", *parts, "", tail))


def _cards(designs: list[dict[str, Any]], devices: list[Device]) -> Table:
    """The cost of one design on every card; those of the others are in proportion to their completions, nearly."""
    one = next(design for design in designs if design["seeds"] == 1 and design["samples"] == max(SAMPLES))
    rows = [(device.name, *_hours_and_dollars(one["cards"][device.name])) for device in devices]
    return table((f"{one['seeds']} seed, {one['samples']} samples on", ">hours", ">$"), rows)


def _hours_and_dollars(cost: dict[str, float]) -> tuple[str, str]:
    return f"{cost['hours']:.2g}", f"{cost['cost_usd']:.2f}"
