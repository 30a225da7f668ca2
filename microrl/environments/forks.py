"""Instances of an environment class, each in a fork of the process that has imported it. It runs in that process alone.

The process itself (`rewards/custom/host.py`) only forks and kills. Its requests are `{"start": descriptor, "bounds": Bounds}`,
where two pipes for the new instance lie ready at a Unix socket, and `{"end": pid, "asks": whether to say how it ended}`. An
instance answers one request at a time on its own pipes: what it is (`describe`), `reset` with a row, a `call` of a tool, and its
`reward`. So killing one costs no import, and whatever an instance changes, in its module too, is gone with it.

Each answer repeats the random `id` of its request. So a tool that writes into the pipe cannot answer what is asked later.
"""

from __future__ import annotations

import ast
import contextlib
import gc
import inspect
import json
import os
import re
import resource
import signal
import socket
import tempfile
import textwrap
from collections import Counter
from collections.abc import Callable
from functools import partial
from glob import glob
from typing import TYPE_CHECKING, Any, BinaryIO, NamedTuple

from microrl.processes import die_with, libc, offer_to_oom_killer, write_line
from microrl.rewards.custom.host import LARGEST, error_text
from microrl.sandbox import Limits, confine, memory_folder
from microrl.sandbox.confine import levels_in_force, libraries, rules

if TYPE_CHECKING:
    from asyncio import AbstractEventLoop

NO_TOOLS = ("reset", "get_reward", "done")
LONGEST_ANSWER = 1 << 16
"""Characters of a tool's answer: more than a conversation could hold."""
FOLDER_BYTES, FOLDER_ENTRIES = 16 << 20, 1000
"""What a confined instance may write."""
_PR_SET_CHILD_SUBREAPER = 36


def refuse_other(loaded: Any, unusable: Callable[..., Exception]) -> None:
    """Raise `unusable` for what is no environment class, with the line to write; no instance is needed for that."""
    if not inspect.isclass(loaded):
        raise unusable(f"it is not a class, but of type {type(loaded).__name__}", hint="name a class: --env MODULE:CLASS")
    if not inspect.isfunction(getattr(loaded, "reset", None)):
        raise unusable("it has no method `reset`", hint="write: def reset(self, **row) -> str | None")
    names = tool_names(loaded)
    if not names:
        raise unusable(
            "it has no tool", hint="every public method except reset and get_reward is one; write: def add(self, a: int) -> int"
        )
    for name in names:
        lacking = _lacks(getattr(loaded, name))
        if lacking is not None:
            why = f"its tool `{name}` has no {lacking[0]}, from which the model's description of the tool is made"
            raise unusable(why, hint=lacking[1])
    if inspect.isfunction(getattr(loaded, "done", None)):
        raise unusable("`done` is a method, which is always true", hint="write @property above `def done(self) -> bool`")
    if twice := _defined_twice(loaded):
        raise unusable(f"it defines `{twice}` twice: the second definition shadows the first", hint="rename one of them")


def tool_names(environment: type) -> list[str]:
    """The public methods that are tools, by name."""
    methods = inspect.getmembers(environment, inspect.isfunction)
    return [name for name, _ in methods if not name.startswith("_") and name not in NO_TOOLS]


def _lacks(tool: Callable[..., Any]) -> tuple[str, str] | None:
    """What a tool's schema cannot be made without, and the line to write."""
    name, text = tool.__name__, inspect.getdoc(tool)
    if not text:
        return "docstring", f"below `def {name}`, write what it does, then `Args:` and a line for each argument"
    for one in list(inspect.signature(tool).parameters.values())[1:]:
        if one.annotation is one.empty:
            return f"type hint for `{one.name}`", f"write its type: def {name}(..., {one.name}: int)"
        if not re.search(rf"^\s*{one.name}\s*(\(.*\))?:", text, re.MULTILINE):
            return f"description of `{one.name}` in its docstring", f"below `Args:`, write: {one.name}: What it is."
    return None


def _defined_twice(environment: type) -> str | None:
    """A public method that the class defines twice; the parts of a property and of an overload are decorated."""
    try:
        (defined,) = ast.parse(textwrap.dedent(inspect.getsource(environment))).body
    except (OSError, TypeError, SyntaxError, ValueError):  # there is no source
        return None
    assert isinstance(defined, ast.ClassDef)
    methods = [node for node in defined.body if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]
    counts = Counter(node.name for node in methods if not node.decorator_list and not node.name.startswith("_"))
    return next((name for name, count in counts.items() if count > 1), None)


class Bounds(NamedTuple):
    """What holds an instance from before its `reset` on."""

    memory_bytes: int | None
    """Address space beyond what it has then; None: no limit."""
    confined: bool = False
    strict: bool = False
    """Whether it fails where this kernel cannot confine it."""
    folder: str | None = None
    """Where a confined one gets a folder in memory, if this machine allows that."""


def serve(environment: type, requests: BinaryIO, replies: int) -> None:
    """Fork and kill, until the parent closes its end."""
    forks: dict[int, str | None] = {}
    helpers, new_loop = _children(), _loops(environment)
    _adopt()
    is_in_memory: bool | None = None
    made: int | None = None
    gc.freeze()  # else the first collection in a fork copies the memory that it shares
    for line in requests:
        request = json.loads(line)
        if "end" in request:
            # Else it was the fork of a process before this one, and the number may be another's now.
            status = _end(request["end"], forks, helpers) if request["end"] in forks else None
            if request["asks"]:
                write_line(replies, {"status": status})
            continue
        descriptor, bounds = request["start"], Bounds(*request["bounds"])
        with socket.socket(fileno=os.dup(descriptor)) as channel:
            _, pipes, _, _ = socket.recv_fds(channel, 1, 2)
        if bounds.confined and is_in_memory is None:
            libraries()  # before the fork, as is what they may read
            made = rules() if bounds.folder is None else None
            is_in_memory = bounds.folder is not None and memory_folder.enter(bounds.folder)
        folder = _folder(bounds.folder) if bounds.folder is not None and is_in_memory else None
        owner = os.getpid()
        if (pid := os.fork()) == 0:
            try:
                os.setpgid(0, 0)
                die_with(owner)
                _adopt()
                for inherited in (requests.fileno(), replies, descriptor):
                    os.close(inherited)
                _Instance(environment, partial(_hold, bounds, folder, made, owner, (*pipes,), new_loop)).run(*pipes)
            finally:
                os._exit(0)
        forks[pid] = folder
        with contextlib.suppress(OSError):  # it has done so itself
            os.setpgid(pid, pid)
        for inherited in pipes:
            os.close(inherited)
        write_line(replies, {"pid": pid})


def _adopt() -> None:
    """Be the parent of every process below this one that loses its own."""
    with contextlib.suppress(AttributeError):
        libc().prctl(_PR_SET_CHILD_SUBREAPER, 1)


def _children() -> set[int]:
    pids: set[int] = set()
    for path in glob("/proc/self/task/*/children"):
        with contextlib.suppress(OSError), open(path) as numbers:
            pids |= set(map(int, numbers.read().split()))
    return pids


def _end(pid: int, forks: dict[int, str | None], helpers: set[int]) -> int:
    """Kill a fork and all that it has started. The status that it has ended with: its own, if it had ended before."""
    for kill, number in ((os.killpg, pid), (os.kill, pid)):  # it may have left its group
        with contextlib.suppress(ProcessLookupError):
            kill(number, signal.SIGKILL)
    status = os.waitpid(pid, 0)[1]
    folder = forks.pop(pid)
    # What has left its group was adopted by the instance, and with its end by this process.
    while orphans := _children() - forks.keys() - helpers:
        for number in orphans:
            os.kill(number, signal.SIGKILL)
            os.waitpid(number, 0)
    if folder is not None:
        memory_folder.unmount(folder)
        os.rmdir(folder)
    return status


def _folder(base: str) -> str | None:
    folder = tempfile.mkdtemp(dir=base)
    try:
        memory_folder.mount(folder, FOLDER_BYTES, FOLDER_ENTRIES)
    except OSError:
        os.rmdir(folder)
        return None
    return folder


def _loops(environment: type) -> Callable[[], AbstractEventLoop] | None:
    """What makes an event loop, where the class has methods that are `async`."""
    if not any(inspect.iscoroutinefunction(member) for _, member in inspect.getmembers(environment)):
        return None
    import asyncio  # here, in the process that is forked; the others have no need of it

    return asyncio.new_event_loop


def _hold(
    bounds: Bounds,
    folder: str | None,
    made: int | None,
    owner: int,
    pipes: tuple[int, ...],
    new_loop: Callable[[], AbstractEventLoop] | None,
) -> AbstractEventLoop | None:
    """Put the bounds on this process. Returns an event loop if one is needed: a confined process cannot make one. Raises
    OSError."""
    before = _descriptors()
    loop = new_loop() if new_loop else None
    memory = resource.RLIM_INFINITY
    if bounds.memory_bytes is not None:
        with open("/proc/self/statm") as pages:
            memory = int(pages.read().split()[0]) * resource.getpagesize() + bounds.memory_bytes
    if bounds.confined:
        limits = Limits(memory, file_bytes=FOLDER_BYTES if folder else 0)
        confine(owner, limits, folder=folder, keep=(*pipes, *(_descriptors() - before)), made=made)
        if bounds.strict and not (levels := levels_in_force()).is_enforced:
            raise OSError(f"it could not be confined; in force: {levels}")
        return loop
    offer_to_oom_killer()
    if bounds.memory_bytes is not None:
        resource.setrlimit(resource.RLIMIT_AS, (memory, memory))
    return loop


def _descriptors() -> set[int]:
    """Those that are open; the one that reads the folder is not any more."""
    return {number for number in map(int, os.listdir("/proc/self/fd")) if os.path.exists(f"/proc/self/fd/{number}")}


class _Instance:
    def __init__(self, environment: type, hold: Callable[[], AbstractEventLoop | None]) -> None:
        self._class, self._hold = environment, hold
        self._loop: AbstractEventLoop | None = None
        self._instance: Any = None
        self._is_held = False

    def run(self, asked: int, answers: int) -> None:
        with open(asked, "rb") as requests:
            for line in requests:
                request = json.loads(line)
                try:
                    answer = self._answer(request)
                except MemoryError as error:
                    answer = {"error": f"{error_text(error)}: out of memory (the limit is env.memory_gb)"}
                except BaseException as error:  # whatever an environment raises, SystemExit too
                    answer = {"error": error_text(error)}
                write_line(answers, {"id": request["id"], **answer})

    def _answer(self, request: dict[str, Any]) -> dict[str, Any]:
        if "describe" in request:
            from transformers.utils import chat_template_utils  # which takes a second, and one instance of all is asked for it

            # Else it imports torch, which takes another, for tensors as arguments: no call from JSON has any.
            chat_template_utils.is_torch_available = lambda: False
            instance = self._class()
            tools = [chat_template_utils.get_json_schema(getattr(instance, name)) for name in tool_names(self._class)]
            return {"tools": tools, "rewards": hasattr(self._class, "get_reward")}
        if not self._is_held:
            self._loop, self._is_held = self._hold(), True
        if self._instance is None:
            self._instance = self._class()
        if "reset" in request:
            said = self._awaited(self._instance.reset(**request["reset"]))
            if said is not None and not isinstance(said, str):
                return {"error": f"reset returned an object of type {type(said).__name__}, not a text or None"}
            return {"said": said}
        if "reward" in request:
            value = float(self._awaited(self._instance.get_reward()))
            return {"reward": value} if abs(value) <= LARGEST else {"error": f"get_reward returned {value:g}"}
        answer = str(self._awaited(getattr(self._instance, request["call"])(**request["arguments"])))
        if len(answer) > LONGEST_ANSWER:
            return {"error": f"the answer has {len(answer):,} characters; the limit is {LONGEST_ANSWER:,}"}
        return {"answer": answer, "done": bool(getattr(self._instance, "done", False))}

    def _awaited(self, value: Any) -> Any:
        if not inspect.iscoroutine(value):
            return value
        assert self._loop is not None, "a method that is not `async` has returned a coroutine"
        return self._loop.run_until_complete(value)
