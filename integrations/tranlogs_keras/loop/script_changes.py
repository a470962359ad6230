"""Values that a script has set between `recover()` and its loop, to be set again at the newest boundary."""

from __future__ import annotations

import copy
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

import numpy as np

from tranlogs.records import tree
from tranlogs.training import find_changed_elements, is_set_as_a_whole

from ..backends import arrays
from ..backends.arrays import Values, flat_bytes
from ..run.run_parts import RunParts
from .loop_members import REMEMBERED, Members


@dataclass(frozen=True, slots=True)
class VariableChange:
    """Change that a script has made to a variable.

    Attributes:
        value: the script's.
        was: the value that recovery had restored.
        elements: a mask of the elements that the script has set.
    """

    value: Values
    was: Values
    elements: Any


class ScriptChanges:
    """The variables of models and optimizers, and the remembered attributes, that the script has set. Values are copied.

    Args:
        parts: of the run.
        members: of the loop.
        recorded: the states of tracked objects where recovery has landed.
        ignored: names of remembered attributes that are times which the script measures.
    """

    def __init__(self, parts: RunParts, members: Members, recorded: dict[str, Any], ignored: Collection[str]) -> None:
        self._parts, self._members = parts, members
        self._written = self._read(parts.steps.writes.names())
        self._variables: dict[str, VariableChange] = {}
        self._remembered, self._objects = dict[str, Any](), None
        now, was = members.read_remembered(), recorded.get(REMEMBERED)
        if now is not None and was is not None:
            added = {*ignored, *members.tracked[REMEMBERED].names_apart(was)[0]}
            for name, value in now["values"].items():
                if name not in added and (name not in was["values"] or _encode(value) != _encode(was["values"][name])):
                    self._remembered[name] = copy.deepcopy(value)
            if _encode(now["objects"]) != _encode(was["objects"]):
                self._objects = copy.deepcopy(now["objects"])

    @property
    def has_writes(self) -> bool:
        """True if variables were written, perhaps with the values that they had."""
        return bool(self._written)

    @property
    def texts(self) -> list[str]:
        """The changes, in words."""
        found = [*self._variables, *(f"state.{name}" for name in self._remembered)]
        return found + (["an object in remember(...)"] if self._objects is not None else [])

    def compare_variables(self) -> None:
        """Find what was changed of the variables that were written. The state is that at which recovery has landed."""
        for name, was in self._read(self._written).items():
            value = self._written[name]
            elements = _find_differing(was, value)
            if elements.any():
                is_whole = is_set_as_a_whole(flat_bytes(value), elements, value.dtype.itemsize)
                self._variables[name] = VariableChange(value, was, np.ones_like(elements) if is_whole else elements)

    def find_moved(self) -> list[str]:
        """Return the variables of which the newest unit has changed the same elements. The state is that of its end."""
        now = self._read(self._variables)
        return [
            name for name, change in self._variables.items() if (_find_differing(change.was, now[name]) & change.elements).any()
        ]

    def apply(self) -> None:
        """Set the changes again."""
        now, by_name = self._read(self._variables), self._parts.variables.by_name
        for name, change in self._variables.items():
            self._parts.backend.assign(by_name[name].variable, np.where(change.elements, change.value, now[name]))
        state = self._members.read_remembered()
        if state is not None:
            objects = state["objects"] if self._objects is None else self._objects
            state = {**state, "values": state["values"] | self._remembered, "objects": objects}
            self._members.write_remembered({REMEMBERED: state})

    def _read(self, names: Collection[str]) -> dict[str, Values]:
        by_name = self._parts.variables.by_name
        found = self._parts.backend.values_of([by_name[name].variable for name in names])
        return {name: value.copy() for name, value in zip(names, found, strict=True)}


def _find_differing(some: Values, other: Values) -> Any:
    """Return a mask of the elements whose bits differ."""
    if some.shape != other.shape or some.dtype != other.dtype:
        return np.ones(other.shape, bool)
    return find_changed_elements(flat_bytes(some), flat_bytes(other), other.dtype.itemsize).reshape(other.shape)


def _encode(value: Any) -> bytes:
    return tree.encode(value, adapt=arrays.adapt)
