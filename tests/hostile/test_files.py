"""Files of strangers: links, pipes, devices, sizes and types are said in one line, and nothing is followed or waited for."""

import hashlib
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from microrl import clock, files
from microrl.errors import UserError
from microrl.run.folder import RunFolder


@dataclass
class Pair:
    name: str
    count: int


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b'{"name": "a"}', "`count`"),
        (b'{"name": "a", "count": "x"}', "`count`"),
        (b"[1, 2]", "damaged"),
        (b"\xff\xfe{", "damaged"),
        (b"[" * 100_000, "damaged"),
        (b"", "damaged"),
    ],
)
def test_what_is_not_of_the_type_is_said_in_one_line(tmp_path, content, said):
    path = tmp_path / "pair.json"
    path.write_bytes(content)
    with pytest.raises(UserError) as caught:
        files.read_json(path, Pair)
    assert said in caught.value.message and str(path) in caught.value.message and "\n" not in caught.value.message


def test_a_good_file_is_read(tmp_path):
    path = tmp_path / "pair.json"
    path.write_text('{"name": "a", "count": 3}')
    assert files.read_json(path, Pair) == Pair("a", 3)


@pytest.mark.parametrize("make", ["link", "pipe", "device", "folder"])
def test_only_regular_files_are_opened(tmp_path, make):
    path = tmp_path / "it"
    if make == "link":
        (tmp_path / "target").write_text("{}")
        path.symlink_to(tmp_path / "target")
    elif make == "pipe":
        os.mkfifo(path)
    elif make == "folder":
        path.mkdir()
    else:
        path = Path("/dev/zero")
    with pytest.raises(files.BadFile):
        files.read_bytes(path)


def test_appending_does_not_follow_a_link(tmp_path):
    target = tmp_path / "target"
    target.write_text("before")
    (tmp_path / "log").symlink_to(target)
    with pytest.raises(files.BadFile):
        files.open_regular(tmp_path / "log", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    assert target.read_text() == "before"
    with files.open_regular(tmp_path / "new", os.O_WRONLY | os.O_CREAT | os.O_APPEND) as file:
        file.write(b"line\n")
    assert (tmp_path / "new").read_text() == "line\n"


def test_a_hard_link_is_read_but_not_written(tmp_path):
    target, path = tmp_path / "target", tmp_path / "log"
    target.write_text("before")
    path.hardlink_to(target)
    assert files.read_bytes(path) == b"before"
    for flags in (os.O_APPEND, os.O_TRUNC, 0):
        with pytest.raises(files.BadFile, match="log is a hard link") as refused:
            files.open_regular(path, os.O_WRONLY | os.O_CREAT | flags)
        assert target.read_text() == "before" and str(path) in refused.value.hint
    target.unlink()
    with files.open_regular(path, os.O_WRONLY | os.O_TRUNC) as file:
        file.write(b"after")
    assert path.read_text() == "after"


def test_links_anywhere_below_are_refused_but_the_root_may_be_one(tmp_path):
    (tmp_path / "run" / "checkpoints").mkdir(parents=True)
    (tmp_path / "run" / "config.json").write_text("{}")
    (tmp_path / "latest").symlink_to(tmp_path / "run")
    files.refuse_links(tmp_path / "latest")
    (tmp_path / "run" / "checkpoints" / "step-000001").symlink_to(tmp_path)
    with pytest.raises(files.BadFile, match="step-000001 is a symbolic link"):
        files.refuse_links(tmp_path / "latest")


def test_too_large_a_file_is_not_read_whole(tmp_path):
    (tmp_path / "big").write_bytes(b"x" * 11)
    with pytest.raises(files.BadFile, match="larger"):
        files.read_bytes(tmp_path / "big", limit=10)


def test_the_process_began_before_now_on_the_same_clock():
    assert 0 < clock.now_s() - clock.process_started_s() < 3600


@pytest.mark.slow
@pytest.mark.one_of_each
def test_one_process_at_a_time_makes_what_is_cached(tmp_path):
    """The second finds what the first has made."""
    code = (
        "import sys, time\nfrom pathlib import Path\nfrom microrl.files import one_at_a_time\n"
        "target = Path(sys.argv[1])\n"
        "with one_at_a_time(target, lambda: print('waits')):\n"
        "    print('found' if target.exists() else 'made')\n"
        "    time.sleep(0.5)\n"
        "    target.write_text('x')\n"
    )
    command = [sys.executable, "-c", code, str(tmp_path / "new" / "model")]
    both = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    said = sorted(process.communicate(timeout=60)[0] for process in both)
    assert said in (["found\n", "made\n"], ["made\n", "waits\nfound\n"])
    assert [path.name for path in (tmp_path / "new").iterdir()] == ["model"], "no lock is left"


def test_where_no_lock_can_be_nobody_waits(tmp_path):
    (tmp_path / "file").write_text("")
    with files.one_at_a_time(tmp_path / "file" / "model"):
        pass


def test_the_checksum_of_the_metrics_is_of_what_was_written(tmp_path, monkeypatch):
    """A change under a run that is going on is noticed, lines that are cut off are not counted, and nothing is read again."""
    folder, path = RunFolder(tmp_path), tmp_path / "metrics.jsonl"
    for step in range(3):
        folder.append("metrics.jsonl", {"step": step})
    written = path.read_bytes()
    path.write_bytes(written.replace(b"1", b"7"))
    monkeypatch.setattr(files, "sha256", None)
    folder.append("metrics.jsonl", {"step": 3})
    written += b'{"step": 3}\n'
    assert folder.metrics_sum.at(len(written)) == hashlib.sha256(written).hexdigest()
    monkeypatch.undo()
    assert files.sha256(path).hexdigest() != folder.metrics_sum.at(len(written))
    folder.rewind("metrics.jsonl", 12)
    folder.append("metrics.jsonl", {"step": 9})
    left = path.read_bytes()
    assert left == b'{"step": 0}\n{"step": 9}\n' and folder.metrics_sum.at(24) == hashlib.sha256(left).hexdigest()
    resumed = RunFolder(tmp_path)
    resumed.append("metrics.jsonl", {"step": 2})
    assert resumed.metrics_sum.at(36) == hashlib.sha256(path.read_bytes()).hexdigest()
    assert files.sha256(path, 12).hexdigest() == hashlib.sha256(left[:12]).hexdigest()
