"""Cheats where the answer is a program: those of `programs.toml`, and what a problem's own tests may let through."""

from __future__ import annotations

import ast
import doctest
import json
import re
from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import Any

from microrl.answers import THINK
from microrl.commands.cheats import text
from microrl.commands.cheats.attack import THINKING, Attack, Cheat, some
from microrl.commands.cheats.tables import filled, tables
from microrl.data.code import worked
from microrl.data.load import Question
from microrl.rewards.judges.code import program_of
from microrl.sandbox import levels

OTHERS = 16
"""Problems from which tables of expected values are made."""
_RETURNS = "def ENTRY(*a, **k): return "
_TABLES = tables("programs")
CONSTANTS, MORE_CONSTANTS = (
    {value: _RETURNS + value for value in section["returned"]} | section["programs"]
    for section in (_TABLES["constants"], _TABLES["other constants"])
)
"""What weak tests take for an answer; the first are tried on every problem."""
# No TOML file can contain a lone surrogate.
_WORDS = _TABLES["pieces"]["words"] | {"SURROGATE": "\ud800"}
KINDS = {kind: dict(filled(sources, _WORDS)) for kind, sources in _TABLES["kinds"].items()}
"""Programs that try to pass tests without solving the problem. `ENTRY` stands for the function that the tests call."""
HANGING = tuple(KINDS["hangs"])
"""Each of them may take all of its time."""
ONLY_CONFINED = tuple(_TABLES["rules"]["only confined"])
"""Those that would harm a machine without the sandbox."""


class Programs(Attack):
    """A program that is tested."""

    solutions = "solutions"

    def gold(self, question: Question) -> str | None:
        return worked(json.loads(question.raw)) or None

    def right(self, question: Question) -> str | None:
        gold = self.gold(question)
        return gold and f"{THINKING}\n{gold}"

    def wrong(self, question: Question) -> tuple[str, str]:
        # It defines nothing that the tests use: no test, however weak, passes it.
        return _honest("def nothing_of_the_kind(): pass"), _fenced("def nothing_of_the_kind(): pass")

    def unwritable(self, question: Question, longest: int) -> str | None:
        right = self.right(question)
        if right is not None and len(right) > longest:
            return f"it has {len(right):,} characters; at most {longest:,} fit into a completion"
        if right is not None and program_of(right) is None:
            return "no program is read from it: look at its fences and its length"
        return None

    def chosen(self, questions: Sequence[Question]) -> list[Question]:
        return some(questions)

    def everywhere(self, question: Question) -> list[Cheat]:
        return _cheats("constants", CONSTANTS, _entries(question))

    def cheats(self, question: Question, questions: Sequence[Question], canary: str, *, hanging: bool) -> list[Cheat]:
        entries, is_safe = _entries(question), levels().is_enforced
        left_out = {*(() if hanging else HANGING), *(() if is_safe else ONLY_CONFINED)}
        kinds = {
            kind: {name: source for name, source in sources.items() if name not in left_out} for kind, sources in KINDS.items()
        }
        kinds["other constants"] = MORE_CONSTANTS
        kinds["writes a file"] = {
            name: _canary(name, source, canary) for name, source in _TABLES["pieces"]["writes a file"].items()
        }
        kinds["looks up values"] = dict(_tables(question, questions))
        candidates = [cheat for kind, sources in kinds.items() for cheat in _cheats(kind, sources, entries)]
        gold = self.gold(question)
        if gold is not None:
            candidates += [Cheat("solution hidden", *pair) for pair in _hidden(program_of(gold) or "", entries)]
        candidates += [Cheat("other languages", *pair) for pair in _languages(entries)]
        candidates += [Cheat("other forms", *pair, has_form=pair[1].startswith(THINK)) for pair in _forms(entries)]
        one = text.case(question.text, gold or "the solution", (), canary)
        for kind in ("no answer", "question repeated", "stuffing"):
            candidates += [Cheat(kind, *pair) for pair in text.TEXTS[kind](one)]
        candidates += [Cheat("no form", *pair, has_form=False) for pair in text.WITHOUT_FORM["no form"](one)]
        return list({cheat.text: cheat for cheat in candidates}.values())


def calling(source: str, *entries: str) -> str:
    """A program in which `ENTRY` is the first of these names, and the others are the same."""
    first, *others = entries
    return source.replace("ENTRY", first) + "".join(f"\n{other} = {first}" for other in others)


def _entries(question: Question) -> list[str]:
    gold = json.loads(question.answer)
    return list(dict.fromkeys([*([gold["entry_point"]] if gold.get("entry_point") else []), *gold["names"]]))


def _cheats(kind: str, sources: dict[str, str], entries: Sequence[str]) -> list[Cheat]:
    return [Cheat(kind, name, _honest(calling(source, *entries))) for name, source in sources.items()]


def _honest(source: str) -> str:
    return f"{THINKING}\n{_fenced(source)}"


def _fenced(source: str) -> str:
    return f"```python\n{source}\n```"


def _canary(name: str, source: str, canary: str) -> str:
    """At once, and inside the call."""
    body = source.replace("CANARY", canary)
    lines = "".join(f"        {line}\n" for line in body.split("\n"))
    return (
        f"def attempt():\n    try:\n{lines}    except BaseException: pass\n"
        "attempt()\ndef ENTRY(*a, **k):\n    attempt()\n    return 'no answer'"
    )


def _tables(question: Question, questions: Sequence[Question]) -> Iterator[tuple[str, str]]:
    """Programs that know what the tests of other problems expect, or what the question itself shows."""
    others = [other for other in some(questions, OTHERS, seed=1) if other.answer != question.answer]
    own = {arguments for arguments, _ in expected(json.loads(question.answer)["tests"])}
    pairs = [pair for other in others for pair in expected(json.loads(other.answer)["tests"])]
    # What is asked here, too, with the same arguments, may have the same answer.
    table = {arguments: value for arguments, value in pairs if arguments not in own}
    if table:
        listed = ", ".join(f"{arguments!r}: {value}" for arguments, value in list(table.items())[:200])
        yield "tests of other problems", f"TABLE = {{{listed}}}\n{_RETURNS}TABLE.get(repr(a), list(TABLE.values())[0])"
        yield "in turn", f"VALUES = iter({{{listed}}}.values())\n{_RETURNS}next(VALUES, None)"
    if examples := shown(question.text):
        listed = ", ".join(f"{arguments!r}: {value}" for arguments, value in examples.items())
        yield "examples in the question", f"TABLE = {{{listed}}}\n{_RETURNS}TABLE.get(repr(a))"


def expected(tests: Sequence[str]) -> Iterator[tuple[str, str]]:
    """(arguments, value) where a test compares a call with a value, both written out; as Python prints them."""
    for test in tests:
        with suppress(SyntaxError, ValueError, RecursionError, MemoryError):
            for node in ast.walk(ast.parse(test)):
                if isinstance(node, ast.Compare) and isinstance(node.ops[0], ast.Eq) and isinstance(node.left, ast.Call):
                    with suppress(ValueError, TypeError):
                        yield _arguments(node.left), repr(ast.literal_eval(node.comparators[0]))


def shown(question: str) -> dict[str, str]:
    """What a doctest in the question says that a call returns."""
    values_by_call = {}
    with suppress(ValueError):
        for example in doctest.DocTestParser().get_examples(re.sub(r'"""|\'\'\'', "", question)):
            with suppress(ValueError, TypeError, SyntaxError):
                call: Any = ast.parse(example.source.strip(), mode="eval").body
                if isinstance(call, ast.Call):
                    values_by_call[_arguments(call)] = repr(ast.literal_eval(example.want.strip()))
    return values_by_call


def _arguments(call: ast.Call) -> str:
    return repr(tuple(ast.literal_eval(argument) for argument in call.args))


def _hidden(solution: str, entries: Sequence[str]) -> Iterator[tuple[str, str]]:
    """The data's own solution, where no program belongs, or undone."""
    lines = solution.split("\n")
    words = {
        "SOLUTION": solution,
        "NOTHING": calling(_RETURNS + "None", *entries),
        "ENTRY": entries[0],
        "COMMENT": "\n".join(f"# {line}" for line in lines),
        "INDENTED": "\n".join(f"    {line}" for line in lines),
        "QUOTED": repr(solution),
        "HALF": solution[: len(solution) // 2],
    }
    return filled(_TABLES["completions"]["solution hidden"], words)


def _languages(entries: Sequence[str]) -> Iterator[tuple[str, str]]:
    for name, source in _TABLES["pieces"]["other languages"].items():
        yield name, f"{THINKING}\n```{name}\n{calling(source, entries[0])}\n```"
        yield f"{name} as Python", _honest(calling(source, entries[0]))


def _forms(entries: Sequence[str]) -> Iterator[tuple[str, str]]:
    """A program that does nothing, in forms that deserve no more for it."""
    return filled(_TABLES["completions"]["other forms"], {"SOURCE": calling(_RETURNS + "None", *entries)})
