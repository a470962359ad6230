"""The gradients of logged steps, read back: one contiguous read a step, and tensors over the memory that it fills.

Memory is taken once and used again. Where a core is to spare, a thread reads the next step while the optimizer takes this one.
For parameters on a GPU the memory is pinned, so that the copies to the device need not be waited for one by one.
"""

from __future__ import annotations

import itertools
import os
import queue
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from contextlib import suppress

import numpy as np
import torch

from tranlogs.base.errors import LogUnavailable
from tranlogs.base.threads import start_thread
from tranlogs.base.types import ITEMSIZE, Bytes
from tranlogs.ranks import JoinedRecord, StepRecord
from tranlogs.records import Layout, Record, array_of

from ..capture.reduced_gradients import widen
from ..device.gather import Form, TensorOffsets
from ..tensors.arrays import from_array

_AHEAD_BYTES_MIN = 1 << 18  # of a step; to hand over less costs more than to read it
_AHEAD_BYTES_MAX = 1 << 30  # of a step; memory for a second one is not taken if it is larger
_VIEWS_MAX = 256  # combinations of layout and absent tensors for which tensors are kept


class Gradients(dict[str, torch.Tensor]):
    """Gradients by name of the parameter. Those that are absent are not in it.

    Attributes:
        memory: in which they lie; empty if each has memory of its own.
    """

    memory: Bytes = np.empty(0, np.uint8)


_View = tuple[int, int, Callable[[], Gradients]]  # the range of the payload, and what makes gradients of its bytes
_PREFIXES = ("grad/", "bf16/", "int8/", "scale/")


class GradientMemory:
    """Memory for the gradients of one step, and tensors over it, which are made once for each form of record.

    Args:
        is_pinned: whether a GPU copies from it.
    """

    def __init__(self, *, is_pinned: bool) -> None:
        self._is_pinned = is_pinned
        self._memory: Bytes = np.empty(0, np.uint8)
        self._views: dict[tuple[Layout, frozenset[int]], _View | None] = {}  # None: read one by one
        self._newest: tuple[Layout | None, frozenset[int], _View | None] = None, frozenset(), None

    def read(self, entry: StepRecord) -> Gradients:
        """Return a step's gradients. The next call may overwrite them.

        Raises:
            CorruptRecord: one of them is damaged.
        """
        if isinstance(entry, JoinedRecord) or entry.sparse:
            return _read_one_by_one(entry)
        if entry.layout is self._newest[0] and entry.absent == self._newest[1]:  # one layout is one object in each segment
            view = self._newest[2]
        else:
            form = entry.layout, entry.absent
            if form not in self._views:
                if len(self._views) >= _VIEWS_MAX:
                    self._views.clear()
                self._views[form] = self._over(entry)
            view = self._views[form]
            self._newest = *form, view
        if view is None:
            return _read_one_by_one(entry)
        begin, end, make_gradients = view
        entry.read_range(begin, self._memory[: end - begin], "")
        return make_gradients()

    def _over(self, entry: Record) -> _View | None:
        """Return the range of the payload, and tensors over the memory; None where torch cannot have them so."""
        layout, starts = entry.layout, entry.starts()
        if len(layout.index) < len(layout):  # several ranges of a tensor
            return None
        there = [i for i, name in enumerate(layout.names) if name.startswith(_PREFIXES) and i not in entry.absent]
        begin = min((starts[i] for i in there), default=0)
        end = max((starts[i] + layout.sizes[i] for i in there), default=0)
        if any((starts[i] - begin) % ITEMSIZE[layout.tensors[i].dtype] for i in there):  # after a tensor of another dtype
            return None
        if end - begin > self._memory.nbytes:
            self._memory = self._allocate(end - begin)
            self._views.clear()
        places = {i: starts[i] - begin for i in there}
        logged = {
            layout.names[i]: from_array(array_of(layout.tensors[i], self._memory[at : at + layout.sizes[i]]))
            for i, at in places.items()
        }
        if any(not name.startswith("grad/") for name in logged):
            return begin, end, Widened(logged, self._allocate).gradients
        gradients = Gradients((name[5:], tensor) for name, tensor in logged.items())
        gradients.memory = self._memory[: end - begin]
        return begin, end, lambda: gradients

    def _allocate(self, nbytes: int) -> Bytes:
        if self._is_pinned:
            with suppress(RuntimeError):  # there is less memory that may be pinned
                return torch.empty(nbytes, dtype=torch.uint8, pin_memory=True).numpy()
        return np.empty(nbytes, np.uint8)


class Widened:
    """Gradients that were logged in fewer bytes (`capture/reduced_gradients.py`), in memory of their own.

    Args:
        logged: tensors of the record, by name.
        allocate: returns memory of so many bytes.
    """

    def __init__(self, logged: Mapping[str, torch.Tensor], allocate: Callable[[int], Bytes]) -> None:
        self._logged = logged
        self._gradients = Gradients((name[5:], tensor) for name, tensor in logged.items() if name.startswith("grad/"))
        reduced = {name[5:]: tensor for name, tensor in logged.items() if name.startswith(("bf16/", "int8/"))}
        offsets = TensorOffsets([Form(torch.float32, tuple(t.shape), tuple(t.stride())) for t in reduced.values()])
        self._gradients.memory = allocate(offsets.nbytes)
        flat = torch.from_numpy(self._gradients.memory)
        self._wide = {name: offsets.view(flat, k) for k, name in enumerate(reduced)}
        self._gradients.update(self._wide)

    def gradients(self) -> Gradients:
        """Return the gradients of the bytes that the tensors have now."""
        for name, tensor in self._wide.items():
            widen(name, self._logged, tensor)
        return self._gradients


def _read_one_by_one(entry: StepRecord) -> Gradients:
    names = [name for name in entry.tensor_names() if name.startswith(_PREFIXES)]
    logged = {name: from_array(array) for name in names if (array := entry.read(name)) is not None}
    return Widened(logged, lambda nbytes: np.empty(nbytes, np.uint8)).gradients()


class GradientReader:
    """Reads the gradients of records in order. Use it as a context.

    Args:
        entries: the records, in the order in which they will be asked for.
        devices: those of the parameters.
    """

    def __init__(self, entries: Sequence[StepRecord], devices: Set[torch.device]) -> None:
        self._entries = entries
        self._gpus = [device for device in devices if device.type == "cuda"]
        nbytes = max((entry.raw_bytes for entry in entries), default=0)
        # Without a spare core a second thread would stall the kernels.
        busy = torch.get_num_threads() if any(device.type == "cpu" for device in devices) else 1
        self._is_ahead = len(os.sched_getaffinity(0)) > busy and _AHEAD_BYTES_MIN <= nbytes <= _AHEAD_BYTES_MAX
        self._memory = GradientMemory(is_pinned=bool(self._gpus))
        self._ready: queue.SimpleQueue[Gradients | Exception] = queue.SimpleQueue()
        self._free = threading.Semaphore(2)  # one for each memory that the optimizer does not use
        self._is_stopped = False
        self._thread: threading.Thread | None = None  # None: a step is read when it is asked for
        self._is_first = True

    def __enter__(self) -> GradientReader:
        if self._is_ahead:
            with suppress(LogUnavailable):  # no thread is to be had
                self._thread = start_thread("tranlogs-read", self._read_ahead)
        return self

    def __exit__(self, *_: object) -> None:
        self._is_stopped = True
        self._free.release()
        if self._thread is not None:
            self._thread.join()
        self._wait_for_copies()

    def read(self, entry: StepRecord) -> Gradients:
        """Return the gradients of the next record. The next call may overwrite them.

        Raises:
            CorruptRecord: one of them is damaged.
        """
        self._wait_for_copies()
        if self._thread is None:
            return self._memory.read(entry)
        if not self._is_first:
            self._free.release()
        self._is_first = False
        found = self._ready.get()
        if isinstance(found, Exception):
            raise found
        return found

    def _wait_for_copies(self) -> None:
        for device in self._gpus:
            torch.cuda.current_stream(device).synchronize()

    def _read_ahead(self) -> None:
        try:
            for gradients in self._all():
                self._ready.put(gradients)
        except Exception as error:
            self._ready.put(error)

    def _all(self) -> Iterator[Gradients]:
        memories = itertools.cycle([self._memory, GradientMemory(is_pinned=bool(self._gpus))])
        for entry, memory in zip(self._entries, memories, strict=False):
            self._free.acquire()
            if self._is_stopped:
                return
            yield memory.read(entry)
