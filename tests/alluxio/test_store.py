"""Alluxio as a store on a real cluster, while nothing fails."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest
import xxhash

from tests.alluxio.cluster import Cluster
from tranlogs.errors import StoreRefused, StoreUnavailable
from tranlogs.store import Store, open_store
from tranlogs.testing.stores import MIB, StoreConformance, pieces, put, read


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


@pytest.mark.parametrize("mebibytes", [16, 64, 256])
def test_large_objects_come_back(alluxio: Cluster, store: Store, tmp_path: Path, mebibytes: int) -> None:
    hasher = xxhash.xxh3_128()
    with (tmp_path / "sent").open("w+b") as file:
        for piece in pieces(mebibytes * MIB):
            file.write(piece)
            hasher.update(piece)
        file.seek(0)
        store.put("large", file, mebibytes * MIB)
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
    with pytest.raises(StoreRefused, match="no name of an object in Alluxio"):
        put(store, name, b"1")


def is_durable(store: Store, name: str) -> bool:
    """Whether an object is persisted."""
    status = store.stat(name)
    return status is not None and status.is_durable
