"""The Hugging Face Hub: is it reachable, and errors for models and data sets that cannot be had."""

from __future__ import annotations

import http.client
import os
import re
import ssl
import sys
import threading
from collections.abc import Mapping
from contextlib import closing
from functools import cache
from pathlib import Path
from urllib.parse import urlparse

from pydantic import BaseModel

from microrl.config import known_models
from microrl.config.paths import local_model
from microrl.errors import UserError, first_line
from microrl.files import BadFile, read_json

_PROXIES = ("https_proxy", "HTTPS_PROXY", "all_proxy", "ALL_PROXY")


def cache_folder() -> Path:
    """What microrl itself keeps: `$XDG_CACHE_HOME/microrl`, by default `~/.cache/microrl`."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "microrl"


def hub_folder(environment: Mapping[str, str] = os.environ) -> Path:
    """Where the hub's library keeps what it has downloaded; as in huggingface_hub.constants, which is read at import."""
    if cache := environment.get("HF_HUB_CACHE") or environment.get("HUGGINGFACE_HUB_CACHE"):
        return Path(cache).expanduser()
    above = environment.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(environment.get("HF_HOME") or f"{above}/huggingface").expanduser() / "hub"


def hub_id(name: str) -> str | None:
    """The hub's id of the model that `--model` names; None for one that is local. Raises UserError as `local_model` does."""
    if name in known_models.TINY or local_model(name) is not None:
        return None
    known = known_models.find(name)
    return name if known is None else known.hub_id


def is_to_be_downloaded(name: str) -> bool:
    """Whether a model is the hub's, and its weights are not all in the cache."""
    id_on_hub = hub_id(name)
    if id_on_hub is None:
        return False
    snapshots = map(weight_files, hub_folder().glob(f"{folder_name(id_on_hub)}/snapshots/*"))
    return not any(files and all(file.is_file() for file in files) for files in snapshots)


def folder_name(hub_id: str) -> str:
    """The folder of a model in `hub_folder`."""
    return f"models--{hub_id.replace('/', '--')}"


def weight_files(folder: Path) -> list[Path]:
    """The files of a model's weights that transformers reads: one, or else all that the index names, which may be missing. What
    else lies beside them, such as Mistral's `consolidated.safetensors`, is a second copy."""
    if (whole := folder / "model.safetensors").is_file():
        return [whole]
    try:
        index = read_json(folder / "model.safetensors.index.json", _Index, follow=True)
    except BadFile:
        return []
    return sorted({folder / name for name in index.weight_map.values()})


class _Index(BaseModel):
    weight_map: dict[str, str]


@cache
def reachable(timeout_s: float = 5.0) -> bool:
    """Whether the hub answers in this time. If not, its libraries are set to use their cache only.

    Without this they retry for half a minute before they give up, and for minutes where the connection is accepted and nothing
    comes back. Call it before they are imported.
    """
    if is_offline():
        return False
    if behind_proxy():
        return True  # unknown; leave it to the libraries
    answers: list[bool] = []
    # In a thread, since looking a name up has no deadline of its own, and an answer may come a byte at a time.
    asking = threading.Thread(target=lambda: answers.append(_answers(endpoint(), timeout_s)), daemon=True)
    asking.start()
    asking.join(min(1.0, timeout_s / 2))
    if asking.is_alive():
        print(f"waiting for the Hugging Face Hub at {endpoint()}, at most {timeout_s:g} s", file=sys.stderr, flush=True)
        asking.join(timeout_s - min(1.0, timeout_s / 2))
        if not any(answers):
            print("no answer: only local models and data are used", file=sys.stderr, flush=True)
    if any(answers):
        return True
    os.environ["HF_HUB_OFFLINE"] = "1"
    return False


def endpoint() -> str:
    """The hub's address, without a name and a password in it: it is printed, and what is printed is pasted into issues."""
    return re.sub(r"//[^/]*@", "//", os.environ.get("HF_ENDPOINT") or "https://huggingface.co")


def is_offline() -> bool:
    """Whether HF_HUB_OFFLINE is set: by the user, or by `reachable` where the hub did not answer."""
    return os.environ.get("HF_HUB_OFFLINE", "").lower() in ("1", "true", "yes", "on")


def behind_proxy() -> bool:
    """Whether a proxy is set, behind which the hub is not asked."""
    return any(os.environ.get(name) for name in _PROXIES)


def _answers(endpoint: str, timeout_s: float) -> bool:
    """Whether anything that speaks HTTP is there; nothing is sent or believed, so that its certificate does not matter."""
    url = urlparse(endpoint)
    try:
        if url.scheme == "http":
            connection = http.client.HTTPConnection(url.netloc, timeout=timeout_s)
        else:
            unverified = ssl._create_unverified_context()
            connection = http.client.HTTPSConnection(url.netloc, timeout=timeout_s, context=unverified)
        with closing(connection):
            connection.request("HEAD", url.path or "/")
            connection.getresponse()
    except (OSError, ValueError, http.client.HTTPException):
        return False
    return True


def prepare(*names: str, local: tuple[str, ...] = ()) -> None:
    """Decide whether this process may use the hub; call it before the hub's libraries are imported.

    It may not if all models and data sets are local, by path or by the names in `local`: such a run needs no network.
    """
    if all(name in local or os.path.exists(os.path.expanduser(name)) for name in names):
        os.environ["HF_HUB_OFFLINE"] = "1"
    else:
        reachable()


def missing(
    what: str,
    name: str,
    error: Exception,
    licence_page: str | None = None,
    *,
    revision: str | None = None,
    copy: Path | None = None,
) -> UserError:
    """The error for a model or data set that could not be loaded, with a hint.

    `licence_page`: where to accept the licence of a gated one, if known. `revision`: the commit that was asked for. `copy`: the
    folder in which a copy is looked for, if there is one.
    """
    chain: list[BaseException] = []
    link: BaseException | None = error
    while link is not None and link not in chain:
        chain.append(link)
        link = link.__cause__ or link.__context__
    names = {type(link).__name__ for link in chain}
    text = " ".join(str(link) for link in chain)
    page = licence_page
    # Of a name that does not exist, the library says that it may be "a private or gated repo".
    is_gated = "GatedRepoError" in names or (
        "RepositoryNotFoundError" not in names and ("gated repo" in text or "gated dataset" in text)
    )
    if is_gated or (page and "401" in text):
        page = page or f"https://huggingface.co/{name}"
        return UserError(
            f"{what} {name} is gated: its licence must be accepted before it can be downloaded",
            f"accept it at {page}, then run `hf auth login` (or set HF_TOKEN) and try again",
        )
    if not reachable():
        gate = f" (gated: accept the licence at {page} and run `hf auth login` there first)" if page else ""
        commit = f" --revision {revision}" if revision else ""
        command = f"hf download {name}" + ("" if what == "model" else f" --repo-type dataset{commit} --local-dir {copy or 'DIR'}")
        then = "pass its folder instead of the name" if what == "model" else "copy that folder here, and pass --data DIR"
        if copy is not None:
            then = "copy that folder to the same place here"
        return UserError(
            f"{what} {name} is not on this machine, and the hub cannot be reached",
            f"connect to the network, or download it elsewhere with `{command}`{gate} and {then}",
        )
    if "RevisionNotFoundError" in names:
        return UserError(f"{what} {name} has no commit `{revision}`", "check the revision")
    if "RepositoryNotFoundError" in names or "DatasetNotFoundError" in names or "404" in text:
        return UserError(
            f"there is no {what} `{name}` on the hub, and no such local path",
            "check the name; for a private one, run `hf auth login` first",
        )
    return UserError(
        f"{what} {name} could not be loaded: {first_line(error)}",
        "try again; if it is private, run `hf auth login`; or download it with `hf download` and pass the local path",
    )
