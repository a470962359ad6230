"""Objects of the script whose methods a library calls for the loop: a dataset behind a loader."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class LibraryObject:
    """An object whose methods a library calls.

    Attributes:
        value: the object.
        methods: names of the methods.
        holder: what holds it, and has a variable of the script.
        path: where it is below the holder (".dataset").
        otherwise: its name where no variable of the loop has it or the holder.
        kept: attributes that come back with something else.
    """

    value: Any
    methods: tuple[str, ...]
    holder: Any
    path: str
    otherwise: str
    kept: frozenset[str] = frozenset()

    def name_in(self, variables: Mapping[str, Any]) -> str:
        """Return the name that a script with some variables has for the object."""
        for value, path in ((self.value, ""), (self.holder, self.path)):
            found = next((name for name, one in variables.items() if one is value), None)
            if found is not None:
                return found + path
        return self.otherwise + self.path
