"""Alluxio as a store on a real cluster, while nothing fails."""

from __future__ import annotations

import shutil
import uuid
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest
import xxhash

from tests.alluxio.cluster import Cluster
from tests.support import campaign
from tests.support.stores import MIB, StoreConformance, content_of, pieces, put, read
from tranlogs.base.errors import StoreRefused, StoreUnavailable
from tranlogs.stores import Store, open_store
from tranlogs.stores.alluxio import AlluxioStore
from tranlogs.stores.check import check_store


class TestAlluxio(StoreConformance):
    @pytest.fixture
    def store(self, alluxio: Cluster) -> Iterator[Store]:
        with open_store(alluxio.url("/conformance")) as store:
            yield store


@pytest.fixture
def store(alluxio: Cluster) -> Iterator[Store]:
    with open_store(alluxio.url(f"/{uuid.uuid4().hex}", replication=2)) as store:
        yield store


def test_what_is_written_reaches_the_under_store(alluxio: Cluster, store: Store) -> None:
    put(store, "run/segment", b"content" * 1000)
    status = store.stat("run/segment")
    assert status is not None
    assert (status.copies, status.is_complete) == (2, True)
    alluxio.wait(lambda: is_durable(store, "run/segment"), "persisted")
    folder = urlsplit(store.url).path.lstrip("/")
    assert (alluxio.under_store / folder / "run/segment").read_bytes() == b"content" * 1000


@pytest.mark.parametrize("mebibytes", [16, campaign.in_soak(64), campaign.in_soak(256)])
def test_large_objects_come_back(alluxio: Cluster, store: Store, tmp_path: Path, mebibytes: int) -> None:
    hasher = xxhash.xxh3_128()
    with (tmp_path / "sent").open("w+b") as file:
        for piece in pieces(mebibytes * MIB):
            file.write(piece)
            hasher.update(piece)
        file.seek(0)
        store.put("large", content_of(file, mebibytes * MIB))
    status = store.stat("large")
    assert status is not None
    assert (status.nbytes, status.is_complete, status.copies) == (mebibytes * MIB, True, 2)
    got = xxhash.xxh3_128()
    with (tmp_path / "got").open("w+b") as file:
        assert store.get("large", file) == mebibytes * MIB
        file.seek(0)
        while piece := file.read(MIB):
            got.update(piece)
    assert got.digest() == hasher.digest()
    alluxio.wait(lambda: is_durable(store, "large"), "persisted")
    store.delete("large")


def test_a_name_is_used_once(store: Store) -> None:
    put(store, "object", b"first")
    with pytest.raises(StoreUnavailable, match="already exists"):
        put(store, "object", b"second")
    assert read(store, "object") == b"first"


@pytest.mark.parametrize("name", ["a?b", "a\\b"])
def test_names_that_alluxio_takes_for_others_are_refused(store: Store, name: str) -> None:
    with pytest.raises(StoreRefused, match="the name of an object in Alluxio"):
        put(store, name, b"1")


@pytest.mark.parametrize(
    ("write_type", "words"),
    [
        ("THROUGH", "0 of 1 copies in the memory of workers"),
        ("MUST_CACHE", "the write type is not honoured"),
    ],
)
def test_a_cluster_that_does_something_else_than_asynchronous_persistence(
    alluxio: Cluster, write_type: str, words: str
) -> None:
    with AlluxioStore("127.0.0.1", alluxio.settings.ports["proxy.web"], "/check", write_type=write_type) as store:
        demand_problem(store, words)


def test_an_under_store_that_cannot_be_written(alluxio: Cluster, store: Store) -> None:
    place = alluxio.under_store / ".alluxio_ufs_persistence"  # where it writes what it is persisting
    shutil.rmtree(place, ignore_errors=True)
    place.touch()
    try:
        demand_problem(store, "the object is not durable")
        put(store, "object", b"1")
        assert not is_durable(store, "object")
    finally:
        place.unlink()
    alluxio.wait(lambda: is_durable(store, "object"), "persisted")


def demand_problem(store: Store, words: str) -> None:
    """Check that `tranlogs verify URL` finds a problem that begins with some words."""
    problem = check_store(store, nbytes=1000, patience_seconds=1).problem
    assert problem is not None
    assert problem.startswith(words), problem


def is_durable(store: Store, name: str) -> bool:
    """Whether an object is persisted."""
    status = store.stat(name)
    return status is not None and status.is_durable
