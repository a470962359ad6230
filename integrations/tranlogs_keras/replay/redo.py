"""Redo: apply logged steps with the function that applied them, and compare the fingerprint after each."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from tranlogs.base.errors import CorruptRecord
from tranlogs.base.types import AnyArray
from tranlogs.records import Record, array_of
from tranlogs.training import Divergence, StateDigests, decode_entries, redo_in_order

from ..backends.arrays import Values, from_array
from ..state.state import KerasState, window


def redo(state: KerasState, entries: Sequence[Record], tick: Callable[[int], None]) -> Divergence | None:
    """Apply entries in order; return the first step after which the fingerprint differs."""
    return redo_in_order(_ByStep(state), decode_entries(state.decode, entries), tick)


class _ByStep:
    """Applies records one after the other (`tranlogs.training.RedoTarget`)."""

    compared = "variables"

    def __init__(self, state: KerasState) -> None:
        self._state = state
        self._values: Sequence[Values] | None = None  # of the updated variables, if the backend has just returned them

    def write_image(self, entry: Record, body: dict[str, Any]) -> None:
        slots, self._values = self._state.variables.by_name, None
        for name in entry.tensor_names():
            array = entry.read(name)
            if name not in slots:
                raise CorruptRecord(
                    entry.reader.path,
                    "it is logged, and the model has no such variable: build all layers and optimizers before fit",
                    step=entry.step,
                    tensor=name,
                )
            assert array is not None
            self._state.backend.assign(slots[name].variable, from_array(array))

    def apply_gradients(self, entry: Record, body: dict[str, Any]) -> None:
        """Call the function that the live step called, with what the live step read."""
        state, logged, forms = self._state, _tensors(entry), body.get("forms", {})
        gradients = []
        for slot in state.variables.trained_of(body.get("optimizer", "optimizer")):
            array = logged.get("grad/" + slot.name.partition("/")[2])
            gradients.append(None if array is None else state.backend.to_device(array, forms.get(slot.name)))
        state.is_halved |= body.get("halved", False)
        if "attributes" in body:
            state.set_attributes(body["attributes"])
        self._values = state.apply(body, gradients, state.plan.updated_variables)

    def read_digests(self, entry: Record, body: dict[str, Any]) -> StateDigests:
        state, kind, values = self._state, body["fingerprint"], self._values
        slots = state.variables.fingerprinted_by(body["record"])
        state.fingerprint_kinds.add(kind)
        if values is None:
            values = state.backend.values_of([slot.variable for slot in slots])
        found = state.fingerprint.of(values[: len(slots)], entry.step, kind)
        indices = range(len(found)) if kind == "full" else window(len(slots), entry.step)
        return StateDigests(found, indices, [slot.name for slot in slots])


def _tensors(entry: Record) -> dict[str, AnyArray | None]:
    """Read the step's gradients by name, in one read into new memory, since a backend may keep what it is given."""
    if entry.sparse:
        return {name: entry.read(name) for name in entry.tensor_names()}
    data, places = entry.read_all(), zip(entry.layout.tensors, entry.starts(), entry.layout.sizes, strict=True)
    return {
        spec.name: array_of(spec, data[start : start + size])
        for i, (spec, start, size) in enumerate(places)
        if i not in entry.absent
    }


class ReplayableState(KerasState):
    """The state of a Keras run, with redo."""

    def redo(self, entries: Sequence[Record], tick: Callable[[int], None]) -> Divergence | None:
        """Apply records in order; return the first step after which the fingerprint differs."""
        return redo(self, entries, tick)
