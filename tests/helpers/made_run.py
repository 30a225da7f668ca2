"""Run folders that a script has written: of any size, and with any text in them."""

import gzip
import json
import random

from microrl.config import resolve
from microrl.run.metrics import METRICS
from microrl.run.summary import Summary

SHARES = {"reward/accuracy", "reward/format", "groups/useful", "length/truncated", "policy/outside_share", "policy/clip_fraction"}
HOSTILE = (
    "<script>window.pwned = 1</script>",
    "</script><script>window.pwned = 1</script>",
    "<img src=x onerror='window.pwned = 1'>",
    "<svg onload=window.pwned=1>",
    "<a href=\"javascript:window.pwned=1\">here</a>",
    "<iframe src='https://example.com/'></iframe>",
    "<link rel=stylesheet href=https://example.com/x.css>",
    "<style>@import 'https://example.com/x.css'; body { display: none }</style>",
    "<meta http-equiv=refresh content='0; url=https://example.com/'>",
    "{{ 7 * 7 }} {% raw %} {{ self.__init__.__globals__ }} ${7 * 7} #{7 * 7}",
    "<!-- <script> --><![CDATA[ ]]>",
    "\x1b]0;pwned\x07\x1b[31m\x1b[2J\x9b31m",
    "\u202eright to left\u202c \u2066isolated \u200f",
    "NUL \x00 and \x08\x7f",
    "x" * 200_000,
    "\u2028\u2029 \ud83d lone surrogate",
    "&lt;script&gt; &amp; &#0; %3Cscript%3E",
    "\"'`onmouseover=window.pwned=1 x=",
)  # fmt: skip


def make(
    folder, *, steps=20, prompts=2, group=4, text=lambda rng: "<think>2+2</think> \\boxed{4}", seed=0, name="made", kept=None
):
    """A run folder of so many steps, with rollouts of each; `text` makes a completion. `kept`: steps with rollouts, else all."""
    rng = random.Random(seed)
    (folder / "rollouts").mkdir(parents=True)
    (folder / "eval").mkdir()
    config = resolve(["quickstart"], {"budget.steps": steps}).model_dump(mode="json")
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "environment.json").write_text(json.dumps({"cpus": 2, "gpu": None, "engine": "transformers", "trainable_params": 5,
                                                         "packages": {"microrl": name}}))  # fmt: skip
    with (folder / "metrics.jsonl").open("w") as file:
        for step in range(steps):
            row = {metric: step / steps if metric in SHARES else 1.0 + rng.random() for metric in METRICS}
            row |= {metric: None for metric in METRICS if metric.startswith("distill/")}
            row |= {"step": step, "budget/elapsed_s": 10.0 + step, "budget/left_s": 1000.0 - step, "budget/cost_usd": step / 1000,
                    "policy/kl_ref": None, "time/verify": 0.1, "validate/accuracy": 0.5 if step % 10 == 0 else None}  # fmt: skip
            file.write(json.dumps(row) + "\n")
    for step in range(steps) if kept is None else kept:
        with gzip.open(folder / "rollouts" / f"step-{step:06d}.jsonl.gz", "wt", compresslevel=1, errors="surrogatepass") as file:
            for number in range(prompts * group):
                file.write(json.dumps(line(rng, number, group, text)) + "\n")
    before = {"accuracy": 0.25, "ci95": [0.2, 0.3], "questions": 64}
    after = {"accuracy": 0.5, "ci95": [0.45, 0.55], "questions": 64}
    gain = {"mean": 0.25, "ci95": [0.2, 0.3]}
    summary = ending(steps=steps, eval={"before": before, "after": after, "paired_gain": gain})
    (folder / "summary.json").write_text(json.dumps(summary))
    return folder


def rewrite(folder, change):
    """Replace each line of a run's rollouts by what `change` makes of it."""
    for path in (folder / "rollouts").iterdir():
        with gzip.open(path, "rt") as file:
            lines = [change(json.loads(line)) for line in file]
        with gzip.open(path, "wt") as file:
            file.writelines(json.dumps(line) + "\n" for line in lines)


def ending(**changes):
    """A summary of a run that is done."""
    ended = Summary(status="done", steps=4, hours_budget=1.0, hours_spent=0.5, cost_usd=0.15, trainable_params=5)
    return {**ended.to_json(), **changes}


def line(rng, number, group, text):
    said = text(rng)
    right = rng.random() < 0.5
    return {
        "question": said if number % 3 == 0 else f"What is {number // group} + 2?", "answer": "4", "completion": said,
        "tokens": 3, "finish": "stop" if number % 2 else "length", "version": 0, 
        "reward": 1.2 if right else 0.2, "accuracy": float(right),
        "format": 1.0, "overlong": None, "parts": {}, "counts": True, "killed": False, "extracted": "4",
        "prompt": said if number % group == 0 else "", "row_number": 1, "row": None, "advantage": 0.5,
        **({"pieces": [said[:100], said[100:200], "!"], "logprobs": [-0.5, None, -3.0]} if number % group < 2 else {}),
    }  # fmt: skip
