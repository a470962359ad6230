"""Alluxio as a store on a real cluster, while nothing fails."""

from __future__ import annotations

import shutil
import uuid
from collections.abc import Iterator
from urllib.parse import urlsplit

import pytest

from tests.alluxio.cluster import Cluster
from tests.support.stores import MIB, StoreConformance, put, read
from tranlogs.base.errors import StoreRefused, StoreUnavailable
from tranlogs.stores import Store, open_store
from tranlogs.stores.alluxio import AlluxioStore
from tranlogs.stores.check import check_store


class TestAlluxio(StoreConformance):
    large = 17 * MIB  # more than a block

    @pytest.fixture
    def store(self, alluxio: Cluster) -> Iterator[Store]:
        with open_store(alluxio.url("/conformance")) as store:
            yield store


@pytest.fixture
def store(alluxio: Cluster) -> Iterator[Store]:
    with open_store(alluxio.url(f"/{uuid.uuid4().hex}", replication=2)) as store:
        yield store


def test_what_is_written_once_reaches_the_under_store(alluxio: Cluster, store: Store) -> None:
    put(store, "run/segment", b"content" * 1000)
    status = store.stat("run/segment")
    assert status is not None
    assert (status.copies, status.is_complete) == (2, True)
    with pytest.raises(StoreUnavailable, match="already exists"):
        put(store, "run/segment", b"second")
    for name in ("a?b", "a\\b"):  # which Alluxio takes for others
        with pytest.raises(StoreRefused, match="the name of an object in Alluxio"):
            put(store, name, b"1")
    alluxio.wait(lambda: is_durable(store, "run/segment"), "persisted")
    folder = urlsplit(store.url).path.lstrip("/")
    assert (alluxio.under_store / folder / "run/segment").read_bytes() == b"content" * 1000
    assert read(store, "run/segment") == b"content" * 1000


def test_what_is_unfit_for_runs_is_found_by_the_check(alluxio: Cluster, store: Store) -> None:
    """Other write types than asynchronous persistence, and an under-store that cannot be written."""
    words = {"THROUGH": "0 of 1 copies in the memory of workers", "MUST_CACHE": "the write type is not honoured"}
    for write_type, said in words.items():
        port = alluxio.settings.ports["proxy.web"]
        with AlluxioStore("127.0.0.1", port, "/check", write_type=write_type) as other:
            demand_problem(other, said)
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
