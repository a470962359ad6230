"""The ring of pinned memory: regions in order, out of order, around its end, and while it is full."""

from __future__ import annotations

import threading

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support import campaign
from tranlogs.base.errors import LogUnavailable
from tranlogs_torch.device.staging_ring import Region, Ring

UNIT = 64  # regions begin at multiples of it


@settings(max_examples=campaign.examples(300), deadline=None)
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


@given(st.integers(1, 8), st.integers(0, 7), st.data())
def test_extents_of_parts_are_parts_of_the_extents(units: int, offset: int, data: st.DataObject) -> None:
    ring = Ring(8 * UNIT)
    before = ring.allocate(offset * UNIT, 0.0) if offset else None
    held = ring.allocate(1, 0.0) if offset < 7 else None
    if before is not None:
        ring.release(before)
    nbytes = data.draw(st.integers(0, max(0, ring.capacity - ring.used_bytes)))
    if nbytes == 0:
        return
    region = ring.allocate(nbytes, 0.0)
    whole = [i for a, b in ring.extents(region, 0, nbytes) for i in range(a, b)]
    cut = data.draw(st.integers(0, nbytes))
    parts = [*ring.extents(region, 0, cut), *ring.extents(region, cut, nbytes)]
    assert [i for a, b in parts for i in range(a, b)] == whole
    assert held is None or ring.used_bytes > nbytes


def test_a_region_goes_on_at_the_beginning() -> None:
    ring = Ring(4 * UNIT)
    first, second = ring.allocate(2 * UNIT, 0.0), ring.allocate(UNIT, 0.0)
    ring.release(first)
    third = ring.allocate(2 * UNIT, 0.0)
    assert ring.extents(third, 0, 2 * UNIT) == [(3 * UNIT, 4 * UNIT), (0, UNIT)]
    ring.release(second)
    ring.release(third)


def test_space_behind_a_region_that_is_held_comes_back_with_it() -> None:
    ring = Ring(4 * UNIT)
    first, second = ring.allocate(UNIT, 0.0), ring.allocate(3 * UNIT, 0.0)
    ring.release(second)
    assert ring.used_bytes == 4 * UNIT
    ring.release(first)
    assert ring.used_bytes == 0


def test_a_full_ring_waits_until_the_writer_releases() -> None:
    ring = Ring(2 * UNIT)
    first = ring.allocate(2 * UNIT, 0.0)
    begun = threading.Event()

    def writer() -> None:
        begun.wait()
        ring.release(first)

    thread = threading.Thread(target=writer)
    thread.start()
    begun.set()
    ring.allocate(UNIT, 30.0)
    thread.join()
    assert ring.waits <= 1


def test_a_ring_that_stays_full_is_an_error_that_says_what_waits() -> None:
    ring = Ring(2 * UNIT)
    ring.allocate(2 * UNIT, 0.0)
    with pytest.raises(LogUnavailable, match=r"did not free 64 bytes within 0.01 s; 128 of 128 bytes"):
        ring.allocate(1, 0.01)
    assert ring.waits == 1
