"""The plan by which tensors of one layout go through flat device memory into the pinned ring; see `staging`."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import torch

from tranlogs.base import config
from tranlogs.base.types import AnyArray, Array, Bytes, SparseArray, TensorSpec
from tranlogs.records import Layout, SparseForm

from ..device.gather import Form, Gather, TensorOffsets
from ..device.staging_ring import Region, Ring
from ..device.streams import Device, Event, Pair
from ..tensors.arrays import DTYPES, flat_bytes, to_array


@dataclass(frozen=True, slots=True)
class StagingLimits:
    """Sizes, in bytes, and the longest wait for space in the ring; see `staging` and config.py."""

    ring_bytes_min: int = config.RING_BYTES_MIN
    ring_bytes_max: int = config.RING_BYTES_MAX
    ring_seconds_max: float = config.RING_SECONDS_MAX
    transfer_bytes: int = config.TRANSFER_BYTES
    staged_bytes_min: int = config.STAGED_BYTES_MIN
    fetch_bytes: int = config.FETCH_BYTES

    def ring_bytes(self, nbytes: int) -> int:
        """Return the capacity of a ring for payloads of `nbytes`."""
        two = _power_of_two(max(2 * nbytes, self.ring_bytes_min, 64))
        return two if two <= self.ring_bytes_max else max(_power_of_two(nbytes), self.ring_bytes_max)

    def staged_bytes(self, nbytes: int, largest: int, free: int) -> int:
        """Return the size of each of the two flat buffers on a device.

        Args:
            nbytes: of the largest payload.
            largest: bytes of its largest tensor.
            free: bytes that are free on the device.
        """
        return min(nbytes, max(largest, self.staged_bytes_min, free // 4))


@dataclass(slots=True)
class StagingStatistics:
    """What staging did and holds.

    Attributes:
        payloads: staged so far.
        nbytes: of these payloads.
        waits: payloads for which training waited, because the ring was full.
        wait_seconds: how long it waited, in total.
        ring_bytes: pinned memory of the ring.
        device_bytes: memory of the flat buffers, by device.
    """

    payloads: int = 0
    nbytes: int = 0
    waits: int = 0
    wait_seconds: float = 0.0
    ring_bytes: int = 0
    device_bytes: dict[str, int] = field(default_factory=dict)


def _power_of_two(nbytes: int) -> int:
    return 1 << max(0, nbytes - 1).bit_length()


_log = logging.getLogger("tranlogs")

_ROUND_SLACK = 16  # bytes by which a round may begin before its first tensor


class PinnedRing(Ring):
    """A ring and its memory."""

    def __init__(self, capacity: int, pin: Callable[[int], torch.Tensor]) -> None:
        super().__init__(capacity)
        self.memory = pin(capacity)
        self.data = flat_bytes(self.memory)


class Lease:
    """A region of the ring for one payload. What was dropped without `release` is released when it is collected."""

    __slots__ = ("_is_released", "_ring", "events", "region")

    def __init__(self, ring: PinnedRing, region: Region) -> None:
        self._ring, self.region = ring, region
        self.events: list[Event] = []  # one after each transfer, in order
        self._is_released = False

    @property
    def ring(self) -> PinnedRing:
        """Return the ring with the region's memory."""
        return self._ring

    def wait(self) -> None:
        """Block until the transfers are done, one after the other.

        Raises:
            RuntimeError: the device failed.
        """
        events, self.events = self.events, []
        for event in events:
            event.synchronize()

    def release(self) -> None:
        """Give the region back, after the transfers that still write to it."""
        if self._is_released:
            return
        self._is_released = True
        try:
            self.wait()
        except RuntimeError as error:  # the device writes nothing more; training sees the same error
            _log.debug("transfers of a payload that was dropped: %s", error)
        finally:
            self._ring.release(self.region)

    def __del__(self) -> None:
        self.release()


class _Buffer:
    """One of a lane's flat buffers."""

    __slots__ = ("flat", "read")

    def __init__(self, flat: torch.Tensor) -> None:
        self.flat = flat
        self.read: Event | None = None  # the end of the last transfer out of it


class Lane:
    """The way from one device to the host: its streams, and two flat buffers used in turns.

    Attributes:
        device: the streams.
        nbytes: of each buffer.
        buffers: both; none before the first payload.
    """

    def __init__(self, device: Device) -> None:
        self.device = device
        self.nbytes = 0
        self.buffers: list[_Buffer] = []
        self._turn = 0

    def reserve(self, nbytes: int, largest: int, limits: StagingLimits) -> None:
        """Make the buffers larger if a payload needs it and the device has the memory."""
        if nbytes + _ROUND_SLACK <= self.nbytes:
            return
        wanted = limits.staged_bytes(nbytes, largest, self.device.free_bytes()) + _ROUND_SLACK
        if wanted > self.nbytes:
            self.buffers = []  # their memory may serve for the larger ones
            self.nbytes = 0
            self.buffers = [_Buffer(self.device.allocate(wanted)) for _ in range(2)]
            self.nbytes = wanted

    def next(self) -> int:
        """Return the index of the buffer that is the next to be filled."""
        self._turn = 1 - self._turn
        return self._turn


class _Round(NamedTuple):
    """A part of a payload that goes through a flat buffer at once."""

    tensors: list[int]  # indices in the list of staged tensors; all of them if there is one round
    gathers: tuple[Gather, Gather]  # into either buffer
    start: int  # the first byte of the payload that it brings, and the offset in the buffers that it has there
    stop: int
    base: int


class StagingPlan:
    """How the tensors of one layout, with some absent, are staged.

    Attributes:
        device: of the staged tensors.
        lane: their way to the host; None if no tensor is staged.
        places: of the staged tensors in flat memory, and likewise in the ring.
    """

    def __init__(
        self,
        layout: Layout,
        tensors: Sequence[torch.Tensor],
        absent: frozenset[int],
        device: torch.device | None,
        lane: Lane | None,
    ) -> None:
        self._absent, self.device, self.lane = absent, device, lane
        self._indices = [i for i in range(len(layout)) if i not in absent]
        if len(tensors) != len(self._indices):
            raise ValueError(f"got {len(tensors)} tensors for a layout of {len(layout)}, of which {len(absent)} are absent")
        self._shapes = [tensor.shape for tensor in tensors]
        self._dtypes = [tensor.dtype for tensor in tensors]
        self._layouts = [tensor.layout for tensor in tensors]
        self._specs = [layout.tensors[i] for i in self._indices]
        for spec, tensor in zip(self._specs, tensors, strict=True):
            _demand_fit(spec, tensor)
        self._staged = [
            k
            for k, tensor in enumerate(tensors)
            if lane is not None and tensor.layout is torch.strided and tensor.device == device
        ]
        self.places = TensorOffsets([_form(self._specs[k]) for k in self._staged])
        self._parts = self._divide()
        self._buffers: list[_Buffer] = []  # those that the rounds are planned for
        self._rounds: list[_Round] = []

    def fits(self, tensors: Sequence[torch.Tensor]) -> bool:
        """Return whether tensors have the forms that were planned for."""
        return (
            [tensor.shape for tensor in tensors] == self._shapes
            and [tensor.dtype for tensor in tensors] == self._dtypes
            and [tensor.layout for tensor in tensors] == self._layouts
        )

    def _divide(self) -> list[tuple[int, int] | int]:
        """Return the payload as ranges of the flat memory, and indices of tensors that are not in it."""
        places = {k: i for i, k in enumerate(self._staged)}
        found: list[tuple[int, int] | int] = []
        for k in range(len(self._specs)):
            if k not in places:
                found.append(k)
                continue
            start, stop = self.places.starts[places[k]], self.places.stop(places[k])
            last = found[-1] if found else None
            if isinstance(last, tuple) and last[1] == start:
                found[-1] = (last[0], stop)
            elif stop > start:
                found.append((start, stop))
        return found

    def start(self, tensors: Sequence[torch.Tensor], lease: Lease, limits: StagingLimits) -> None:
        """Enqueue copies and transfers of the staged tensors."""
        lane = self.lane
        assert lane is not None
        staged = tensors if len(self._staged) == len(tensors) else [tensors[k] for k in self._staged]
        self._bind(lane, staged, limits)
        device, training = lane.device, lane.device.training()
        for turn in self._rounds:
            which = lane.next()
            buffer = lane.buffers[which]
            if buffer.read is not None:
                training.wait_event(buffer.read)
            sources = staged if len(self._rounds) == 1 else [staged[i] for i in turn.tensors]
            device.run(training, turn.gathers[which].bound(sources))
            device.side.wait_event(device.record(training))
            events = device.transfer(device.side, _pieces(turn, buffer.flat, lease, limits.transfer_bytes))
            lease.events += events
            buffer.read = events[-1] if events else buffer.read

    def _bind(self, lane: Lane, sources: Sequence[torch.Tensor], limits: StagingLimits) -> None:
        """Plan the rounds for the lane's buffers."""
        if self._buffers and self._buffers is lane.buffers:
            return
        largest = max((form.nbytes for form in self.places.forms), default=0)
        lane.reserve(self.places.nbytes, largest, limits)
        places = self.places
        self._rounds = []
        for run in places.rounds(lane.nbytes):
            base = places.base(run.start)
            first, second = (
                Gather([places.view(buffer.flat, i, base) for i in run], [sources[i] for i in run]) for buffer in lane.buffers
            )
            self._rounds.append(_Round(list(run), (first, second), places.starts[run.start], places.stop(run[-1]), base))
        self._buffers = lane.buffers

    def near_bytes(
        self, tensors: Sequence[torch.Tensor], ring: PinnedRing | None, region: Region | None
    ) -> tuple[list[Bytes], frozenset[int], dict[int, SparseForm]]:
        """Return the payload's buffers (views of the ring, and copies of what is not staged), absent and sparse tensors."""
        buffers: list[Bytes] = []
        sparse: dict[int, SparseForm] = {}
        for part in self._parts:
            if isinstance(part, tuple):
                assert ring is not None
                assert region is not None
                buffers += [ring.data[a:b] for a, b in ring.extents(region, *part)]
                continue
            content = _copied(self._specs[part], tensors[part])
            if isinstance(content, SparseArray):
                form = SparseForm(content.indices.shape[0], content.values.shape[0], content.is_coalesced)
                sparse[self._indices[part]] = form
                buffers += [content.indices.data, content.values.data]
            else:
                buffers.append(content.data)
        return [buffer for buffer in buffers if buffer.nbytes], self._absent, sparse


def _pieces(turn: _Round, flat: torch.Tensor, lease: Lease, nbytes_max: int) -> list[Pair]:
    """Return the transfers of a round: pairs of a part of the ring and a part of the flat memory."""
    ring, pairs = lease.ring, []
    for start in range(turn.start, turn.stop, nbytes_max):
        at = start - turn.base
        for first, last in ring.extents(lease.region, start, min(start + nbytes_max, turn.stop)):
            pairs.append((ring.memory[first:last], flat[at : at + last - first]))
            at += last - first
    return pairs


def _form(spec: TensorSpec) -> Form:
    """Return how a dense tensor lies in a payload. The strides of a flat piece are those of the whole."""
    is_flat = spec.piece is not None and spec.piece.kind == "flat"
    return Form(DTYPES[spec.dtype], spec.local_shape, None if is_flat else spec.strides)


def _demand_fit(spec: TensorSpec, tensor: torch.Tensor) -> None:
    shape = spec.shape if tensor.layout is torch.sparse_coo else spec.local_shape
    if tuple(tensor.shape) != shape or tensor.dtype is not DTYPES.get(spec.dtype):
        raise ValueError(
            f"{spec.name} is {spec.dtype}{list(shape)} in the layout, but the tensor is {tensor.dtype}{list(tensor.shape)}"
        )


def _copied(spec: TensorSpec, tensor: torch.Tensor) -> AnyArray:
    """Return a copy of a tensor that is not staged, laid out as the layout says."""
    if tensor.layout is torch.sparse_coo:
        content = to_array(tensor)
        assert isinstance(content, SparseArray)
        content.indices.data, content.values.data = content.indices.data.copy(), content.values.data.copy()
        return content
    form = _form(spec)
    data = np.empty(form.nbytes, np.uint8)
    if form.nbytes:
        TensorOffsets([form]).view(torch.from_numpy(data), 0).copy_(tensor.detach())
    return Array(spec.dtype, form.shape, data, form.strides)
