"""What a function assigns to a variable: whether that is measured time, and what the variable begins with."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from .names import Scope, changes, name_of, reads, targets

_SECONDS = frozenset(("time", "perf_counter", "monotonic", "process_time"))
_CLOCKS = _SECONDS | {f"{name}_ns" for name in _SECONDS} | {"now", "utcnow", "today"}  # functions that read a clock
_SHOWN_MAX = 24  # characters of a value that a variable begins with
_KNOWN = frozenset(["bool", "dict", "float", "frozenset", "int", "list", "set", "str", "tuple"])


class Assignments:
    """The assignments of a function or module.

    Args:
        scope: the function or module.
        loops_from: the first line of the loops; what is assigned before it is what a variable begins with.
    """

    def __init__(self, scope: Scope, loops_from: int) -> None:
        self._first: dict[str, ast.expr] = {}  # what is assigned last before the loops, or else first in them
        self._sources: dict[str, set[str]] = {}  # names from which a variable is assigned before the loops
        self._copies: dict[str, set[str]] = {}  # objects to whose attributes a variable is assigned
        values = dict[str, list[ast.expr]]()
        for target, value, line in _pairs(scope):
            names = targets(target)
            for name in names:
                values.setdefault(name, []).append(value)
            if line < loops_from:
                for name in names:
                    self._sources.setdefault(name, set()).update(reads(value))
            if isinstance(target, (ast.Name, ast.Attribute)) and (one := name_of(target)):
                if line < loops_from:
                    self._first[one] = value
                else:
                    self._first.setdefault(one, value)
            if isinstance(target, ast.Attribute) and (owner := name_of(target.value)):
                for name in reads(value):
                    self._copies.setdefault(name, set()).add(owner)
        for name, arguments in changes(scope).items():
            values.setdefault(name, []).extend(arguments)
        self._times = _find_times(values)

    def is_time(self, name: str) -> bool:
        """Return True if a variable holds nothing but times that the script has measured, and what follows from them."""
        return name in self._times

    def relatives(self, name: str) -> set[str]:
        """Return the variables from which a variable takes its first value, and the objects into which it is copied."""
        found = self._sources.get(name, set()) | self._copies.get(name, set())
        return {one.partition(".")[0] for one in found}

    def begins_with(self, name: str) -> str | None:
        """Return the expression that a variable begins with, if it is short and needs nothing else."""
        value = self._first.get(name)
        if value is None or any(one.partition(".")[0] not in {*_KNOWN, "math"} for one in reads(value)):
            return None
        text = ast.unparse(value)
        return text if len(text) <= _SHOWN_MAX else None


def _pairs(scope: Scope) -> Iterator[tuple[ast.expr, ast.expr, int]]:
    """Yield each target of an assignment with its value and line."""
    for node in ast.walk(scope):
        if isinstance(node, ast.Assign):
            for target in node.targets:
                yield from ((one, value, node.lineno) for one, value in _split(target, node.value))
        elif isinstance(node, (ast.AnnAssign, ast.AugAssign, ast.NamedExpr)) and node.value is not None:
            yield node.target, node.value, node.lineno


def _split(target: ast.expr, value: ast.expr) -> Iterator[tuple[ast.expr, ast.expr]]:
    """Yield the pairs of `a, b = 1, 2`; an assignment of another form is one pair."""
    ones, parts = getattr(target, "elts", None), getattr(value, "elts", None)
    if ones is None or parts is None or len(ones) != len(parts):
        yield target, value
        return
    for one, part in zip(ones, parts, strict=True):
        yield from _split(one, part)


def _find_times(values: dict[str, list[ast.expr]]) -> set[str]:
    """Return the names whose values are times or constants, at least one of them a time."""
    times = set[str]()
    while True:
        found = set(times)
        for name, assigned in values.items():
            is_time = [_has_clock(value) or bool(reads(value) & times) for value in assigned]
            if any(is_time) and all(
                one or not (reads(value) - _KNOWN - {name}) for one, value in zip(is_time, assigned, strict=True)
            ):
                found.add(name)
        if found == times:
            return times
        times = found


def _has_clock(value: ast.expr) -> bool:
    for node in ast.walk(value):
        if isinstance(node, ast.Call):
            called = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
            if called in _CLOCKS:
                return True
    return False
