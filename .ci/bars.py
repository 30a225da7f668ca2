"""What a stage of `.ci/gpu` must show, read off its JSON: `bars.py doctor|rollout FILE`. Exit status 1 where it does not."""

import json
import sys
from pathlib import Path

LEAST_RATIO, MOST_SYNC = 0.95, 0.05


def doctor(found):
    """Problems, and a self-test on another engine than vLLM."""
    for one in found["findings"]:
        if one["status"] == "problem":
            yield f"{one['about']}: {one['says']}"
    said = next((one["says"] for one in found["findings"] if one["about"] == "self-test"), "not made")
    if not said.startswith("vllm on cuda"):
        yield f"the self-test: {said}"


def rollout(found):
    """Sampling that is slower than vLLM alone, and syncs and sleep that take too much of it."""
    for one in found["rollouts"]:
        if one["ratio"] < LEAST_RATIO:
            yield f"{one['arch']}: {one['ratio']:.3f} of vLLM alone"
        if one["sync_fraction"] > MOST_SYNC:
            yield f"{one['arch']}: syncs and sleep take {one['sync_fraction']:.1%} of a rollout"


missed = list({"doctor": doctor, "rollout": rollout}[sys.argv[1]](json.loads(Path(sys.argv[2]).read_text())))
print("\n".join(missed) or f"{sys.argv[1]}: as it must be")
sys.exit(bool(missed))
