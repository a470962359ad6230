"""Values that a script has set between `recover()` and its loop."""

from __future__ import annotations

import copy
from collections.abc import Collection, Mapping
from typing import Any

from tranlogs.records import tree

from ..backends import arrays
from ..backends.arrays import Values
from ..run.run_parts import RunParts
from .loop_members import REMEMBERED, Members


class ScriptChanges:
    """The variables of models and optimizers, and the remembered attributes, that the script has set. Values are copied.

    What code before the batches of an epoch writes when it runs again is undone, and these values are set again.

    Args:
        parts: of the run.
        members: of the loop.
        written: variables that have other values than recovery has restored, by name.
        recorded: the states of tracked objects where recovery has landed.
        ignored: names of remembered attributes that are times which the script measures.
    """

    def __init__(
        self,
        parts: RunParts,
        members: Members,
        written: Mapping[str, Values],
        recorded: Mapping[str, Any],
        ignored: Collection[str],
    ) -> None:
        self._parts, self._members, self._written = parts, members, written
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
    def texts(self) -> list[str]:
        """The changes, in words."""
        found = [*self._written, *(f"state.{name}" for name in self._remembered)]
        return found + (["an object in remember(...)"] if self._objects is not None else [])

    def apply(self) -> None:
        """Set the changes again."""
        by_name = self._parts.variables.by_name
        for name, value in self._written.items():
            self._parts.backend.assign(by_name[name].variable, value)
        state = self._members.read_remembered()
        if state is not None:
            objects = state["objects"] if self._objects is None else self._objects
            state = {**state, "values": state["values"] | self._remembered, "objects": objects}
            self._members.write_remembered({REMEMBERED: state})


def _encode(value: Any) -> bytes:
    return tree.encode(value, adapt=arrays.adapt)
