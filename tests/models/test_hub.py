"""The model hub: one that answers, one that is not there, and one that accepts the connection and stays silent."""

import os
import socket
import threading
import time
from contextlib import contextmanager

import pytest

from microrl.models import hub


@contextmanager
def serving(answer):
    """A server on this machine that reads what comes and sends `answer`; None: it never does. Yields its address."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        held = []

        def serve():
            while True:
                try:
                    connection, _ = server.accept()
                except OSError:
                    return
                held.append(connection)
                if answer is not None:
                    connection.recv(4096)
                    connection.sendall(answer)

        threading.Thread(target=serve, daemon=True).start()
        yield f"http://127.0.0.1:{server.getsockname()[1]}"
        server.shutdown(socket.SHUT_RDWR)
        for connection in held:
            connection.close()


@pytest.fixture
def asked(monkeypatch):
    """Whether the hub at this address is there, asked anew; the environment is as before afterwards."""

    def ask(endpoint, timeout_s):
        for name in (*hub._PROXIES, "HF_HUB_OFFLINE"):
            monkeypatch.delenv(name, raising=False)
        monkeypatch.setenv("HF_HUB_OFFLINE", "0")
        monkeypatch.setenv("HF_ENDPOINT", endpoint)
        return hub.reachable.__wrapped__(timeout_s)

    return ask


def test_a_hub_that_answers_is_used(asked, capsys):
    with serving(b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n") as endpoint:
        assert asked(endpoint, 60) and os.environ["HF_HUB_OFFLINE"] == "0"
    assert capsys.readouterr().err == ""


def test_a_mirrors_password_is_not_printed(asked, capsys):
    with serving(b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n") as endpoint:
        assert asked(endpoint.replace("://", "://name:pass@word@"), 60), "it is asked without it"
        assert hub.endpoint() == endpoint
    with serving(None) as endpoint:
        assert not asked(f"{endpoint.replace('://', '://name:secret@')}/hub", 0.1)
    assert f"Hub at {endpoint}/hub, at most" in (said := capsys.readouterr().err) and "secret" not in said


def test_a_hub_that_is_not_there_is_not_waited_for(asked):
    with socket.create_server(("127.0.0.1", 0)) as server:
        endpoint = f"http://127.0.0.1:{server.getsockname()[1]}"
    assert not asked(endpoint, 60) and os.environ["HF_HUB_OFFLINE"] == "1"


def test_a_silent_hub_is_waited_for_briefly_and_named(asked, capsys):
    with serving(None) as endpoint:
        assert not asked(endpoint, 0.1) and os.environ["HF_HUB_OFFLINE"] == "1"
    said = capsys.readouterr().err.splitlines()
    assert said == [f"waiting for the Hugging Face Hub at {endpoint}, at most 0.1 s",
                    "no answer: only local models and data are used"]  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("arguments", [("plan", "--model", "owner/name"),
                                       ("train", "--model", "owner/name", "--data", "owner/data", "--steps", 1)])  # fmt: skip
def test_a_command_ends_with_one_error_where_the_hub_stays_silent(microrl, arguments, tmp_path):
    began = time.monotonic()
    with serving(None) as endpoint:
        done = microrl(*arguments, cwd=tmp_path, HF_ENDPOINT=endpoint, HF_HUB_OFFLINE="0", HF_HOME=str(tmp_path))
    assert done.returncode == 2 and f"waiting for the Hugging Face Hub at {endpoint}" in done.stderr
    assert "not on this machine, and the hub cannot be reached" in done.stderr and "Traceback" not in done.stderr
    assert time.monotonic() - began < 100  # 5 s of waiting, and Python's own start on a busy machine
