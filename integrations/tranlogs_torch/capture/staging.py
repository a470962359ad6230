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
from collections.abc import Iterable, Sequence

import numpy as np
import torch

from tranlogs.base.errors import LogUnavailable
from tranlogs.base.types import AnyArray, Bytes, DeviceArray, SparseArray, TensorSpec
from tranlogs.records import Layout, Payload
from tranlogs.records import spec_of as array_spec_of

from ..device.streams import Devices, Window, cuda_device
from ..tensors.arrays import from_array, local, spec_of, to_array
from .staging_plan import Lane, Lease, PinnedRing, StagingLimits, StagingPlan, StagingStatistics

_log = logging.getLogger("tranlogs")

_PLANS_MAX = 64  # that are kept; which gradients are absent may differ from step to step


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
        self._lanes: dict[torch.device, Lane | None] = {}
        self._windows: dict[torch.device, Window] = {}
        self._plans: dict[tuple[Layout, frozenset[int]], StagingPlan] = {}
        self._ring: PinnedRing | None = None

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
            lease = Lease(ring, ring.allocate(plan.places.nbytes, self._limits.ring_seconds_max))
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
        """Copy dense tensors into host memory, in C order, and wait for them. See `device/host_copies.py`.

        Raises:
            LogUnavailable: there is no memory for the windows.
        """
        by_device: dict[torch.device, list[tuple[torch.Tensor, Bytes]]] = {}
        for tensor, target in wanted:
            by_device.setdefault(tensor.device, []).append((tensor, target))
        for device, pairs in by_device.items():
            if device not in self._windows:
                lane = self._lane(device)
                assert lane is not None, f"memory of {device} can be read directly, no transfer is needed"
                try:
                    self._windows[device] = Window(lane.device, self._limits.fetch_bytes)
                except RuntimeError as error:
                    raise LogUnavailable(f"cannot allocate memory for copies from {device}: {error}") from error
            self._windows[device].fetch(pairs)

    def _lane(self, device: torch.device) -> Lane | None:
        if device not in self._lanes:
            found = self._devices(device)
            self._lanes[device] = None if found is None else Lane(found)
        return self._lanes[device]

    def _plan(self, layout: Layout, tensors: Sequence[torch.Tensor], absent: frozenset[int]) -> StagingPlan:
        plan = self._plans.get((layout, absent))
        if plan is None or not plan.fits(tensors):
            if len(self._plans) >= _PLANS_MAX:
                del self._plans[next(iter(self._plans))]
            plan = self._plans[layout, absent] = self._make_plan(layout, tensors, absent)
        return plan

    def _make_plan(self, layout: Layout, tensors: Sequence[torch.Tensor], absent: frozenset[int]) -> StagingPlan:
        """Plan for one device, the one that most bytes are on."""
        by_device: dict[torch.device, int] = {}
        for tensor in tensors:
            if tensor.layout is torch.strided and self._lane(tensor.device) is not None:
                by_device[tensor.device] = by_device.get(tensor.device, 0) + tensor.nbytes
        device = max(by_device, key=lambda d: by_device[d]) if by_device else None
        lane = None if device is None else self._lane(device)
        return StagingPlan(layout, tensors, absent, device, lane)

    def _ring_for(self, nbytes: int) -> PinnedRing:
        if self._ring is None or self._ring.capacity < nbytes:
            capacity = self._limits.ring_bytes(nbytes)
            pin = next(lane.device.pin for lane in self._lanes.values() if lane is not None)
            try:
                self._ring = PinnedRing(capacity, pin)
            except RuntimeError as error:
                raise LogUnavailable(f"cannot pin {capacity} bytes of host memory for staging: {error}") from error
            self.statistics.ring_bytes = capacity
        return self._ring


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
