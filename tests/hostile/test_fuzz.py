"""What a stranger can hand us, damaged at random: run folders, checkpoints, adapters, presets, data.

A command may refuse it or make do with it: one line, a hint and an exit status. It never ends in a traceback, never hangs, and
changes nothing outside the folder. MICRORL_FUZZ_CASES and MICRORL_FUZZ_SEED choose the cases, MICRORL_FUZZ_CASE one of them.
"""

import contextlib
import os
import random
import resource
import shutil
import signal
from collections.abc import Sequence
from pathlib import Path

import pytest
from damage import damage_file, damage_folder, replace_it, tree

SEED = int(os.environ.get("MICRORL_FUZZ_SEED", "0"))
ONCE_AT_FAULT = [1279]
"""Of seed 0. A damaged heartbeat and a checkpoint that is set aside: loading took less than no time."""
LIMIT_S = 30
MEMORY = 4 * 2**30
STATUSES = {0, 1, 2, 3, 4, 130}
REWRITTEN = {
    ".lock",
    "events.jsonl",
    "heartbeat.json",
    "environment.json",
    "summary.json",
    "config.json",
    "run.log",
    "held-out.json",
    "contamination.json",
}
"""Of a run folder: what a command that refuses it may have written all the same. The last two follow from the data."""


class Hung(BaseException):
    """A case took longer than LIMIT_S."""


@contextlib.contextmanager
def limit():
    def hung(*_):
        raise Hung

    before = signal.signal(signal.SIGALRM, hung)
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    statm = Path("/proc/self/statm")
    if statm.exists():  # what reads a device without end has no memory, and not the machine
        used = int(statm.read_text().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (used + MEMORY, hard))
    signal.setitimer(signal.ITIMER_REAL, LIMIT_S)
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


class Case:
    """One damage and the command that reads what was damaged."""

    def __init__(self, number: int, wares: Path, model: Path, place: Path) -> None:
        self.rng, self.wares, self.model, self.place = random.Random(f"{SEED}/{number}"), wares, model, place
        self.damages: list[str] = []
        self.outside = place / "outside"
        (self.outside / "folder" / "step-000001").mkdir(parents=True)
        (self.outside / "file").write_text("before\n")
        (self.outside / "folder" / "metrics.jsonl").write_text("{}\n" * 3)
        (self.outside / "folder" / "step-000001" / "kept").write_text("kept")
        self.kind = self.rng.choices(["run", "adapter", "preset", "data"], [11, 3, 2, 3])[0]
        self.arguments = [str(argument) for argument in getattr(self, f"_{self.kind}")()]

    def _run(self) -> list[object]:
        draw, preset, run = self.rng, self.wares / "preset.toml", self.place / "runs" / "run"
        commands = {
            "resume": ["train", "--resume", run, *draw.choice([[], ["--steps", 4], ["--steps", 5]])],
            "auto": ["train", preset, "--resume", "auto", *draw.choice([[], ["--out", run]])],
            "eval": ["eval", *draw.choice([[], [run]]), "--problems", 2],
            "sample": ["sample", run, "What is 1 + 2?"],
            "merge": [
                "merge",
                *draw.choice([[], [run], [run / "best"]]),
                "--out",
                "merged",
                "--as",
                draw.choice(["lora", "full"]),
            ],
            "init": ["train", preset, "--init", run, "--steps", 1, "--out", "new", "--set", "evaluation.problems=0"],
        }
        name = draw.choices(list(commands), [8, 2, 2, 1, 3, 2])[0]
        resumes = name in ("resume", "auto")
        shutil.copytree(self.wares / ("killed" if resumes and draw.random() < 0.8 else "done"), run)
        if resumes:
            (run / "summary.json").unlink(missing_ok=True)
            hot = [
                "*.json",
                "*.jsonl",
                "eval/*before*",
                "checkpoints/step-000003/*",
                "checkpoints/step-000003/state.json",
                "best/*",
            ]
        else:
            hot = ["config.json", "summary.json", "environment.json", "final/*", "best/*", "checkpoints/step-000004/*"]
        for _ in range(draw.choice([1, 1, 1, 2, 3])):
            self.damages.append(damage_folder(run, draw, self.outside, hot))
        return commands[name]

    def _adapter(self) -> list[object]:
        adapter = self.place / "adapter"
        shutil.copytree(self.wares / "adapter", adapter)
        for _ in range(self.rng.choice([1, 1, 2])):
            self.damages.append(damage_folder(adapter, self.rng, self.outside, ["*"]))
        form = self.rng.choice([[], ["--as", "lora"], ["--as", "full"]])
        return ["merge", adapter, "--out", "merged", *form, *self.rng.choice([[], ["--model", self.model]])]

    def _preset(self) -> list[object]:
        preset = self._damaged("preset.toml")
        return self.rng.choice([["train", preset, "--steps", 1, "--dry-run"], ["plan", preset], ["plan", preset, "--gpu", "a40"]])

    def _data(self) -> list[object]:
        data = self._damaged(self.rng.choice(["sums.jsonl", "sums.jsonl", "sums.json", "sums.csv"]))
        small = ["--set", "evaluation.problems=0", "--steps", 1]
        with_solutions = ["--set", "sft.steps=1", "--set", "sft.batch=2", "--set", "sft.solution=solution"]
        more = self.rng.choice([["--dry-run"], ["--out", "new"], ["--out", "new", *with_solutions]])
        return ["train", self.wares / "preset.toml", "--data", data, *small, *more]

    def _damaged(self, name: str) -> Path:
        path = self.place / name
        shutil.copy(self.wares / name, path)
        if self.rng.random() < 0.15:
            renamed = path.with_name(self.rng.choice(["br[1]", "*", "a b", "x" * 240, "-x", "\udc80", "é"]) + path.suffix)
            path = path.rename(renamed)
            self.damages.append(f"is called {path.name!r}")
        for _ in range(self.rng.choice([1, 1, 2])):
            said = damage_file(path, self.rng) if self.rng.random() < 0.85 else replace_it(path, self.rng, self.outside)
            self.damages.append(f"{name}: {said}")
            if not path.is_file() or path.is_symlink():
                break
        return path

    def __str__(self) -> str:
        return f"microrl {' '.join(self.arguments)}\n    " + "\n    ".join(self.damages)


def apart(found: dict[str, object], *names: str) -> dict[str, object]:
    return {path: value for path, value in found.items() if path.split("/")[0] not in names}


def faults(case: Case, inside) -> list[str]:
    """Run the command; everything that must not be."""
    before, wares, model = tree(case.place), tree(case.wares), tree(case.model)
    with limit():
        try:
            done = inside(*case.arguments, cwd=case.place)
        except Hung:
            return [f"it took more than {LIMIT_S} s"]
        except BaseException as error:
            return [f"{type(error).__name__} came out of the command: {error}"]
    after, found = tree(case.place), []
    if done.returncode not in STATUSES:
        found.append(f"exit status {done.returncode}")
    if "the traceback is" in done.stderr:
        logs = [path.read_text() for path in case.place.rglob("crash.log") if path.is_file()]
        found.append(f"a traceback: {logs[-1][-1500:] if logs else ''}")
    if done.returncode == 2 and "hint:" not in done.stderr and "error:" not in done.stderr:
        found.append("not a word")
    mine = ("runs",) if "--resume" in case.arguments or "eval" in case.arguments else ()
    made = ("merged", "new", "crash.log")
    if apart(before, *mine, *made) != apart(after, *mine, *made):
        changed = sorted(path for path in before.keys() | after.keys() if before.get(path) != after.get(path))
        found.append(f"changed outside: {[path for path in changed if path.split('/')[0] not in (*mine, *made)]}")
    if (wares, model) != (tree(case.wares), tree(case.model)):
        found.append("changed far outside")
    if done.returncode == 2:
        if any((case.place / name).exists() for name in ("merged", ".merged.tmp", "new")):
            found.append("a half-made folder is left")
        lost = {value for path, value in before.items() if path.startswith("runs/") and Path(path).name not in REWRITTEN}
        lost -= set(after.values())
        if lost:
            found.append(f"lost: {sorted(path for path, value in before.items() if value in lost)}")
    return [f"{fault}\n    stderr: {done.stderr[-600:]}" for fault in found]


def fuzz(numbers: Sequence[int], wares: Path, model: Path, inside, place: Path) -> None:
    only = os.environ.get("MICRORL_FUZZ_CASE")
    if only is not None:
        numbers = [int(only)]
    elif "MICRORL_FUZZ_CASES" in os.environ:
        numbers = range(int(os.environ["MICRORL_FUZZ_CASES"]))
    bad = []
    for number in numbers:
        folder = place / str(number)
        folder.mkdir()
        case = Case(number, wares, model, folder)
        for fault in faults(case, inside):
            bad.append(f"seed {SEED}, case {number}: {case}\n  {fault}")
        if only is None:
            shutil.rmtree(folder)
    assert not bad, (
        f"{len(bad)} faults in {len(numbers)} cases (MICRORL_FUZZ_SEED={SEED} MICRORL_FUZZ_CASE=N):\n\n" + "\n\n".join(bad)
    )


@pytest.mark.slow
@pytest.mark.one_of_each
def test_a_few_random_damages(wares, model_folder, inside, tmp_path):
    fuzz([*range(8), *ONCE_AT_FAULT], wares, model_folder, inside, tmp_path)


@pytest.mark.slow
def test_two_thousand_random_damages(wares, model_folder, inside, tmp_path):
    fuzz(range(2000), wares, model_folder, inside, tmp_path)
