"""Which values of a script Keras and the run keep, for the search of what starts over."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from tranlogs.training import Framework, LoopState

from ..state.script_values import read_array, version_of
from .loop_members import Members


def make_framework(members: Members) -> Framework:
    """Return what Keras knows of the values of a script with a loop of its own."""

    def kept() -> Iterator[Any]:
        yield from members.optimizers.values()
        for state in members.tracked.values():
            if isinstance(state, LoopState):
                yield from state.objects

    def tracked() -> Iterator[tuple[Any, Any]]:
        for thing in members.tracked.values():
            if not isinstance(thing, LoopState) and hasattr(thing, "state_dict"):
                yield thing, thing.state_dict

    def remembered() -> Mapping[str, Any]:
        states = [state for state in members.tracked.values() if isinstance(state, LoopState)]
        return {name: value for state in states for name, value in vars(state.namespace).items()}

    return Framework(read_array, kept, tracked, remembered, read_version=version_of(lambda: members.variables))
