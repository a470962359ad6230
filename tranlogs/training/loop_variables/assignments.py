"""What a function assigns to a variable: whether that is measured time, and what the variable begins with."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from .source_names import Scope, changes, name_of, reads, targets

_SECONDS = frozenset(("time", "perf_counter", "monotonic", "process_time"))
_CLOCKS = _SECONDS | {f"{name}_ns" for name in _SECONDS} | {"now", "utcnow", "today"}  # functions that read a clock
_SHOWN_MAX = 24  # characters of a value that a variable begins with
_KNOWN = frozenset(["bool", "dict", "float", "frozenset", "int", "list", "set", "str", "tuple"])


class Assignments:
    """The assignments of a function or module.

    Args:
        scope: the function or module.
    """

    def __init__(self, scope: Scope) -> None:
        self._all: dict[str, list[tuple[ast.expr, ast.expr, int]]] = {}  # by variable: target, value and line
        self._copies: dict[str, set[str]] = {}  # objects to whose attributes a variable is assigned
        values = dict[str, list[ast.expr]]()
        for target, value, line in _pairs(scope):
            for name in targets(target):
                values.setdefault(name, []).append(value)
                self._all.setdefault(name, []).append((target, value, line))
            if isinstance(target, ast.Attribute) and (owner := name_of(target.value)):
                for name in reads(value):
                    self._copies.setdefault(name, set()).add(owner)
        for name, arguments in changes(scope).items():
            values.setdefault(name, []).extend(arguments)
        self._times = _find_times(values)

    def is_time(self, name: str) -> bool:
        """Return True if a variable holds nothing but times that the script has measured, and what follows from them."""
        return name in self._times

    def relatives(self, name: str, line: int) -> set[str]:
        """Return the variables from which a variable takes its value before a line, and the objects into which it is copied."""
        found = set(self._copies.get(name, ()))
        for _, value, at in self._all.get(name, ()):
            if at < line:
                found |= reads(value)
        return {one.partition(".")[0] for one in found}

    def begins_with(self, name: str, line: int) -> str | None:
        """Return the expression that a variable has last before a line, or else first; None if it is long or needs others."""
        alone = [(value, at) for target, value, at in self._all.get(name, ()) if name_of(target) == name]
        before = [value for value, at in alone if at < line]
        value = before[-1] if before else alone[0][0] if alone else None
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
