"""Completions that are written to hang, crash, fill or fool the answer checker."""

from __future__ import annotations

BIG_EVERY = 97
"""Every such completion has one of the sizes that are asked for by name, in full: 100,000 braces, megabytes of digits."""
GOLDS = [
    "8675309", r"\frac{8675309}{31337}", r"\sqrt{8675309}", "(8675309, 31337)", r"[31337, \infty)", "x^{2}+31337x-8675309",
    "brontosaurus", r"\{31337, 8675309\}", r"\sin(31337x)", "31337:8675309", "x > 31337", r"8675309\text{ cm}", r"31337^{\circ}",
    "8675309_{31}", r"\begin{pmatrix} 31337 & 1 \\ 2 & 8675309 \end{pmatrix}", r"31337\pi+e^{x}", "y=31337x+8675309",
]  # fmt: skip
"""Nothing below says any of these."""
ALGEBRA_GOLDS = [
    r"\sum_{n=1}^{97} n^{7}", r"\int_{0}^{313} x^{7} \, dx", r"\lim_{x \to 0} \frac{\sin(31337x)}{x}", r"\int x^{313} \, dx",
    r"\prod_{n=1}^{9} (n+31337)", r"\begin{vmatrix} 31337 & 1 \\ 2 & 3 \end{vmatrix}", r"\max(31337, 8)",
    r"\sum_{n=1}^{\infty} \frac{31337}{n^{2}}",
]  # fmt: skip
NEAR = {r"\max(31337, 8)": "31337"}


def near(rng, gold):
    """What math-verify, which rounds to six decimals, calls equal to one of the gold answers of NEAR."""
    return rng.choice(
        [f"{NEAR[gold]}+10^{{-{rng.randrange(8, 60)}}}", rf"{NEAR[gold]}-\frac{{1}}{{{10 ** rng.randrange(8, 30)}}}"]
    )


def towers(rng):
    base, height = rng.choice("29xe"), rng.randrange(2, 30)
    return rng.choice(
        [
            f"{base}^{{" * height + "9" + "}" * height,
            "^".join([base] * height),
            "**".join(["9"] * height),
            "(" * height + base + "^2)" * height,
            "(" * height + "2" + ")^{9999}" * height,
            f"{base}^{{9999}}" * height,
            rf"\sqrt[{rng.randrange(200)}]{{" * height + "7" + "}" * height,
            r"\exp(" * height + "9" + ")" * height,
            "9e999" * height,
            "10^{-9999}+" * height + "1",
            "⁹" * height,
        ]
    )


def factorials(rng):
    number = rng.choice([7, 99, 999, 9999, 10**9, 10**50])
    return rng.choice(
        [
            f"{number}!",
            f"{number}!!",
            f"({number}!)!",
            "(" * 9 + f"{number}" + "!)" * 9,
            rf"\binom{{{number}}}{{{number // 2}}}",
            r"\binom{10^9}{10^8}",
            rf"\binom{{999}}{{\binom{{999}}{{{number}}}}}",
            rf"{{{number} \choose {number // 3}}}",
            rf"\frac{{{number}!}}{{{number - 1}!}}",
            rf"\prod_{{n=1}}^{{{number}}} n^n",
            rf"\sum_{{n=1}}^{{{number}}} n!",
            rf"\sum_{{a=1}}^{{{number}}} \sum_{{b=1}}^{{a}} \sum_{{c=1}}^{{b}} \frac{{1}}{{abc}}",
            rf"\int_0^{{{number}}} x^x e^{{x^2}} \sin(x^x) \, dx",
            rf"\lim_{{x \to {number}}} x^{{x}} \Gamma(x)",
            rf"\gcd({number}!, {number + 1}!)",
            rf"\det \begin{{pmatrix}} {number}^9 & x \\ y & z^{{99}} \end{{pmatrix}}",
            "+".join(f"{each}!" for each in range(900, 999)),
        ]
    )


BRACKETS = [
    (r"\frac{1}{", "}"), (r"\sqrt{", "}"), ("(", ")"), ("[", "]"), (r"\{", r"\}"), ("{", "}"), (r"\left(", r"\right)"),
    ("|", "|"), (r"\sin(", ")"), (r"\text{", "}"), (r"\boxed{", "}"), (r"\log_{", "}2"), ("-(", ")"), (r"\lfloor ", r"\rfloor"),
    ("f(", ")"),
    (r"\begin{pmatrix}", r"\end{pmatrix}"), (r"\begin{cases}", r"\end{cases}"), (r"\{x\mid ", r"\}"), (r"\overline{", "}"),
    (r"\textcolor{red}{", "}"), ("2_{", "}"), ("$", "$"),
]  # fmt: skip


def deep(rng):
    depth = rng.randrange(1, 120)
    opens, closes = rng.choice(BRACKETS)
    return opens * depth + rng.choice(["1", "x", "", "9^9"]) + closes * rng.choice([depth, depth - 1, depth + 1, 0])


SIGNS = r"""
1,000 1{,}000 0. .5 1e9 1.2.3 \, ~ \quad a' ab- (A) B: \text{a} \emph \text{ \color{red} \hspace{1cm} \begin{ \end{matrix} \\ \
$ $$ \( ** , ; = < <= \approx : \cup \setminus\{1\} \pm1 \mp{x} ! % ^\circ _1 ' x xy cm cm/ $1 x=1, 0.\overline{3} ½ √ ⁹ ₉ |x|
\mathbb{R} - +- 1/ x^{2}+ (1,2), \sin \sin^{-1} \log_2 #### **answer** answer** (2,1)\cup
"""
PIECES = [*SIGNS.split(), " ", "\t", "1 000 ", "A. ", " or ", " and ", "cm^2 ", "per ", "square ", "answer ", "#### 1\n", "a "]


def for_our_patterns(rng):
    """What a pattern with two ways to match the same text would take long for, at the length of an answer that is still read."""
    return (rng.choice(PIECES) * 2000)[: rng.choice([60, 400, 1200, 1990])] + rng.choice(
        ["", "1", "x", "\x00", "}", "!", "0", "é"]
    )


def costly(rng):
    """What is read and allowed, and takes arithmetic."""
    some = rng.sample(range(2, 900), rng.randrange(2, 60))
    form = rng.choice(
        [r"\sqrt{%d}", r"\sin{%d}", "x^{%d}", r"\frac{1}{7^{%d}}", "(x+%d)^{999}", r"e^{\sqrt{%d}}", "3^{9%03d}", r"\log_{%d} 7",
         r"\sqrt[%d]{7}", "%d!", r"\binom{%d}{7}", r"\tan^{%d} x", r"\arctan{%dx}", r"(\sqrt{%d}, 1)", "x < %d", r"\pi^{%d}"]
    )  # fmt: skip
    return rng.choice(["+", "", "*", ",", "-", "/", r"\cup ", "="]).join(form % number for number in some)


def for_algebra(rng):
    """What only a computer algebra system can judge; most of it is quick, and some is not."""
    a, b = rng.randrange(1, 50), rng.choice([9, 99, 999, 5000, "n", r"\infty"])
    inner = rng.choice(["n^n", "2^{n}", r"\frac{1}{n^{2}}", "n!", r"\sin(n)", "x^{n}", r"\binom{n}{3}", "n^{-n}", r"\sqrt{n}"])
    return rng.choice(
        [
            rf"\sum_{{n={a}}}^{{{b}}} {inner}",
            rf"\prod_{{n={a}}}^{{{b}}} {inner}",
            rf"\int_{{0}}^{{{b}}} \sin(x^{{{a}}}) e^{{x}} \, dx",
            rf"\int \frac{{x^{{{a}}}}}{{1+x^{{7}}}} \, dx",
            rf"\lim_{{x \to {a}}} \frac{{x^{{x}}-{a}}}{{\sin x}}",
            rf"\begin{{pmatrix}} {inner} & {a} \\ {b} & {inner} \end{{pmatrix}}",
            rf"\sum_{{n={a}}}^{{{b}}} \sum_{{m=1}}^{{n}} {inner}",
            rf"\max({a}, {inner}, \sqrt{{{a}}})",
        ]
    )


STAND_IN = "/canary/that/code/would/make"
"""For the canary's path while a text is drawn: mutations are drawn by a text's length."""


def code(rng, canary):
    command = f"open({canary!r}, 'w').close()"
    shell = f"__import__('os').system('touch {canary}')"
    return rng.choice(
        [
            command,
            shell,
            f"exec({command!r})",
            rf"\operatorname{{eval}}({shell})",
            rf"\text{{{command}}}",
            rf"\mathrm{{{shell}}}",
            f"x.__class__.__mro__[1].__subclasses__() and {command}",
            f"Lambda(x, {command})(1)",
            f"Function('exec')({command!r})",
            rf"\input{{|touch {canary}}}",
            rf"\immediate\write18{{touch {canary}}}",
            f"$(touch {canary})",
            f"`touch {canary}`",
            f'"; touch {canary}; "',
            "__import__('socket').create_connection(('127.0.0.1', 9))",
            f"__import__('pickle').loads(b'cos\\nsystem\\n(S\"touch {canary}\"\\ntR.')",
            "__import__('os').kill(__import__('os').getppid(), 9)",
            "exit()",
            "while True: pass",
            "%s%n%x{0.__class__}",
        ]
    )


NOISE = [
    "\x00", "\ud800\udfff", "\x1b[2J\x1b]0;gone\x07", "\r\n\t\x0b\x0c", "\u202e\u200b\ufeff\u2028", "\u2212\u2013\u2014",
    "aA", "{}",    "٣١٣٣٧", "三十一", "३१", "\U0001d7db\U0001d7d9", "Ⅷ①", "e\u0301", "🤖", "\U0010ffff", "ﬁ", "ß", "İ", "\\",
    "½¾", "∞∅\u222a",
    "<think>", "</think>", "[31;1m", "\x7f\x80\x9b",
]  # fmt: skip


def noise(rng):
    letters = rng.choice(NOISE)
    return "".join(rng.choice(letters) for _ in range(rng.randrange(1, 300)))


def long_words(rng):
    return rng.choice(["a", "ab", "East", "answer", "boxed", "\\alpha", "é", "'"]) * rng.choice([50, 199, 1999, 20_000])


def small(rng):
    """What an honest model writes, and is wrong here."""
    number = rng.randrange(-999, 9999)
    fraction, root = rf"\frac{{{number}}}{{7}}", rf"{number}\sqrt{{3}}"
    return rng.choice([f"{number}", fraction, root, f"x={number}", f"({number}, 5)", "A", "east", f"{number}%"])


def big(rng):
    """The sizes that are asked for by name."""
    return rng.choice(
        [
            "{" * 100_000,
            "{" * 100_000 + "}" * 100_000,
            "(" * 100_000 + "1" + ")" * 100_000,
            r"\boxed{" * 20_000,
            r"\boxed{" * 10_000 + "1" + "}" * 10_000,
            r"\boxed{1}" * 15_000,
            r"\frac{1}{" * 20_000,
            "9" * rng.choice([1_000_000, 3_000_000]),
            "0." + "3" * 1_000_000,
            "-" * 200_000 + "1",
            "2^" * 100_000 + "2",
            "\x00" * 1_000_000,
            "<think>" * 50_000 + "</think>" * 50_000,
            "answer **" * 50_000,
            "#### " * 50_000,
            "\\" * 200_001,
            " " * 1_000_000,
            "x+" * 200_000 + "x",
            "wait, " * 100_000,
            "\ud800" * 100_000,
        ]
    )


def mutated(rng, text, other):
    """Cut, doubled, spliced, nested or with a character of another."""
    if len(text) > 5000:
        return text
    a, b = sorted(rng.randrange(len(text) + 1) for _ in range(2))
    return rng.choice(
        [
            text[:a] + text[b:],
            text[:b] + text[a:],
            text[:a] + other[:200] + text[a:],
            text[:a] + rng.choice("{}[]()^_\\$%&~#,;:!|<>=+-*/. 0'\x00\n") + text[b:],
            text + rng.choice(["", "+", ",", "=", "^", " or ", r"\pm "]) + other[:500],
            rf"\frac{{{text}}}{{{other[:300]}}}",
            rf"({text})^{{{other[:100]}}}",
            rf"\text{{{text}}}",
            rf"\left[{text}, {other[:300]}\right)",
            text[::-1],
            text.replace("{", "(").replace("}", ")"),
            text.upper(),
        ]
    )


def completion(rng, number, canary):
    """A text of a completion, the same for the same state of `rng`, whatever the canary's path."""
    kinds = [towers, factorials, deep, for_our_patterns, costly, for_algebra, for_algebra, noise, long_words, small]
    if number % BIG_EVERY == 0:
        answer = big(rng)
    else:
        answer = code(rng, STAND_IN) if rng.random() < 0.1 else rng.choice(kinds)(rng)
        while rng.random() < 0.5:
            answer = mutated(rng, answer, rng.choice(kinds)(rng))
    thought = rng.choice(["x", "", "8675309", r"\boxed{8675309}", noise(rng), "<think>", "</think>"])
    text = rng.choice(
        [
            f"<think>{thought}</think> \\boxed{{{answer}}}",
            f"<think>{thought}</think> \\boxed{{{answer}}} and \\boxed{{{small(rng)}",
            f"<think>{thought}</think>\n#### {answer}",
            f"<think>{thought}</think> The answer is **{answer}**.",
            f"<think>{thought}\n\\boxed{{{answer}}}",
            f"\\boxed{{{answer}}}",
            f"\\fbox {{{answer}}} \\boxed {answer}",
            f"\\boxed{{{answer}",
            answer,
        ]
    )
    return text.replace(STAND_IN, canary)
