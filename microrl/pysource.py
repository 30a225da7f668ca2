"""What a Python source defines and uses, read from its compiled code without running it."""

from __future__ import annotations

import ast
import builtins
import dis
import importlib
import sys
import warnings
from collections.abc import Iterable, Iterator
from types import CodeType
from typing import Any, NamedTuple

LONGEST = 1_000_000
"""Characters of a source."""
_USES = ("LOAD_NAME", "LOAD_GLOBAL", "LOAD_FROM_DICT_OR_GLOBALS")
_DEFINES = ("STORE_NAME", "STORE_GLOBAL")
_WITH_EFFECTS = {"antigravity", "idlelib", "this", "turtle", "turtledemo", "tkinter"}
"""Modules that open a window, or print, when they are imported."""


class BadSource(ValueError):
    """Text that is not Python."""


class Names(NamedTuple):
    """Global names of a source."""

    defined: set[str]
    used: set[str]


def compiled(source: str) -> CodeType:
    """Raises BadSource."""
    if len(source) > LONGEST:
        raise BadSource(f"{len(source):,} characters; the limit is {LONGEST:,}")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # "\d" in somebody's test is not this user's concern
            return compile(source, "<source>", "exec", dont_inherit=True, optimize=0)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise BadSource(str(error) or "nested too deeply") from None


def names(source: str) -> Names:
    """The global names that a source defines and uses. Raises BadSource."""
    global_names = Names(set(), set())
    pending = [(compiled(source), True)]
    while pending:
        code, is_module = pending.pop()
        pending += [(part, False) for part in code.co_consts if isinstance(part, CodeType)]
        local: set[str] = set()
        for instruction in dis.get_instructions(code):
            if instruction.opname in _DEFINES:
                # A class's body stores its own names as a module does.
                (global_names.defined if is_module or instruction.opname == "STORE_GLOBAL" else local).add(instruction.argval)
            elif instruction.opname in _USES and instruction.argval not in local:
                global_names.used.add(instruction.argval)
    if "*" in source:
        global_names.defined.update(_from_star_imports(source))
    return global_names


def _from_star_imports(source: str) -> set[str]:
    """The names that `from MODULE import *` defines, for modules of the standard library."""
    imported: set[str] = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.ImportFrom) and node.names[0].name == "*" and node.module and not node.level:
            if node.module.partition(".")[0] not in sys.stdlib_module_names - _WITH_EFFECTS:
                raise BadSource(f"it imports everything of {node.module}, which is not in the standard library")
            module = importlib.import_module(node.module)
            imported |= set(getattr(module, "__all__", (name for name in vars(module) if not name.startswith("_"))))
    return imported


def free_names(*sources: str) -> set[str]:
    """The names that these sources, executed one after the other, use and do not define; built-in names not among them.

    Raises BadSource.
    """
    by_source = [names(source) for source in sources]
    return (
        set().union(*(one.used for one in by_source)) - set().union(*(one.defined for one in by_source)) - vars(builtins).keys()
    )


def is_only_a_module(name: str, sources: Iterator[str] | tuple[str, ...]) -> bool:
    """Whether a free name stands for a module of the standard library: it has one's name, and only its attributes are used."""
    if name not in sys.stdlib_module_names:
        return False
    for source in sources:
        nodes = list(ast.walk(ast.parse(source)))
        owners = {id(node.value) for node in nodes if isinstance(node, ast.Attribute)}
        if any(isinstance(node, ast.Name) and node.id == name and id(node) not in owners for node in nodes):
            return False
    return True


def imports(source: str) -> dict[str, str]:
    """The modules' names that a source imports at its top level: name -> the import statement. Raises BadSource."""
    compiled(source)
    statements = {}
    for node in ast.parse(source).body:
        if isinstance(node, ast.Import | ast.ImportFrom):
            for alias in node.names:
                name = alias.asname or alias.name.partition(".")[0]
                statement = (
                    ast.Import([alias]) if isinstance(node, ast.Import) else ast.ImportFrom(node.module, [alias], node.level)
                )
                statements[name] = ast.unparse(statement)
    return statements


def first_call(source: str, wanted: set[str]) -> str | None:
    """The first call of one of these names in a source, as it is written; None where there is none. Raises BadSource."""
    compiled(source)
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in wanted:
            return ast.get_source_segment(source, node)
    return None


class TopLevel(NamedTuple):
    """Names that a source defines at its top level. A constant's value is no lambda, no name, and not the result of a call."""

    functions: set[str]
    classes: set[str]
    constants: set[str]


def top_level(source: str) -> TopLevel:
    """Raises BadSource."""
    compiled(source)
    defined = TopLevel(set(), set(), set())
    for node in ast.parse(source).body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            defined.functions.add(node.name)
        elif isinstance(node, ast.ClassDef):
            defined.classes.add(node.name)
        elif isinstance(node, ast.Assign) and not isinstance(node.value, ast.Lambda | ast.Call | ast.Name | ast.Attribute):
            defined.constants.update(target.id for target in node.targets if isinstance(target, ast.Name))
    return defined


def helpers(tests: Iterable[str], functions: set[str], classes: set[str]) -> tuple[set[str], set[str]]:
    """Which of these names the tests use to judge what the others return, and those of which they do not tell.

    A helper is called with the result of another function, which is not called with its result. Neither is told from the other
    where each takes the other's result, where two results are compared with each other, or where a helper is also called in a
    test of its own. An object of a class is an argument like any other. Raises BadSource.
    """
    flows: set[tuple[str, str]] = set()
    together: set[frozenset[str]] = set()
    alone: set[str] = set()
    for test in tests if len(functions | classes) > 1 else ():
        compiled(test)
        test_flows = _Flows(functions, classes)
        test_flows.read(ast.parse(test))
        flows |= test_flows.flows
        together |= test_flows.compared
        alone |= test_flows.seen if len(test_flows.seen) == 1 else set()
    takers = {taker for _, taker in flows}
    unclear = {name for flow in flows if flow[::-1] in flows for name in flow} | (takers & alone)
    for names_together in together:
        if len(judged := names_together - takers) > 1:
            unclear |= judged
    return takers - unclear, unclear


class _Flows:
    """Which functions' results become arguments of which others, in one source. A variable stands for all that it ever held."""

    def __init__(self, functions: set[str], classes: set[str]) -> None:
        self._functions, self._names = functions, functions | classes
        self._held: dict[str, set[str]] = {}
        self.flows: set[tuple[str, str]] = set()
        """Pairs of a function and the function or class that is called with its result."""
        self.compared: set[frozenset[str]] = set()
        self.seen: set[str] = set()
        """The functions that are used at all."""

    def read(self, tree: ast.Module) -> None:
        nodes = list(ast.walk(tree))
        defined = {node.name: node for node in nodes if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)}
        before = -1
        while before != (before := sum(map(len, self._held.values()))):  # until no variable holds anything more
            for node in nodes:
                self._bind(node, defined)
        for node in nodes:
            if isinstance(node, ast.Call):
                arguments = [*node.args, *(keyword.value for keyword in node.keywords)]
                given = set().union(*map(self._of, arguments)) & self._functions
                self.flows |= {(one, taker) for taker in self._of(node.func) for one in given - {taker}}
            elif isinstance(node, ast.Compare | ast.BinOp):
                self.compared.add(frozenset(self._of(node) & self._functions))
        self.seen = self._of(tree) & self._functions

    def _bind(self, node: ast.AST, defined: dict[str, Any]) -> None:
        if isinstance(node, ast.Assign | ast.AugAssign | ast.AnnAssign | ast.NamedExpr) and node.value is not None:
            for target in node.targets if isinstance(node, ast.Assign) else [node.target]:
                self._hold(target, self._of(node.value))
        elif isinstance(node, ast.For | ast.AsyncFor | ast.comprehension):
            self._hold(node.target, self._of(node.iter))
        elif isinstance(node, ast.withitem) and node.optional_vars is not None:
            self._hold(node.optional_vars, self._of(node.context_expr))
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in defined:
            function = defined[node.func.id].args
            given = set().union(*map(self._of, [*node.args, *(keyword.value for keyword in node.keywords)]))
            for one in (*function.posonlyargs, *function.args, *function.kwonlyargs, function.vararg, function.kwarg):
                if one is not None:
                    self._held.setdefault(one.arg, set()).update(given)
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            returned = [part.value for part in ast.walk(node) if isinstance(part, ast.Return) and part.value is not None]
            self._held.setdefault(node.name, set()).update(*map(self._of, returned))

    def _hold(self, target: ast.AST, values: set[str]) -> None:
        for node in ast.walk(target):
            if isinstance(node, ast.Name):
                self._held.setdefault(node.id, set()).update(values)

    def _of(self, node: ast.AST) -> set[str]:
        used = {part.id for part in ast.walk(node) if isinstance(part, ast.Name)}
        return (used & self._names).union(*(self._held.get(name, ()) for name in used))
