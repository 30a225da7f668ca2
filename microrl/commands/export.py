"""Export a trained adapter: as a LoRA in PEFT's format, or as a whole model with the adapter merged."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from transformers import AutoConfig, PreTrainedModel

from microrl import files
from microrl.adapters.folder import write_pairs
from microrl.commands.model_card import ModelCard
from microrl.commands.weights import trained
from microrl.config import RunConfig, known_models
from microrl.errors import MachineFailure, UserError, first_line
from microrl.models import hub
from microrl.models.load import NO_CODE
from microrl.models.tensors import stored_tensors, weights
from microrl.run.console import RunConsole
from microrl.run.folder import RunFolder
from microrl.terminal import say
from microrl.train.setup import load_model
from microrl.types import AdapterSnapshot

TYPES = ("float32", "bfloat16", "float16")
LOG_IN = "log in with a token that may write there: hf auth login, or set HF_TOKEN"


def merge(
    config: RunConfig,
    run: RunFolder | None,
    adapter: Path | None,
    out: Path,
    *,
    form: str | None,
    dtype: str | None,
    hub_id: str | None = None,
) -> dict[str, Any]:
    """Write the folder `out` and describe it: `{"folder", "as", "base", "dtype", "rank", "files", "bytes", "serve"}`.

    `adapter`: a folder with an adapter for the model in `config`; None: the final adapter of `run`. `form`: lora or full; None:
    lora if the update is low-rank. `dtype`: weight type of a whole model; None: the type in which the base is stored. `hub_id`:
    what the model card calls it; None: by its folder.
    Raises UserError if `out` is not empty, the adapter is for another model, or the update is not low-rank but `form` is lora;
    MachineFailure if the disk is full.
    """
    target = _free(out)
    source = adapter
    if source is None:
        assert run is not None, "a run or an adapter"
        source = run.final()
    if form == "lora" and run is not None and config.adapter.pair_rank is None:
        raise _not_low_rank(config.adapter.name)
    with RunConsole() as console:
        if run is not None and adapter is None and not run.is_done():
            console.note(f"note: {run.path} is not finished; exporting its current adapter")
        # A pair does not depend on 4-bit storage; a whole model is made of the dequantised weights that the run has used.
        changes = {"quant": None if form == "lora" else config.model.quant, "dtype": dtype or _own_type(config)}
        wanted = config.model_copy(update={"model": config.model.model_copy(update=changes)})
        model, tokenizer = load_model(wanted, console, check=False)  # nothing is computed with it
        base = _base(config, model)
        console.status(f"reading {source}")
        snapshot = trained(source, config, model)
        form = form or ("lora" if snapshot.pairs else "full")
        if form == "lora" and not snapshot.pairs:
            raise _not_low_rank(str(source))
        rank = max((len(pair.A_RI) for pair in snapshot.pairs.values()), default=None)
        stored = str(model.dtype).removeprefix("torch.")
        has_template = tokenizer.chat_template is not None
        card = ModelCard(form, base, target if hub_id is None else Path(hub_id), config, run, source, rank, stored, has_template)
        with _whole(target) as temporary:
            if form == "lora":
                write_pairs(temporary, snapshot.pairs, base)
            else:
                tensors = _merged(model, snapshot, console)
                console.status(f"writing {target}")
                model.save_pretrained(temporary, state_dict=tensors)
                tokenizer.save_pretrained(temporary)
            (temporary / "README.md").write_text(card.text(), encoding="utf-8")
    written = sorted(path for path in target.iterdir() if path.is_file())
    return {
        "folder": str(target),
        "as": form,
        "base": base,
        "dtype": "float32" if form == "lora" else stored,
        "rank": rank if form == "lora" else None,
        "files": [path.name for path in written],
        "bytes": sum(path.stat().st_size for path in written),
        "serve": card.serve(),
    }


def push(
    config: RunConfig,
    run: RunFolder | None,
    adapter: Path | None,
    hub_id: str,
    *,
    form: str | None,
    dtype: str | None,
    private: bool,
) -> dict[str, Any]:
    """Export, as `merge` does, to a new commit of the hub's repository `hub_id`, which is created if there is none.

    Describes it: as `merge`, without the folder, and `{"hub_id", "url"}`, the commit's. Raises UserError where the hub refuses
    it, for an adapter of a local base, which nobody else could load, and with `private` if the repository exists and is public.
    """
    from huggingface_hub import HfApi
    from huggingface_hub.errors import HfHubHTTPError, RepositoryNotFoundError

    api = HfApi()
    try:
        api.whoami()  # before the weights are written
        if private:
            with suppress(RepositoryNotFoundError):  # it is created as a private one
                if not api.repo_info(hub_id).private:
                    raise UserError(
                        f"{hub_id} exists already and is public: --private would not change that",
                        f"make it private at {hub.endpoint()}/{hub_id}/settings, or push to another name",
                    )
        with TemporaryDirectory() as above:
            folder = Path(above) / "export"
            exported = merge(config, run, adapter, folder, form=form, dtype=dtype, hub_id=hub_id)
            if exported["as"] == "lora" and Path(exported["base"]).is_absolute():
                raise UserError(
                    f"the adapter's base is a local folder ({exported['base']}), so that others could not load it",
                    "push the whole model: --as full",
                )
            say(f"uploading {exported['bytes'] / 1e6:,.1f} MB to {hub_id}")
            api.create_repo(hub_id, private=private, exist_ok=True)
            commit = api.upload_folder(repo_id=hub_id, folder_path=folder, commit_message="Upload by microrl")
    except HfHubHTTPError as error:
        status = error.response.status_code
        raise UserError(
            f"the hub refused {hub_id}: status {status}, {error.server_message or first_line(error)}", LOG_IN
        ) from error
    return {"hub_id": hub_id, "url": str(commit.commit_url), **{key: value for key, value in exported.items() if key != "folder"}}


def _free(out: Path) -> Path:
    """The absolute path of `out`. Raises UserError if it is a file, not empty, or cannot be created."""
    target = out.expanduser().resolve()
    if target.exists() and not target.is_dir():
        raise UserError(f"{out} is a file", "choose another folder: --out DIR")
    if target.is_dir() and any(target.iterdir()):
        raise UserError(f"{out} already exists and is not empty", "choose another folder: --out DIR")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"cannot create the folder {out}: {error.strerror}", "choose another folder: --out DIR") from None
    return target


@contextmanager
def _whole(target: Path) -> Iterator[Path]:
    """`files.whole_folder`, with errors that a user understands."""
    try:
        with files.whole_folder(target) as temporary:
            yield temporary
            _free(target)  # nobody else has written there meanwhile
    except PermissionError as error:
        raise UserError(f"cannot write {target}: {error.strerror}", "choose another folder: --out DIR") from error
    except Exception as error:
        if not files.is_full(error):
            raise
        raise MachineFailure(
            f"the disk is full: no room for {target} ({error})", "free some space, or choose another folder: --out DIR"
        ) from error


def _not_low_rank(what: str) -> UserError:
    return UserError(
        f"{what} is not a low-rank update and cannot be written as a LoRA", "merge it into the whole model: --as full"
    )


def _own_type(config: RunConfig) -> str:
    """The type in which the base's weights are stored; `model.dtype` for a `.gguf` file or a 4-bit base."""
    name = config.model.name
    if name.endswith(".gguf") or config.model.quant is not None:
        return config.model.dtype
    path, known = Path(name).expanduser(), known_models.find(name)
    try:
        stored = AutoConfig.from_pretrained(path if path.exists() else known.hub_id if known else name, **NO_CODE).dtype
    except (OSError, ValueError, KeyError, RuntimeError):
        return "float32"  # the quickstart's; for any other name, loading it reports the error
    dtype = str(stored).removeprefix("torch.")
    return dtype if dtype in TYPES else "float32"


def _base(config: RunConfig, model: PreTrainedModel) -> str:
    """The base as a hub id, or as the absolute path of a folder or file."""
    name = config.model.name if config.model.name.endswith(".gguf") else str(model.config._name_or_path)
    path = Path(name).expanduser()
    return str(path.resolve()) if path.exists() else name


@torch.no_grad()
def _merged(model: PreTrainedModel, snapshot: AdapterSnapshot, console: RunConsole) -> dict[str, torch.Tensor]:
    """Every tensor with the update merged. Plain tensors replace the base's own, so that there is no second copy of the model.

    4-bit tensors are dequantised.
    """
    tensors, own = {}, stored_tensors(model)
    for name, tensor in console.progress(weights(model, snapshot), len(own), "merging tensors"):
        if getattr(own[name], "quant_state", None) is None:
            own[name].data = tensor.detach()
        tensors[name] = tensor.detach()
    return tensors
