"""The redo driver: applies logged records in order and compares the fingerprint after each step.

The driver knows the kinds of records. How a record changes the state, and how digests of the state are computed, is known to a
`RedoTarget`, which each integration implements.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple, Protocol, TypeVar

import numpy as np

from ..base.errors import CorruptRecord
from ..log.reader import Record
from ..log.record_file import RecordFile
from ..log.record_format import RecordKind
from ..recovery.group.shards import StepRecord
from ..recovery.state_protocol import Divergence
from .fingerprint import Digests

Decoded = tuple[StepRecord, dict[str, Any]]  # a record and its body

E = TypeVar("E", Record, StepRecord)  # what a framework redoes: a run of one process has no shards to join
E_contra = TypeVar("E_contra", Record, StepRecord, contravariant=True)


class StateDigests(NamedTuple):
    """Digests of the state after a redone step.

    Attributes:
        digests: one for each compared tensor.
        indices: index in `names` of each compared tensor.
        names: names of all tensors of the fingerprint.
    """

    digests: Digests
    indices: Sequence[int]
    names: Sequence[str]


class RedoTarget(Protocol[E_contra]):
    """The state of a framework, to which records are applied.

    Attributes:
        compared: what fingerprints are taken of, in a message: "parameters" or "variables".
    """

    compared: str

    def write_image(self, entry: E_contra, body: dict[str, Any]) -> None:
        """Overwrite the state with the after-images of a record."""
        ...

    def apply_gradients(self, entry: E_contra, body: dict[str, Any]) -> None:
        """Take one step of an optimizer with the gradients of a record."""
        ...

    def read_digests(self, entry: E_contra, body: dict[str, Any]) -> StateDigests:
        """Return digests of the present state, of the kind that the record has."""
        ...


def decode_entries(
    decode: Callable[[Record], dict[str, Any]], entries: Sequence[Record]
) -> list[tuple[Record, dict[str, Any]]]:
    """Return entries with their bodies. A body that several entries share is decoded once."""
    bodies: dict[tuple[RecordFile, int], dict[str, Any]] = {}
    found = []
    for entry in entries:
        key = entry.reader, entry.body_key
        body = bodies.get(key)
        if body is None:
            body = bodies[key] = decode(entry)
        found.append((entry, body))
    return found


def redo_in_order(
    target: RedoTarget[E], decoded: Iterable[tuple[E, dict[str, Any]]], tick: Callable[[int], None]
) -> Divergence | None:
    """Apply records in order.

    Args:
        target: the state.
        decoded: the records.
        tick: called with the number of records that have been applied, after each.

    Returns:
        The first step after which the fingerprint differs from the record's; None if no fingerprint differs.

    Raises:
        CorruptRecord: a record is damaged, or of an unknown kind.
    """
    divergence: Divergence | None = None
    for done, (entry, body) in enumerate(decoded, 1):
        if entry.kind == RecordKind.IMAGE or body["record"] == "weights":
            target.write_image(entry, body)
        elif body["record"] == "gradients":
            target.apply_gradients(entry, body)
        else:
            raise CorruptRecord(entry.reader.path, f"a record of unknown kind {body['record']!r}", step=entry.step)
        if entry.digests and divergence is None:
            divergence = _compare(target, entry, body)
        tick(done)
    return divergence


def _compare(target: RedoTarget[E], entry: E, body: dict[str, Any]) -> Divergence | None:
    """Return the divergence if the state differs from the record."""
    digests, indices, names = target.read_digests(entry, body)
    if digests.astype("<u8", copy=False).tobytes() == entry.digests:
        return None
    recorded = np.frombuffer(entry.digests, "<u8")
    if len(recorded) != len(digests):
        return Divergence(entry.step, f"the number of {target.compared}")
    for index, a, b in zip(indices, recorded, digests, strict=True):
        if a != b:
            return Divergence(entry.step, names[index])
    return None
