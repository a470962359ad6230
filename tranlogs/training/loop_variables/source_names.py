"""Names that pieces of source code read, write and change: variables ("best") and attributes of variables ("self.best")."""

from __future__ import annotations

import ast
from collections.abc import Iterator

Function = ast.FunctionDef | ast.AsyncFunctionDef
Scope = ast.Module | Function

# Methods by which containers are changed in place.
_ADDING = frozenset(("add", "append", "appendleft", "extend", "extendleft", "insert", "setdefault", "update"))
_REMOVING = frozenset(("clear", "discard", "pop", "popitem", "popleft", "remove"))
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
_COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)


def name_of(node: ast.AST) -> str | None:
    """Return the name of a variable, or of an attribute of one; None for other expressions."""
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
        return f"{node.value.id}.{node.attr}"
    return None


def root_of(node: ast.AST) -> str | None:
    """Return the name of what an expression such as `x[i][j]` or `self.x[i]` is a part of."""
    while name_of(node) is None:
        if isinstance(node, (ast.Subscript, ast.Starred)):
            node = node.value
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            node = node.func.value  # x.mul_(2).add_(1)
        else:
            return None
    return name_of(node)


def reads(node: ast.AST | None) -> set[str]:
    """Return the names that an expression reads. What runs later, in a function made here, counts as well."""
    if node is None:
        return set()
    found = set[str]()
    if isinstance(node, (ast.Name, ast.Attribute)) and isinstance(node.ctx, ast.Load) and (name := name_of(node)):
        found.add(name)
    if isinstance(node, ast.AugAssign):
        found |= targets(node.target)
    if (asked := read_by_getattr(node)) is not None:
        found.add(asked)
    for child in ast.iter_child_nodes(node):
        found |= reads(child)
    if isinstance(node, (*FUNCTIONS, ast.Lambda)):
        found -= _bound_in(node)
    elif isinstance(node, _COMPREHENSIONS):
        found -= {name for part in node.generators for name in targets(part.target)}
    return found


def read_by_getattr(node: ast.AST) -> str | None:
    """Return the name of the attribute that `getattr(x, "name")` reads; None for other code."""
    if not isinstance(node, ast.Call) or name_of(node.func) != "getattr" or len(node.args) < 2:
        return None
    owner, attribute = node.args[:2]
    is_name = isinstance(owner, ast.Name) and isinstance(attribute, ast.Constant) and isinstance(attribute.value, str)
    return f"{owner.id}.{attribute.value}" if is_name else None  # type: ignore[attr-defined]


def counts(node: ast.AST) -> set[str]:
    """Return the names whose new value a piece of code computes from their old one: `n += 1`, `n = max(n, x)`."""
    found = set[str]()
    for part in _walk_here(node):
        if isinstance(part, ast.AugAssign):
            found |= targets(part.target)
        elif isinstance(part, ast.Assign) and not isinstance(part.value, (ast.BoolOp, ast.IfExp)):  # `x = x or load()`
            found |= {name for target in part.targets for name in targets(target)} & reads(part.value)
    return found


def reads_first(node: ast.expr | None) -> set[str]:
    """Return the names that an expression reads before it writes them itself (`:=`)."""
    named = [] if node is None else [part for part in ast.walk(node) if isinstance(part, ast.NamedExpr)]
    return reads(node) - {name for part in named for name in targets(part.target) if name not in reads(part.value)}


def _bound_in(function: Function | ast.Lambda) -> set[str]:
    """Return the names that belong to a function itself."""
    arguments = function.args
    listed = [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs, arguments.vararg, arguments.kwarg]
    found = {argument.arg for argument in listed if argument is not None}
    if isinstance(function, ast.Lambda):
        return found
    written = {name for statement in function.body for name in writes(statement)}
    return found | (written - declared(function, ast.Nonlocal) - declared(function, ast.Global))


def declared(scope: Scope, kind: type[ast.Global] | type[ast.Nonlocal]) -> set[str]:
    """Return the names that a function declares as global or nonlocal."""
    return {name for node in ast.walk(scope) if isinstance(node, kind) for name in node.names}


def targets(node: ast.AST) -> set[str]:
    """Return the names that an assignment to an expression writes."""
    if isinstance(node, (ast.Tuple, ast.List)):
        return {name for item in node.elts for name in targets(item)}
    if isinstance(node, ast.Starred):
        return targets(node.value)
    name = name_of(node)
    return set() if name is None else {name}


def split(target: ast.expr, value: ast.expr) -> Iterator[tuple[ast.expr, ast.expr]]:
    """Yield the pairs of target and value of `a, b = 1, 2`; an assignment of another form is one pair."""
    ones, parts = getattr(target, "elts", None), getattr(value, "elts", None)
    if ones is None or parts is None or len(ones) != len(parts):
        yield target, value
        return
    for one, part in zip(ones, parts, strict=True):
        yield from split(one, part)


def writes(node: ast.AST) -> set[str]:
    """Return the names that a piece of code may write, without those inside functions that it defines."""
    return {name for part in _walk_here(node) for name in _written_by(part)}


def _written_by(node: ast.AST) -> set[str]:
    if isinstance(node, (ast.Name, ast.Attribute)) and isinstance(node.ctx, ast.Store):
        return targets(node)
    if isinstance(node, ast.NamedExpr):
        return targets(node.target)
    if isinstance(node, (*FUNCTIONS, ast.ClassDef)):
        return {node.name}
    return set()


def changes(node: ast.AST) -> dict[str, list[ast.expr]]:
    """Return the names whose values a piece of code may change in place, each with what it changes them by."""
    found = dict[str, list[ast.expr]]()
    for part in _walk_here(node):
        if isinstance(part, ast.Call) and isinstance(part.func, ast.Attribute) and _is_change(part.func.attr):
            owner = root_of(part.func.value)
            if owner is not None:
                found.setdefault(owner, []).extend([*part.args, *(keyword.value for keyword in part.keywords)])
        elif isinstance(part, ast.Subscript) and not isinstance(part.ctx, ast.Load) and (owner := root_of(part)):
            found.setdefault(owner, [])
    return found


def _is_change(method: str) -> bool:
    """Return True for a method of a container, or one of a tensor that works in place (`add_`)."""
    return method in _ADDING or method in _REMOVING or (method.endswith("_") and not method.endswith("__"))


def _walk_here(node: ast.AST) -> Iterator[ast.AST]:
    """Yield a node and all below it that run where it runs. Of a nested function, yield only what it shares with its scope."""
    yield node
    if isinstance(node, (*FUNCTIONS, ast.Lambda)):
        if not isinstance(node, ast.Lambda):
            shared = declared(node, ast.Nonlocal)
            for part in ast.walk(node):
                if isinstance(part, ast.Name) and isinstance(part.ctx, ast.Store) and part.id in shared:
                    yield part
        return
    if isinstance(node, (ast.ClassDef, *_COMPREHENSIONS)):
        return
    for child in ast.iter_child_nodes(node):
        yield from _walk_here(child)
