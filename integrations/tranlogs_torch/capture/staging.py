"""Staging: gradients and after-images on their way from a GPU to the log, while training goes on.

For each record, in this order:

1. Training's stream copies all tensors into one flat piece of device memory, by one multi-tensor copy for each dtype. What
   that stream does next may overwrite them: the host waits for nothing, the device for one copy within its own memory.
2. A side stream transfers the flat memory to the host in pieces of at most `TRANSFER_BYTES`, with an event after each.
3. The log's writer thread waits for the events (`Payload.wait`), writes, and gives the space back (`Payload.release`).

Memory on the host: one ring, pinned once. It has the smallest power of two (torch's pinned allocator rounds up to one) that
holds two of the largest payload, from `RING_BYTES_MIN` to `RING_BYTES_MAX`; where even one payload is larger than
`RING_BYTES_MAX`, the smallest that holds one, because a payload must be whole before its record is written. When a larger
payload comes, the ring is replaced by a larger one, once; the old one is freed when its last payload was released.
A full ring makes the training thread wait for the writer. Such waits are counted; after `RING_SECONDS_MAX` the wait ends with
`LogUnavailable`, so that a disk which hangs suspends logging, not training.

Memory on the device: two flat buffers, used in turns, so that the copy of one step need not wait for the transfers of the
step before. Each has the size of the largest payload where both together take at most half of the memory that is free on the
device, else less, but room for the largest tensor. A payload that is larger than a buffer goes through them in rounds, between
which the device (not the host) waits for the transfers. The copy of a step waits, on the device too, for the transfers out of
the buffer that it overwrites.

Tensors on the CPU, on another device and sparse ones are copied to the host at once.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import torch

from tranlogs.base import config
from tranlogs.base.errors import LogUnavailable
from tranlogs.base.types import AnyArray, Array, Bytes, DeviceArray, SparseArray, TensorSpec
from tranlogs.records import Layout, Payload, SparseForm
from tranlogs.records import spec_of as array_spec_of

from ..device.fetch import Window
from ..device.gather import Form, Gather, Places
from ..device.ring import Region, Ring
from ..device.streams import Device, Devices, Event, Pair, cuda_device
from ..tensors.arrays import DTYPES, flat_bytes, from_array, spec_of, to_array
from ..tensors.placement import local

_log = logging.getLogger("tranlogs")

_PLANS_MAX = 64  # that are kept; which gradients are absent may differ from step to step
_ROUND_SLACK = 16  # bytes by which a round may begin before its first tensor


@dataclass(frozen=True, slots=True)
class StagingLimits:
    """Sizes, in bytes, and the longest wait for space in the ring; see the module and config.py."""

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


class Staging:
    """Brings tensors from a device to the log. For the training thread; payloads are waited for and released in any.

    Args:
        devices: gives the streams of a device; None for one whose memory the host reads.
        limits: sizes.

    Attributes:
        statistics: what it did and holds.
    """

    def __init__(self, devices: Devices = cuda_device, limits: StagingLimits | None = None) -> None:
        self.statistics = StagingStatistics()
        self._limits = limits or StagingLimits()
        self._devices = devices
        self._lanes: dict[torch.device, _Lane | None] = {}
        self._windows: dict[torch.device, Window] = {}
        self._plans: dict[tuple[Layout, frozenset[int]], _Plan] = {}
        self._ring: _PinnedRing | None = None

    def stage(self, layout: Layout, tensors: Sequence[torch.Tensor], absent: frozenset[int] = frozenset()) -> Payload:
        """Start to bring tensors to the host. They may be overwritten by later work of the current stream.

        Args:
            layout: describes them. A tensor with other strides is stored with those of the layout.
            tensors: those that are present, in the order of the layout. Plain tensors: of a DTensor, the local part.
            absent: indices in the layout of those that are not.

        Raises:
            LogUnavailable: the ring stayed full, or there is no memory for the ring or the buffers.
            ValueError: a tensor differs from its description.
        """
        plan = self._plan(layout, tensors, absent)
        if plan.lane is None:
            return Payload(layout, *plan.near_bytes(tensors, None, None))
        ring = self._ring_for(plan.places.nbytes)
        waited, seconds = ring.waits, ring.wait_seconds
        try:
            lease = _Lease(ring, ring.allocate(plan.places.nbytes, self._limits.ring_seconds_max))
        finally:
            self.statistics.waits += ring.waits - waited
            self.statistics.wait_seconds += ring.wait_seconds - seconds
        try:
            plan.start(tensors, lease, self._limits)
        except RuntimeError as error:
            lease.release()
            raise LogUnavailable(f"tensors cannot be staged: {error}") from error
        self.statistics.payloads += 1
        self.statistics.nbytes += plan.places.nbytes
        self.statistics.device_bytes[str(plan.device)] = 2 * plan.lane.nbytes
        return Payload(layout, *plan.near_bytes(tensors, ring, lease.region), wait=lease.wait, release=lease.release)

    def after_image(self, contents: Iterable[tuple[str, AnyArray | None]], *, every_step: bool) -> Payload:
        """Return the payload of an after-image whose arrays `to_array` made.

        One for every step is staged. Of a rare one the bytes are fetched into new memory instead, so that neither the ring
        nor the buffers grow to the size of the whole state for its sake.

        Raises:
            LogUnavailable: as `stage` and `fetch`.
        """
        named = list(contents)
        if not every_step:
            return Payload.of(self._fetched(named))
        absent = frozenset(i for i, (_, content) in enumerate(named) if content is None)
        layout = Layout(_spec_of_content(name, content) for name, content in named)
        tensors = [
            content.source if isinstance(content, DeviceArray) else from_array(content)
            for _, content in named
            if content is not None
        ]
        return self.stage(layout, tensors, absent)

    def _fetched(self, named: list[tuple[str, AnyArray | None]]) -> list[tuple[str, AnyArray | None]]:
        far = [content for _, content in named if isinstance(content, DeviceArray)]
        memory = np.empty(sum(content.nbytes for content in far), np.uint8)
        wanted: list[tuple[torch.Tensor, Bytes]] = []
        hosts: dict[int, AnyArray] = {}
        at = 0
        for content in far:
            data = memory[at : at + content.nbytes]
            at += content.nbytes
            wanted.append((_in_order_of(content.strides, content.source), data))
            hosts[id(content)] = content.on_host(data)
        self.fetch(wanted)
        return [(name, hosts.get(id(content), content)) for name, content in named]

    def to_array(self, tensor: torch.Tensor) -> AnyArray:
        """Return what `adapt.to_array` does; of a dense tensor on a device, an array that many can be fetched of at once."""
        tensor = local(tensor).detach()
        if tensor.layout is not torch.strided or self._lane(tensor.device) is None:
            return to_array(tensor)
        spec = spec_of("", tensor)
        return DeviceArray(spec.dtype, spec.shape, np.empty(0, np.uint8), spec.strides, source=tensor, fetch=self.fetch)

    def fetch(self, wanted: Sequence[tuple[torch.Tensor, Bytes]]) -> None:
        """Copy dense tensors into host memory, in C order, and wait for them. See `device/fetch.py`.

        Raises:
            LogUnavailable: there is no memory for the windows.
        """
        by_device: dict[torch.device, list[tuple[torch.Tensor, Bytes]]] = {}
        for tensor, target in wanted:
            by_device.setdefault(tensor.device, []).append((tensor, target))
        for device, pairs in by_device.items():
            if device not in self._windows:
                lane = self._lane(device)
                assert lane is not None, f"memory of {device} is read without a transfer"
                try:
                    self._windows[device] = Window(lane.device, self._limits.fetch_bytes)
                except RuntimeError as error:
                    raise LogUnavailable(f"no memory for copies from {device}: {error}") from error
            self._windows[device].fetch(pairs)

    def _lane(self, device: torch.device) -> _Lane | None:
        if device not in self._lanes:
            found = self._devices(device)
            self._lanes[device] = None if found is None else _Lane(found)
        return self._lanes[device]

    def _plan(self, layout: Layout, tensors: Sequence[torch.Tensor], absent: frozenset[int]) -> _Plan:
        plan = self._plans.get((layout, absent))
        if plan is None or not plan.fits(tensors):
            if len(self._plans) >= _PLANS_MAX:
                del self._plans[next(iter(self._plans))]
            plan = self._plans[layout, absent] = self._make_plan(layout, tensors, absent)
        return plan

    def _make_plan(self, layout: Layout, tensors: Sequence[torch.Tensor], absent: frozenset[int]) -> _Plan:
        """Plan for one device, the one that most bytes are on."""
        by_device: dict[torch.device, int] = {}
        for tensor in tensors:
            if tensor.layout is torch.strided and self._lane(tensor.device) is not None:
                by_device[tensor.device] = by_device.get(tensor.device, 0) + tensor.nbytes
        device = max(by_device, key=lambda d: by_device[d]) if by_device else None
        lane = None if device is None else self._lane(device)
        return _Plan(layout, tensors, absent, device, lane)

    def _ring_for(self, nbytes: int) -> _PinnedRing:
        if self._ring is None or self._ring.capacity < nbytes:
            capacity = self._limits.ring_bytes(nbytes)
            pin = next(lane.device.pin for lane in self._lanes.values() if lane is not None)
            try:
                self._ring = _PinnedRing(capacity, pin)
            except RuntimeError as error:
                raise LogUnavailable(f"{capacity} bytes of host memory cannot be pinned for staging: {error}") from error
            self.statistics.ring_bytes = capacity
        return self._ring


class _PinnedRing(Ring):
    """A ring and its memory."""

    def __init__(self, capacity: int, pin: Callable[[int], torch.Tensor]) -> None:
        super().__init__(capacity)
        self.memory = pin(capacity)
        self.data = flat_bytes(self.memory)


class _Lease:
    """A region of the ring for one payload. What was dropped without `release` is released when it is collected."""

    __slots__ = ("_is_released", "_ring", "events", "region")

    def __init__(self, ring: _PinnedRing, region: Region) -> None:
        self._ring, self.region = ring, region
        self.events: list[Event] = []  # one after each transfer, in order
        self._is_released = False

    @property
    def ring(self) -> _PinnedRing:
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


class _Lane:
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


class _Plan:
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
        lane: _Lane | None,
    ) -> None:
        self._absent, self.device, self.lane = absent, device, lane
        self._indices = [i for i in range(len(layout)) if i not in absent]
        if len(tensors) != len(self._indices):
            raise ValueError(f"{len(tensors)} tensors for a layout of {len(layout)} of which {len(absent)} are absent")
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
        self.places = Places([_form(self._specs[k]) for k in self._staged])
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

    def start(self, tensors: Sequence[torch.Tensor], lease: _Lease, limits: StagingLimits) -> None:
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

    def _bind(self, lane: _Lane, sources: Sequence[torch.Tensor], limits: StagingLimits) -> None:
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
        self, tensors: Sequence[torch.Tensor], ring: _PinnedRing | None, region: Region | None
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


def _pieces(turn: _Round, flat: torch.Tensor, lease: _Lease, nbytes_max: int) -> list[Pair]:
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


def _spec_of_content(name: str, content: AnyArray | None) -> TensorSpec:
    if content is None:
        return TensorSpec(name, "uint8", (0,))
    if isinstance(content, SparseArray):
        return TensorSpec(name, content.dtype, tuple(content.shape))
    return array_spec_of(name, content)


def _in_order_of(strides: tuple[int, ...] | None, tensor: torch.Tensor) -> torch.Tensor:
    """Return a tensor with its dimensions permuted so that its C order is the storage order of dense strides."""
    if strides is None:
        return tensor
    return tensor.permute(sorted(range(tensor.dim()), key=lambda d: (-strides[d], -tensor.shape[d])))


def _demand_fit(spec: TensorSpec, tensor: torch.Tensor) -> None:
    shape = spec.shape if tensor.layout is torch.sparse_coo else spec.local_shape
    if tuple(tensor.shape) != shape or tensor.dtype is not DTYPES.get(spec.dtype):
        raise ValueError(f"{spec.name} is {spec.dtype}{list(shape)} in the layout, not {tensor.dtype}{list(tensor.shape)}")


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
        Places([form]).view(torch.from_numpy(data), 0).copy_(tensor.detach())
    return Array(spec.dtype, form.shape, data, form.strides)


def _power_of_two(nbytes: int) -> int:
    return 1 << max(0, nbytes - 1).bit_length()
