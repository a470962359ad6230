"""Comparison of what training produces with a record of the log, bit for bit."""

from __future__ import annotations

import bisect
import itertools
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any, Literal, TypeVar

import numpy as np

from ..base.notes import Note
from ..base.types import Array, Bytes, Extension, SparseArray, TensorSpec
from ..encoding import tree
from ..log.layout import Payload
from ..log.reader import Record, SegmentReader
from ..log.record_body import WHOLE, EncodedBody, Part, decode_part
from ..log.record_format import RecordKind
from ..recovery.history import LastUnit
from .loop_state.number_lists import as_list

_FLOATS = {"float16": np.float16, "float32": np.float32, "float64": np.float64}
_SHOWN_MAX = 60  # characters of a value in a message

Kind = Literal["gradients", "weights", "settings", "state", "order"]

LEFT_NOW = "the script has left the loop in which it had stopped before that loop took a batch"


@dataclass(frozen=True, slots=True)
class Difference:
    """The first thing in which a unit that was computed again differs from its record.

    Attributes:
        step: the step of the record.
        kind: what differs: the gradients of a step, the weights after it, its settings (a learning rate), the auxiliary state
            at the end of the unit, or which steps and boundaries there are.
        name: the tensor, or the path of the value.
        text: how it differs, as the end of a sentence.
        ratio: the largest difference of two numbers, divided by the largest number in the record; None if they are no floats.
        may_be_time: True if the value may be a time that the script has measured, and all other state is equal.
        dtype: of the numbers; empty if it is not known.
        is_outside: True if the record is of a unit outside of all loops that the run knows, which ends at a forward pass.
    """

    step: int
    kind: Kind
    name: str
    text: str
    ratio: float | None = None
    may_be_time: bool = False
    dtype: str = ""
    is_outside: bool = False


def compare_payloads(payload: Payload, record: RecordedEntry, kind: Kind) -> Difference | None:
    """Compare the tensors of a step with those of its record; return the first difference."""
    entry = record.entry
    layout = entry.layout
    if payload.layout != layout:
        for found, recorded in itertools.zip_longest(payload.layout.tensors, layout.tensors):
            if found != recorded:
                return Difference(entry.step, kind, (recorded or found).name, _describe_specs(found, recorded))
    for i in sorted(payload.absent ^ entry.absent):
        is_there = i in entry.absent
        text = "is there, and the record has none" if is_there else "is missing, and the record has one"
        return Difference(entry.step, kind, layout.names[i], text)
    if dict(payload.sparse) != dict(entry.sparse):
        name = next(layout.names[i] for i in range(len(layout)) if payload.sparse.get(i) != entry.sparse.get(i))
        return Difference(entry.step, kind, name, "has other rows than in the record")
    recorded = record.tensors()
    at = _first_difference(payload.buffers, recorded)
    if at is None:
        return None
    sizes = layout.sizes_in(entry.absent, entry.sparse)
    starts = [0, *itertools.accumulate(sizes)]
    i = bisect.bisect_right(starts, at) - 1
    ours, theirs = _cut(payload.buffers, starts[i], sizes[i]), recorded[starts[i] : starts[i] + sizes[i]]
    dtype = layout.tensors[i].dtype
    ratio = None if i in entry.sparse else _ratio(ours, theirs, dtype)
    return Difference(entry.step, kind, layout.names[i], _describe_ratio(ratio), ratio, dtype=dtype)


def compare_bodies(
    body: EncodedBody, record: RecordedEntry, kind: Kind, ignored: Collection[str] = (), timed: str | None = None
) -> Difference | None:
    """Compare a body with that of a record, and return the first difference.

    Args:
        body: what training has produced.
        record: the record.
        kind: of the difference.
        ignored: paths of values that are not compared ("rng", "tracked.metric").
        timed: prefix of the parts in which numbers may be times. Such a difference is returned if there is no other.
    """
    entry, recorded, maybe_time = record.entry, record.parts(), None
    if record.kind != RecordKind.BOUNDARY:
        found = None if _is_same_part(body[WHOLE], recorded[WHOLE]) else _find_in(WHOLE, body, recorded, ignored)
        return None if found is None else Difference(entry.step, kind, *found)
    different = {
        name.partition("/")[0]
        for name in body.keys() | recorded.keys()
        if name not in body or name not in recorded or not _is_same_part(body[name], recorded[name])
    }
    for name in [*recorded, *body]:
        if name not in different or name in ignored:
            continue
        different.remove(name)
        if name not in body or name not in recorded:
            text = "is missing, and the record has it" if name in recorded else "is there, and the record does not have it"
            return Difference(entry.step, kind, name, text)
        found = _find_in(name, body, recorded, ignored)
        if found is None:
            continue
        path, text, ratio = found
        may_be_time = timed is not None and ratio is not None and name.startswith(timed)
        is_outside = "is_implicit" in recorded
        difference = Difference(entry.step, kind, path, text, ratio, may_be_time=may_be_time, is_outside=is_outside)
        if not may_be_time:
            return difference
        maybe_time = maybe_time or difference
    return maybe_time


RecordedPart = tuple[bytes, Sequence[Array]]


def _is_same_part(ours: Part, theirs: RecordedPart) -> bool:
    blob, arrays = theirs
    if ours.blob != blob or len(ours.arrays) != len(arrays):
        return False
    return all(np.array_equal(a.data, b.data) for a, b in zip(ours.arrays, arrays, strict=True))


def _find_in(
    name: str, body: EncodedBody, recorded: Mapping[str, RecordedPart], ignored: Collection[str]
) -> tuple[str, str, float | None] | None:
    """Return the first difference in a part, or in one below it, as `_find` does."""
    both = [
        {key: (part.blob, [array.data for array in part.arrays]) for key, part in body.items()},
        {key: (blob, [array.data for array in arrays]) for key, (blob, arrays) in recorded.items()},
    ]
    ours, theirs = (decode_part(name, parts, make_array=lambda array: array) for parts in both)
    return _find(name, ours, theirs, ignored)


def _find(path: str, ours: Any, theirs: Any, ignored: Collection[str]) -> tuple[str, str, float | None] | None:
    """Return the path of the first difference of two decoded values, how they differ, and the ratio."""
    if is_below(path, ignored):
        return None
    ours, theirs = as_list(ours), as_list(theirs)
    if type(ours) is not type(theirs):
        return path, f"is {_show(ours)}, and {_show(theirs)} in the record", None
    if isinstance(ours, dict):
        for key in [*theirs, *(key for key in ours if key not in theirs)]:
            below = f"{path}.{key}" if path else str(key)
            if is_below(below, ignored):
                continue
            if key not in ours or key not in theirs:
                text = "is missing, and the record has it" if key not in ours else "is there, and the record does not have it"
                return below, text, None
            if (found := _find(below, ours[key], theirs[key], ignored)) is not None:
                return found
        return None
    if isinstance(ours, (list, tuple)):
        if len(ours) != len(theirs):
            return path, f"has {len(ours)} items, and {len(theirs)} in the record", None
        return next(
            (
                found
                for i, (a, b) in enumerate(zip(ours, theirs, strict=True))
                if (found := _find(f"{path}[{i}]", a, b, ignored)) is not None
            ),
            None,
        )
    if isinstance(ours, Extension):
        return _find(path, ours.value, theirs.value, ignored) if ours.tag == theirs.tag else (path, "has another type", None)
    if isinstance(ours, Array):
        return _find_in_arrays(path, ours, theirs)
    if isinstance(ours, SparseArray):
        return next(
            (
                found
                for a, b in ((ours.indices, theirs.indices), (ours.values, theirs.values))
                if (found := _find_in_arrays(path, a, b))
            ),
            None,
        )
    if tree.encode(ours) == tree.encode(theirs):
        return None
    ratio = abs(ours - theirs) / (abs(theirs) or 1.0) if isinstance(ours, float) else None
    return path, f"is {_show(ours)}, and {_show(theirs)} in the record", ratio


def is_below(path: str, ignored: Collection[str]) -> bool:
    """Return True if a path is one of the ignored ones, or lies below one. Keys may have dots."""
    return any(path == one or path.startswith(f"{one}.") for one in ignored)


def _find_in_arrays(path: str, ours: Array, theirs: Array) -> tuple[str, str, float | None] | None:
    if (ours.dtype, ours.shape) != (theirs.dtype, theirs.shape):
        text = f"is {ours.dtype} {list(ours.shape)}, and {theirs.dtype} {list(theirs.shape)} in the record"
        return path, text, None
    if ours.strides == theirs.strides and np.array_equal(ours.data, theirs.data):
        return None
    ratio = _ratio(ours.data, theirs.data, ours.dtype) if ours.strides == theirs.strides else None
    return path, _describe_ratio(ratio), ratio


def _show(value: Any) -> str:
    shown = "a tensor" if isinstance(value, (Array, SparseArray)) else repr(value)
    return shown if len(shown) <= _SHOWN_MAX else f"{shown[:_SHOWN_MAX]}..."


def _describe_specs(found: TensorSpec | None, recorded: TensorSpec | None) -> str:
    if found is None or recorded is None:
        return "is missing, and the record has it" if found is None else "is there, and the record does not have it"
    if found.name != recorded.name:
        return f"is there in the record, and {found.name} takes its place"
    return f"is {found.dtype} {list(found.shape)}, and {recorded.dtype} {list(recorded.shape)} in the record"


def _describe_ratio(ratio: float | None) -> str:
    return "differs from the record" if ratio is None else f"differs from the record by up to {ratio:.1e} of its largest value"


def _first_difference(buffers: Sequence[Bytes], recorded: Bytes) -> int | None:
    """Return the offset of the first byte that differs; None if all bytes are equal."""
    at = 0
    for buffer in buffers:
        flat = buffer.reshape(-1).view(np.uint8)
        other = recorded[at : at + flat.size]
        if flat.size != other.size:
            return at + min(flat.size, other.size)
        if not _is_same(flat, other):
            return at + int(np.flatnonzero(flat != other)[0])
        at += flat.size
    return None if at == recorded.size else at


def _is_same(a: Bytes, b: Bytes) -> bool:
    """Return True if as many bytes are equal, compared by eight where they are many."""
    whole = a.size & -8
    return np.array_equal(a[:whole].view(np.uint64), b[:whole].view(np.uint64)) and np.array_equal(a[whole:], b[whole:])


def _cut(buffers: Sequence[Bytes], start: int, nbytes: int) -> Bytes:
    """Return a range of the bytes of consecutive buffers."""
    parts, at = list[Bytes](), 0
    for buffer in buffers:
        flat = buffer.reshape(-1).view(np.uint8)
        if at < start + nbytes and at + flat.size > start:
            parts.append(flat[max(start - at, 0) : start + nbytes - at])
        at += flat.size
    return np.concatenate(parts) if parts else np.empty(0, np.uint8)


def _ratio(ours: Bytes, theirs: Bytes, dtype: str) -> float | None:
    """Return the largest difference of two arrays of floats, divided by the largest number of the second one."""
    if ours.nbytes != theirs.nbytes or not (dtype in _FLOATS or dtype == "bfloat16"):
        return None
    a, b = (_floats(data, dtype) for data in (ours, theirs))
    with np.errstate(invalid="ignore", over="ignore"):
        largest, difference = float(np.max(np.abs(b), initial=0.0)), float(np.max(np.abs(a - b), initial=0.0))
    if not np.isfinite(difference) or not largest:
        return None
    return difference / largest


def _floats(data: Bytes, dtype: str) -> np.ndarray[Any, Any]:
    flat = np.ascontiguousarray(data)
    if dtype == "bfloat16":
        return (flat.view(np.uint16).astype(np.uint32) << 16).view(np.float32).astype(np.float64)
    return flat.view(_FLOATS[dtype]).astype(np.float64)


def describe_script_change(what: str) -> Note:
    """Return the note on something that the script has set."""
    text = f"{what} was changed between recover() and the first batch; training continues with the new value"
    return Note("changed-after-recover", text)


_AHEAD_BYTES_MAX = 512 << 20  # tensors beyond this size are read when they are compared

T = TypeVar("T")


class RecordedEntry:
    """A record of the unit. A record that is a step and a boundary counts as two.

    Attributes:
        entry: the decoded record.
        kind: STEP, IMAGE or BOUNDARY.
    """

    def __init__(self, entry: Record, kind: RecordKind) -> None:
        self.entry, self.kind = entry, kind
        self._tensors: Future[Bytes] | None = None
        self._parts: Future[dict[str, tuple[bytes, list[Array]]]] | None = None
        self._body: Future[Any] | None = None

    def read_ahead(self, worker: ThreadPoolExecutor, *, with_tensors: bool) -> None:
        """Let a worker read the record."""
        self._parts = worker.submit(self._read_parts)
        if self.kind != RecordKind.BOUNDARY:
            self._body = worker.submit(self.entry.body)
            if with_tensors and self.entry.raw_bytes:
                self._tensors = worker.submit(self.entry.read_all)

    def tensors(self) -> Bytes:
        """Return the bytes of all tensors, and keep them no longer.

        Raises:
            CorruptRecord: they are damaged.
        """
        future, self._tensors = self._tensors, None
        return self.entry.read_all() if future is None else future.result()

    def parts(self) -> dict[str, tuple[bytes, list[Array]]]:
        """Return the parts of the body as they were encoded.

        Raises:
            CorruptRecord: the body is damaged.
        """
        return self._read_parts() if self._parts is None else self._parts.result()

    def _read_parts(self) -> dict[str, tuple[bytes, list[Array]]]:
        is_boundary = self.kind == RecordKind.BOUNDARY
        return {name: part for name, part in self.entry.encoded().items() if (name != WHOLE) == is_boundary}

    def body(self) -> Any:
        """Return the body of a step, decoded.

        Raises:
            CorruptRecord: it is damaged.
        """
        return self.entry.body() if self._body is None else self._body.result()


class RecordedUnit:
    """The records of a unit, in order.

    Args:
        unit: the unit. Its files stay open until `close`.

    Attributes:
        entries: the records.
    """

    def __init__(self, unit: LastUnit) -> None:
        self._worker = ThreadPoolExecutor(1, "tranlogs-recheck")
        with ExitStack() as stack:
            readers: dict[int, SegmentReader] = {}
            for link in unit.links:
                ordinal = link.segment.row.ordinal
                if ordinal not in readers:
                    reader = SegmentReader(link.segment.path, link.segment.locations)
                    readers[ordinal] = stack.enter_context(reader)
            found = [readers[link.segment.row.ordinal].decode(link.location) for link in unit.links]
            self._files = stack.pop_all()
        self.entries = [RecordedEntry(entry, kind) for entry in found for kind in _kinds_in(entry.kind)]

    def read_ahead(self) -> None:
        """Begin to read the records in another thread."""
        left = _AHEAD_BYTES_MAX
        for one in self.entries:
            left -= one.entry.raw_bytes if one.kind != RecordKind.BOUNDARY else 0
            one.read_ahead(self._worker, with_tensors=left >= 0)

    def aside(self, work: Callable[..., T], *arguments: Any) -> Future[T]:
        """Do something in the thread that reads."""
        return self._worker.submit(work, *arguments)

    def close(self) -> None:
        """Wait for the thread, and close the files."""
        self._worker.shutdown(cancel_futures=True)
        self._files.close()


def _kinds_in(kind: RecordKind) -> tuple[RecordKind, ...]:
    return (RecordKind.STEP, RecordKind.BOUNDARY) if kind == RecordKind.UNIT else (kind,)
