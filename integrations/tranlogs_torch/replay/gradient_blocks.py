"""The gradients of logged steps, read back: contiguous reads, and tensors over the memory that they fill.

Parameters are divided into spans, and steps into blocks. What is read at a time is one span of each step of a block, so that
the memory stays in the processor's cache, however large a step is. Memory is taken once and used again. Where a core is to
spare a thread reads the next span while the optimizer works on the one before.
"""

from __future__ import annotations

import itertools
import os
import queue
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from typing import NamedTuple

import numpy as np
import torch

from tranlogs.base.errors import CorruptRecord, LogUnavailable
from tranlogs.base.threads import start_thread
from tranlogs.base.types import ITEMSIZE, Bytes
from tranlogs.ranks import JoinedEntry, StepEntry
from tranlogs.records import Entry, Layout, array_of

from ..tensors.arrays import DTYPES, from_array
from .ranges import Range

_BLOCK_BYTES = 8 << 20  # gradients that are held at a time, twice where they are read ahead
_BLOCK_BYTES_MAX = 64 << 20
_BLOCK_STEPS_MAX = 64
_AHEAD_BYTES_MIN = 1 << 18  # of a step; to hand over less costs more than to read it
_AHEAD_BYTES_MAX = 64 << 20  # of a block; memory for a second one is not taken if it is larger
_VIEWS_MAX = 4096  # combinations of span, layout and absent tensors for which views are kept

Key = str | Range  # what a gradient is asked for by: the name of its parameter, or a range
Gradients = Mapping[Key, torch.Tensor]  # those that are absent are not in it


class Span(NamedTuple):
    """Gradients of one optimizer that are read together.

    Attributes:
        which: name of the optimizer.
        keys: of the gradients; None for all of a record, by name.
        nbytes: bytes of them.
    """

    which: str
    keys: tuple[Key, ...] | None
    nbytes: int


class _View(NamedTuple):
    """Places of a span's gradients in a payload, and tensors over the memory into which they are read."""

    begin: int
    end: int
    gradients: Gradients


class GradientMemory:
    """Memory for the gradients of one step, and tensors over it, which are made once for each span and form of record."""

    def __init__(self) -> None:
        self._memory: Bytes = np.empty(0, np.uint8)
        self._views: dict[tuple[int, Layout, frozenset[int]], _View | None] = {}  # None: these are read one by one
        self._last: tuple[Span | None, Layout | None, frozenset[int]] = None, None, frozenset()
        self._last_view: _View | None = None

    def read(self, entry: StepEntry, span: Span) -> Gradients:
        """Return a step's gradients. The next call may overwrite them.

        Raises:
            CorruptRecord: one of them is damaged.
        """
        if isinstance(entry, JoinedEntry) or entry.sparse:
            return _read_one_by_one(entry, span)
        before = self._last
        if span is not before[0] or entry.layout is not before[1] or entry.absent != before[2]:
            self._last_view = self._view(entry, span)
            self._last = span, entry.layout, entry.absent
        view = self._last_view
        if view is None:
            return _read_one_by_one(entry, span)
        entry.read_range(view.begin, self._memory[: view.end - view.begin], "")
        return view.gradients

    def _view(self, entry: Entry, span: Span) -> _View | None:
        form = id(span), entry.layout, entry.absent
        if form not in self._views:
            if len(self._views) >= _VIEWS_MAX:
                self._views.clear()
            self._views[form] = self._over(entry, span)
        return self._views[form]

    def _over(self, entry: Entry, span: Span) -> _View | None:
        """Return tensors over the memory; None where they do not lie in it as torch wants them."""
        layout, index, starts = entry.layout, entry.layout.index, entry.starts()
        if len(index) < len(layout):  # several ranges of a tensor
            return None
        keys = span.keys if span.keys is not None else [n[5:] for n in layout.names if n.startswith("grad/")]
        places: list[tuple[Key, int, int, int]] = []  # key, its index in the layout, and where it lies
        for key in keys:
            first = key if isinstance(key, str) else key.parts[0].name
            i = index.get(f"grad/{first}", [-1])[0]
            if i < 0 or i in entry.absent:
                continue
            begin, end, itemsize = starts[i], starts[i] + layout.sizes[i], ITEMSIZE[layout.tensors[i].dtype]
            if not isinstance(key, str):
                begin += key.parts[0].begin * itemsize
                end = begin + key.elements * itemsize
            places.append((key, i, begin, end))
        first_byte = min((begin for _, _, begin, _ in places), default=0)
        last_byte = max((end for _, _, _, end in places), default=0)
        if last_byte - first_byte > self._memory.nbytes:
            self._memory = np.empty(last_byte - first_byte, np.uint8)
            self._views.clear()
        found: dict[Key, torch.Tensor] = {}
        for key, i, begin, end in places:
            spec = layout.tensors[i]
            if (begin - first_byte) % ITEMSIZE[spec.dtype]:  # after a tensor of another dtype
                return None
            data = self._memory[begin - first_byte : end - first_byte]
            found[key] = from_array(array_of(spec, data)) if isinstance(key, str) else _flat(data, spec.dtype)
        return _View(first_byte, last_byte, found)


def _flat(data: Bytes, dtype: str) -> torch.Tensor:
    return torch.frombuffer(data, dtype=DTYPES[dtype])


def _read_one_by_one(entry: StepEntry, span: Span) -> Gradients:
    names = [name[5:] for name in entry.tensor_names() if name.startswith("grad/")]
    there, found = set(names), dict[Key, torch.Tensor]()
    for key in names if span.keys is None else span.keys:
        gradient = _read_range(entry, key, there) if isinstance(key, Range) else _read(entry, key, there)
        if gradient is not None:
            found[key] = gradient
    return found


def _read(entry: StepEntry, name: str, there: set[str]) -> torch.Tensor | None:
    array = entry.read(f"grad/{name}") if name in there else None
    return None if array is None else from_array(array)


def _read_range(entry: StepEntry, range_: Range, there: set[str]) -> torch.Tensor | None:
    gradients = [_read(entry, part.name, there) for part in range_.parts]
    flat = [g.reshape(-1)[part.begin : part.end] for g, part in zip(gradients, range_.parts, strict=True) if g is not None]
    assert len(flat) in (0, len(gradients)), "the parameters of a range have gradients in the same steps"
    return torch.cat(flat) if flat else None


class Block(NamedTuple):
    """One span of the gradients of some steps.

    Attributes:
        first: position of the first step in the run.
        steps: number of steps.
        span: index of the span.
        gradients: of each step; None if it is a step of another optimizer.
    """

    first: int
    steps: int
    span: int
    gradients: list[Gradients | None]


class GradientBlocks:
    """The gradients of records, block after block, span after span; they are valid until the next ones are asked for.

    Use it as a context.

    Args:
        records: the records in order, with the names of their optimizers.
        spans: what is read at a time.
    """

    def __init__(self, records: Sequence[tuple[StepEntry, str]], spans: Sequence[Span]) -> None:
        self._records, self._spans = records, spans
        self._step_bytes = max(entry.raw_bytes for entry, _ in records)
        largest = max((span.nbytes for span in spans), default=0)
        most = _BLOCK_BYTES if largest <= _BLOCK_BYTES // 2 else _BLOCK_BYTES_MAX  # if it does not fit into a cache anyway
        self.steps = max(1, min(_BLOCK_STEPS_MAX, most // max(1, largest)))
        self._block_bytes = self.steps * largest
        self._ready: queue.SimpleQueue[Block | Exception | None] = queue.SimpleQueue()
        self._free = threading.Semaphore(2)
        self._is_stopped = False
        self._thread: threading.Thread | None = None  # None: read when asked

    def __enter__(self) -> GradientBlocks:
        has_core = len(os.sched_getaffinity(0)) > torch.get_num_threads()  # without a spare one it would stall the kernels
        if has_core and self._step_bytes >= _AHEAD_BYTES_MIN and self._block_bytes <= _AHEAD_BYTES_MAX:
            with suppress(LogUnavailable):  # no thread is to be had
                self._thread = start_thread("tranlogs-read", self._read_ahead)
        return self

    def __exit__(self, *_: object) -> None:
        self._is_stopped = True
        self._free.release()
        if self._thread is not None:
            self._thread.join()

    def __iter__(self) -> Iterator[Block]:
        """Yield blocks.

        Raises:
            CorruptRecord: a gradient is damaged. No earlier record of the block is.
        """
        if self._thread is None:
            yield from self._blocks([GradientMemory() for _ in range(self.steps)])
            return
        while (block := self._ready.get()) is not None:
            if isinstance(block, Exception):
                raise block
            yield block
            self._free.release()

    def _blocks(self, *memories: list[GradientMemory]) -> Iterator[Block]:
        """Read blocks into each of the memories in turn."""
        turns = itertools.cycle(memories)
        for first in range(0, len(self._records), self.steps):
            records = self._records[first : first + self.steps]
            for i, span in enumerate(self._spans):
                gradients: list[Gradients | None] = []
                for memory, (entry, which) in zip(next(turns), records, strict=False):
                    if self._is_stopped:
                        return
                    gradients.append(self._read(memory, entry, span, records) if which == span.which else None)
                yield Block(first, len(records), i, gradients)

    def _read(
        self, memory: GradientMemory, entry: StepEntry, span: Span, records: Sequence[tuple[StepEntry, str]]
    ) -> Gradients:
        try:
            return memory.read(entry, span)
        except CorruptRecord:
            for other, which in records:  # a span after this one may be damaged in an earlier step
                GradientMemory().read(other, Span(which, None, 0))
                if other is entry:
                    break
            raise

    def _read_ahead(self) -> None:
        try:
            blocks = self._blocks(*([GradientMemory() for _ in range(self.steps)] for _ in range(2)))
            self._free.acquire()
            for block in blocks:
                self._ready.put(block)
                self._free.acquire()
            self._ready.put(None)
        except Exception as error:
            self._ready.put(error)
