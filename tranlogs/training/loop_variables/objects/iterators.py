"""Iterators from which a loop takes the next value, and which begin anew at each start: `next(counter)`."""

from __future__ import annotations

import ast
import itertools
from collections.abc import Callable
from types import BuiltinFunctionType, FunctionType, GeneratorType, ModuleType
from typing import Any

from ..flow import Loop, enclosing_loops
from ..source_names import name_of
from ..sources import Sources

_HARMLESS = (ModuleType, FunctionType, BuiltinFunctionType, type)
_NUMBERS = frozenset(("range", "count"))  # whose place is what a loop over them carries

Fact = Callable[[Any], bool]


def kind_of_iterator(value: Any, sources: Sources, is_plain: Fact) -> str:
    """Return what kind of iterator a value is; "" if it is none, or if it may read what the run keeps (a loader).

    Args:
        value: the value.
        sources: the sources of the script.
        is_plain: returns True for a value that a variable may hold.
    """
    if type(value) is itertools.count:
        return "itertools.count"
    if isinstance(value, GeneratorType) and _carries(value, sources, is_plain):
        return "generator"
    return ""


def iterator_of(node: ast.Call) -> ast.expr | None:
    """Return the iterator of `next(iterator)`; None for another call."""
    return node.args[0] if name_of(node.func) == "next" and node.args else None


def _carries(generator: GeneratorType[Any, Any, Any], sources: Sources, is_plain: Fact) -> bool:
    """Return True if a generator of the script carries plain values, and reads nothing else."""
    frame = generator.gi_frame
    scope = None if frame is None else sources.scope_of_generator(frame)
    if frame is None or scope is None:
        return False
    own, others = frame.f_locals, frame.f_globals
    known = [*own.values(), *(others[name] for name in frame.f_code.co_names if name in others)]
    if not all(isinstance(value, _HARMLESS) or is_plain(value) for value in known):
        return False
    loops, source = enclosing_loops(scope, frame.f_lineno), sources.source_of(scope)
    carried = [name for name in source.flow.find_carried(loops) if not source.assignments.is_time(name)]
    return any(name in own for name in carried) or any(map(_is_over_numbers, loops))


def _is_over_numbers(loop: Loop) -> bool:
    source = getattr(loop, "iter", None)
    if not isinstance(source, ast.Call):
        return False
    name = source.func.attr if isinstance(source.func, ast.Attribute) else name_of(source.func)
    return name in _NUMBERS
