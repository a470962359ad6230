"""Digests are those of a reference in numpy, and see any change; the ring of pinned memory gives nothing out twice."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support import campaign
from tranlogs.base.errors import LogUnavailable
from tranlogs.base.types import Array
from tranlogs_torch.device.digests import LENGTH, ROW_BYTES, ROW_WORDS, DeviceDigests, columns, rows
from tranlogs_torch.device.staging_ring import Region, Ring
from tranlogs_torch.tensors.arrays import to_array

DTYPES = [torch.float32, torch.bfloat16, torch.float16, torch.float64, torch.uint8, torch.int64, torch.complex64, torch.bool]


def reference(tensor: torch.Tensor) -> int:
    """As the docstring of the module says it, one word after the other."""
    array = to_array(tensor)
    assert isinstance(array, Array)
    data = array.data.tobytes()
    padded = np.frombuffer(data + bytes(-len(data) % ROW_BYTES), "<i4")
    total = LENGTH * len(data)
    for j, b in enumerate(rows(len(padded) // ROW_WORDS)):
        row = padded[j * ROW_WORDS : (j + 1) * ROW_WORDS]
        total += int(b) * sum(int(a) * int(w) for a, w in zip(columns(), row, strict=True))
    return total % 2**64


def noise(shape: tuple[int, ...], dtype: torch.dtype, seed: int) -> torch.Tensor:
    """Any bytes at all (but a bool is 0 or 1)."""
    count = torch.Size(shape).numel() * dtype.itemsize
    raw = torch.from_numpy(np.random.default_rng(seed).integers(0, 2 if dtype is torch.bool else 256, count, np.uint8))
    return raw.view(dtype).view(shape) if count else torch.empty(shape, dtype=dtype)


shapes = st.one_of(
    st.tuples(st.integers(0, 700)),
    st.tuples(st.integers(0, 40), st.integers(1, 40)),
    st.just(()),
    st.tuples(st.integers(1, 4), st.integers(1, 9), st.integers(1, 9)),
)
layouts = st.sampled_from(["plain", "transposed", "gaps", "shifted"])


@settings(max_examples=campaign.examples(120), deadline=None)
@given(
    st.lists(st.tuples(shapes, st.sampled_from(DTYPES), layouts), min_size=1, max_size=9),
    st.integers(0, 99),
    st.sampled_from([1024, 2048, 1 << 20]),
    st.sampled_from([1, 1500, 1 << 20]),
)
def test_equals_the_reference(
    kinds: list[tuple[tuple[int, ...], torch.dtype, str]], seed: int, window: int, direct: int
) -> None:
    tensors = []
    for k, (shape, dtype, layout) in enumerate(kinds):
        tensor = noise(shape, dtype, seed + k)
        if layout == "transposed":
            tensor = tensor.permute(tuple(reversed(range(tensor.dim()))))
        elif layout == "gaps" and tensor.dim():
            tensor = tensor[..., ::2]
        elif layout == "shifted" and tensor.numel():
            tensor = torch.cat([tensor.reshape(-1)[:1], tensor.reshape(-1)])[1:].view(shape)  # begins within a word
        tensors.append(tensor)
    machine = DeviceDigests(window, direct)
    wanted = [reference(tensor) for tensor in tensors]
    assert machine.digests(tensors).tolist() == wanted
    assert machine.digests(tensors).tolist() == wanted  # with what was kept


@settings(max_examples=campaign.examples(60), deadline=None)
@given(st.integers(1, 3000), st.data())
def test_every_change_of_one_word_is_seen(count: int, data: st.DataObject) -> None:
    tensor = noise((count,), torch.int32, count)
    machine = DeviceDigests(2048, 1500)
    before = machine.digests([tensor])
    at = data.draw(st.integers(0, count - 1))
    tensor[at] ^= data.draw(st.integers(-(2**31), 2**31 - 1).filter(bool))
    assert machine.digests([tensor]) != before


def test_memory_that_was_exchanged_is_read_anew() -> None:
    parameter = torch.nn.Parameter(torch.zeros(1 << 19))
    machine = DeviceDigests(direct_bytes=1024)
    machine.digests([parameter])
    parameter.data = torch.ones(1 << 19)
    assert machine.digests([parameter]) == DeviceDigests().digests([parameter])


@pytest.mark.parametrize("change", [torch.neg, lambda t: t.roll(1), lambda t: t.view(2, -1).flip(0).reshape(-1)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_flipped_signs_and_values_that_change_places_do_not_cancel(change: Any, dtype: torch.dtype) -> None:
    tensor = torch.arange(1, 4097).to(dtype)
    machine = DeviceDigests()
    assert machine.digests([change(tensor)]) != machine.digests([tensor])
    assert machine.digests([torch.empty(0)]).tolist() == [0]
    assert machine.digests([]).tolist() == []


# The ring

UNIT = 64  # regions begin at multiples of it


@settings(max_examples=campaign.examples(100), deadline=None)
@given(st.data(), st.integers(1, 8))
def test_regions_that_are_held_never_overlap_and_what_was_released_is_used_again(data: st.DataObject, units: int) -> None:
    ring = Ring(units * UNIT)
    owner: list[Region | None] = [None] * ring.capacity
    held: list[Region] = []
    for _ in range(data.draw(st.integers(1, 40))):
        if held and data.draw(st.booleans()):
            region = held.pop(data.draw(st.integers(0, len(held) - 1)))
            for a, b in ring.extents(region, 0, region.nbytes):
                assert owner[a:b] == [region] * (b - a)
                owner[a:b] = [None] * (b - a)
            ring.release(region)
            continue
        nbytes = data.draw(st.integers(0, ring.capacity))
        space = max(1, -(-nbytes // UNIT)) * UNIT
        if ring.used_bytes + space > ring.capacity:
            with pytest.raises(LogUnavailable):
                ring.allocate(nbytes, 0.0)
            continue
        region = ring.allocate(nbytes, 0.0)
        extents = ring.extents(region, 0, nbytes)
        assert sum(b - a for a, b in extents) == nbytes
        for a, b in extents:
            assert owner[a:b] == [None] * (b - a)
            owner[a:b] = [region] * (b - a)
        held.append(region)
    for region in held:
        ring.release(region)
    assert ring.used_bytes == 0
    ring.allocate(ring.capacity, 0.0)  # in one piece again


def test_a_full_ring_waits_until_the_writer_releases() -> None:
    ring = Ring(2 * UNIT)
    first = ring.allocate(2 * UNIT, 0.0)
    thread = threading.Timer(0.05, ring.release, [first])
    thread.start()
    ring.allocate(UNIT, 30.0)
    thread.join()
    assert ring.waits <= 1
