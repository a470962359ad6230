"""Numbers that `enumerate` gives to the batches of a loop, and by which the loop decides what a turn does."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator

from .flow import Loop
from .source_names import name_of, reads, targets

_AROUND_DATA = frozenset(("tqdm", "trange", "iter", "track"))  # calls that hand on what their first argument yields
_OPTIMIZERS = ("opt", "sched", "scaler")  # parts of the names of what takes steps of training
_STEPS = frozenset(("step", "zero_grad", "apply"))
_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda, ast.ClassDef)
_LOOPS = (ast.For, ast.AsyncFor, ast.While)
_JUMPS_OF_LOOP = (ast.Break, ast.Continue)

IsData = Callable[[str], bool]


def deciding_number(loop: Loop, is_data: IsData) -> str | None:
    """Return the variable that numbers the turns of a loop from its start, if the loop decides by it.

    A turn that prints every hundredth loss, or stores it, is the same turn with another number. One that jumps, or takes a
    step, by the number is not.

    Args:
        loop: a loop that is running.
        is_data: returns True for the name of what goes on in the middle after a crash: data, or what gives batches.
    """
    if not isinstance(loop, (ast.For, ast.AsyncFor)) or not _is_numbered(loop.iter, is_data):
        return None
    first = loop.target.elts[0] if isinstance(loop.target, (ast.Tuple, ast.List)) and loop.target.elts else None
    if not isinstance(first, ast.Name) or any(first.id in _written(node) for node in _walk(loop.body)):
        return None  # a number that the loop writes itself may be the true one
    names = _derived(loop, first.id)
    return first.id if any(_decides(node, names) for node in _walk(loop.body)) else None


def _is_numbered(source: ast.expr, is_data: IsData) -> bool:
    """Return True for `enumerate(data)`, with a constant start or none."""
    call = _unwrap(source)
    if not isinstance(call, ast.Call) or name_of(call.func) != "enumerate" or not call.args:
        return False
    starts = [*call.args[1:], *(keyword.value for keyword in call.keywords)]
    data = _unwrap(call.args[0])
    if isinstance(data, ast.Call):  # optimizer.batches(...)
        data = data.func.value if isinstance(data.func, ast.Attribute) and data.func.attr == "batches" else data
    name = name_of(data)
    return name is not None and all(isinstance(start, ast.Constant) for start in starts) and is_data(name)


def _unwrap(source: ast.expr) -> ast.expr:
    """Return what a progress bar or an iterator goes through."""
    while isinstance(source, ast.Call) and source.args and _last_name(source.func) in _AROUND_DATA:
        source = source.args[0]
    return source


def _last_name(function: ast.expr) -> str:
    return function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")


def _walk(body: list[ast.stmt], *, into_loops: bool = True) -> Iterator[ast.AST]:
    """Yield all nodes of a body, but not those of functions that are made there; and not those of its loops, if not wanted."""
    waiting: list[ast.AST] = list(body)
    while waiting:
        node = waiting.pop()
        yield node
        if not isinstance(node, _FUNCTIONS) and (into_loops or not isinstance(node, _LOOPS)):
            waiting.extend(ast.iter_child_nodes(node))


def _written(node: ast.AST) -> set[str]:
    """Return the names that one node writes."""
    if isinstance(node, ast.Assign):
        return {name for target in node.targets for name in targets(target)}
    if isinstance(node, (ast.AnnAssign, ast.AugAssign, ast.NamedExpr, ast.For, ast.AsyncFor)):
        return set(targets(node.target))
    return set()


def _derived(loop: ast.For | ast.AsyncFor, number: str) -> set[str]:
    """Return the number, and the variables of a turn that are computed from it."""
    found = {number}
    while more := {name for node in _walk(loop.body) for name in _computed_from(node, found)} - found:
        found |= more
    return found


def _computed_from(node: ast.AST, names: set[str]) -> set[str]:
    value = getattr(node, "value", None)
    is_assignment = isinstance(node, (ast.Assign, ast.AnnAssign, ast.AugAssign, ast.NamedExpr))
    return _written(node) if is_assignment and value is not None and names & reads(value) else set()


def _decides(node: ast.AST, names: set[str]) -> bool:
    """Return True for a branch on one of the names that jumps or takes a step, and for a step that gets one of them."""
    if isinstance(node, (ast.If, ast.While)) and names & reads(node.test):
        body = [*node.body, *node.orelse]
        jumps = isinstance(node, ast.If) and any(isinstance(one, _JUMPS_OF_LOOP) for one in _walk(body, into_loops=False))
        return jumps or any(isinstance(one, (ast.Return, ast.Raise)) or _is_step(one) for one in _walk(body))
    if not _is_step(node):
        return False
    assert isinstance(node, ast.Call)
    return any(names & reads(given) for given in (*node.args, *(keyword.value for keyword in node.keywords)))


def _is_step(node: ast.AST) -> bool:
    """Return True for `loss.backward()`, `optimizer.step()` and `scheduler.step()`, and not for the step of an environment."""
    if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
        return False
    owner = ast.unparse(node.func.value).lower()
    return node.func.attr in ("backward", "apply_gradients") or (
        node.func.attr in _STEPS and any(part in owner for part in _OPTIMIZERS)
    )
