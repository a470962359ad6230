"""The least that a log of gradients costs on this machine, whatever program writes it: the floor of the figures.

Each step's gradients are hashed and written to a file whose blocks and pages are there already, in a thread while the optimizer
steps if they are a megabyte or more; then the parameters are hashed, and half a kilobyte is written that describes the step. A
second thread flushes the file every 10 ms. There is no search for writes that no step made, no position in the data, no
random state, no index, no chain, no checkpoint: nothing can be recovered from it.
"""

from __future__ import annotations

import os
import threading
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import xxhash

if TYPE_CHECKING:
    import torch

_SMALL_BYTES = 1 << 16  # Gradients of fewer bytes are copied into one buffer: the kernel is slow with many.
_INLINE_BYTES = 1 << 20  # So many bytes are written on the training thread: waking another takes longer.
_FLUSH_SECONDS = 0.010
_DESCRIPTION = bytes(512)
_BUFFERS_MAX = 512  # in one system call


class FloorFile:
    """A file that is filled once, and which a thread flushes. It is written from the start again when it is full."""

    def __init__(self, path: Path, nbytes: int) -> None:
        self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC)
        for at in range(0, nbytes, 1 << 20):
            os.pwrite(self._fd, bytes(min(1 << 20, nbytes - at)), at)
        os.fdatasync(self._fd)
        self._nbytes, self._at = nbytes, 0
        self._pool = ThreadPoolExecutor(1)
        self._job: Future[None] | None = None
        self._is_over = threading.Event()
        self._flusher = threading.Thread(target=self._flush, daemon=True)
        self._flusher.start()

    def begin(self, views: list[memoryview]) -> None:
        """Hash and write what a step consumes; a megabyte or more in a thread."""
        small = b"".join([view for view in views if view.nbytes < _SMALL_BYTES])
        buffers = [small, *(view for view in views if view.nbytes >= _SMALL_BYTES)]
        total = sum(map(len, buffers))
        if self._at + total + len(_DESCRIPTION) > self._nbytes:
            self._at = 0
        if total >= _INLINE_BYTES:
            self._job = self._pool.submit(self._write, buffers, self._at)
        else:
            self._write(buffers, self._at)
        self._at += total

    def wait(self) -> None:
        """Wait until it is written."""
        if self._job is not None:
            self._job.result()
            self._job = None

    def finish(self, views: list[memoryview]) -> None:
        """Hash what a step has written, and write a description of the step."""
        for view in views:
            xxhash.xxh3_64_intdigest(view)
        self._at += os.pwrite(self._fd, _DESCRIPTION, self._at)

    def settle(self) -> None:
        """Wait until everything is on the disk."""
        os.fdatasync(self._fd)

    def close(self) -> None:
        """End the threads."""
        self.wait()
        self._is_over.set()
        self._flusher.join()
        self._pool.shutdown()
        os.close(self._fd)

    def _write(self, buffers: list[Any], at: int) -> None:
        for buffer in buffers:
            xxhash.xxh3_64_intdigest(buffer)
        for first in range(0, len(buffers), _BUFFERS_MAX):
            at += os.pwritev(self._fd, buffers[first : first + _BUFFERS_MAX], at)

    def _flush(self) -> None:
        while not self._is_over.wait(_FLUSH_SECONDS):
            os.fdatasync(self._fd)


class FloorLog(FloorFile):
    """Writes what the steps of PyTorch's optimizers consume, and hashes what they write, by hooks."""

    def __init__(self, path: Path, optimizers: list[torch.optim.Optimizer], nbytes: int) -> None:
        super().__init__(path, nbytes)
        for optimizer in optimizers:
            optimizer.register_step_pre_hook(self.before)
            optimizer.register_step_post_hook(self.after)

    def before(self, optimizer: Any, *_: Any) -> None:
        """Write the gradients, unless a closure that is given to `step` is still to compute them: then it calls this again."""
        parameters = [p for group in optimizer.param_groups for p in group["params"] if p.grad is not None]
        if parameters:
            self.begin([_bytes_of(p.grad) for p in parameters])

    def after(self, optimizer: Any, *_: Any) -> None:
        """Hash the parameters."""
        self.wait()
        self.finish([_bytes_of(p) for group in optimizer.param_groups for p in group["params"]])


def _bytes_of(tensor: Any) -> memoryview:
    view: memoryview = tensor.detach().numpy().reshape(-1).view(np.uint8).data
    return view
