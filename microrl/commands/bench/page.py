"""What was measured as text, in one way for all of it: on the terminal, and as the page of `microrl doctor --measure`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from microrl.config.resolve import leaves
from microrl.plan.show import WIDE, as_text, table
from microrl.terminal import printable


def text(result: Mapping[str, Any]) -> str:
    """A line for each value, with its range if it has one, and a table for each list of rows."""
    values, lines = dict(leaves(result)), []
    for name, value in values.items():
        if isinstance(value, list) and value and isinstance(value[0], dict):
            rows = [dict(leaves(row)) for row in value]
            head = list(dict.fromkeys(key for row in rows for key in row))
            lines.append(
                as_text(table([f">{key}" for key in head], [[_brief(row.get(key)) for key in head] for row in rows]), WIDE)
            )
        elif not name.endswith("_range"):
            ends = values.get(f"{name}_range")
            lines.append(f"{name} {_brief(value)}" + (f" ({_brief(ends[0])}..{_brief(ends[1])})" if ends else ""))
    return printable("\n".join(lines))


def page(report: dict[str, Any]) -> str:
    """The report of `measure.report` as markdown that fits into an issue."""
    versions = ", ".join(f"{name} {version}" for name, version in report["environment"]["packages"].items() if version)
    parts = [f"# microrl on {report['device']}", f"{versions}; driver {report['driver'] or 'none'}."]
    for stage in report["stages"]:
        ended = "passed" if stage["error"] is None else f"failed: {stage['error']}"
        parts.append(f"## {stage['title']}: {ended}, {stage['seconds']:.0f} s")
        parts += [] if stage["found"] is None else [f"```\n{text(stage['found'])}\n```"]
    parts += [f"## {name}\n\n```\n{text(report[name])}\n```" for name in ("peer", "calibration") if report[name]]
    return "\n\n".join(parts) + "\n"


def _brief(value: Any) -> str:
    """Numbers with four digits, or all digits before the point."""
    if isinstance(value, list):
        return ", ".join(map(_brief, value))
    if isinstance(value, float):
        return f"{value:.0f}" if 1e4 <= abs(value) < 1e15 else f"{value:.4g}"
    return "" if value is None else str(value)
