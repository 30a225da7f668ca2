"""Rows of programming problems: a task, and tests as MBPP and HumanEval have them.

MBPP (Austin et al. 2021, arXiv 2108.07732): `text` or `prompt`, `test_list`, `test_setup_code`, `test_imports`, `code`.
HumanEval (Chen et al. 2021, arXiv 2107.03374): `prompt`, `test` with a function `check`, `entry_point`, `canonical_solution`.
"""

from __future__ import annotations

import builtins
import json
from collections.abc import Iterable, Mapping
from contextlib import suppress
from typing import Any, NamedTuple

from microrl.data.cells import plain
from microrl.pysource import BadSource, first_call, free_names, helpers, imports, is_only_a_module, names, top_level

QUESTION_COLUMNS = ("text", "prompt", "question", "problem", "instruction")
TEST_COLUMNS = ("test_list", "tests", "test")
SETUP_COLUMNS = ("test_imports", "test_setup_code", "setup")
SOLUTION_COLUMNS = ("code", "canonical_solution", "solution")
ENTRY_POINT = "entry_point"
LONGEST = 1_000_000
"""Characters of a row's tests and set-up."""
LONGEST_CALL = 400
"""Characters of the call that is shown; a longer one is not."""
BLOCK = "one fenced ```python block"


class BadRow(ValueError):
    """`args`: what is wrong, and a hint."""


class Problem(NamedTuple):
    """`tests` and `setup` are sources; `names` is what the program has to define for them. `given` is what it may build on;
    `solution` has the helpers that the tests call, and is empty where they call none of it."""

    text: str
    tests: list[str]
    setup: str
    names: list[str]
    entry_point: str | None = None
    given: str = ""
    solution: str = ""

    @property
    def answer(self) -> str:
        """As the gold answer of a question."""
        gold = {"setup": self.setup, "tests": self.tests, "entry_point": self.entry_point, "names": self.names}
        more = {"given": self.given, "solution": self.solution}
        return json.dumps(gold | {name: source for name, source in more.items() if source})


def problem(row: Mapping[str, Any], question: str, tests: str) -> Problem:
    """The problem in a row, with the names of the columns of task and tests. Raises BadRow, and NotText for other cells."""
    text, sources = plain(row[question]), _sources(row, tests)
    if not sources:
        raise BadRow(f"there are no tests in `{tests}`", "remove the row, or name the column: --set data.answer=COLUMN")
    solution = next((plain(row[name]) for name in SOLUTION_COLUMNS if row.get(name)), None)
    entries = [] if not row.get(ENTRY_POINT) else [name.strip() for name in plain(row[ENTRY_POINT]).split(",")]
    if bad := next((name for name in entries if not name.isidentifier()), None):
        raise BadRow(f"`{ENTRY_POINT}` is `{bad[:80]}`, which is not the name of a function", "fix or remove the row")
    try:
        if len(entries) == 1 and len(sources) == 1 and "check" in names(sources[0]).defined:
            return _humaneval(text, sources[0], entries[0], solution)
        setup = "\n".join(source for name in SETUP_COLUMNS if row.get(name) for source in _sources(row, name))
        return _mbpp(text, sources, setup, entries, solution)
    except BadSource as error:
        raise BadRow(f"its tests are not Python: {error}", "fix or remove the row") from None


def worked(row: Mapping[str, Any]) -> str:
    """The row's own solution as a completion; empty where it has none. Raises NotText."""
    source = next((plain(row[name]) for name in SOLUTION_COLUMNS if row.get(name)), "")
    if row.get(ENTRY_POINT) and row.get("prompt") and _is_python(plain(row["prompt"])):
        source = plain(row["prompt"]) + source  # HumanEval's are only bodies
    return f"```python\n{source.strip()}\n```" if source.strip() else ""


def _sources(row: Mapping[str, Any], name: str) -> list[str]:
    """The sources in a cell: a list of them, its JSON (in a CSV file), or a single one. Raises BadRow and NotText."""
    cell = row.get(name)
    if isinstance(cell, str) and cell.lstrip().startswith("["):
        with suppress(ValueError, RecursionError):  # a source that begins with a list
            cell = json.loads(cell)
    cells = [] if cell is None else list(cell) if isinstance(cell, list | tuple) else [cell]
    sources = [plain(one) for one in cells]
    if sum(map(len, sources)) > LONGEST:
        raise BadRow(f"`{name}` has more than {LONGEST:,} characters", "remove the row")
    return [source for source in sources if source.strip()]


def _humaneval(prompt: str, test: str, entry: str, solution: str | None) -> Problem:
    """`check` is called with the program's function. The prompt is executed before the tests and before the program: both may
    use its imports and helpers. A helper that calls the function calls the solution's, so that it does not depend on the program.
    """
    given = prompt if _is_python(prompt) else ""
    source = f"{test}\n\ncheck({entry})\n"
    whole = f"{given}\n{solution}" if solution and _is_python(f"{given}\n{solution}") else ""
    used = free_names(source) - {entry}
    _refuse_unknown(used - names(whole or given).defined)
    if not used & names(whole).defined - imports(whole).keys():
        whole = ""
    text = (
        f"Complete this Python function. Answer with the whole function in {BLOCK}.\n\n```python\n{prompt.rstrip()}\n```"
        if given
        else f"{prompt.rstrip()}\n\nWrite the function `{entry}` in {BLOCK}."
    )
    return Problem(text, [source], "" if whole else given, [entry], entry, given, whole)


def _mbpp(text: str, tests: list[str], setup: str, entries: list[str], solution: str | None) -> Problem:
    sources = (setup, *tests)
    missing = free_names(*sources)
    lines = [f"import {name}" for name in sorted(missing) if name not in entries and is_only_a_module(name, sources)]
    missing -= {line.removeprefix("import ") for line in lines}
    known = {*entries}
    own = ""
    if solution is not None and _is_python(solution):
        imported = imports(solution)
        lines += [imported[name] for name in sorted(missing & imported.keys() - known)]
        missing -= imported.keys() - known
        defined = names(solution).defined - imported.keys()
        # MBPP has functions with the names of built-in ones, such as its `sum`.
        used = set().union(*(names(test).used for test in tests)) & (missing | top_level(solution).functions) & defined
        asked = known or _asked([f"{setup}\n{test}" for test in tests], used, solution)
        own = solution if used - asked else ""
        missing -= defined - asked
        known |= asked
    elif not entries and len(missing) == 1:
        known = set(missing)
    wanted = sorted(missing & known)
    if not missing:
        wanted = sorted(set().union(*(names(test).used for test in tests)) & known & vars(builtins).keys())
    _refuse_unknown(missing - known)
    if not wanted:
        raise BadRow("its tests use nothing that a program would define", "name the function in a column `entry_point`")
    entry = wanted[0] if len(wanted) == 1 else None
    call = next(filter(None, (first_call(test, set(wanted)) for test in tests)), None)
    shown = f" It will be called as in `{call}`." if call and len(call) <= LONGEST_CALL and "\n" not in call else ""
    task = f"{text.strip()}\n\nWrite {_listed(wanted)} in Python, in {BLOCK}.{shown}"
    return Problem(task, tests, "\n".join([*lines, setup]).strip(), wanted, entry, solution=own)


def _asked(tests: list[str], used: set[str], solution: str) -> set[str]:
    """Which of the names that tests use and a solution defines are the program's to define: all but helpers and constants."""
    of_solution = top_level(solution)
    taken, unclear = helpers(tests, used - of_solution.classes - of_solution.constants, used & of_solution.classes)
    if unclear:
        raise BadRow(
            f"its tests do not tell whether {_listed(sorted(unclear)[:5])} are asked for or help to judge",
            "name what the program has to define in a column `entry_point` (several: a, b)",
        )
    return used - taken - of_solution.constants


def _listed(wanted: Iterable[str]) -> str:
    return " and ".join(f"`{name}`" for name in wanted)


def _refuse_unknown(missing: set[str]) -> None:
    if missing:
        raise BadRow(
            f"its tests use {_listed(sorted(missing)[:5])}, which is defined nowhere",
            "define it in `test_setup_code`; name what the program has to define in `entry_point` (several: a, b)",
        )


def _is_python(source: str) -> bool:
    try:
        names(source)
    except BadSource:
        return False
    return True
