"""What an update has done to the weights: the papers' diagnostics of an adapter (`microrl inspect`)."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from transformers import PreTrainedModel

from microrl.commands.weights import trained
from microrl.config import RunConfig
from microrl.diagnostics.spectrum import Basis, similarity, spectrum
from microrl.errors import UserError, did_you_mean
from microrl.models.tensors import dequantize
from microrl.report.completions import spread
from microrl.run import checkpoint, names
from microrl.run.console import RunConsole
from microrl.run.environment import Environment
from microrl.run.folder import RunFolder
from microrl.run.follow import JsonlReader
from microrl.train.setup import load_model
from microrl.types import AdapterSnapshot

PROJECTIONS = ("q_proj", "o_proj")
"""Of which spectra are drawn (ortho, figure 3)."""
MLP = ("gate_proj", "up_proj", "down_proj")
"""Of which the base's singular values are drawn (ortho, figure 9)."""
POINTS = 256
"""Of a spectrum that are stored, evenly spread, the first and the last among them."""
_LAYER = re.compile(r"\.(\d+)\.")


def inspect(
    config: RunConfig,
    run: RunFolder | None,
    folder: Path,
    *,
    layers: Sequence[int] | None = None,
    projections: Sequence[str] = PROJECTIONS,
) -> dict[str, Any]:
    """The diagnostics of the update in `folder`, as JSON; `run` adds how it came about: its start, and its kept checkpoints.

    `layers`: decoder layers by number, negative ones from the end; None: the first, the middle and the last. Raises UserError.
    """
    with RunConsole() as console:
        model, _ = load_model(config, console, check=False)  # nothing is computed with it
        snapshot = trained(folder, config, model)
        names = _changed(snapshot, model)
        if not names:
            raise UserError(f"{folder} changes no weight matrix", "pass another adapter")
        chosen = _chosen(names, model.config.num_hidden_layers, layers, projections)
        bases = {}
        for name in console.progress(chosen, len(chosen), "decomposing weights"):
            bases[name] = Basis.of(_weight(model, name))
        console.status("measuring the update")
        diagnostics: dict[str, Any] = {
            "folder": str(folder),
            "model": config.model.name,
            "adapter": config.adapter.name if run is not None else "lora",
            "norms": list(_norms(model, snapshot, names)),
            "spectra": [_spectrum(name, basis, _update(model, snapshot, name)) for name, basis in bases.items()],
            "similarity": [_similarity(name, basis, snapshot) for name, basis in bases.items() if name in snapshot.pairs],
            "start": None if run is None else _start(run),
            "mlp": [_singular(model, name) for name in _mlp(model, chosen)],
            "through": [] if run is None else list(_through(config, run, model, bases, console)),
        }
    return diagnostics


def _changed(snapshot: AdapterSnapshot, model: PreTrainedModel) -> list[str]:
    """The modules of which a weight matrix is changed; gains of norms are vectors."""
    merged = [name for name in snapshot.merged if name.endswith(".weight") and model.get_parameter(name).dim() == 2]
    return [*snapshot.pairs, *(name.removesuffix(".weight") for name in merged)]


def _chosen(names: Sequence[str], count: int, layers: Sequence[int] | None, projections: Sequence[str]) -> list[str]:
    kinds = {name.rpartition(".")[2] for name in names}
    for kind in projections:
        if kind not in kinds and tuple(projections) != PROJECTIONS:
            raise UserError(f"the update changes no `{kind}`", did_you_mean(kind, sorted(kinds)))
    for layer in layers or ():
        if not -count <= layer < count:
            raise UserError(f"there is no layer {layer}", f"the model has layers 0 to {count - 1}")
    wanted = {0, count // 2, count - 1} if layers is None else {layer % count for layer in layers}
    return [name for name in names if name.rpartition(".")[2] in projections and _layer(name) in wanted]


def _layer(name: str) -> int | None:
    match = _LAYER.search(name)
    return None if match is None else int(match[1])


def _weight(model: PreTrainedModel, name: str) -> torch.Tensor:
    return dequantize(model.get_parameter(f"{name}.weight")).detach().float()


def _update(model: PreTrainedModel, snapshot: AdapterSnapshot, name: str) -> torch.Tensor:
    """dW [O, I] of a module, in float64 for a pair."""
    if (pair := snapshot.pairs.get(name)) is not None:
        return pair.scale * pair.B_OR.double() @ pair.A_RI.double()
    weight = _weight(model, name)
    return snapshot.merged[f"{name}.weight"](weight).float() - weight


def _norms(model: PreTrainedModel, snapshot: AdapterSnapshot, names: Sequence[str]) -> Iterator[dict[str, Any]]:
    for name in names:
        weight = _weight(model, name)
        size = float(torch.linalg.matrix_norm(_update(model, snapshot, name)))
        relative = size / float(torch.linalg.matrix_norm(weight))
        yield {"module": name, "layer": _layer(name), "kind": name.rpartition(".")[2], "norm": size, "relative": relative}


def _spectrum(name: str, basis: Basis, update_OI: torch.Tensor) -> dict[str, Any]:
    update_spectrum = spectrum(basis, update_OI)
    index = spread(range(len(update_spectrum.singular_K)), POINTS)
    values = {
        "singular": update_spectrum.singular_K,
        "c": update_spectrum.strength_K,
        "p": update_spectrum.share_K,
        "energy": update_spectrum.energy_K,
    }
    return {"module": name, "index": index, **{key: _listed(value[index]) for key, value in values.items()}}


def _similarity(name: str, basis: Basis, snapshot: AdapterSnapshot) -> dict[str, Any]:
    factor_RI = snapshot.pairs[name].A_RI
    shares = similarity(basis, factor_RI)
    return {"module": name, "rank": len(factor_RI), "top": shares.top, "bottom": shares.bottom, "by_chance": shares.by_chance}


def _start(run: RunFolder) -> dict[str, Any]:
    """What the start was and took: ||B0 A0||_F averaged over the targets (ortho, table 4), seconds and memory (table 7)."""
    recorded = run.read_if_there(names.ENVIRONMENT, Environment) or Environment()
    start: dict[str, Any] = {"norm": recorded.adapter.get("start_norm")}
    for event in JsonlReader(run.path / names.EVENTS).new():
        if event.get("kind") == "adapter start":
            start |= {name: event.get(name) for name in ("seconds", "peak_gb", "cached")}
    return start


def _mlp(model: PreTrainedModel, chosen: Sequence[str]) -> list[str]:
    layers = {_layer(name) for name in chosen}
    return [
        name
        for name, module in model.named_modules()
        if isinstance(module, torch.nn.Linear) and name.rpartition(".")[2] in MLP and _layer(name) in layers
    ]


def _singular(model: PreTrainedModel, name: str) -> dict[str, Any]:
    values_K = torch.linalg.svdvals(_weight(model, name))
    index = spread(range(len(values_K)), POINTS)
    return {"module": name, "index": index, "singular": _listed(values_K[index])}


def _through(
    config: RunConfig, run: RunFolder, model: PreTrainedModel, bases: dict[str, Basis], console: RunConsole
) -> Iterator[dict[str, Any]]:
    """The norm of the update and the similarities through training, from the checkpoints that there are."""
    for folder in names.saved(run.path / names.CHECKPOINTS):
        if checkpoint.find_corruption(folder) is not None:
            continue
        console.status(f"measuring {folder.name}")
        snapshot = trained(folder, config, model)
        norms = [float(torch.linalg.matrix_norm(_update(model, snapshot, name))) for name in bases]
        near = [similarity(basis, snapshot.pairs[name].A_RI) for name, basis in bases.items() if name in snapshot.pairs]
        yield {
            "step": checkpoint.read_state(folder).step,
            "norm": sum(norms) / len(norms) if norms else None,
            "top": sum(one.top for one in near) / len(near) if near else None,
            "bottom": sum(one.bottom for one in near) / len(near) if near else None,
        }


def _listed(values_K: torch.Tensor) -> list[float]:
    return [float(f"{value:.6g}") for value in values_K.tolist()]
