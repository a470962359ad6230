"""Assignments of a function to a variable: its first value, and whether it holds a measured time."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence

from .source_names import FUNCTIONS, Scope, changes, name_of, read_by_getattr, reads, root_of, split, targets

_SECONDS = frozenset(("time", "perf_counter", "monotonic", "process_time"))
_DATES = frozenset(("now", "utcnow", "today"))
_CLOCKS = _SECONDS | {f"{name}_ns" for name in _SECONDS} | _DATES | {"default_timer"}  # functions that read a clock
_HAVE_CLOCKS = frozenset(("time", "timeit"))  # modules
_BLOCKS = (ast.If, ast.For, ast.AsyncFor, ast.While, ast.Try, ast.Match, ast.With, ast.AsyncWith, ast.ClassDef, *FUNCTIONS)
_SHOWN_MAX = 24  # characters of a value that a variable begins with
_KNOWN = frozenset(["bool", "dict", "float", "frozenset", "int", "list", "set", "str", "tuple"])


class Assignments:
    """The assignments of a function or module.

    Args:
        scope: the function or module.
        lines: the lines of its file; without them, values are written anew.
        clocks: names of functions that read a clock, besides those that everybody knows.

    Attributes:
        copies: by variable, the objects to whose attributes or items it is assigned.
    """

    def __init__(self, scope: Scope, lines: Sequence[str] = (), clocks: frozenset[str] = frozenset()) -> None:
        self._lines, self._clocks = lines, clocks
        self._scope = scope
        self._all: dict[str, list[tuple[ast.expr, ast.expr, int]]] = {}  # by variable: target, value and line
        self.copies: dict[str, set[str]] = _find_set(scope)
        values = dict[str, list[ast.expr]]()
        for target, value, line in _pairs(scope):
            for name in targets(target):
                values.setdefault(name, []).append(value)
                self._all.setdefault(name, []).append((target, value, line))
            if isinstance(target, (ast.Attribute, ast.Subscript)) and (owner := root_of(target.value)):
                for name in reads(value):
                    self.copies.setdefault(name, set()).add(owner)
        for name, arguments in changes(scope).items():
            values.setdefault(name, []).extend(arguments)
        self._times = _find_times(values, clocks)

    def is_time(self, name: str) -> bool:
        """Return True if a variable holds nothing but times that the script has measured, and what follows from them."""
        return name in self._times

    def is_measured(self, value: ast.expr) -> bool:
        """Return True for an expression that is a measured time, or follows from one."""
        return _has_clock(value, self._clocks) or bool(reads(value) & self._times)

    def relatives(self, name: str, line: int) -> set[str]:
        """Return the variables from which a variable takes its value before a line, and the objects into which it is copied."""
        found = set(self.copies.get(name, ()))
        for _, value, at in self._all.get(name, ()):
            if at < line:
                found |= reads(value)
        return {one.partition(".")[0] for one in found}

    def begins_with(self, name: str, line: int) -> str | None:
        """Return the expression that a variable has before a line, as written; None if it is not certain, or not simple."""
        before = sorted((one for one in self._all.get(name, ()) if one[2] < line), key=lambda one: one[2])
        if not before and (default := self._default_of(name)) is not None:
            value = default
        elif not before or name_of(before[-1][0]) != name or not self._is_certain(before[-1][1], line):
            return None
        else:
            value = before[-1][1]
        if any(one.partition(".")[0] not in {*_KNOWN, "math"} for one in reads(value)):
            return None
        text = self._text_of(value)
        return text if len(text) <= _SHOWN_MAX else None

    def _default_of(self, name: str) -> ast.expr | None:
        """Return what `getattr(x, "name", default)` gives for an attribute that nothing has set."""
        asked = [node for node in ast.walk(self._scope) if isinstance(node, ast.Call) and read_by_getattr(node) == name]
        return next((node.args[2] for node in asked if len(node.args) == 3), None)

    def _is_certain(self, value: ast.expr, line: int) -> bool:
        """Return True if an assigned value is not one of a block that may be left out, or of `+=`."""
        for node in ast.walk(self._scope):
            if isinstance(node, ast.AugAssign) and node.value is value:
                return False
            if isinstance(node, _BLOCKS) and _spans(node, value.lineno) and not _spans(node, line):
                return False
        return True

    def _text_of(self, value: ast.expr) -> str:
        if not self._lines or value.lineno != value.end_lineno:
            return ast.unparse(value)
        return self._lines[value.lineno - 1].encode()[value.col_offset : value.end_col_offset].decode()


def find_clocks(module: ast.Module) -> frozenset[str]:
    """Return the names under which a module imports functions that read a clock: `from time import time as now`."""
    imports = [node for node in ast.walk(module) if isinstance(node, ast.ImportFrom) and node.module in _HAVE_CLOCKS]
    return frozenset(alias.asname or alias.name for node in imports for alias in node.names if alias.name in _CLOCKS)


def _spans(node: ast.stmt, line: int) -> bool:
    return node.lineno <= line <= (node.end_lineno or node.lineno)


def _find_set(scope: Scope) -> dict[str, set[str]]:
    """Return, by variable, the objects to whose attributes `setattr` assigns it."""
    found = dict[str, set[str]]()
    for node in ast.walk(scope):
        if isinstance(node, ast.Call) and name_of(node.func) == "setattr" and len(node.args) == 3:
            owner = root_of(node.args[0])
            for name in reads(node.args[2]) if owner is not None else ():
                found.setdefault(name, set()).add(str(owner))
    return found


def _pairs(scope: Scope) -> Iterator[tuple[ast.expr, ast.expr, int]]:
    """Yield each target of an assignment with its value and line."""
    for node in ast.walk(scope):
        if isinstance(node, ast.Assign):
            for target in node.targets:
                yield from ((one, value, node.lineno) for one, value in split(target, node.value))
        elif isinstance(node, (ast.AnnAssign, ast.AugAssign, ast.NamedExpr)) and node.value is not None:
            yield node.target, node.value, node.lineno


def _find_times(values: dict[str, list[ast.expr]], clocks: frozenset[str]) -> set[str]:
    """Return the names whose values are times or constants, at least one of them a time."""
    times = set[str]()
    while True:
        found = set(times)
        for name, assigned in values.items():
            is_time = [_has_clock(value, clocks) or bool(reads(value) & times) for value in assigned]
            if any(is_time) and all(
                one or not (reads(value) - _KNOWN - {name}) for one, value in zip(is_time, assigned, strict=True)
            ):
                found.add(name)
        if found == times:
            return times
        times = found


def _has_clock(value: ast.expr, clocks: frozenset[str]) -> bool:
    for node in ast.walk(value):
        if isinstance(node, ast.Call):
            called = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
            if called in _CLOCKS or called in clocks:
                return True
    return False
