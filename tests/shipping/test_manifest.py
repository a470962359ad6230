"""Manifests: the same after the way through a store, and never taken for another."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.faulty_store import FaultyStore
from tranlogs.base.clock import Clock
from tranlogs.base.errors import CorruptObject, StoreUnavailable, UnknownFormat
from tranlogs.catalog import CheckpointRow, RunRow, SegmentRow, ShippedRow, TimelineRow
from tranlogs.checkpoints.folder import open_manifest, seal_manifest
from tranlogs.shipping.manifest import (
    Manifest,
    ManifestHistory,
    ShippedItem,
    manifest_names,
    parse_manifest_name,
    publish,
    read_newest,
)

SEGMENT = SegmentRow(3, f"{3:016x}", "s3", 1000, "sealed", 1, 10, 5, 20, 9, 800, 1.5, 1.0)
CHECKPOINT = CheckpointRow("c5", 5, 10, "ab", 1, 500, 2.5)
MANIFEST = Manifest(
    12,
    "0123456789abcdef",
    "host",
    3.5,
    RunRow("run", 0, 1.0, framework="torch"),
    (TimelineRow(1), TimelineRow(2, 1, 9, 4)),
    {
        "s3": ShippedItem(
            SEGMENT, ShippedRow("s3", {"s3": [["a", 700, "00"], ["b", 100, "01"]]}, 9, 20, is_durable=True, at=3.0)
        ),
        "c5": ShippedItem(CHECKPOINT, ShippedRow("c5", {"meta.bin": [["c", 5, "02"]]})),
    },
)


def test_a_manifest_comes_back_as_it_was() -> None:
    assert Manifest.unpack(MANIFEST.pack(), "m") == MANIFEST


@given(st.integers(0, len(MANIFEST.pack()) - 1), st.integers(1, 255))
def test_a_damaged_manifest_is_never_read(place: int, bits: int) -> None:
    raw = bytearray(MANIFEST.pack())
    raw[place] ^= bits
    try:
        assert Manifest.unpack(bytes(raw), "m") == MANIFEST  # white space
    except CorruptObject:
        pass


def test_a_manifest_of_a_newer_version_is_refused() -> None:
    content = {**open_manifest(MANIFEST.pack()), "format": 99}
    with pytest.raises(UnknownFormat):
        Manifest.unpack(seal_manifest(content), "m")


def test_what_a_newer_version_adds_is_passed_over() -> None:
    content = open_manifest(MANIFEST.pack())
    content["segments"][0][0]["colour"] = "red"
    assert Manifest.unpack(seal_manifest(content), "m") == MANIFEST


def test_the_newest_counts() -> None:
    store = FaultyStore()
    for number in (2, 10, 9, 11, 1):
        publish(store, "a/rank0", replace(MANIFEST, number=number))
    found, notes = read_newest(store, "a/rank0")
    assert found is not None
    assert (found.number, notes) == (11, [])
    assert parse_manifest_name(manifest_names(store, "a/rank0")[0]) == (11, MANIFEST.writer)


def accept(store: FaultyStore, published: ManifestHistory, number: int, *, is_forgotten: bool = False) -> None:
    """Publish a manifest as the ledger does."""
    name = publish(store, "a/rank0", replace(MANIFEST, number=number))
    if is_forgotten:
        store.forgotten.add(name)
    published.add(replace(MANIFEST, number=number), name, manifest_names(store, "a/rank0"))


def numbers(store: FaultyStore) -> list[int]:
    return [parse_manifest_name(name)[0] for name in manifest_names(store, "a/rank0")]


def test_a_few_older_ones_stay_and_the_newest_that_is_durable() -> None:
    """What is not durable yet can all be lost at once."""
    store = FaultyStore()
    published = ManifestHistory(store, "a/rank0", Clock())
    for number in range(1, 12):
        accept(store, published, number, is_forgotten=number > 3)
        assert not published.update(1e9)
    assert published.durable is not None
    assert (numbers(store), published.durable.number) == ([11, 10, 9, 8, 3], 3)
    store.forgotten.remove(manifest_names(store, "a/rank0")[2])
    accept(store, published, 12, is_forgotten=True)
    assert not published.update(1e9)
    assert published.durable.number == 9, "newer ones keep coming: the newest is not durable, ever"
    accept(store, published, 13, is_forgotten=True)
    assert (numbers(store), published.durable.number) == ([13, 12, 11, 10, 9], 9)


def test_whoever_begins_finds_the_durable_one() -> None:
    store = FaultyStore()
    first = ManifestHistory(store, "a/rank0", Clock())
    for number in range(1, 8):
        accept(store, first, number, is_forgotten=number > 1)
        assert not first.update(1e9)
    names = manifest_names(store, "a/rank0")
    again = ManifestHistory(store, "a/rank0", Clock())
    again.load(replace(MANIFEST, number=7), names[0], names)
    assert again.durable is not None
    assert (again.newest, again.durable.number) == (replace(MANIFEST, number=7), 1)
    del store.objects[names[-1]]
    accept(store, again, 8, is_forgotten=True)
    assert again.durable is None, "it has vanished"


def test_a_manifest_that_is_not_there_as_it_was_written_is_no_manifest() -> None:
    store = FaultyStore()
    store.spoils = lambda name, data: data[:-1]
    with pytest.raises(StoreUnavailable, match="does not hold it in full"):
        publish(store, "a/rank0", MANIFEST)
