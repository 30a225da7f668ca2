"""The page of `microrl doctor --measure`: markdown that fits into an issue."""

from __future__ import annotations

from typing import Any


def page(report: dict[str, Any]) -> str:
    """The report of `measure.report` as markdown."""
    versions = report["environment"]["packages"]
    shown = ", ".join(f"{name} {version}" for name, version in versions.items() if version)
    lines = [f"# microrl on {report['device']}", "", f"{shown}; driver {report['driver'] or 'none'}.", ""]
    lines += _table(("stage", "result", "seconds"), [_stage(stage) for stage in report["stages"]])
    by_kind: dict[str, list[dict[str, Any]]] = {}
    for stage in report["stages"]:
        if stage["found"] is not None:
            by_kind.setdefault(stage["kind"], []).append(stage["found"])
    for rates in by_kind.get("rates", []):
        products = ", ".join(f"{name} {rate:.3g}" for name, rate in rates["product_tflops"].items())
        lines += ["## Rates", "", f"Matrix products, TFLOP/s: {products}. Copy: {rates['stream_gb_s']:.0f} GB/s.", ""]
    if cycles := by_kind.get("cycles"):
        lines += ["## Weight sync and sleep", "", "The last cycle of each.", ""]
        names = ("sync", "sleep", "freed, GB", "retaken, GB", "push, ms", "check, ms", "wake, ms", "slope", "to plain vLLM")
        lines += _table(names, [_cycle(measured) for measured in cycles])
    if decodes := by_kind.get("decode"):
        lines += ["## Sampling, tokens per second", ""]
        rows = [
            (decode["shape"], decode["rank"], decode["sync"], row["completions"], f"{row['tokens_per_s']:.0f}")
            for decode in decodes
            for row in decode["rows"]
        ]
        lines += _table(("model", "rank", "sync", "completions", "tokens/s"), rows)
    if updates := by_kind.get("update"):
        lines += ["## Update", ""]
        fastest = max(report["calibration"]["product_tflops"].values()) if report["calibration"] else None
        reached = [
            (
                update["shape"], update["rank"], "yes" if update["recompute"] else "no", update["tokens"],
                f"{update['seconds']:.3g}", f"{update['tflops']:.3g}",
                f"{update['tflops'] / fastest:.0%}" if fastest else "", f"{update['peak_gb']:.1f}",
            )
            for update in updates
        ]  # fmt: skip
        titles = ("model", "rank", "recomputation", "tokens", "seconds", "TFLOP/s", "of the fastest product", "peak, GB")
        lines += _table(titles, reached)
    if peer := report["peer"]:
        lines += ["## Against TRL", "", f"Step {peer['step_ratio']:.2f}x, memory {peer['memory_ratio']:.2f}x.", ""]
    if calibration := report["calibration"]:
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


def _cycle(measured: dict[str, Any]) -> tuple[Any, ...]:
    last = measured["cycles"][-1]
    return (
        measured["sync"], measured["sleep"], f"{last['freed_gb']:.2f}", f"{last['retaken_gb']:.2f}",
        f"{1000 * last['push_s']:.1f}", f"{1000 * last['proof_s']:.1f}", f"{1000 * last['wake_s']:.1f}",
        f"{last['slope']:.3f}", f"{measured['ratio']:.2f}",
    )  # fmt: skip


def _table(names: tuple[str, ...], rows: list[Any]) -> list[str]:
    lines = [names, ["---"] * len(names), *rows]
    return [*("| " + " | ".join(str(cell).replace("|", "/") for cell in line) + " |" for line in lines), ""]
