"""Numbers that `enumerate` gives to the batches of a loop, and by which the loop decides what a turn does."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator

from .flow import Loop
from .source_names import reads, targets

_STEPS = frozenset(("step", "backward", "zero_grad", "apply", "apply_gradients"))  # methods that make a turn another one
_JUMPS = (ast.Break, ast.Continue, ast.Return, ast.Raise)
_BRANCHES = (ast.If, ast.While)


def deciding_number(loop: Loop, is_data: Callable[[str], bool]) -> str | None:
    """Return the variable that numbers the turns of a loop from 0, if the loop decides by it.

    A turn that prints every hundredth loss, or stores it, is the same turn with another number. One that jumps, or takes a
    step, by the number is not.

    Args:
        loop: a loop that is running.
        is_data: returns True for the name of data that go on in the middle after a crash.
    """
    number = _number_of(loop, is_data)
    if number is None:
        return None
    names = _derived(loop, number)
    return number if any(_decides(node, names) for part in loop.body for node in ast.walk(part)) else None


def _number_of(loop: Loop, is_data: Callable[[str], bool]) -> str | None:
    call = loop.iter if isinstance(loop, (ast.For, ast.AsyncFor)) else None
    if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Name) or call.func.id != "enumerate" or not call.args:
        return None
    starts = [*call.args[1:], *(keyword.value for keyword in call.keywords)]
    if not all(isinstance(start, ast.Constant) for start in starts) or not any(map(is_data, reads(call.args[0]))):
        return None
    target = loop.target if isinstance(loop, (ast.For, ast.AsyncFor)) else None
    first = target.elts[0] if isinstance(target, (ast.Tuple, ast.List)) and target.elts else None
    return first.id if isinstance(first, ast.Name) else None


def _derived(loop: Loop, number: str) -> set[str]:
    """Return the number, and the variables of a turn that are computed from it."""
    found = {number}
    while more := {name for part in loop.body for name in _computed_from(part, found)} - found:
        found |= more
    return found


def _computed_from(part: ast.stmt, names: set[str]) -> Iterator[str]:
    for node in ast.walk(part):
        if isinstance(node, ast.Assign) and names & reads(node.value):
            for target in node.targets:
                yield from targets(target) if isinstance(target, ast.Name) else ()


def _decides(node: ast.AST, names: set[str]) -> bool:
    """Return True for a branch on one of the names that jumps or takes a step, and for a step that gets one of them."""
    if isinstance(node, _BRANCHES) and names & reads(node.test):
        inside = [one for part in (*node.body, *node.orelse) for one in ast.walk(part)]
        return any(isinstance(one, _JUMPS) or _is_step(one) for one in inside)
    return isinstance(node, ast.Call) and _is_step(node) and any(names & reads(argument) for argument in node.args)


def _is_step(node: ast.AST) -> bool:
    return isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in _STEPS
