r"""Answers that only a computer algebra system can judge, and that are written to cost it its deadline."""

from __future__ import annotations

import os
import resource
import signal

BY_KIND = {
    "sum": r"\sum_{n=1}^{97} n^{7}",
    "prod": r"\prod_{n=1}^{9} (n+31337)",
    "int": r"\int_{0}^{313} x^{7} \, dx",
    "lim": r"\lim_{x \to 0} \frac{\sin(31337x)}{x}",
    "max": r"\max(31337, 8)",
    "matrix": r"\begin{pmatrix} \max(31337, 8) & 1 \\ 2 & 3 \end{pmatrix}",
    "vmatrix": r"\begin{vmatrix} 31337 & 1 \\ 2 & 3 \end{vmatrix}",
    "letters": r"\max(31337, x)",
}
"""A gold answer for each kind of answer below."""
NUMBERS = [2, 3, 7, 9, 10, 40, 97, 99, 100, 313, 999, 1000, 9999, 10**5, 10**6, 10**9]


def whole(rng):
    return rng.choice(
        [str(rng.choice(NUMBERS)), f"10^{rng.choice('23469')}", f"10^{{{rng.choice([2, 4, 9, 50])}}}", r"\infty", "n", "-99"]
    )


def inside(rng, depth=3):
    """A term of a sum, of an integral, or an entry of a matrix: of letters, numbers, powers, and sums in it."""
    a, b, k = rng.choice(NUMBERS[:13]), rng.choice(NUMBERS), rng.choice([2, 3, 7, 9, 40, 99])
    x = rng.choice("nnnxk") if rng.random() < 0.8 else "(" + inside(rng, depth - 1) + ")" if depth else "n"
    return rng.choice(
        [
            x, f"{x}^{{{a}}}", f"{a}^{{{x}}}", f"({x}+{b})^{{({k}{x})^3}}", f"({x}+{b})^{{{k}{x}}}", f"{x}^{{{x}}}",
            f"({x}+{b})^{k}", rf"\frac{{1}}{{{x}^{{{k}}}+{b}}}", rf"\sqrt{{{x}+{b}}}", rf"\sqrt[{k}]{{{x}^{{{k}}}+1}}",
            rf"\sin({x}^{{{k}}})", f"e^{{{x}}}", f"e^{{-{x}^{k}}}", rf"\log({x}+{b})", rf"\binom{{{a}{x}}}{{{k}}}",
            rf"\binom{{{a}}}{{{x}}}", f"{x}!", f"({k}{x})!", f"({a}+{x})!", rf"\cos({x})^{{{k}}}", rf"\tan({b}{x})",
            rf"\frac{{{x}^{{{k}}}}}{{({x}+1)^{{{k}}}}}", f"({x}^{{{x}}})^{{{x}}}", f"{a}^{{{a}}}", f"{a}^{{{k}}}{x}",
            f"({a}^{{{k}}})^{{{k}}}", f"((({a}^{k})^{k})^{k})^{k}", rf"\arctan({x}^{{{k}}})", rf"\lfloor {x}\pi \rfloor",
            rf"|{x}-{k}|", rf"\sin({x})\cos({k}{x})e^{{{x}}}", rf"(1+\frac{{1}}{{{x}}})^{{{x}^{k}}}",
            rf"(1+\sqrt{{2}})^{{{a}{x}}}", rf"(\sin {x}+\cos {x})^{{{a}}}", rf"\max({x}, {a}^{{{k}}})", rf"{x} \bmod {k}",
            rf"\gcd({x}, {b})", rf"(x+y+z+{k})^{{{a}}}", rf"(1+{x})^{{\frac{{1}}{{{k}}}}}", rf"\pi^{{{a}}}", f"e^{{{a}}}",
            rf"\frac{{{a}!}}{{{k}!}}", rf"\log_{{{k}}}({x}^{{{a}}}+1)", rf"\sinh({k}{x})", rf"\exp(\exp({x}))",
        ]
    )  # fmt: skip


def term(rng, depth):
    if depth and rng.random() < 0.35:
        return special(rng, rng.choice(["sum", "prod", "int", "lim"]), depth - 1)
    return (
        rng.choice(["", "", "", "-", "2"])
        + inside(rng)
        + (rng.choice(["+", "", "-", r"\cdot "]) + inside(rng) if rng.random() < 0.4 else "")
    )


def special(rng, kind, depth=1):
    match kind:
        case "sum" | "prod":
            low = rng.choice(["1", "0", "2", "-9", "n", whole(rng)])
            script = rng.choice(
                [f"_{{n={low}}}^{{{whole(rng)}}}", f"_{{n={low}}}^{{99}}", rf"\limits_{{n={low}}}^{{{whole(rng)}}}"]
            )
            return rf"\{kind}{script} {term(rng, depth)}"
        case "int":
            limits = rng.choice(
                ["", f"_0^{{{whole(rng)}}}", r"_{-\infty}^{\infty}", r"_0^1", f"_{{{term(rng, 0)}}}^{{{term(rng, 0)}}}"]
            )
            return rf"\int{limits} {term(rng, depth).replace('n', 'x')} \, dx"
        case "lim":
            return rf"\lim_{{x \to {rng.choice(['0', '1', whole(rng)])}}} {term(rng, depth).replace('n', 'x')}"
        case "max":
            return rf"\{rng.choice(['max', 'min', 'gcd', 'lcm'])}({term(rng, 0)}, {term(rng, 0)})"
        case "matrix" | "vmatrix":
            name = "vmatrix" if kind == "vmatrix" else rng.choice(["pmatrix", "bmatrix"])
            size = rng.choice([2, 2, 3, 4, 7])
            rows = r" \\ ".join(" & ".join(inside(rng) for _ in range(size)) for _ in range(size))
            power = rng.choice(["", "", f"^{{{rng.choice([2, 9, 99, 999, 9999])}}}", "^{-1}", "^n"])
            return rf"\begin{{{name}}} {rows} \end{{{name}}}{power}"
        case "letters":
            return rng.choice(["+", "", "-"]).join(inside(rng).replace("n", "x") for _ in range(rng.randrange(1, 6)))
    raise AssertionError(kind)


def continued(rng):
    depth = rng.randrange(3, 14)
    head, tail = rng.choice(
        [(r"\frac{1}{1+", "}"), (r"\sqrt{2+", "}"), (r"(1+", ")^{2}"), (r"x+\frac{1}{x+", "}"), (r"\frac{n}{n+\frac{1}{", "}}")]
    )
    return head * depth + inside(rng) + tail * depth


def pair(rng):
    """A gold answer and an answer to it."""
    kind = rng.choice(list(BY_KIND))
    answer = special(rng, kind)
    if rng.random() < 0.3:
        answer += rng.choice(["+", "-", r"\cdot ", ""]) + rng.choice([continued(rng), inside(rng), special(rng, kind)])
    if rng.random() < 0.1:
        answer = rf"\frac{{{answer}}}{{{special(rng, kind)}}}"
    if rng.random() < 0.1:
        answer = rf"({answer})^{{{rng.choice([2, 9, 99, 999])}}}"
    return BY_KIND[kind], answer


def spent_on(judge, most_s):
    """Seconds of processor time that a call takes in a fork, which ends at `most_s`."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    pid = os.fork()
    if pid == 0:
        signal.setitimer(signal.ITIMER_PROF, most_s)
        try:
            judge()
        finally:
            os._exit(0)
    os.waitpid(pid, 0)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime - before.ru_utime
