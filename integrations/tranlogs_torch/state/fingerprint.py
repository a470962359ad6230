"""The memory of the parameters, as their fingerprint looks at it."""

from __future__ import annotations

from collections.abc import Sequence
from operator import attrgetter

import numpy as np
import torch
import xxhash

from tranlogs.base.types import Array, Bytes
from tranlogs.training import Digests, Mode, digest_of, some_bytes
from tranlogs.training import Fingerprint as BaseFingerprint

from ..device.digests import DeviceDigests
from ..tensors.arrays import is_dtensor, local, memory_order, to_array

__all__ = ["Digests", "Fingerprint", "Mode", "memory_of", "version_of"]


class Fingerprint(BaseFingerprint):
    """Digests over a fixed list of parameters."""

    def __init__(self, tensors: Sequence[torch.Tensor], mode: Mode = "auto") -> None:
        self.tensors = list(tensors)
        self.on_cpu = all(t.device.type == "cpu" for t in self.tensors)
        super().__init__(self.memory, len(self.tensors), mode)
        if not self.on_cpu and self.kind == "full":  # the bytes stay where they are, and 8 of each tensor come
            self.kind = "device"
        self._device = DeviceDigests()
        self._is_plain = not any(map(is_dtensor, self.tensors))
        self._pointers: list[int] = []
        self._views: list[Bytes] = []
        self._buffers: list[memoryview] = []  # of the views: a digest of one takes half the time
        self.sizes = [local(t).nbytes for t in self.tensors]

    @property
    def nbytes(self) -> int:
        return sum(self.sizes)

    def _local(self) -> list[torch.Tensor]:
        return list(map(local, self.tensors))

    def memory(self) -> list[Bytes]:
        """Return each tensor's bytes in the order of memory: kept views while the tensors stay where they are."""
        tensors = self.tensors if self._is_plain else self._local()
        if not self.on_cpu:
            return [memory_of(t) for t in tensors]
        pointers, sizes = list(map(torch.Tensor.data_ptr, tensors)), list(map(_get_nbytes, tensors))
        if pointers != self._pointers or sizes != self.sizes:
            self.sizes = sizes
            self._views = [memory_of(t) for t in tensors]
            is_kept = all(view.ctypes.data == pointer for view, pointer in zip(self._views, pointers, strict=True) if view.size)
            self._pointers = pointers if is_kept else []
            self._buffers = [view.data for view in self._views]
        return self._views

    def whole(self, kind: str) -> Digests:
        if kind == "device":
            return self._device.digests([t.data for t in self._local()])
        views = self.memory()
        buffers = self._buffers if self.on_cpu else [view.data for view in views]
        return np.array(list(map(xxhash.xxh3_64_intdigest, buffers)), np.uint64)

    def one(self, index: int) -> int:
        """Return the digest of all bytes of one tensor, without a look at where the others lie."""
        tensor = local(self.tensors[index])
        if len(self._pointers) == self.count and tensor.data_ptr() == self._pointers[index]:
            return digest_of(self._views[index])
        return super().one(index)

    def trace(self) -> list[int]:
        """Return what most writes change: where each tensor lies, its version counter, and its order in memory."""
        tensors = self.tensors if self._is_plain else self._local()
        pointers, orders = map(torch.Tensor.data_ptr, tensors), map(torch.Tensor.is_contiguous, tensors)
        try:
            return [*pointers, *map(_get_version, tensors), *orders]
        except RuntimeError:  # one was made in inference mode
            return [*map(torch.Tensor.data_ptr, tensors), *versions(tensors), *orders]

    def sampled(self, indices: Sequence[int], step: int) -> Digests:
        if self.on_cpu:
            return super().sampled(indices, step)
        tensors = self._local()
        flat = (memory_order(tensors[i].data).reshape(-1).view(torch.uint8) for i in indices)
        parts = [some_bytes(bytes_, step, self._sample_bytes) for bytes_ in flat]
        coordinator = torch.cat(parts).cpu().numpy()  # one transfer for all
        ends = np.cumsum([part.numel() for part in parts])
        return np.array([digest_of(piece) for piece in np.split(coordinator, ends[:-1])], np.uint64)


_get_version, _get_nbytes = attrgetter("_version"), attrgetter("nbytes")


def version_of(tensor: torch.Tensor) -> int:
    """Return the tensor's version counter; one that was made in inference mode has none."""
    tensor = local(tensor)
    return 0 if tensor.is_inference() else tensor._version


def versions(tensors: Sequence[torch.Tensor]) -> list[int]:
    """Return the version counters of tensors that are all of this process."""
    try:
        return list(map(_get_version, tensors))
    except RuntimeError:  # one was made in inference mode
        return [0 if t.is_inference() else t._version for t in tensors]


def memory_of(tensor: torch.Tensor) -> Bytes:
    """Return a tensor's bytes in the order of memory; a view of what it holds now where that lies dense on the CPU."""
    array = to_array(local(tensor).data)
    assert isinstance(array, Array)
    return array.data
