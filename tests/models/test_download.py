"""Downloading a model from a hub on this machine: seen, resumed, and made beforehand."""

import json
import os
import re
import subprocess
import sys
import threading
import time

import fake_hub
import pytest
from fake_hub import COMMIT

from microrl.models import download
from microrl.models.download import MB

NAME = "somebody/tiny"
WEIGHTS = "model.safetensors"


@pytest.fixture
def hub(model_folder, tmp_path):
    """A hub with the tiny model, whose weights are made 20 MB large, and with files that no run needs."""
    found = fake_hub.Hub(model_folder, NAME)
    found.files[WEIGHTS] = os.urandom(20_000_000)
    found.files |= {"pytorch_model.bin": b"old", "consolidated.safetensors": b"another copy"}
    return found


@pytest.fixture
def here(tmp_path):
    """The environment of a command that asks this hub, with caches of its own."""

    def environment(address):
        kept = {key: value for key, value in os.environ.items() if key not in ("HF_HUB_OFFLINE", "HF_HOME", "HF_HUB_CACHE")}
        return {**kept, "HF_ENDPOINT": address, "HF_HOME": str(tmp_path / "hf"), "no_proxy": "*", "HF_HUB_DISABLE_XET": "1"}

    return environment


CODE = """
import sys
from microrl.errors import UserError
from microrl.models.download import download
from microrl.run.console import RunConsole
try:
    with RunConsole() as console:
        download("somebody/tiny", console.progress)
except UserError as error:
    sys.exit(f"{error.message} | {error.hint}")
"""


def downloaded(hub, here):
    """The finished process of the download."""
    with fake_hub.serving(hub) as address:
        return subprocess.run([sys.executable, "-c", CODE], env=here(address), capture_output=True, text=True, timeout=200)


def snapshot(tmp_path):
    return tmp_path / "hf" / "hub" / "models--somebody--tiny" / "snapshots" / COMMIT


@pytest.mark.slow
def test_how_far_it_is_is_shown(hub, here, tmp_path):
    hub.bytes_a_second = 8e6
    done = downloaded(hub, here)
    assert done.returncode == 0, done.stderr
    lines = [line for line in done.stderr.splitlines() if line.startswith(f"downloading {NAME}, MB: ")]
    assert lines[0].startswith(f"downloading {NAME}, MB: 0/20")
    assert 0 < int(re.search(r"MB: (\d+)/20", lines[1])[1]) <= 20
    assert (snapshot(tmp_path) / WEIGHTS).read_bytes() == hub.files[WEIGHTS]
    assert not hub.downloads("pytorch_model.bin") and not hub.downloads("consolidated.safetensors")


@pytest.mark.slow
@pytest.mark.one_of_each
def test_what_was_killed_is_not_all_downloaded_again(hub, here, tmp_path):
    """Files that were whole are kept. The library has no use for the rest."""
    del hub.files[WEIGHTS]
    shards = [f"model-0000{number}-of-00002.safetensors" for number in (1, 2)]
    hub.files |= {shards[0]: os.urandom(1_000_000), shards[1]: os.urandom(16_000_000)}
    hub.files["model.safetensors.index.json"] = json.dumps({"weight_map": dict(zip("ab", shards, strict=True))}).encode()
    blobs = tmp_path / "hf" / "hub" / "models--somebody--tiny" / "blobs"

    def has_part():
        return (snapshot(tmp_path) / shards[0]).is_file() and any(
            path.stat().st_size > 5e6 for path in blobs.glob("*.incomplete")
        )

    hub.bytes_a_second = 8e6
    with fake_hub.serving(hub) as address:
        process = subprocess.Popen([sys.executable, "-c", CODE], env=here(address), stderr=subprocess.PIPE, text=True)
        until = time.monotonic() + 60
        while not has_part() and time.monotonic() < until:
            time.sleep(0.05)
        process.kill()
        process.communicate()
        environment = here(address)
        asks = "from microrl.models import hub; print(hub.is_to_be_downloaded('somebody/tiny'))"
        asked = [subprocess.run([sys.executable, "-c", asks], env=environment, capture_output=True, text=True).stdout]
        done = subprocess.run([sys.executable, "-c", CODE], env=environment, capture_output=True, text=True, timeout=100)
        asked.append(subprocess.run([sys.executable, "-c", asks], env=environment, capture_output=True, text=True).stdout)
    assert done.returncode == 0, done.stderr
    assert asked == ["True\n", "False\n"], "a part of the weights is not enough"
    assert hub.downloads(shards[0]) == [0] and hub.downloads(shards[1]) == [0, 0]
    assert all((snapshot(tmp_path) / name).read_bytes() == hub.files[name] for name in shards)


def test_what_is_left_over_is_not_counted(tmp_path):
    (tmp_path / "aa.01234567.incomplete").write_bytes(bytes(5 * MB))
    (tmp_path / "bb").write_bytes(bytes(2 * MB))
    over = threading.Event()
    worker = threading.Thread(target=over.wait)
    worker.start()
    items = download._megabytes(worker, tmp_path, 6 * MB)
    assert [next(items) for _ in range(2)] == [None, None]
    (tmp_path / "cc.89abcdef.incomplete").write_bytes(bytes(3 * MB))
    assert [next(items) for _ in range(3)] == [None] * 3
    over.set()
    assert list(items) == [], "five of them have come, and one not"


@pytest.mark.slow
def test_a_connection_that_breaks_is_resumed(hub, here, tmp_path):
    hub.breaks_after, hub.breaks = 15_000_000, 1  # the library writes 10 MiB at a time
    done = downloaded(hub, here)
    assert done.returncode == 0, done.stderr
    assert hub.downloads(WEIGHTS) == [0, 10 * 2**20]
    assert (snapshot(tmp_path) / WEIGHTS).read_bytes() == hub.files[WEIGHTS]


@pytest.mark.slow
def test_a_hub_that_fails_halfway_is_one_line_with_a_remedy(hub, here, monkeypatch):
    hub.breaks_after = 0
    done = downloaded(hub, here)
    assert done.returncode == 1 and "Traceback" not in done.stderr
    assert f"model {NAME} could not be loaded: " in done.stderr and "try again" in done.stderr


@pytest.mark.slow
@pytest.mark.one_of_each
def test_a_name_that_the_hub_does_not_have(hub, here):
    hub.name = "somebody/else"
    done = downloaded(hub, here)
    assert done.returncode == 1 and f"there is no model `{NAME}` on the hub" in done.stderr


@pytest.mark.slow
def test_a_model_is_fetched_beforehand_and_a_run_needs_no_network_then(
    hub, here, microrl, model_folder, tiny_arguments, tmp_path
):
    hub.files[WEIGHTS] = (model_folder / WEIGHTS).read_bytes()
    arguments = ["--model", NAME, *tiny_arguments[2:], "--steps", "1"]
    with fake_hub.serving(hub) as address:
        environment = here(address)
        done = subprocess.run([sys.executable, "-m", "microrl", "plan", *map(str, arguments), "--gpu", "a40", "--fetch"],
                              env=environment, capture_output=True, text=True, timeout=100)  # fmt: skip
        assert done.returncode == 0 and "all that the hub has of this run is in" in done.stderr, done.stderr
        assert (snapshot(tmp_path) / WEIGHTS).is_file() and json.loads((snapshot(tmp_path) / "config.json").read_text())
        asked = len(hub.downloads(WEIGHTS))
    done = subprocess.run([sys.executable, "-m", "microrl", "train", *map(str, arguments), "--out", str(tmp_path / "run")],
                          env={**environment, "HF_HUB_OFFLINE": "1"}, capture_output=True, text=True, timeout=300)  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert asked == 1 and (tmp_path / "run" / "final").is_dir()
