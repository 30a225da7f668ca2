"""Carry out a sweep on a Ray cluster: each trial is a task, and Ray places, queues and retries them.

The folder of the sweep must be one that every node sees under the same path. A task whose node or worker dies is started anew by
Ray; its trial then continues from its last checkpoint.

`ray://HOST:PORT` is the address of the cluster's server for clients, which may run anywhere. It ends the tasks of a client that
leaves, but those of one that was killed only after 30 s, in which the client could come back.
"""

from __future__ import annotations

import logging
import os
import subprocess
import sys
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from microrl.clock import now_s
from microrl.errors import MachineFailure, UserError, invalid_value
from microrl.processes import die_with
from microrl.run.folder import RunFolder
from microrl.sweep.display import Display
from microrl.sweep.folder import SweepFolder
from microrl.sweep.schedule import NextTrial, side_by_side
from microrl.sweep.sweep import OK, STOPPED, Base, base_name, bases_to_evaluate, end, end_base, last_error, make_ready

SCHEME = "ray"
RETRIES = 5
"""How often Ray starts a task anew whose node or worker has died. That it failed by itself is no reason."""
HUNG = "Initialization failure from server"
"""Ray 2.60's server for clients forks while it uses gRPC, and then may wait for its own process in vain. Tried once more."""
EVALUATE = "import sys; from microrl.cli.sweep import evaluate_base; sys.exit(evaluate_base(*sys.argv[1:]))"
"""What a worker's Python runs for the base model's evaluation: arguments are its folder and its configuration as JSON."""
LOOK_S = 0.5
LINGER_S = 60.0
"""How long a task waits while another process trains in its run folder: that of a killed client, which Ray has yet to end."""


def refuse_address(on: str) -> None:
    """Raise UserError for what --on cannot be. Ray would look for an address without a port for half a minute."""
    try:
        url = urlsplit(on)
        is_plain = url.username is None and not (url.path or url.query or url.fragment) and not any(map(str.isspace, on))
        is_address = url.scheme == SCHEME and bool(url.hostname) and bool(url.port) and is_plain
    except ValueError:  # the port is no number
        is_address = False
    if on != SCHEME and not is_address:
        raise invalid_value("--on", on, "--on ray for the cluster of this machine, or --on ray://HOST:10001")


def refuse_if_missing() -> None:
    """Raise UserError if Ray is not installed."""
    try:
        import ray  # noqa: F401
    except ImportError:
        raise UserError("ray is not installed", "pip install 'ray>=2.50', or in your clone: pip install -e '.[ray]'") from None


def run_trials(folder: SweepFolder, address: str, cpus: int | None, show: Display) -> None:
    """Start or resume trials until all are over. Each trial asks for one GPU, or for `cpus` processors instead.

    `address`: of the cluster; empty for the one that runs on this machine, which is started where there is none.

    Raises UserError where the cluster cannot be reached or has no node for a trial, MachineFailure where it is lost, and OSError.
    """
    import ray

    with _connected(address, show):
        _refuse_what_no_node_has(cpus)
        resources: dict[str, Any] = {"num_cpus": 1, "num_gpus": 1} if cpus is None else {"num_cpus": cpus, "num_gpus": 0}
        task = ray.remote(max_retries=RETRIES, max_calls=1, **resources)(train)
        try:
            _train_all(folder, task, cpus, show)
        except ConnectionError as error:
            on = f"--on {address or SCHEME}" + ("" if cpus is None else f" --cpus {cpus}")
            raise MachineFailure(
                f"the connection to the Ray cluster was lost: {str(error).partition(chr(10))[0]}",
                f"once the cluster is back: microrl sweep --resume {folder.path} {on}",
            ) from None


def _train_all(folder: SweepFolder, task: Any, cpus: int | None, show: Display) -> None:
    import ray

    while starting := side_by_side(folder):
        if bases := bases_to_evaluate(folder, starting[0].hours):
            _evaluate_bases(folder, bases, task, cpus, show)
            continue  # with what is left of the hours
        running = {task.remote(*_task_arguments(folder, one, cpus)): one for one in starting}
        show.note(f"{len(running)} trial{'s are' if len(running) != 1 else ' is'} queued")
        while running:
            ended, _ = ray.wait(list(running), num_returns=1, timeout=LOOK_S)
            for reference in ended:
                _end(folder, running.pop(reference), reference, show)


def _evaluate_bases(folder: SweepFolder, bases: list[Base], task: Any, cpus: int | None, show: Display) -> None:
    show.note("evaluating the base model, for all trials that share it")
    running = []
    for base in bases:
        command = ["-c", EVALUATE, str(base.path.absolute()), base.config.model_dump_json()]
        log = folder.log(base_name(base.path.name))
        running.append(task.remote(str(base.path.absolute()), str(log.absolute()), command, cpus))
    for base, reference in zip(bases, running, strict=True):
        end_base(folder, base, _status(reference)[0], show)


@contextmanager
def _connected(address: str, show: Display) -> Iterator[None]:
    import ray

    show.note(f"connecting to the Ray cluster {f'at {address}' if address else 'on this machine'}")
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "Ray Client connection timed out")  # the error below says so
            _connect(address, show)
    except (ConnectionError, RuntimeError, ValueError) as error:
        shown = str(error).partition("\n")[0]
        if not address:
            hint = "try `ray start --head`, which shows the cause"
            raise UserError(f"cannot use or start Ray on this machine: {shown}", hint) from None
        hint = "check address and port (10001 is Ray's default for clients); Python and Ray must match the cluster's versions"
        if HUNG in shown:
            hint = "try again, or start the cluster with GRPC_ENABLE_FORK_SUPPORT=0: its server for clients may hang otherwise"
        raise UserError(f"cannot connect to a Ray cluster at {address}: {shown}", hint) from None
    try:
        yield
    finally:
        ray.shutdown()


def _connect(address: str, show: Display) -> None:
    import ray

    quietly: dict[str, Any] = {"log_to_driver": False, "logging_level": logging.ERROR}
    try:
        ray.init(address=address or "auto", **quietly)
    except ConnectionError as error:
        if not address:
            ray.init(include_dashboard=False, **quietly)
        elif HUNG in str(error):
            show.note("Ray's client server did not start; trying once more")
            ray.init(address=address, **quietly)
        else:
            raise


def _refuse_what_no_node_has(cpus: int | None) -> None:
    """A task that no node can run would wait for ever."""
    import ray

    nodes = [node["Resources"] for node in ray.nodes() if node["Alive"]]
    if cpus is None and not any(node.get("GPU", 0) >= 1 for node in nodes):
        raise UserError("no node of the Ray cluster has a GPU", "train on CPU cores: --cpus 2, or add a node with a GPU")
    most = max((int(node.get("CPU", 0)) for node in nodes), default=0)
    if cpus is not None and cpus > most:
        raise UserError(f"no node of the Ray cluster has {cpus} CPUs", f"--cpus {most} or less")


def _task_arguments(folder: SweepFolder, upcoming: NextTrial, cpus: int | None) -> tuple[str, str, list[str], int | None]:
    """The arguments of a trial's task; its run folder is made here, where there is none."""
    name, path = upcoming.trial.name, folder.trial(upcoming.trial.name)
    make_ready(folder, upcoming)
    had = RunFolder(path).config()["budget"]["hours"]
    command = ["-m", "microrl", "train", "--resume", str(path.absolute())]
    if upcoming.hours not in (None, had):
        command += ["--hours", repr(upcoming.hours)]
    return str(path.absolute()), str(folder.log(name).absolute()), command, cpus


def train(path: str, log: str, command: list[str], cpus: int | None) -> int:
    """The task: let Python carry out `command`, which works in the run folder `path`; returns its exit status. It dies with the
    worker."""
    worker = os.getpid()
    threads = {} if cpus is None else {"OMP_NUM_THREADS": str(cpus)}
    if RunFolder.is_one(Path(path)):
        _wait_for(RunFolder(Path(path)))
    with open(log, "ab", buffering=0) as said:
        return subprocess.run(
            [sys.executable, *command], stdin=subprocess.DEVNULL, stdout=said, stderr=said,
            env={**os.environ, **threads}, preexec_fn=lambda: die_with(worker),
        ).returncode  # fmt: skip


def _wait_for(folder: RunFolder) -> None:
    """Wait until no other process trains in a run folder, but not for ever: whoever is to train there says what is wrong."""
    until = now_s() + LINGER_S
    while now_s() < until:
        try:
            folder.lock()
        except UserError:
            time.sleep(LOOK_S)
        else:
            folder.unlock()
            return


def _status(reference: Any) -> tuple[int, str]:
    """A task's exit status, and why Ray gave up on it."""
    import ray

    try:
        return int(ray.get(reference)), ""
    except ray.exceptions.RayError as error:
        return 1, f"Ray gave up on the task: {str(error).partition(chr(10))[0]}"


def _end(folder: SweepFolder, upcoming: NextTrial, reference: Any, show: Display) -> None:
    name = upcoming.trial.name
    status, why = _status(reference)
    if not why and status not in (OK, STOPPED):
        why = last_error(folder.log(name), status)
    if not why and folder.status(name) not in ("done", "stopped"):
        raise MachineFailure(
            f"trial {name} ended on another node, but left no result in {folder.trial(name)}",
            "start the sweep again, with --out in a folder that every node sees under the same path",
        )
    end(folder, upcoming.trial, status, why, show)
