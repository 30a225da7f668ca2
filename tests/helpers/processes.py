"""Processes of Python that have torch imported already: each is forked from one that has imported it, and done nothing else.

To the tests it is `subprocess`: a process of its own, with its own arguments, environment, folder and streams, which dies of any
signal. What it saves are the seven seconds of processor time that importing takes. All workers of a test run share the one that
forks; it goes when they do.
"""

from __future__ import annotations

import contextlib
import fcntl
import gc
import importlib
import json
import os
import pkgutil
import random
import runpy
import select
import signal
import socket
import subprocess
import sys
import termios
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from subprocess import DEVNULL, PIPE, STDOUT

AT_START = ("PYTHON", "OMP_", "MKL_", "HF_", "LANG", "LC_", "LD_")
"""What is read when Python starts or a library is imported: where it differs, a process is really started."""
BEGUN = {**os.environ, "OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "PASSIVE", "VLLM_LOGGING_LEVEL": "ERROR"}
VLLM = ("vllm.entrypoints.llm", "vllm.v1.worker.cpu_worker", "vllm.v1.engine.core", "vllm.lora.worker_manager")
MAX_BYTES = 1 << 18
OWNER = "MICRORL_TEST_RUN"
"""The process id of the test run, in the processes that a test starts and that fork others themselves."""
HAS_CARD = os.path.exists("/dev/nvidiactl")
"""A driver that has been asked anything does not outlive a fork, and vLLM asks it when it is imported."""


def _address() -> tuple[str, int]:
    """Where the one that forks listens, and the process id of the test run that it belongs to."""
    owner = int(os.environ.get(OWNER) or (os.getppid() if "PYTEST_XDIST_WORKER" in os.environ else os.getpid()))
    return f"\0microrl-tests-{owner}", owner


def start() -> None:
    """Have the one that forks begin to import, where there is none yet."""
    if HAS_CARD:
        return
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with connection:
        if connection.connect_ex(_address()[0]) == 0:
            return
    command = [sys.executable, __file__, *map(str, (_address()[0][1:], _address()[1]))]
    subprocess.Popen(command, env=BEGUN, stdin=DEVNULL, stdout=DEVNULL, start_new_session=True)


def _connected() -> socket.socket:
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    for attempt in range(1000):
        if connection.connect_ex(_address()[0]) == 0:
            return connection
        if attempt % 500 == 0:
            start()
        time.sleep(0.02)
    raise RuntimeError("the process that others are forked from does not start")


def command_in(folder: Path) -> dict[str, str]:
    """Write the command `microrl` into a folder, which forks; returns the environment that a shell finds it by."""
    start()
    program = folder / "microrl"
    words = '[sys.executable, "-m", "microrl", *sys.argv[1:]]'
    program.write_text(
        f"#!{sys.executable}\nimport sys\nsys.path.insert(0, {str(Path(__file__).parent)!r})\nimport processes\n"
        f"sys.exit(processes.popen({words}, stdin=0).wait())\n"
    )
    program.chmod(0o755)
    return {"PATH": f"{folder}:{os.environ['PATH']}", OWNER: str(_address()[1])}


class Forked:
    """What `subprocess.Popen` has, as far as the tests need it. `command` begins with Python and a script, `-m` or `-c`.

    With `owns_terminal` the terminal that is its standard input is its own, and hangs up on it when it goes.
    """

    def __init__(
        self, command: Sequence[str], *, stdin=DEVNULL, stdout=None, stderr=None, cwd=None, env=None, owns_terminal=False
    ) -> None:
        self.args, self.returncode = list(command), None
        self._read: dict[str, list[str]] = {}
        self._threads: list[threading.Thread] = []
        ours: list[int] = []
        descriptors = [os.open(os.devnull, os.O_RDWR)]
        ours.append(descriptors[0])
        if not isinstance(stdin, int) or stdin != DEVNULL:
            descriptors[0] = stdin
        for number, (name, target) in enumerate((("stdout", stdout), ("stderr", stderr)), 1):
            if target == PIPE:
                reader, writer = os.pipe()
                ours.append(writer)
                self._drain(name, reader)
                target = writer
            elif target == STDOUT:
                target = descriptors[1]
            elif target == DEVNULL:
                target = ours[0]
            descriptors.append(number if target is None else target)
        request = {"command": self.args[1:], "cwd": str(cwd or os.getcwd()), "env": {**(env or os.environ)}}
        request["owns_terminal"] = owns_terminal
        self._connection = _connected()
        socket.send_fds(self._connection, [json.dumps(request).encode()], descriptors)
        for descriptor in ours:
            os.close(descriptor)
        answer = self._connection.recv(64)
        assert answer, "nothing was forked"
        self.pid = int(answer)

    def _drain(self, name: str, reader: int) -> None:
        self._read[name] = []

        def read() -> None:
            with open(reader, errors="replace") as file:
                self._read[name].append(file.read())

        self._threads.append(threading.Thread(target=read, daemon=True))
        self._threads[-1].start()

    def poll(self) -> int | None:
        if self.returncode is None and select.select([self._connection], [], [], 0)[0]:
            self._ended()
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        if self.returncode is None:
            if not select.select([self._connection], [], [], timeout)[0]:
                raise subprocess.TimeoutExpired(self.args, timeout)
            self._ended()
        return self.returncode

    def _ended(self) -> None:
        self.returncode = int(self._connection.recv(64))
        self._connection.close()

    def communicate(self, timeout: float | None = None) -> tuple[str | None, str | None]:
        """What stood in the pipes; None for a stream that is not one."""
        self.wait(timeout)
        for thread in self._threads:
            thread.join(timeout)
        return tuple("".join(self._read[name]) if name in self._read else None for name in ("stdout", "stderr"))

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


def popen(command: Sequence[object], *, env: dict[str, str] | None = None, **options) -> Forked | subprocess.Popen:
    """Begin a process of Python, forked where that comes to the same."""
    words = [str(word) for word in command]
    assert words[0] == sys.executable
    # vLLM and OpenCV, once imported in this process, preload libraries in its children, which a user's shell does not.
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("LD_") or name in BEGUN}
    environment = {**inherited, "OMP_NUM_THREADS": "1", **(env or {})}
    read = {name for name in {*environment, *BEGUN} if name.startswith(AT_START) and name != "OMP_WAIT_POLICY"}
    if HAS_CARD or any(environment.get(name) != BEGUN.get(name) for name in read):
        return subprocess.Popen(words, env=environment, text=True, **options)
    return Forked(words, env=environment, **options)


def run(command: Sequence[object], *, timeout: float | None = None, **options) -> subprocess.CompletedProcess[str]:
    """Run a process of Python to its end, and return what it has written."""
    process = popen(command, stdout=PIPE, stderr=PIPE, **options)
    try:
        out, err = process.communicate(timeout=timeout)
    except BaseException:
        process.kill()
        raise
    return subprocess.CompletedProcess(process.args, process.returncode, out, err)


# ---- the one that forks


def _preload() -> None:
    """Everything that microrl is made of, and what is common to its runs."""
    import microrl

    names = [found.name for found in pkgutil.walk_packages(microrl.__path__, "microrl.") if not found.name.endswith("__main__")]
    for name in [*names, "peft", "transformers.models.qwen2.modeling_qwen2", "safetensors.torch", *VLLM]:
        with contextlib.suppress(ImportError):  # of what is not installed here
            importlib.import_module(name)
    from microrl.rewards.answer_checker import AnswerChecker

    AnswerChecker.start = lambda self: None  # as in `conftest.py`


def _serve(name: str, owner: int) -> tuple[dict, list[int]]:
    """Fork for whoever asks, until the test run has ended; returns in the processes that were asked for."""
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    try:
        listener.bind(f"\0{name}")
    except OSError:
        sys.exit()  # another was quicker
    listener.listen(64)
    ended = os.pidfd_open(owner)
    _preload()
    threads = os.listdir("/proc/self/task")
    assert len(threads) == 1, f"{len(threads)} threads: what others hold would stay locked in a fork"
    gc.collect()
    gc.freeze()
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    while True:
        if ended in select.select([listener, ended], [], [])[0]:
            os._exit(0)
        connection, _ = listener.accept()
        if os.fork() == 0:
            break
        connection.close()
    listener.close()
    os.close(ended)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    content, descriptors, _, _ = socket.recv_fds(connection, MAX_BYTES, 3)
    if not content or _user_of(connection) != os.getuid():
        os._exit(0)
    pid = os.fork()
    if pid:
        for descriptor in descriptors:
            os.close(descriptor)
        connection.send(str(pid).encode())
        _, status = os.waitpid(pid, 0)
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):  # who asked is gone
            connection.send(str(os.waitstatus_to_exitcode(status)).encode())
        os._exit(0)
    connection.close()
    return json.loads(content), descriptors


def _user_of(connection: socket.socket) -> int:
    credentials = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12)
    return int.from_bytes(credentials[4:8], sys.byteorder)


def _become(request: dict, descriptors: list[int]) -> None:
    for number, descriptor in enumerate(descriptors):
        os.dup2(descriptor, number)
    os.closerange(3, max(descriptors) + 1)
    if request["owns_terminal"]:
        signal.signal(signal.SIGHUP, signal.SIG_DFL)  # the tests themselves may run under nohup
        os.setsid()
        fcntl.ioctl(0, termios.TIOCSCTTY, 0)
    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(line_buffering=stream.isatty() or stream is sys.stderr)
    os.chdir(request["cwd"])
    os.environ.clear()
    os.environ.update(request["env"])
    random.seed()
    first, *words = request["command"]
    sys.argv = [first, *words] if first not in ("-m", "-c") else [first, *words[1:]]
    if first == "-m":
        runpy.run_module(words[0], run_name="__main__", alter_sys=True)
    elif first == "-c":
        exec(compile(words[0], "<string>", "exec"), {"__name__": "__main__"})
    else:
        sys.path.insert(0, str(Path(first).parent))
        runpy.run_path(first, run_name="__main__")


if __name__ == "__main__":
    _become(*_serve(sys.argv[1], int(sys.argv[2])))
