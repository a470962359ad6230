"""Values, with the names that a loop has for them, and what looks them up."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from types import MemberDescriptorType
from typing import Any


@dataclass(frozen=True, slots=True)
class Named:
    """A value, with the name that the loop has for it."""

    name: str
    value: Any


Resolve = Callable[[str], Named | None]


def attribute_of(named: Named, path: str) -> Named | None:
    """Return the attribute that a path such as "x.y" names, without calling code of the script; for "x" the object itself."""
    attribute = path.partition(".")[2]
    if not attribute:
        return named
    values = getattr(named.value, "__dict__", None) if _has_plain_dict(named.value) else None
    if values is not None and attribute in values:
        return Named(f"{named.name}.{attribute}", values[attribute])
    for base in type(named.value).__mro__:
        if isinstance(slot := vars(base).get(attribute), MemberDescriptorType):
            try:
                return Named(f"{named.name}.{attribute}", slot.__get__(named.value))
            except AttributeError:  # it has no value yet
                return None
    return None


def _has_plain_dict(value: Any) -> bool:
    return any("__dict__" in vars(base) for base in type(value).__mro__)
