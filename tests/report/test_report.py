"""The report: drawn from a run's folder alone, whatever is in it. In a real browser: `test_browser.py`."""

import base64
import gzip
import hashlib
import html
import html.parser
import json
import math
import os
import re
import shutil
import subprocess
import sys
import threading
import time

import pytest
from command_line import in_process
from made_run import HOSTILE, ending, make, rewrite

from microrl import files
from microrl.errors import UserError
from microrl.report import figures, places
from microrl.report.completions import sample
from microrl.report.findings import findings
from microrl.report.history import Event, History, load_all
from microrl.report.page import page
from microrl.report.verdict import judge
from microrl.report.words import facts
from microrl.run.folder import RunFolder


@pytest.fixture(scope="module")
def trained(tiny_arguments, tmp_path_factory):
    """A real run of six steps."""

    out = tmp_path_factory.mktemp("report") / "trained"
    sets = ["diagnostics.kl_ref_every=2", "checkpoints.keep_every=2", "optim.lr=0.01", "reward.overlong.buffer=11"]
    flags = [part for key in sets for part in ("--set", key)]
    done = in_process("train", *tiny_arguments, "--steps", 6, "--out", out, "--price", "3600", *flags)
    assert done.returncode == 0, done.stderr
    return out


@pytest.fixture
def few_figures(monkeypatch):
    """Drawing takes most of the time: those that are drawn by functions of their own, against steps alone."""
    monkeypatch.setattr(figures, "AXES", {"step": "training steps"})
    monkeypatch.setattr(figures, "FIGURES", [spec for spec in figures.FIGURES if spec.draw is not None or spec.key == "kl"])


class Tags(html.parser.HTMLParser):
    """The elements and attributes of a page."""

    def __init__(self, text):
        super().__init__()
        self.found, self.attributes = [], []
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.found.append(tag)
        self.attributes += [(tag, *attribute) for attribute in attrs]


@pytest.mark.slow
@pytest.mark.one_of_each
def test_the_page_says_what_a_reader_asks(trained):
    text = page([History.load(trained)])
    for said in ("lora, rank 8", "held-out questions", "at $3600.0 an hour", "6, ", "Did anything go wrong?", "transformers"):
        assert said in text, said
    assert len(text) < 2_000_000
    assert {"x-axis", "training steps", "time", "US dollars"} <= set(re.findall(r">\s*([A-Za-z -]+?)\s*<", text))


@pytest.mark.slow
@pytest.mark.one_of_each
def test_the_page_loads_nothing_and_admits_its_own_script_alone(few_figures, trained):
    text = page([History.load(trained)])
    tags = Tags(text)
    assert not {"link", "img", "iframe", "object", "embed", "base", "audio", "video"} & set(tags.found)
    assert not [value for _, name, value in tags.attributes if name in ("src", "srcset", "action") or name.startswith("on")]
    assert all(value.startswith("#") for _, name, value in tags.attributes if name.endswith("href"))
    assert "url(" not in text.replace("url(#", "") and "@import" not in text
    (script,) = re.findall(r"<script>(.*?)</script>", text, re.DOTALL)
    policy = next(value for _, name, value in tags.attributes if name == "content" and value.startswith("default-src 'none'"))
    assert f"script-src 'sha256-{base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()}'" in policy


@pytest.mark.slow
@pytest.mark.one_of_each
def test_hostile_text_becomes_no_element(few_figures, tmp_path):
    texts = list(HOSTILE)
    plain = Tags(page([History.load(make(tmp_path / "plain", prompts=8))]))
    hostile = make(tmp_path / "hostile", prompts=8, text=lambda rng: rng.choice(texts))
    (hostile / "events.jsonl").write_text("".join(json.dumps({"kind": "warning", "message": text}) + "\n" for text in texts))
    config = json.loads((hostile / "config.json").read_text())
    config["data"]["name"], config["model"]["name"] = HOSTILE[1], HOSTILE[9]
    (hostile / "config.json").write_text(json.dumps(config))
    moved = tmp_path / "<script>window.pwned = 1<%2Fscript> $x_{2}$"
    shutil.move(hostile, moved)
    found = page([History.load(moved)])
    tags = Tags(found)
    assert {tag: tags.found.count(tag) for tag in ("script", "style", "a", "iframe", "meta")} == {
        tag: plain.found.count(tag) for tag in ("script", "style", "a", "iframe", "meta")
    }
    assert "\x1b" not in found and "\x00" not in found and "\u202e" not in found
    assert "{{ 7 * 7 }}" in found, "a template in a text is text"
    (data,) = re.findall(r'<script id="data" type="application/json">(.*?)</script>', found, re.DOTALL)
    assert "<" not in data and len(json.loads(data)[0]["completions"]) > 100


@pytest.mark.slow
def test_every_metric_that_there_is_is_drawn(trained, tmp_path):
    history = History.load(trained)
    drawn = figures.drawable([history])
    assert set(drawn) >= {"accuracy", "held-out", "format", "length", "entropy", "kl", "gradient", "useful", "phases", "memory"}
    assert set(drawn) < {spec.key for spec in figures.FIGURES}, "without vLLM there is no probe"
    written = figures.save_all([history], tmp_path / "figures")
    assert {path.name for path in written} == {f"{key}.{form}" for key in drawn for form in ("png", "svg")}
    assert (tmp_path / "figures" / "accuracy.png").read_bytes()[:4] == b"\x89PNG"


def test_geometry_is_rounded_and_text_is_not(tmp_path):
    history = History.load(make(tmp_path / "run"))
    for row in history.rows:
        row["policy/grad_norm"] = 0.00123 * row["step"]
    with figures.style():
        drawn = figures.figure(next(spec for spec in figures.FIGURES if spec.key == "gradient"), [history])
        text = figures.svg(drawn, in_page=True)
        labels = {label.get_text() for label in drawn.axes[0].get_yticklabels()}
    shown = set(re.findall(r"<text[^>]*>([^<]*)</text>", text))
    assert labels & shown and len(labels - shown) <= 2, "those outside the limits are not drawn"
    assert "0.005" in shown and not re.search(r' d="[^"]*\d\.\d{3}', text)


@pytest.mark.slow
def test_long_completions_are_shown(tmp_path):
    folder = make(tmp_path / "run", steps=50, group=4, text=lambda rng: "so " * 2000)
    detail = {"pieces": ["so "] * 2000, "logprobs": [-0.5] * 2000}
    rewrite(folder, lambda line: line | (detail if "pieces" in line else {}))
    for limit in (1_200_000, 200_000):
        found = sample(History.load(folder), limit)
        assert len({entry["step"] for entry in found.shown}) >= min(limit // 60_000, 20)
        assert len(json.dumps(found.shown)) <= limit * 1.1


def test_runs_without_a_figures_metric_change_nothing_for_the_others(tmp_path):
    """One colour a run, and one unit of time for all of them."""
    histories = [History.load(make(tmp_path / f"run-{number}")) for number in range(2)]
    for row in histories[0].rows:
        row["validate/accuracy"], row["budget/elapsed_s"] = None, row["budget/elapsed_s"] * 1000
    spec = next(spec for spec in figures.FIGURES if spec.key == "held-out")
    with figures.style():
        (axes,) = figures.figure(spec, histories, "time").axes
    assert axes.get_xlabel() == "hours"
    lines = [line for line in axes.lines if len(line.get_xdata()) > 1]
    assert {line.get_color() for line in lines} == {figures.COLOURS[1]} and max(lines[0].get_xdata()) < 0.01


@pytest.mark.slow
def test_a_folder_that_is_being_written_can_be_opened(tmp_path):
    folder, stop = make(tmp_path / "run"), threading.Event()

    def write_on():
        while not stop.is_set():
            with files.written_whole(folder / "rollouts" / "step-000003.jsonl.gz") as temporary:
                temporary.write_bytes(b"x")

    writer = threading.Thread(target=write_on)
    writer.start()
    try:
        for _ in range(300):
            RunFolder.open(folder)
    finally:
        stop.set()
        writer.join()


def test_runs_of_one_name_are_told_apart(few_figures, tmp_path):
    paths = [make(tmp_path / parent / "seed-0") for parent in ("lora", "dora")] + [make(tmp_path / "lora" / "seed-1")]
    histories = load_all(paths)
    assert [history.name for history in histories] == ["lora/seed-0", "dora/seed-0", "seed-1"]
    assert "<title>lora/seed-0, dora/seed-0, seed-1 - microrl report</title>" in page(histories)
    (tmp_path / "link").symlink_to(paths[0])
    with pytest.raises(UserError, match="given twice"):
        load_all([paths[0], tmp_path / "link"])


@pytest.mark.slow
def test_facts_that_only_some_runs_have_stand_under_their_names(few_figures, tmp_path):
    """A run of SFT alone has no loss, and a distilled one has a teacher."""
    folders = [make(tmp_path / name, steps=2) for name in ("rl", "sft", "distilled")]
    changes = [{}, {"sft": {"only": True, "batch": 16}}, {"distill": {"teacher": "runs/teacher-0"}}]
    for folder, change in zip(folders, changes, strict=True):
        tree = json.loads((folder / "config.json").read_text())
        for section, values in change.items():
            tree[section] |= values
        (folder / "config.json").write_text(json.dumps(tree))
    ended = json.loads((folders[1] / "summary.json").read_text())
    (folders[1] / "summary.json").write_text(json.dumps(ended | {"sft": {"steps": 50, "seconds": 9.0}}))
    for order in ((0, 1, 2), (1, 0), (2, 0)):
        text = page([History.load(folders[number]) for number in order])
        rows = dict(re.findall(r'<tr><th scope="row">(\w+)</th>(.*?)</tr>', text))
        for name, sign, owner in (("SFT", "50 steps", 1), ("teacher", "runs/teacher-0", 2)):
            cells = [sign in cell for cell in re.findall(r"<td.*?</td>", rows[name])] if owner in order else []
            assert cells == [number == owner for number in order][: len(cells)], (order, name)
        assert "seed" in rows and "runs/teacher-0" not in rows["sampling"]


def test_a_dollar_sign_in_a_runs_name_is_no_mathematics(few_figures, tmp_path):
    names = ["$x_{", "cheap $1 and $2"]
    figures.save_all([History.load(make(tmp_path / name)) for name in names], tmp_path / "figures")
    text = (tmp_path / "figures/kl.svg").read_text()
    assert all(f">{name}</text>" in text for name in names)


@pytest.mark.parametrize("step_kl", [2e-4, None], ids=["steered", "fixed"])
def test_the_kl_of_steps_is_drawn_with_what_it_is_steered_to(step_kl, tmp_path):
    history = History.load(make(tmp_path / "run"))
    history.config["optim"] = {"step_kl": step_kl}
    for row in history.rows:
        row["policy/step_kl"] = 1e-4 * (row["step"] + 1)
    drawn = figures.figure(next(spec for spec in figures.FIGURES if spec.key == "step-kl"), [history])
    level = [line.get_ydata()[0] for line in drawn.axes[0].lines if line.get_gid() == "wanted-step-kl"]
    assert level == ([] if step_kl is None else [step_kl])


def test_a_figure_with_an_axis_of_its_own_is_drawn_once(monkeypatch, tmp_path):
    monkeypatch.setattr(figures, "FIGURES", [spec for spec in figures.FIGURES if spec.key in ("forecast", "format")])
    text = page([History.load(make(tmp_path / "run"))])
    assert text.count('data-figure="forecast"') == 1 and text.count('data-figure="format"') == 3


@pytest.mark.slow
def test_one_colour_a_rank(few_figures, tmp_path):
    histories = [History.load(make(tmp_path / f"run-{number}")) for number in range(4)]
    for history, rank in zip(histories, (8, 8, 64, 256), strict=True):
        history.config["adapter"]["rank"] = rank
    looks = [(colour, style) for _, colour, style in figures.styled(histories)]
    assert looks[0][0] == looks[1][0] and looks[0][1] != looks[1][1]
    assert len({colour for colour, _ in looks}) == 3
    assert all(history.name in page(histories) for history in histories)


def test_long_lines_are_means_of_neighbours():
    places, values = figures.reduced(list(range(10_000)), [float(number % 2) for number in range(10_000)])
    assert len(places) <= figures.MAX_POINTS and all(abs(value - 0.5) < 0.02 for value in values)
    assert figures.smoothed([1.0] * 100) == pytest.approx([1.0] * 100)
    assert figures.reduced([0.0] * 600, [1e308] * 600)[1] == [float("inf")] * 300, "of damaged rows, which are still drawn"


# ---- what is not as it should be


def damaged(folder, how):
    if how == "torn":
        with (folder / "metrics.jsonl").open("a") as file:
            file.write('{"step": 20, "reward/me')
    elif how == "not JSON":
        (folder / "metrics.jsonl").write_bytes(b"\xff\n[1]\n" + (folder / "metrics.jsonl").read_bytes())
    elif how == "an older format":
        rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
        kept = ("step", "reward/mean", "time/step")
        (folder / "metrics.jsonl").write_text("".join(json.dumps({key: row[key] for key in kept}) + "\n" for row in rows))
        (folder / "config.json").write_text('{"budget": {}, "sampling": {}, "adapter": {"kind": "lora", "new": [1]}, "model": 3}')
    elif how == "without evaluation":
        shutil.rmtree(folder / "eval")
        (folder / "summary.json").write_text(json.dumps(ending(steps=20)))
    elif how == "no step":
        (folder / "metrics.jsonl").unlink()
        (folder / "summary.json").unlink()
        shutil.rmtree(folder / "rollouts")
    elif how == "rollouts cut off":
        for path in (folder / "rollouts").iterdir():
            path.write_bytes(path.read_bytes()[:-20])
    elif how == "other kinds":
        odd = {"paired_gain": {"mean": None, "ci95": 3}, "before": {"accuracy": 0.1, "ci95": [None, None]}}
        config = json.loads((folder / "config.json").read_text())
        (folder / "config.json").write_text(json.dumps(config | {"adapter": {"kind": "lora", "rank": [1]}}))
        whole = (folder / "metrics.jsonl").read_text().splitlines()[:-1]
        last = '{"step": 19, "reward/mean": NaN, "time/step": 1' + "0" * 400 + ', "budget/elapsed_s": true}'
        (folder / "metrics.jsonl").write_text("\n".join([*whole, last, ""]))
        not_finite = {"reward": math.nan, "parts": {"x": math.inf}, "logprobs": [math.nan] * 3}
        rewrite(folder, lambda line: line | not_finite)
        tree = {"status": 5, "steps": "x", "eval": odd, "forecast": [], "hours_spent": "y", "cost_usd": {}}
        (folder / "summary.json").write_text(json.dumps(tree))
        spectra = [3, {"index": "x", "c": [1]}]
        (folder / "inspect.json").write_text(json.dumps({"spectra": spectra, "norms": {}, "through": [{}, {}], "start": 3}))
        (folder / "environment.json").write_text('{"gpu": {"name": 3}, "packages": 7, "adapter": "x", "trainable_params": null}')
        (folder / "events.jsonl").write_text('{"kind": 3, "message": null, "step": "x"}\n{"kind": "guard", "step": 99}\n')
        (folder / "eval" / "x.json").write_text('{"avg@8": {"mean": "x", "ci95": [1]}, "settings": 4}')
    return folder


@pytest.mark.slow
@pytest.mark.cases(one_of_each=2)
@pytest.mark.parametrize(
    "how", ["torn", "not JSON", "an older format", "without evaluation", "no step", "rollouts cut off", "other kinds"]
)
def test_what_is_damaged_or_missing_is_said_and_the_rest_drawn(few_figures, tmp_path, how):
    history = History.load(damaged(make(tmp_path / "run"), how))
    text = page([history])
    assert "</html>" in text
    assert len(history.rows) == (0 if how == "no step" else 20)
    noted = {one.message for one in findings(history) if one.kind in ("damaged", "guard")}
    assert bool(noted) == (how in ("not JSON", "rollouts cut off", "other kinds")), noted
    if how == "without evaluation":
        assert "whether training helped is not known" in text
    if how == "no step":
        assert "no finished step yet" in text
    if how == "other kinds":
        assert history.status() == "unknown" and "summary.json is damaged: whether training helped is not known" in text


@pytest.mark.slow
def test_a_run_without_times_is_drawn_against_each_axis(tmp_path):
    history = History.load(make(tmp_path / "run"))
    damaged(history.path, "an older format")
    assert "Step time by phase" in page([History.load(history.path)])


def test_what_happened_at_the_beginning_of_a_step_is_drawn_there(tmp_path):
    """Steps end at 10, 11, 12, ... s here and each takes between 1 and 2 s; in the steps 0 and 10 there is a validation."""
    history = History.load(make(tmp_path / "run", steps=20, kept=[]))
    took = [row["time/step"] for row in history.rows]
    assert places.validations(history, "step", [history])[0] == [0, 10]
    assert places.validations(history, "time", [history])[0] == pytest.approx([10 - took[0], 20 - took[10]])
    end = Event("", "sft finished", "", 0)
    _, name, step = places.mark_of(end)
    assert (name, step) == ("end of SFT", 0)
    assert places.place_of(history, step, "time") == pytest.approx(10 - took[0]) and places.place_of(history, 1, "time") == 10


def test_a_run_that_ended_before_its_first_step_is_drawn_against_each_axis(tmp_path):
    folder = make(tmp_path / "run", steps=20, kept=[])
    (folder / "events.jsonl").write_text(
        json.dumps({"time": 1.0, "step": 0, "kind": "sft finished", "message": "4 steps"}) + "\n"
    )
    (folder / "metrics.jsonl").unlink()
    assert "mark-end-of-SFT" in page([History.load(folder)])


def test_what_is_no_run_is_refused(inside, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "folder").mkdir()
    for target in ("folder", "nowhere"):
        done = inside("report", target)
        assert done.returncode == 2 and "is not a run folder" in done.stderr and "hint:" in done.stderr
    done = inside("report")
    assert done.returncode == 2 and "there is no run in runs/" in done.stderr
    with pytest.raises(UserError, match="given twice"):
        load_all([tmp_path / "folder", tmp_path / "folder"])


@pytest.mark.slow
@pytest.mark.one_of_each
def test_a_full_disk_is_said_in_one_line(few_figures, inside, trained, tmp_path):
    (tmp_path / "file").write_text("")
    done = inside("report", trained, "--out", tmp_path / "file" / "report.html")
    assert done.returncode == 2 and done.stderr.count("\n") == 2 and "cannot write" in done.stderr and "--out FILE" in done.stderr


def test_a_record_of_the_machine_that_cannot_be_read_is_not_taken_for_one_without_a_gpu(tmp_path):
    folder = make(tmp_path / "run")
    known, record = dict(facts(History.load(folder)))["machine"], json.loads((folder / "environment.json").read_text())
    (folder / "environment.json").write_text(json.dumps(record | {"packages": {"torch": "2.9.0 (custom)"}}))
    odd = dict(facts(History.load(folder)))
    assert odd["machine"] == known and odd["versions"] == "torch 2.9.0 (custom)"
    (folder / "environment.json").write_text("{")
    history = History.load(folder)
    assert dict(facts(history))["machine"] == "unknown" and any("environment.json is damaged" in note for note in history.notes)


def test_a_run_that_is_going_on_is_drawn_as_far_as_it_is(tmp_path):
    folder = make(tmp_path / "run")
    (folder / "summary.json").unlink()
    (folder / "heartbeat.json").write_text("{}")
    history = History.load(folder)
    assert history.status() == "still running" and "still going" in " ".join(judge(history).sentences)
    old = time.time() - 3600
    for name in ("heartbeat.json", "config.json"):
        os.utime(folder / name, (old, old))
    stopped = History.load(folder)
    assert stopped.status() == "not finished" and dict(facts(stopped))["time"] == "29 seconds"
    (folder / "summary.json").write_text(json.dumps(ending()))
    os.utime(folder / "summary.json", (old, old))
    resumed = RunFolder(folder)
    resumed.lock()  # resumed after its end, and loading
    assert History.load(folder).status() == "still running"
    resumed.unlock()
    os.utime(folder / ".lock", (old - 60, old - 60))
    assert History.load(folder).status() == "done"


@pytest.mark.slow
@pytest.mark.one_of_each
def test_the_command(few_figures, inside, trained, tmp_path, monkeypatch):
    done = inside("report", trained, "--json", "--figures", tmp_path / "figures")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["report"] == str(trained / "report.html") and (trained / "report.html").stat().st_size == found["bytes"]
    assert len(found["figures"]) == len(list((tmp_path / "figures").iterdir()))
    summary = json.loads((trained / "summary.json").read_text())
    assert found["runs"] == [{"run": str(trained)} | summary["verdict"]], "as the run itself has judged"
    monkeypatch.chdir(tmp_path)
    other = shutil.copytree(trained, tmp_path / "other")
    done = inside("report", trained, other)
    assert done.returncode == 0 and done.stdout == "report.html\n" and (tmp_path / "report.html").exists()


@pytest.mark.slow
@pytest.mark.one_of_each
def test_no_torch(trained, tmp_path):
    run, out = str(trained), str(tmp_path / "report.html")
    commands = [["report", run, "--out", out], ["watch", run], ["diff", run], ["compare", run]]
    code = (
        "import sys\n"
        "from microrl.cli import app\n"
        "from microrl.report import figures\n"
        "figures.FIGURES = figures.FIGURES[:2]\n"
        f"for words in {commands!r}:\n"
        "    app(words, standalone_mode=False)\n"
        "    heavy = {'torch', 'transformers', 'peft', 'datasets', 'vllm'} & set(sys.modules)\n"
        "    assert not heavy, (words, heavy)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0 and "became right" in done.stdout and (tmp_path / "report.html").exists(), done.stderr


# ---- what a run keeps for it


def test_two_completions_of_a_group_are_kept_token_by_token(trained):
    for path in sorted((trained / "rollouts").iterdir()):
        with gzip.open(path, "rt") as file:
            lines = [json.loads(line) for line in file]
        detailed = [line for line in lines if "pieces" in line]
        assert 1 <= len(detailed) <= 8
        for line in detailed:
            assert len(line["pieces"]) == len(line["logprobs"]) == line["tokens"] and max(line["logprobs"]) <= 0
            assert "".join(line["pieces"]).startswith(line["completion"].rstrip("\ufffd"))
        assert all(isinstance(line["advantage"], float) for line in lines)
        assert sum(bool(line["prompt"]) for line in lines) == len(lines) / 4, "the prompt's text once a group"


def test_the_answers_before_and_after_are_kept(few_figures, trained):
    text = page([History.load(trained)])
    assert "with the same random numbers" in text and "became right" in text


def test_the_divergence_from_the_base_is_measured_outside_the_loss(trained):
    rows = [json.loads(line) for line in (trained / "metrics.jsonl").read_text().splitlines()]
    measured = {row["step"]: row["policy/kl_ref"] for row in rows}
    assert measured[0] < 1e-9 and measured[2] > 0 and measured[4] > 0, "B is 0 at the start"
    assert measured[1] is None and measured[3] is None and measured[5] is None
    assert json.loads((trained / "summary.json").read_text())["seconds_by_phase"]["diagnostics"] > 0


def test_checkpoints_are_kept_as_often_as_asked(trained):
    steps = {int(path.name[5:]) for path in (trained / "checkpoints").iterdir()}
    assert {2, 4, 6} <= steps and len(steps) <= 5


@pytest.mark.slow
def test_a_large_run_is_drawn_in_half_a_minute(tmp_path):
    """2,000 steps with 500,000 completions: in 30 s, 1 GB, and a page of 10 MB. `ru_maxrss` would count what the parent had."""
    make(tmp_path / "run", steps=2000, prompts=31, group=8)
    code = (
        "import re, time\n"
        "from pathlib import Path\n"
        "from microrl.report.history import History\n"
        "from microrl.report.page import write\n"
        "began = time.process_time()\n"
        f"size = write([History.load(Path({str(tmp_path / 'run')!r}))], Path({str(tmp_path / 'report.html')!r}))\n"
        "peak = 1024 * int(re.search(r'VmHWM:\\s+(\\d+)', Path('/proc/self/status').read_text())[1])\n"
        "print(size, time.process_time() - began, peak)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    size, seconds, memory = map(float, done.stdout.split())
    print(f"{size / 1e6:.1f} MB, {seconds:.1f} s, {memory / 1e6:.0f} MB of memory")
    assert size < 10e6 and seconds < 30 and memory < 1e9


def test_the_divergence_of_a_run_is_the_mean_of_the_steps_that_all_runs_measure(tmp_path):
    """With a KL term every step measures it, without one every second: the mean is over the latter in both."""
    make(tmp_path / "run", steps=6, prompts=1, group=2)
    history = History.load(tmp_path / "run")
    for number, row in enumerate(history.rows):
        row.update({"step": number, "policy/kl_ref": float(10**number)})
    history.config = {"diagnostics": {"kl_ref_every": None}}
    assert history.kl_to_base() == pytest.approx(111_111 / 6)
    history.config = {"diagnostics": {"kl_ref_every": 2}}
    assert history.kl_to_base() == pytest.approx(10_101 / 3)
    for row in history.rows:
        row["policy/kl_ref"] = None
    assert history.kl_to_base() is None


def test_the_divergence_against_the_rank_has_a_line_for_each_weight_of_the_kl_term(tmp_path):
    histories = []
    for rank, beta, kl in ((2, 0.0, 0.1), (4, 0.0, 0.2), (2, 0.05, 0.3), (4, 0.05, 0.4)):
        make(tmp_path / f"r{rank}-{beta}", steps=2, prompts=1, group=2)
        history = History.load(tmp_path / f"r{rank}-{beta}")
        history.config = {"adapter": {"rank": rank}, "loss": {"beta": beta}}
        for row in history.rows:
            row["policy/kl_ref"] = kl
        histories.append(history)
    spec = next(one for one in figures.FIGURES if one.key == "kl-rank")
    with figures.style():
        axes = figures.figure(spec, histories).axes[0]
    lines = {line.get_label(): list(line.get_ydata()) for line in axes.lines if not line.get_label().startswith("_")}
    assert lines == {"beta 0": [0.1, 0.2], "beta 0.05": [0.3, 0.4]}


def rectangles(svg):
    """(x, width, title) of the places at which a figure shows values."""
    found = re.findall(r'<rect x="([\d.]+)" y="[\d.]+" width="([\d.]+)"[^>]*><title>([^<]*)</title></rect>', svg)
    return [(float(x), float(width), html.unescape(title)) for x, width, title in found]


@pytest.mark.slow
def test_each_place_of_a_figure_shows_its_values_without_a_script(tmp_path):
    history = History.load(make(tmp_path / "run", steps=8, prompts=1, group=2))
    for step, row in enumerate(history.rows):
        row |= {"length/mean": 10.0 + step, "length/max": 1000.0 * (step + 1), "reward/part/<b>": step / 8}
    specs = figures.drawable([history])
    with figures.style():
        texts = {key: figures.svg(figures.figure(spec, [history]), in_page=True) for key, spec in specs.items()}
    shown = rectangles(texts["length"])
    assert [title for *_, title in shown] == [
        f"training steps {step + 1}\nmean {10 + step}\nlongest {f'{1000 * (step + 1):.4g}'}" for step in range(8)
    ]
    (line,) = re.findall(r'<path d="(M [^"]*)" clip-path[^>]*style="[^"]*stroke: #3b82f6; stroke-width: 1.4', texts["length"])
    vertices = [float(x) for x in re.findall(r"[ML] ([\d.]+)", line)]
    for (x, width, _), vertex in zip(shown, vertices, strict=True):
        assert x - 0.1 <= vertex <= x + width + 0.1, "it lies over the point whose values it shows"
    assert rectangles(texts["custom-rewards"])[4][2] == "training steps 5\n<b> 0.5" and "<b>" not in texts["custom-rewards"]
    assert "update 1" in rectangles(texts["phases"])[0][2] and "held-out, before training 0.25" in texts["held-out"]
    assert all(rectangles(text) for text in texts.values()), "every figure has them"
    assert not any("<script" in text or "onmouse" in text for text in texts.values())
    # A figure on its own has them too.
    figures.save_all([history], tmp_path / "figures")
    assert len(rectangles((tmp_path / "figures" / "length.svg").read_text())) == 8


def test_of_many_steps_and_runs_a_figure_shows_values_at_some_places(tmp_path):
    from microrl.report import hover

    histories = load_all([make(tmp_path / name, steps=steps, kept=[]) for name, steps in (("one", 1000), ("two", 400))])
    with figures.style():
        shown = rectangles(figures.svg(figures.figure(figures.drawable(histories)["accuracy"], histories), in_page=True))
    assert len(shown) == hover.MAX_BANDS
    assert "one 0." in shown[3][2] and "two 0." in shown[3][2] and "two" not in shown[-1][2], "where a run has values"


@pytest.mark.slow
def test_a_fixed_rates_steps_are_measured_now_and_then(trained):
    rows = History.load(trained).rows
    measured = [row for row in rows if row["policy/step_kl"] is not None]
    assert [row["step"] for row in measured] == [0, 3]
    assert [row["step"] for row in rows if row["time/step_kl"] > 0] == [0, 3]
