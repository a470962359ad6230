"""Redo: apply logged steps with the function that applied them, and compare the fingerprint after each."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from tranlogs.base.errors import CorruptRecord
from tranlogs.base.types import AnyArray
from tranlogs.records import Entry, EntryKind, array_of
from tranlogs.training import Divergence

from ..backends.arrays import Values, from_array
from ..state.fingerprint import window
from ..state.state import KerasState


def redo(state: KerasState, entries: Sequence[Entry], tick: Callable[[int], None]) -> Divergence | None:
    """Apply entries in order; the first step after which the fingerprint differs."""
    divergence: Divergence | None = None
    for i, entry in enumerate(entries):
        body, values = state.decode(entry), None
        if entry.kind == EntryKind.IMAGE or body["record"] == "weights":
            _write_image(state, entry)
        elif body["record"] == "gradients":
            values = _update(state, entry, body)
        else:
            raise CorruptRecord(entry.reader.path, f"a record of unknown kind {body['record']!r}", step=entry.step)
        if entry.digests and divergence is None:
            divergence = _compare(state, entry, body, values)
        tick(i + 1)
    return divergence


def _write_image(state: KerasState, entry: Entry) -> None:
    slots = state.variables.by_name
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
        state.backend.assign(slots[name].variable, from_array(array))


def _update(state: KerasState, entry: Entry, body: dict[str, Any]) -> Sequence[Values]:
    """The very call that the live step made, down to what it reads."""
    logged, forms = _tensors(entry), body.get("forms", {})
    gradients = []
    for slot in state.variables.trained:
        array = logged.get("grad/" + slot.name.partition("/")[2])
        gradients.append(None if array is None else state.backend.to_device(array, forms.get(slot.name)))
    state.is_halved |= body.get("halved", False)
    if "attributes" in body:
        state.set_attributes(body["attributes"])
    return state.backend.apply(gradients, state.plan.updated_variables)


def _tensors(entry: Entry) -> dict[str, AnyArray | None]:
    """The step's gradients by name, by one contiguous read into memory of their own: a backend may keep what it is given."""
    if entry.sparse:
        return {name: entry.read(name) for name in entry.tensor_names()}
    data, places = entry.read_all(), zip(entry.layout.tensors, entry.starts(), entry.layout.sizes, strict=True)
    return {
        spec.name: array_of(spec, data[start : start + size])
        for i, (spec, start, size) in enumerate(places)
        if i not in entry.absent
    }


def _compare(state: KerasState, entry: Entry, body: dict[str, Any], values: Sequence[Values] | None) -> Divergence | None:
    recorded, kind = np.frombuffer(entry.digests, "<u8"), body["fingerprint"]
    slots = state.variables.changed_by(body["record"])
    state.fingerprint_kinds.add(kind)
    if values is None:
        values = state.backend.values_of([slot.variable for slot in slots])
    now = state.fingerprint.of(values, entry.step, kind)
    if len(now) != len(recorded):
        return Divergence(entry.step, "the number of variables")
    which = range(len(now)) if kind == "full" else window(len(slots), entry.step)
    for i, a, b in zip(which, recorded, now, strict=True):
        if a != b:
            return Divergence(entry.step, slots[i].name)
    return None
