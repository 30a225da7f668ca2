"""Compare a training step with TRL's on the same work: processes of both alternate, so that both meet the same machine."""

from __future__ import annotations

import os
import shutil
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from importlib import metadata
from pathlib import Path
from typing import Any

from microrl.commands.bench import trl_step
from microrl.commands.isolated import last_words, printed
from microrl.config import known_models
from microrl.config.environment import BUILT_IN, EnvironmentConfig
from microrl.config.paths import local_model
from microrl.environments.process import refuse_unusable
from microrl.errors import MachineFailure, UserError
from microrl.limits import SPINS_BEFORE_SLEEP

INSTALL = "python -m venv ENV && ENV/bin/pip install 'trl>=1.16' 'torch<2.14' peft datasets; then --peer ENV/bin/python"
ROOT = str(Path(__file__).parents[3])
"""Where the peer finds the environments that come with microrl; they need the standard library alone."""
ANSWER_S = 120.0
"""Maximum seconds for the peer's interpreter to say which versions it has."""
OURS = ("microrl", "torch", "transformers", "peft")
DTYPE = "float32"
KEPT = ("steps_s", "tokens_per_step", "calls", "peak_rss_gb")
"""Of what a side prints."""


@dataclass(frozen=True, slots=True)
class Work:
    """What a step does, and how many are timed; one untimed step precedes them. `tokens` is per completion, and forced; with an
    environment, it is the limit of a completion. With a `teacher`, a step distils; TRL then asks prompts x group questions, since
    its trainer samples one completion of each."""

    prompts: int
    group: int
    tokens: int
    rank: int
    steps: int
    env: str | None = None
    teacher: str | None = None

    def options(self) -> list[str]:
        return [word for name, value in asdict(self).items() if value is not None for word in (f"--{name}", str(value))]


def compare(
    peer: str, work: Work, *, model: str = known_models.QUICKSTART, pairs: int = 5, say: Callable[[str], None] = lambda text: None
) -> dict[str, Any]:
    """Time `pairs` pairs of processes: `microrl bench step`, and TRL in the environment of the interpreter `peer`.

    Both load the same float32 weights, and use the same device. TRL has as many threads as microrl's update, and OpenMP's
    default of how long threads wait. Which side is first alternates, too. `model` is a local folder, a .gguf file or the
    quickstart's. Ratios are microrl's value divided by TRL's:

    - `pairs`: for each side `step_s` (median of the timed steps), `steps_s` (with the untimed first one), `tokens_per_step`
      (tool results included), with an environment `calls` (mean tool calls of a completion), and `peak_rss_gb` (peak resident
      memory of the process, 1e9 bytes); and the pair's `step_ratio` and `memory_ratio`;
    - `step_ratio` and `memory_ratio`: the medians over the pairs, with `step_ratio_range` and `memory_ratio_range`.

    Raises UserError for a model that is not local and for an interpreter without TRL, MachineFailure for a side that fails.
    """
    interpreter, versions = find_peer(peer)
    with local_folder(model, say) as folder, _local_teacher(work, say) as located:
        compared_pairs: list[dict[str, Any]] = []
        ours: dict[str, Any] = {}
        for number in range(pairs):
            sides: dict[str, dict[str, Any]] = {}
            for side in ("microrl", "peer") if number % 2 == 0 else ("peer", "microrl"):
                if side == "microrl":
                    result = ours = _our_steps(folder, located)
                else:
                    result = _peer_steps(interpreter, folder, located, ours)
                sides[side] = {"step_s": result["step_s_median"], **{key: result[key] for key in KEPT if key in result}}
                name = "microrl" if side == "microrl" else f"TRL {versions['trl']}"
                say(f"pair {number + 1} of {pairs}: {name} {sides[side]['step_s']:.3g} s per step, "
                    f"{sides[side]['peak_rss_gb']:.3g} GB")  # fmt: skip
            compared_pairs.append(with_ratios(sides["microrl"], sides["peer"]))
    settings = {"model": model, **asdict(work), "dtype": DTYPE, "device": ours["device"], "threads": ours["threads"]}
    return {
        "pairs": compared_pairs,
        **spread("step_ratio", compared_pairs),
        **spread("memory_ratio", compared_pairs),
        "versions": {"microrl": {name: metadata.version(name) for name in OURS}, "peer": versions},
        "settings": settings,
    }


def with_ratios(ours: dict[str, Any], peer: dict[str, Any]) -> dict[str, Any]:
    """A pair with its ratios, microrl's value divided by the peer's."""
    return {
        "microrl": ours,
        "peer": peer,
        "step_ratio": ours["step_s"] / peer["step_s"],
        "memory_ratio": ours["peak_rss_gb"] / peer["peak_rss_gb"],
    }


def spread(key: str, pairs: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """The median of the pairs' ratios, and the smallest and the largest of them."""
    ratios = [pair[key] for pair in pairs]
    return {key: statistics.median(ratios), f"{key}_range": [min(ratios), max(ratios)]}


def find_peer(name: str) -> tuple[str, dict[str, str]]:
    """The path of the peer's interpreter, and the versions of its libraries. Raises UserError where it cannot run TRL."""
    path = shutil.which(os.path.expanduser(name))
    if path is None:
        raise UserError(f"--peer: there is no program {name}", INSTALL)
    try:
        done = _run(_script(path, "--versions"), timeout_s=ANSWER_S)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise UserError(f"--peer: {name} is not a Python interpreter: {error}", INSTALL) from error
    versions = printed(done)
    if versions is None:
        raise UserError(f"--peer: {name} is not a Python interpreter: {last_words(done)}", INSTALL)
    missing = [library for library in trl_step.NEEDED if not versions.get(library)]
    if missing:
        raise UserError(f"--peer: the environment of {name} lacks {', '.join(missing)}", INSTALL)
    return path, versions


def check_model(name: str, option: str = "--model") -> None:
    """Raises UserError for a model that is neither a local folder, nor a .gguf file, nor the quickstart's."""
    if local_model(name) is None and name != known_models.QUICKSTART:
        known = known_models.find(name)
        hub_id = name if known is None else known.hub_id
        raise UserError(
            f"{option} {name}: the comparison needs a local model",
            f"download it with `hf download {hub_id} --local-dir DIR` and pass {option} DIR, or use "
            f"{option} {known_models.QUICKSTART}",
        )


def check_environment(target: str | None) -> None:
    """Raises UserError for an environment that TRL cannot be given, or whose module does not exist."""
    if target is None or target in BUILT_IN:
        return
    if ":" not in target:
        raise UserError(
            f"--env {target}: bench peer takes no entry point", "pass --env MODULE:CLASS, or one of: " + ", ".join(BUILT_IN)
        )
    refuse_unusable(EnvironmentConfig(target=target, path=os.getcwd()))


@contextmanager
def local_folder(name: str, say: Callable[[str], None]) -> Iterator[Path]:
    """The model as a folder that both sides can load; a .gguf file is converted into a temporary one."""
    check_model(name)
    if name == known_models.QUICKSTART:
        from microrl.quickstart.model import ensure_model
        from microrl.run.console import RunConsole

        with RunConsole() as console:
            folder = ensure_model(name, console)
        yield folder
    elif name.endswith(".gguf"):
        from microrl.config.schema import ModelConfig
        from microrl.models.load import load

        with tempfile.TemporaryDirectory(prefix="microrl-") as temporary:
            say(f"converting {name} to {DTYPE}")
            for part in load(ModelConfig(name=name, dtype=DTYPE)):
                part.save_pretrained(temporary)
            yield Path(temporary)
    else:
        yield Path(name).expanduser()


@contextmanager
def _local_teacher(work: Work, say: Callable[[str], None]) -> Iterator[Work]:
    """The work with its teacher, if it has one, as a folder that both sides can load."""
    if work.teacher is None:
        yield work
        return
    with local_folder(work.teacher, say) as folder:
        yield replace(work, teacher=str(folder))


def _our_steps(folder: Path, work: Work) -> dict[str, Any]:
    """`microrl bench step` in a process of its own, so that the peak memory is that of the steps."""
    command = [sys.executable, "-m", "microrl", "bench", "step", "--model", str(folder), "--dtype", DTYPE, "--json"]
    done = _run([*command, *work.options()])
    result = printed(done)
    if result is not None:
        return result
    messages = {word: text for word, _, text in (line.partition(": ") for line in done.stderr.splitlines())}
    kind = UserError if done.returncode == 2 else MachineFailure
    raise kind(f"microrl bench step failed: {messages.get('error') or last_words(done)}", messages.get("hint"))


def _peer_steps(interpreter: str, folder: Path, work: Work, ours: dict[str, Any]) -> dict[str, Any]:
    """The peer's steps, on the device and with the threads that microrl's had."""
    same = ["--device", ours["device"], "--threads", str(ours["threads"])]
    if work.env is not None:
        one = EnvironmentConfig(target=work.env)
        same += ["--path", ROOT if one.is_built_in else os.getcwd()]
        work = replace(work, env=BUILT_IN.get(work.env, work.env))
    return peer_result(interpreter, "--model", str(folder), *work.options(), *same)


def peer_result(interpreter: str, *words: str) -> dict[str, Any]:
    """What the peer's process prints. Raises MachineFailure where it fails."""
    done = _run(_script(interpreter, *words))
    result = printed(done)
    if result is None:
        raise MachineFailure(
            f"TRL failed: {last_words(done)}", f"TRL was run with {interpreter}; for a new environment: {INSTALL}"
        )
    return result


def _script(interpreter: str, *arguments: str) -> list[str]:
    """The peer's command. `-I`: nothing of this environment, such as PYTHONPATH, reaches the other one."""
    return [interpreter, "-I", trl_step.__file__, *arguments]


def _run(command: list[str], timeout_s: float | None = None) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "HF_HUB_OFFLINE": "1"}
    if environment.get("GOMP_SPINCOUNT") == SPINS_BEFORE_SLEEP:  # microrl's own choice: the peer keeps its default
        del environment["GOMP_SPINCOUNT"]
    return subprocess.run(
        command, capture_output=True, text=True, errors="replace", env=environment, stdin=subprocess.DEVNULL, timeout=timeout_s
    )
