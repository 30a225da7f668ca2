"""Random damages to the files that a stranger can hand us. Each function changes a folder and says in words what it did."""

from __future__ import annotations

import hashlib
import json
import os
import random
import shutil
import stat
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

SUMS = "SHA256SUMS"
HUGE = 10**400
VALUES: list[Any] = [
    None, True, False, 0, -1, 1, 3, 1.5, -0.0, 1e308, 5e-324, float("nan"), float("inf"), HUGE, -HUGE, 2**63, -(2**63), "", "x",
    "10", "../..", "/dev/zero", "a" * 300, "\x1b[2J", "\udc80", [], {}, [1], [[]], {"x": 1}, [0] * 50,
]  # fmt: skip
"""Nothing that is valid and would take hours or all memory: a run of a million steps is no damage."""
DEEP = 10_000


def json_text(value: Any) -> bytes:
    """JSON with the numbers and characters that `json.dumps` has no objection to."""
    return json.dumps(value).encode()


def _nodes(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [path, *(found for key, part in items for found in _nodes(part, (*path, key)))]


def change_tree(value: Any, rng: random.Random) -> tuple[Any, str]:
    """A JSON tree with one node of another value, or missing, or one too many."""
    path = rng.choice(_nodes(value)[1:] or [()])
    if not path:
        new = rng.choice(VALUES)
        return new, f"everything = {new!r:.40}"
    node = value
    for key in path[:-1]:
        node = node[key]
    last, where = path[-1], ".".join(map(str, path))
    kind = rng.choice(["value", "value", "value", "number", "drop", "add", "rename"])
    if kind == "number" and isinstance(node[last], int | float):
        node[last] = rng.choice([-node[last], node[last] + 1, node[last] - 1, node[last] * 2, float(node[last]), str(node[last])])
        return value, f"{where} = {node[last]!r:.40}"
    if kind == "drop":
        del node[last]
        return value, f"{where} dropped"
    if kind == "add" and isinstance(node, dict):
        node[rng.choice(["x", "", "kind", "../x", "a" * 300])] = rng.choice(VALUES)
        return value, f"a key beside {where}"
    if kind == "rename" and isinstance(node, dict):
        node[rng.choice([f"{last}_", "x", ""])] = node.pop(last)
        return value, f"{where} renamed"
    node[last] = rng.choice(VALUES)
    return value, f"{where} = {node[last]!r:.40}"


def damage_json(path: Path, rng: random.Random) -> str:
    """One node of a JSON file, its nesting, or its encoding."""
    try:
        value = json.loads(path.read_bytes())
    except (ValueError, RecursionError):
        return damage_bytes(path, rng)
    kind = rng.choices(["tree", "deep", "encoding", "twice"], [12, 1, 2, 1])[0]
    if kind == "deep":
        path.write_bytes(rng.choice([b"[", b'{"a":', b'{"budget": {"x":']) * DEEP)
        return "nested deep"
    if kind == "encoding":
        encoding = rng.choice(["utf-16", "utf-32", "utf-8-sig"])
        path.write_bytes(json.dumps(value).encode(encoding))
        return f"in {encoding}"
    if kind == "twice":
        path.write_bytes(path.read_bytes() * 2)
        return "written twice"
    value, said = change_tree(value, rng)
    path.write_bytes(json_text(value))
    return said


def damage_lines(path: Path, rng: random.Random) -> str:
    """A row of a JSONL file, or where its lines end."""
    lines = path.read_bytes().split(b"\n")
    place = rng.randrange(len(lines))
    kind = rng.choice(["row", "row", "row", "drop", "double", "join", "blank", "nul"])
    if kind == "row":
        try:
            value, said = change_tree(json.loads(lines[place]), rng)
        except (ValueError, RecursionError):
            return damage_bytes(path, rng)
        lines[place] = json_text(value)
    else:
        said = kind
        lines[place : place + 1] = {"drop": [], "double": [lines[place]] * 2, "blank": [b"", b" ", lines[place]]}.get(
            kind, [lines[place] + (b"\0" if kind == "nul" else b"")]
        )
    path.write_bytes((b" " if kind == "join" else b"\n").join(lines))
    return f"line {place}: {said}"


def damage_text(path: Path, rng: random.Random) -> str:
    """A line of TOML, CSV, or any other text."""
    text = path.read_bytes().decode(errors="replace")
    lines = text.split("\n")
    place = rng.randrange(len(lines))
    new = rng.choice([
        "", "[", "]", "[[[x]]]", "x = 1", "= 1", '"', "a = " + "[" * DEEP, "rank = " + "9" * 5000, "[budget]", "hours = nan",
        "steps = -1", "lr = true", "\0", "\ufeff", "a,b,c,d,e", "1e16,1e16", '"unclosed', ",", "x." * 500 + "y = 1", "\x1b[2J",
    ])  # fmt: skip
    kind = rng.choice(["line", "value", "value", "insert", "drop", "encoding"])
    if kind == "value" and "=" in lines[place]:
        value = rng.choice(
            ["nan", "inf", "-1", "0", "true", '""', "[]", "{}", "1e400", "9" * 400, "1979-05-27", "'\\'", "[1, 'a']"]
        )
        lines[place] = f"{lines[place].partition('=')[0]}= {value}"
    elif kind == "drop":
        del lines[place]
    elif kind == "encoding":
        encoding = rng.choice(["utf-16", "latin-1", "cp037", "utf-8-sig"])
        path.write_bytes(("\n".join(lines) + "\né").encode(encoding))
        return f"in {encoding}"
    else:
        lines[place : place + (kind != "insert")] = [new]
    path.write_bytes("\n".join(lines).encode())
    return f"line {place}: {'' if place >= len(lines) else lines[place]!r:.60}"


def damage_tensors(path: Path, rng: random.Random) -> str:
    """The header or the numbers of a safetensors file."""
    content = path.read_bytes()
    if len(content) < 8 or (size := struct.unpack("<Q", content[:8])[0]) > len(content) - 8:
        return damage_bytes(path, rng)
    try:
        header, numbers = json.loads(content[8 : 8 + size]), bytearray(content[8 + size :])
        names = [name for name in header if name != "__metadata__"]
        entry = header[name := rng.choice(names)]
        begin, end = entry["data_offsets"]
    except (ValueError, KeyError, TypeError, IndexError):
        return damage_bytes(path, rng)
    kind = rng.choice(["numbers", "numbers", "shape", "type", "drop", "rename", "tree", "flat", "size"])
    if kind == "numbers":
        size = {"F64": 8, "I64": 8, "F32": 4, "I32": 4, "F16": 2, "BF16": 2}.get(entry["dtype"], 1)
        new = rng.choice([b"\xff" * 8, b"\0" * 8, b"\0\0\x80\x7f" * 2, b"\0\0\0\0\0\0\xf8\x7f", b"\x80" * 8, rng.randbytes(8)])[
            :size
        ]
        places = range(begin, end, size) if rng.random() < 0.5 else [begin + size * rng.randrange(max((end - begin) // size, 1))]
        for place in places:
            numbers[place : min(place + size, end)] = new[: max(end - place, 0)]
        said = f"numbers of {name} = {new.hex()}"
    elif kind == "shape":
        entry["shape"] = rng.choice([[*entry["shape"], 1], entry["shape"][::-1], entry["shape"][:-1], [], [0], [-1], [2**63]])
        said = f"shape of {name} = {entry['shape']}"
    elif kind == "flat":
        entry["shape"] = [max((end - begin) // 4, 0)]
        said = f"{name} is flat"
    elif kind == "type":
        entry["dtype"] = rng.choice(["F32", "F64", "I64", "BF16", "I32", "U8", "BOOL", "F8_E4M3", "C64", "x"])
        said = f"type of {name} = {entry['dtype']}"
    elif kind == "drop":  # the numbers too, so that the rest is a valid file
        gap = end - begin
        del header[name], numbers[begin:end]
        for other in header.values():
            if "data_offsets" in other and other["data_offsets"][0] >= end:
                other["data_offsets"] = [place - gap for place in other["data_offsets"]]
        said = f"{name} dropped"
    elif kind == "rename":
        header[rng.choice([f"{name}x", "x", "0.x", "99.step", f"{name.partition('.')[2]}", "numpy"])] = header.pop(name)
        said = f"{name} renamed"
    elif kind == "size":
        path.write_bytes(struct.pack("<Q", rng.choice([0, 1, 2**40, 2**64 - 1])) + content[8:])
        return "length of the header"
    else:
        header, said = change_tree(header, rng)
    text = json_text(header)
    text += b" " * (-len(text) % 8)
    path.write_bytes(struct.pack("<Q", len(text)) + text + bytes(numbers))
    return said


def damage_bytes(path: Path, rng: random.Random) -> str:
    """Any file: bytes flipped, cut off, added, or all of them gone."""
    content = bytearray(path.read_bytes())
    kind = rng.choice(["flip", "flip", "cut", "empty", "more", "noise"])
    if kind == "flip" and content:
        for _ in range(rng.randint(1, 8)):
            content[rng.randrange(len(content))] ^= 1 << rng.randrange(8)
    elif kind == "cut":
        content = content[: rng.randrange(len(content) + 1)]
    elif kind == "more":
        content += rng.choice([b"x", b"\0" * 100, b"\n\n", b"{}", rng.randbytes(100)])
    else:
        content = bytearray(rng.randbytes(len(content)) if kind == "noise" else b"")
    path.write_bytes(content)
    return f"bytes: {kind}"


def damage_sums(path: Path, rng: random.Random) -> str:
    """The checksums: other names, other sums."""
    lines = path.read_text().splitlines()
    place = rng.randrange(len(lines))
    number, _, name = lines[place].partition("  ")
    name = rng.choice(
        ["/dev/zero", "/dev/stdin", "../outside/file", "../../../outside/file", "..", ".", "", "a/b", name, "\0", "x" * 300]
    )
    lines[place] = f"{rng.choice([number, '', '0' * 64])}  {name}"
    path.write_text("\n".join(lines) + "\n")
    return f"line {place} = {lines[place][-40:]!r}"


def replace_it(path: Path, rng: random.Random, outside: Path) -> str:
    """What is at `path` gone, or a link, a pipe, a folder or a file in its place."""
    was_folder = path.is_dir()
    shutil.rmtree(path) if was_folder else path.unlink()
    kind = rng.choice(["gone", "file link", "folder link", "device", "dangling", "loop", "pipe", "folder", "full folder", "file"])
    if kind == "file link":
        path.symlink_to(outside / rng.choice(["file", "folder/metrics.jsonl"]))
    elif kind == "folder link":
        path.symlink_to(outside / "folder")
    elif kind == "device":
        path.symlink_to(rng.choice(["/dev/zero", "/dev/full", "/dev/stdin"]))
    elif kind == "dangling":
        path.symlink_to(outside / "new")
    elif kind == "loop":
        path.symlink_to(path.name)
    elif kind == "pipe":
        os.mkfifo(path)
    elif kind == "folder":
        path.mkdir()
    elif kind == "full folder":
        (path / "inner").mkdir(parents=True)
        (path / "inner" / "file").write_text("x")
    elif kind == "file":
        path.write_text("x")
    return kind


def add_something(folder: Path, rng: random.Random, outside: Path) -> str:
    """A name that does not belong there, or one that we write ourselves while we work."""
    name = rng.choice([
        "x", "step-000009", "step-1", "step-x", "step-000002", ".step-000009.tmp", ".step-000004.tmp", "bad-step-000003",
        ".best.tmp",
        ".best.old", ".final.tmp", ".heartbeat.json.tmp", ".summary.json.tmp", ".events.jsonl.tmp", "sync.json", "crash.log",
        "run.log", "metrics.jsonl.before", "step-000009.jsonl.gz", "step-x.jsonl.gz", "step-\udc80", "x" * 250, "held-out.json",
        "model.safetensors", "adapter_model.bin", ".environment.json.tmp", "pytorch_model.bin", "step-99999999999999999999",
    ])  # fmt: skip
    path = folder / name
    if path.exists() or path.is_symlink():
        return damage_file(path, rng) if path.is_file() and not path.is_symlink() else replace_it(path, rng, outside)
    path.write_bytes(rng.choice([b"", b"{}", b'{"mode": 3}', b"x"]))
    return f"{name!r:.40}: {'a file' if rng.random() < 0.3 else replace_it(path, rng, outside)}"


def damage_file(path: Path, rng: random.Random) -> str:
    """By what the file is, or by its bytes."""
    by_kind: dict[str, Callable[[Path, random.Random], str]] = {
        ".json": damage_json, ".jsonl": damage_lines, ".safetensors": damage_tensors, ".toml": damage_text, ".csv": damage_text,
    }  # fmt: skip
    change = damage_sums if path.name == SUMS else by_kind.get(path.suffix, damage_bytes)
    try:
        return change(path, rng) if rng.random() < 0.85 else damage_bytes(path, rng)
    except (IndexError, AttributeError, UnicodeError, OSError):  # damaged before
        return "nothing more"


def damage_folder(folder: Path, rng: random.Random, outside: Path, hot: list[str]) -> str:
    """One damage somewhere in a folder, mostly where one of the patterns in `hot` matches.

    The checksums around it are renewed in half of the cases, so that it gets past them.
    """
    pattern = rng.choice(hot) if rng.random() < 0.8 else "**/*"
    paths = sorted(path for path in folder.glob(pattern) if not path.is_symlink())
    files = [path for path in paths if path.is_file()]
    kind = rng.choices(["file", "replace", "add", "swap"], [12, 3, 2, 1])[0]
    if kind == "file" and files:
        place = rng.choice(files)
        said = damage_file(place, rng)
    elif kind == "swap" and len(files) > 1:
        place, other = rng.sample(files, 2)
        shutil.copyfile(other, place)
        said = f"is {other.relative_to(folder)}"
    elif kind == "replace" and paths:
        place = rng.choice(paths)
        said = replace_it(place, rng, outside)
    else:
        place = rng.choice([folder, *(path for path in paths if path.is_dir())])
        said = add_something(place, rng, outside)
    sums = place.parent / SUMS
    if place.name != SUMS and sums.is_file() and not sums.is_symlink() and rng.random() < 0.5:
        renew(place.parent)
        said += " (and the checksums are its own)"
    return f"{place.relative_to(folder.parent)}: {said}"


def renew(folder: Path) -> None:
    """Checksums of what is there now."""
    files = [path for path in sorted(folder.iterdir()) if path.is_file() and not path.is_symlink() and path.name != SUMS]
    (folder / SUMS).write_bytes(
        b"".join(f"{hashlib.sha256(path.read_bytes()).hexdigest()}  ".encode() + os.fsencode(path.name) + b"\n" for path in files)
    )


def tree(folder: Path) -> dict[str, object]:
    """What is below a folder, links not followed."""
    found: dict[str, object] = {}
    for root, folders, files in os.walk(folder):
        for name in (*folders, *files):
            path = Path(root, name)
            mode = path.lstat().st_mode
            content: object = None
            if stat.S_ISLNK(mode):
                content = os.readlink(path)
            elif stat.S_ISREG(mode):
                content = hashlib.sha256(path.read_bytes()).hexdigest()
            found[str(path.relative_to(folder))] = (stat.S_IFMT(mode), content)
    return found
