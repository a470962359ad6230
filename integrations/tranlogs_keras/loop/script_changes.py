"""What a script has set between `recover()` and its loop, to be set again at the newest boundary."""

from __future__ import annotations

import copy
from collections.abc import Collection
from typing import Any

from tranlogs.records import tree

from ..backends import arrays
from ..run.run_parts import RunParts
from .members import REMEMBERED, Members


class ScriptChanges:
    """The variables of models and optimizers, and the remembered attributes, that the script has set. Values are copied.

    Args:
        parts: of the run.
        members: of the loop.
        recorded: the states of tracked objects where recovery has landed.
        ignored: names of remembered attributes that are times which the script measures.

    Attributes:
        texts: the changes, in words.
    """

    def __init__(self, parts: RunParts, members: Members, recorded: dict[str, Any], ignored: Collection[str]) -> None:
        self._parts, self._members = parts, members
        variables = {name: parts.variables.by_name[name].variable for name in parts.steps.written()}
        found = parts.backend.values_of(list(variables.values()))
        self._values = {name: value.copy() for name, value in zip(variables, found, strict=True)}
        self._remembered, self._objects = dict[str, Any](), None
        now, was = members.read_remembered(), recorded.get(REMEMBERED)
        if now is not None and was is not None:
            for name, value in now["values"].items():
                if name not in ignored and (name not in was["values"] or _encode(value) != _encode(was["values"][name])):
                    self._remembered[name] = copy.deepcopy(value)
            if _encode(now["objects"]) != _encode(was["objects"]):
                self._objects = copy.deepcopy(now["objects"])
        self.texts = [*self._values, *(f"state.{name}" for name in self._remembered)]
        self.texts += ["an object in remember(...)"] if self._objects is not None else []

    def apply(self) -> None:
        """Set them again."""
        for name, value in self._values.items():
            self._parts.backend.assign(self._parts.variables.by_name[name].variable, value)
        state = self._members.read_remembered()
        if state is not None:
            objects = state["objects"] if self._objects is None else self._objects
            state = {**state, "values": state["values"] | self._remembered, "objects": objects}
            self._members.write_remembered({REMEMBERED: state})


def _encode(value: Any) -> bytes:
    return tree.encode(value, adapt=arrays.adapt)
