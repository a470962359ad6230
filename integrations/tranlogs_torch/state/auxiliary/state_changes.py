"""Differences of two states that are made of dicts, lists and values; and the application of some of them to a third state."""

from __future__ import annotations

from typing import Any

from tranlogs.records import tree

from ...tensors import arrays

Path = tuple[Any, ...]
Change = tuple[Path, Any]


class _Removed:
    """Marks a key that is there no more."""


REMOVED = _Removed()


def copied(value: Any) -> Any:
    """Return a copy that shares nothing with the value, as recovery would make it."""
    encoded = tree.encode(value, adapt=arrays.adapt)
    return tree.decode(encoded, make_array=arrays.make_array, make_extension=arrays.make_extension)


def find_changes(before: Any, now: Any, path: Path = ()) -> list[Change]:
    """Return the places where a state differs from an earlier one, and the values there, bit for bit.

    Dicts are compared by key, and lists of dicts by item. Any other value is a whole.
    """
    if type(before) is dict and type(now) is dict:
        found: list[Change] = [((*path, key), REMOVED) for key in before if key not in now]
        for key, value in now.items():
            found += find_changes(before[key], value, (*path, key)) if key in before else [((*path, key), value)]
        return found
    if _are_dicts(before) and _are_dicts(now) and len(before) == len(now):
        pairs = enumerate(zip(before, now, strict=True))
        return [change for i, (was, value) in pairs for change in find_changes(was, value, (*path, i))]
    return [] if tree.encode(before, adapt=arrays.adapt) == tree.encode(now, adapt=arrays.adapt) else [(path, now)]


def apply_changes(state: Any, changes: list[Change]) -> Any:
    """Return a copy of a state with these changes. A place that the state does not have is left out."""
    result = copied(state)
    for path, value in changes:
        if not path:
            result = value
            continue
        place = result
        try:
            for key in path[:-1]:
                place = place[key]
        except (KeyError, IndexError, TypeError):
            continue
        if value is not REMOVED:
            place[path[-1]] = value
        elif isinstance(place, dict):
            place.pop(path[-1], None)
    return result


def meet(some: list[Change], others: list[Change]) -> bool:
    """Return True if a change and one of the others are at the same place, or one of them lies below the other."""
    return any(a[: len(b)] == b[: len(a)] for a, _ in some for b, _ in others)


def _are_dicts(value: Any) -> bool:
    return type(value) is list and bool(value) and all(type(item) is dict for item in value)
