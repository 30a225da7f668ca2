"""The run or the weights that a command is about, and what has to be done before its heavy imports."""

from __future__ import annotations

import os
from pathlib import Path
from typing import NamedTuple

from microrl.cli.output import say
from microrl.config import RunConfig, known_models, resolve
from microrl.config.data import GYM
from microrl.config.paths import expanded, local_model
from microrl.config.resolve import override
from microrl.data.load import check_source
from microrl.data.sources import GENERATED, path_or_hub_id
from microrl.errors import UserError
from microrl.models import hub
from microrl.run import names
from microrl.run.folder import RunFolder, run_above, under_runs


def prepare_hub(config: RunConfig, *more: str, reads_data: bool = False, loads_model: bool = True) -> None:
    """Call `hub.prepare`; must run before heavy imports, which take seconds. `more`: other models that the command loads.

    Raises UserError for a model's path or name that cannot be, and with `reads_data` for what is wrong with the data's first row.
    """
    models_named = [config.model.name, *more] if loads_model else []
    for name in models_named:
        local_model(name)
    if reads_data:
        check_source(config.data)
    names = (config.data.name, config.sft.data, *config.data.decontaminate)
    data = [name for name in names if name is not None and not name.lower().startswith(GYM)]
    hub.prepare(*models_named, *map(path_or_hub_id, data), local=(*known_models.TINY, *GENERATED))


def run_of(name: str | None) -> RunFolder:
    """The run in this folder; for None the newest, which is said. Raises UserError."""
    if name is not None:
        return RunFolder.open(Path(name))
    run = RunFolder.newest()
    say(f"using the newest run: {run.path}")
    return run


def is_path(name: str) -> bool:
    """Whether a name can only be a path."""
    return name.startswith(("/", ".", "~", "runs/"))


class ResolvedTarget(NamedTuple):
    """A configuration with the model, the run (None: no run's), and the adapter's folder (None: the run's final adapter, or with
    no run none at all)."""

    config: RunConfig
    run: RunFolder | None
    adapter: Path | None

    def adapter_folder(self) -> Path | None:
        """The adapter's folder; None for a model. Raises UserError for a run that has none yet."""
        return self.run.final() if self.run is not None and self.adapter is None else self.adapter

    @property
    def part(self) -> str | None:
        """`best` or `step-000100` for such a part of a run; None for its final adapter and for what is no run's."""
        return None if self.run is None or self.adapter is None or self.adapter.name == names.FINAL else self.adapter.name


def find_adapter(name: str | None, model: str | None = None) -> ResolvedTarget:
    """A run (None: the newest), a part of it such as RUN/best or RUN/step-000100, or an adapter's folder in PEFT's format.

    `model` takes the place of the base model that these name. Raises UserError, also for anything else.
    """
    path = None if name is None else Path(expanded(name, "the name of a run"))
    run, adapter = (_newest(), None) if path is None else (path, None) if RunFolder.is_one(path) else _part(path)
    if run is not None:
        folder = RunFolder.open(run)
        return ResolvedTarget(override(folder.settings().model_dump(), {"model.name": model}, ()), folder, adapter)
    assert path is not None
    if not path.is_dir():
        raise UserError(
            f"there is no folder {name}",
            under_runs(path) or "pass a run folder, its best/, or an adapter folder; `ls runs` lists your runs",
        )
    if not (path / "adapter_config.json").is_file():
        raise UserError(f"{name} is neither a run folder nor an adapter in PEFT's format", "pass a run folder, or its best/")
    from microrl.adapters.settings import base_of

    base = model or base_of(path)
    if base is None:
        raise UserError(
            f"{name} does not name its base model",
            "set base_model_name_or_path in its adapter_config.json (or --model in export, push)",
        )
    return ResolvedTarget(resolve((), {"model.name": base}), None, path)


def find_weights(name: str | None) -> ResolvedTarget:
    """As `find_adapter`, or a model. Raises UserError."""
    if name is not None:
        path = Path(expanded(name, "the name of a run or model"))
        has_model = (path / "config.json").is_file()  # with an adapter beside it, loading the model refuses both
        is_adapter = (path / "adapter_config.json").is_file() and not has_model
        if not (is_adapter or RunFolder.is_one(path) or _part(path)[0] is not None):
            is_of_run = is_path(name) or ("/" in name and RunFolder.is_one(path.parent))
            if is_of_run and (run := run_above(path)) is not None:
                raise UserError(f"{name} is not a part of the run {run}", f"its parts: {', '.join(_parts(run))}")
            if not path.exists() and (hint := under_runs(path)) is not None:
                raise UserError(f"there is no run and no model `{name}`", hint)
            if path.is_dir() and not has_model:
                raise UserError(
                    f"{name} is not the folder of a run, an adapter or a model (which has a config.json)",
                    "pass a run (`ls runs` lists yours), a model's folder, a .gguf file or a hub id",
                )
            return ResolvedTarget(_model(name), None, None)
    return find_adapter(name)


def _newest() -> Path:
    """The newest run that is finished, or else the newest."""
    run = RunFolder.newest(has_final=True).path
    say(f"using the newest run{'' if run == RunFolder.newest().path else ' that is finished'}: {run}")
    return run


def _model(name: str) -> RunConfig:
    if is_path(name) and not os.path.exists(os.path.expanduser(name)):
        raise UserError(f"there is no run and no model at {name}", "list your runs with `ls runs`, or pass a model")
    if name in known_models.TINY:
        return resolve([name])
    if "/" in name and not os.path.exists(name):
        say(f"note: {name} is neither a run nor a local folder; taken as a model on the Hugging Face hub")
    return resolve((), {"model.name": name})


def _part(path: Path) -> tuple[Path, Path] | tuple[None, None]:
    """(run, folder of its part), for RUN/final, RUN/best, RUN/checkpoints/step-N and RUN/step-N that exist."""
    run = run_above(path)
    if run is None:
        return None, None
    for folder in (path, run / names.CHECKPOINTS / path.name):
        if any((folder / file).is_file() for file in ("adapter_config.json", "config.json", "adapter.safetensors")):
            return run, folder
    return None, None


def _parts(run: Path) -> list[str]:
    final_and_best = [name for name in (names.FINAL, names.BEST) if (run / name).is_dir()]
    return [*final_and_best, *sorted(path.name for path in (run / names.CHECKPOINTS).glob("step-*"))] or ["none yet"]
