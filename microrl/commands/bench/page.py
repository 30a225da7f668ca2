"""The page of `microrl doctor --measure`: markdown that fits into an issue."""

from __future__ import annotations

from typing import Any


def page(value: dict[str, Any]) -> str:
    """The report of `measure.report` as markdown."""
    versions = value["environment"]["packages"]
    shown = ", ".join(f"{name} {version}" for name, version in versions.items() if version)
    lines = [f"# microrl on {value['device']}", "", f"{shown}; driver {value['driver'] or 'none'}.", ""]
    lines += _table(("stage", "result", "seconds"), [_stage(stage) for stage in value["stages"]])
    by_kind: dict[str, list[dict[str, Any]]] = {}
    for stage in value["stages"]:
        if stage["found"] is not None:
            by_kind.setdefault(stage["kind"], []).append(stage["found"])
    for found in by_kind.get("rates", []):
        products = ", ".join(f"{name} {rate:.3g}" for name, rate in found["product_tflops"].items())
        lines += ["## Rates", "", f"Matrix products, TFLOP/s: {products}. Copy: {found['stream_gb_s']:.0f} GB/s.", ""]
    if cycles := by_kind.get("cycles"):
        lines += ["## Weight sync and sleep", "", "The last cycle of each.", ""]
        names = ("sync", "sleep", "freed, GB", "retaken, GB", "push, ms", "check, ms", "wake, ms", "slope", "to plain vLLM")
        lines += _table(names, [_cycle(found) for found in cycles])
    if decodes := by_kind.get("decode"):
        lines += ["## Sampling, tokens per second", ""]
        rows = [
            (found["shape"], found["rank"], found["sync"], row["completions"], f"{row['tokens_per_s']:.0f}")
            for found in decodes
            for row in found["rows"]
        ]
        lines += _table(("model", "rank", "sync", "completions", "tokens/s"), rows)
    if updates := by_kind.get("update"):
        lines += ["## Update", ""]
        fastest = max(value["calibration"]["product_tflops"].values()) if value["calibration"] else None
        reached = [
            (
                found["shape"], found["rank"], "yes" if found["recompute"] else "no", found["tokens"], f"{found['seconds']:.3g}",
                f"{found['tflops']:.3g}", f"{found['tflops'] / fastest:.0%}" if fastest else "", f"{found['peak_gb']:.1f}",
            )
            for found in updates
        ]  # fmt: skip
        titles = ("model", "rank", "recomputation", "tokens", "seconds", "TFLOP/s", "of the fastest product", "peak, GB")
        lines += _table(titles, reached)
    if peer := value["peer"]:
        lines += ["## Against TRL", "", f"Step {peer['step_ratio']:.2f}x, memory {peer['memory_ratio']:.2f}x.", ""]
    if calibration := value["calibration"]:
        lines += ["## Calibration", "", "Measured seconds divided by the plan's roofline:", ""]
        factors = [
            (point["shape"], point["rank"], ", ".join(f"{name} {factor:.2f}" for name, factor in point["decode"].items()),
             f"{point['update']:.2f}")
            for point in calibration["points"]
        ]  # fmt: skip
        lines += _table(("model", "rank", "sampling", "update"), factors)
    return "\n".join(lines).rstrip() + "\n"


def _stage(stage: dict[str, Any]) -> tuple[str, str, str]:
    result = "passed" if stage["error"] is None else f"**failed**: {stage['error']}"
    return stage["title"], result, f"{stage['seconds']:.0f}"


def _cycle(found: dict[str, Any]) -> tuple[Any, ...]:
    last = found["cycles"][-1]
    return (
        found["sync"], found["sleep"], f"{last['freed_gb']:.2f}", f"{last['retaken_gb']:.2f}", f"{1000 * last['push_s']:.1f}",
        f"{1000 * last['proof_s']:.1f}", f"{1000 * last['wake_s']:.1f}", f"{last['slope']:.3f}", f"{found['ratio']:.2f}",
    )  # fmt: skip


def _table(names: tuple[str, ...], rows: list[Any]) -> list[str]:
    lines = [names, ["---"] * len(names), *rows]
    return [*("| " + " | ".join(str(cell).replace("|", "/") for cell in line) + " |" for line in lines), ""]
