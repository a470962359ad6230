"""Containers that are empty at the end of each turn of a loop: they carry nothing into the next one."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from .flow import Loop
from .source_names import FUNCTIONS, Function, changes, name_of, split, targets, writes

_MAKERS = frozenset(("list", "dict", "set", "deque", "OrderedDict", "defaultdict", "Counter"))
_LOOPS = (ast.For, ast.AsyncFor, ast.While)


@dataclass(frozen=True, slots=True)
class CallEffects:
    """Effects of a call on the containers of its caller, by the names that the loop has for them.

    Attributes:
        emptied: containers that are empty after it.
        touched: names that it writes or changes in place.
    """

    emptied: frozenset[str] = frozenset()
    touched: frozenset[str] = frozenset()


Calls = Mapping[int, CallEffects]  # by the `id` of the call


def emptied_by_turn(loop: Loop, calls: Calls) -> set[str]:
    """Return the containers that a turn of a loop leaves empty, if they were empty before the loop."""
    if any(isinstance(node, ast.Continue) for part in loop.body for node in _walk(part, within_loops=False)):
        return set()
    found, kept = _scan(loop.body, calls)
    return found | kept


def touched_by_turn(loop: Loop, calls: Calls) -> set[str]:
    """Return the names that a turn of a loop writes or changes in place, as far as is known."""
    return {name for statement in loop.body for name in _touched_by(statement, calls)}


def emptied_by_function(function: Function) -> set[str]:
    """Return the containers that are empty when a function has come to its end, by its own names, without what it calls."""
    early = [node for part in function.body for node in _walk(part, within_loops=True) if isinstance(node, ast.Return)]
    return set() if any(node is not function.body[-1] for node in early) else _scan(function.body, {})[0]


def is_empty(value: ast.expr) -> bool:
    """Return True for an expression that makes an empty container."""
    if isinstance(value, (ast.List, ast.Tuple)):
        return not value.elts
    if isinstance(value, ast.Dict):
        return not value.keys
    if not isinstance(value, ast.Call):
        return False
    name = value.func.attr if isinstance(value.func, ast.Attribute) else getattr(value.func, "id", "")
    return name in _MAKERS and (not value.args or name == "defaultdict")


def _scan(body: Sequence[ast.stmt], calls: Calls) -> tuple[set[str], set[str]]:
    """Return the names that a block empties, and those that inner loops leave empty if they were, and nothing else touches."""
    found, kept, touched = set[str](), set[str](), set[str]()
    for statement in reversed(body):
        emptied, left = _emptied_by(statement, calls), _left_by(statement, calls)
        found |= emptied - touched
        kept |= left
        touched |= emptied | (_touched_by(statement, calls) - left)
    return found, kept - touched


def _emptied_by(node: ast.stmt, calls: Calls) -> set[str]:
    if isinstance(node, ast.Delete):
        return {name for one in node.targets if _is_whole(one) and (name := name_of(one.value))}  # type: ignore[attr-defined]
    if isinstance(node, (ast.With, ast.AsyncWith)):
        return _scan(node.body, calls)[0]
    found = set[str]()
    value = getattr(node, "value", None)
    if isinstance(value, ast.Call):
        found |= calls.get(id(value), CallEffects()).emptied
        if isinstance(value.func, ast.Attribute) and value.func.attr == "clear" and (name := name_of(value.func.value)):
            found.add(name)
    if isinstance(node, (ast.Assign, ast.AnnAssign)) and node.value is not None:
        for target in node.targets if isinstance(node, ast.Assign) else [node.target]:
            found |= {name for one, made in split(target, node.value) if is_empty(made) for name in targets(one)}
    return found


def _is_whole(node: ast.expr) -> bool:
    """Return True for `x[:]`."""
    return isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Slice) and ast.unparse(node.slice) == ":"


def _left_by(node: ast.stmt, calls: Calls) -> set[str]:
    return emptied_by_turn(node, calls) if isinstance(node, _LOOPS) and not node.orelse else set()


def _touched_by(node: ast.stmt, calls: Calls) -> set[str]:
    called = [calls[id(part)].touched for part in ast.walk(node) if id(part) in calls]
    return writes(node).union(changes(node), *called)


def _walk(node: ast.AST, *, within_loops: bool) -> Iterator[ast.AST]:
    """Yield a node and all below it, without other functions and, unless they are wanted, without inner loops."""
    yield node
    if isinstance(node, (*FUNCTIONS, ast.Lambda, ast.ClassDef)) or (isinstance(node, _LOOPS) and not within_loops):
        return
    for child in ast.iter_child_nodes(node):
        yield from _walk(child, within_loops=within_loops)
