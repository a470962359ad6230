"""Objects that code reaches through a container: `stops[0](loss)`, and `for stop in stops: stop(loss)`."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from typing import Any

from ..source_names import name_of
from .named import Named, Resolve, attribute_of

_ITEMS_MAX = 8  # of a container that are looked at
_SAME = frozenset(("reversed", "list", "tuple", "sorted"))  # functions that give the items of their argument
LookUp = Callable[[ast.expr], Named | None]


def item_of(named: Named, key: Any) -> Named | None:
    """Return an item of a list, a tuple or a dict; None if it is another object, or has none."""
    value = named.value
    is_there = type(value) is dict and key in value
    if type(value) in (list, tuple) and type(key) is int:
        is_there = -len(value) <= key < len(value)
    return Named(f"{named.name}[{key!r}]", value[key]) if is_there else None


def find_elements(nodes: Sequence[ast.AST], look_up: LookUp) -> dict[str, list[Named]]:
    """Return, by loop variable, the objects that inner loops and comprehensions take from containers."""
    found = dict[str, list[Named]]()
    for part in (part for node in nodes for part in ast.walk(node)):
        if isinstance(part, (ast.For, ast.AsyncFor, ast.comprehension)):
            for target, items in _pairs(part.target, part.iter, look_up):
                if items and (name := name_of(target)) is not None:
                    found.setdefault(name, []).extend(items)
    return found


def views(call: ast.Call, elements: dict[str, list[Named]], resolve: Resolve) -> Iterator[Resolve]:
    """Yield what looks up the names of a call: once for each element that its loop variables stand for."""
    used = [name for name in {part.id for part in ast.walk(call) if isinstance(part, ast.Name)} if name in elements]
    if not used:
        yield resolve
    for at in range(max((len(elements[name]) for name in used), default=0)):
        yield _view({name: elements[name][at] for name in used if at < len(elements[name])}, resolve)


def _view(own: dict[str, Named], resolve: Resolve) -> Resolve:
    def resolve_here(name: str) -> Named | None:
        root = name.partition(".")[0]
        return attribute_of(own[root], name) if root in own else resolve(name)

    return resolve_here


def _pairs(target: ast.expr, source: ast.expr, look_up: LookUp) -> Iterator[tuple[ast.expr, list[Named]]]:
    """Yield each variable of a loop with the elements that it stands for."""
    parts = target.elts if isinstance(target, (ast.Tuple, ast.List)) else []
    called = source.func if isinstance(source, ast.Call) else None
    name = getattr(called, "id", "")
    if isinstance(source, ast.Call) and name == "enumerate" and len(parts) == 2 and source.args:
        yield from _pairs(parts[1], source.args[0], look_up)
    elif isinstance(source, ast.Call) and name == "zip" and len(parts) == len(source.args):
        for part, one in zip(parts, source.args, strict=True):
            yield from _pairs(part, one, look_up)
    elif isinstance(source, ast.Call) and name in _SAME and source.args:
        yield from _pairs(target, source.args[0], look_up)
    elif isinstance(called, ast.Attribute) and called.attr in ("values", "items"):
        last = target if called.attr == "values" else parts[1] if len(parts) == 2 else None
        if last is not None:
            yield last, _items(look_up(called.value), dict)
    elif isinstance(source, (ast.List, ast.Tuple)):
        yield target, [found for one in source.elts if (found := look_up(one)) is not None]
    else:
        yield target, _items(look_up(source), list, tuple)


def _items(named: Named | None, *kinds: type) -> list[Named]:
    if named is None or type(named.value) not in kinds:
        return []
    keys = islice(named.value if type(named.value) is dict else range(len(named.value)), _ITEMS_MAX)
    return [found for key in keys if (found := item_of(named, key)) is not None]
