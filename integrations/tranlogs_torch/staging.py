"""Gradients on their way from a GPU: into pinned memory, on a stream of their own.

The training thread only starts the copies. What its stream does next (the step may write to its gradients) waits on the
device until they are made; the host goes on. The log's writer thread waits for them before it looks.

The ring of pinned buffers is that of torch's caching host allocator: it keeps what it has pinned, and hands a buffer out
again only when nobody holds it and no copy into it is under way. How many there are at most is what the log's bounded
queue holds.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence

import torch

from tranlogs.types import AnyArray, Array, Staged

from .adapt import to_array


class Staging:
    """See the module."""

    def __init__(self) -> None:
        self._streams: dict[torch.device, torch.cuda.Stream] = {}

    def bring(self, tensors: Sequence[torch.Tensor]) -> list[AnyArray]:
        """Start to copy tensors to the host; those that are there already, and sparse ones, are brought at once."""
        found: dict[int, AnyArray] = {}
        staged: defaultdict[torch.device, list[int]] = defaultdict(list)
        for i, tensor in enumerate(tensors):
            if self.is_far(tensor):
                staged[tensor.device].append(i)
            else:
                found[i] = to_array(tensor)
        for device, indices in staged.items():
            hosts, arrived = self.copy(device, [tensors[i].detach().resolve_conj().resolve_neg() for i in indices])
            found |= {i: _staged(host, arrived) for i, host in zip(indices, hosts, strict=True)}
        return [found[i] for i in range(len(tensors))]

    def is_far(self, tensor: torch.Tensor) -> bool:
        """Whether a tensor lies where copies take their time."""
        return tensor.is_cuda and tensor.layout is torch.strided

    def copy(self, device: torch.device, tensors: Sequence[torch.Tensor]) -> tuple[list[torch.Tensor], Callable[[], None]]:
        """Start copies of one device's tensors: dense ones in the memory of the host, and what waits for them."""
        side, training = self._stream(device), torch.cuda.current_stream(device)
        side.wait_stream(training)  # the gradients are being computed
        hosts = []
        with torch.cuda.stream(side):
            for tensor in tensors:
                host = torch.empty_like(tensor, device="cpu", pin_memory=True)
                hosts.append(host.copy_(tensor, non_blocking=True))
                tensor.record_stream(side)  # freed before the copy is made, its memory must not be given to others
            made = torch.cuda.Event(blocking=True)  # who waits for it sleeps
            made.record(side)
        training.wait_event(made)
        return hosts, made.synchronize

    def _stream(self, device: torch.device) -> torch.cuda.Stream:
        if device not in self._streams:
            self._streams[device] = torch.cuda.Stream(device)
        return self._streams[device]


def _staged(host: torch.Tensor, arrived: Callable[[], None]) -> Staged:
    array = to_array(host)
    assert isinstance(array, Array)
    assert host.numel() == 0 or array.data.ctypes.data == host.data_ptr(), "it was read before it came"
    return Staged(array.dtype, array.shape, array.data, array.strides, arrived=arrived)
