"""The gradients of logged steps, read back: one contiguous read a step, and tensors over the memory that it fills.

Memory is taken once and used again, block after block of steps. Where a core is to spare a thread reads the next block while
the optimizer works on the one before.
"""

from __future__ import annotations

import itertools
import os
import queue
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress

import numpy as np
import torch

from tranlogs.base.errors import LogUnavailable
from tranlogs.base.threads import start_thread
from tranlogs.base.types import ITEMSIZE, Bytes
from tranlogs.ranks import JoinedEntry
from tranlogs.records import Entry, Layout, array_of

from ..tensors.arrays import from_array

_BLOCK_BYTES = 64 << 20  # gradients that are held at a time, twice where they are read ahead
_BLOCK_STEPS_MAX = 32
_AHEAD_BYTES_MIN = 1 << 18  # of a step; to hand over less costs more than to read it
_AHEAD_BYTES_MAX = 64 << 20  # of a step; memory for several larger ones is not taken
_VIEWS_MAX = 8  # combinations of layout and absent tensors for which views are kept

Gradients = Mapping[str, torch.Tensor]  # by name of the parameter; those that are absent are not in it


class GradientMemory:
    """Memory for the gradients of one step, and tensors over it, which are made once for each form of record."""

    def __init__(self) -> None:
        self._memory: Bytes = np.empty(0, np.uint8)
        self._views: dict[tuple[Layout, frozenset[int]], Gradients | None] = {}  # None: these are read one by one

    def read(self, entry: Entry) -> Gradients:
        """Return a step's gradients. The next call may overwrite them.

        Raises:
            CorruptRecord: one of them is damaged.
        """
        if entry.sparse or isinstance(entry, JoinedEntry):
            return _read_one_by_one(entry)
        if entry.raw_bytes > self._memory.nbytes:
            self._memory = np.empty(entry.raw_bytes, np.uint8)
            self._views.clear()
        form = entry.layout, entry.absent
        if form not in self._views:
            if len(self._views) >= _VIEWS_MAX:
                self._views.clear()
            self._views[form] = self._over(entry)
        found = self._views[form]
        if found is None:
            return _read_one_by_one(entry)
        entry.read_all(self._memory)
        return found

    def _over(self, entry: Entry) -> Gradients | None:
        """Return tensors over the memory; None where they do not lie in it as torch wants them."""
        layout, found = entry.layout, {}
        if len(layout.index) < len(layout):  # several ranges of a tensor
            return None
        for i, (spec, start, size) in enumerate(zip(layout.tensors, entry.starts(), layout.sizes, strict=True)):
            if start % ITEMSIZE[spec.dtype]:  # behind a tensor of another dtype
                return None
            kind, _, name = spec.name.partition("/")
            if kind == "grad" and i not in entry.absent:
                found[name] = from_array(array_of(spec, self._memory[start : start + size]))
        return found


def _read_one_by_one(entry: Entry) -> Gradients:
    found = {}
    for name in entry.tensor_names():
        kind, _, rest = name.partition("/")
        if kind == "grad" and (array := entry.read(name)) is not None:
            found[rest] = from_array(array)
    return found


class GradientBlocks:
    """The gradients of records in order, some steps at a time; a block is valid until the next one is asked for.

    Use it as a context.
    """

    def __init__(self, entries: Sequence[Entry]) -> None:
        self._entries = entries
        self._step_bytes = max(entry.raw_bytes for entry in entries)
        self.steps = max(1, min(_BLOCK_STEPS_MAX, _BLOCK_BYTES // max(1, self._step_bytes)))
        self._ready: queue.SimpleQueue[list[Gradients] | Exception | None] = queue.SimpleQueue()
        self._free = threading.Semaphore(2)
        self._is_stopped = False
        self._thread: threading.Thread | None = None  # None: read when asked

    def __enter__(self) -> GradientBlocks:
        has_core = len(os.sched_getaffinity(0)) > torch.get_num_threads()  # without a spare one it would stall the kernels
        if has_core and _AHEAD_BYTES_MIN <= self._step_bytes <= _AHEAD_BYTES_MAX:
            with suppress(LogUnavailable):  # no thread is to be had
                self._thread = start_thread("tranlogs-read", self._read_ahead)
        return self

    def __exit__(self, *_: object) -> None:
        self._is_stopped = True
        self._free.release()
        if self._thread is not None:
            self._thread.join()

    def __iter__(self) -> Iterator[list[Gradients]]:
        """Yield blocks.

        Raises:
            CorruptRecord: a gradient is damaged.
        """
        if self._thread is None:
            yield from self._blocks([GradientMemory() for _ in range(self.steps)])
            return
        while (block := self._ready.get()) is not None:
            if isinstance(block, Exception):
                raise block
            yield block
            self._free.release()

    def _blocks(self, *memories: list[GradientMemory]) -> Iterator[list[Gradients]]:
        """Read blocks into each of the memories in turn."""
        turns = itertools.cycle(memories)
        for first in range(0, len(self._entries), self.steps):
            block = []
            for memory, entry in zip(next(turns), self._entries[first : first + self.steps], strict=False):
                if self._is_stopped:
                    return
                block.append(memory.read(entry))
            yield block

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
