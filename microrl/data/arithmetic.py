"""Generated arithmetic problems."""

from __future__ import annotations


def problems() -> list[tuple[str, str]]:
    return [(f"What is {a} + {b}?", str(a + b)) for a in range(10, 100) for b in range(10, 100)]
