"""A folder as a store."""

from __future__ import annotations

import io
from pathlib import Path

import pytest

from tests.support import disks
from tests.support.stores import StoreConformance, content_of, put
from tranlogs.base.errors import StoreRefused, StoreUnavailable
from tranlogs.stores import Store, open_store


class TestLocalStore(StoreConformance):
    @pytest.fixture
    def store(self, tmp_path: Path) -> Store:
        return open_store((tmp_path / "store").as_uri())


def test_an_object_is_there_whole_or_not_at_all(tmp_path: Path) -> None:
    class Failing(io.BytesIO):
        def read(self, _: int | None = None) -> bytes:
            raise OSError(5, "Input/output error")

    store = open_store(tmp_path)
    with pytest.raises(OSError, match="Input/output error"):
        store.put("object", content_of(Failing(), 10))
    assert list(tmp_path.rglob("*")) == []


def test_a_file_in_the_way_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("1")
    with pytest.raises(StoreRefused, match="Not a directory"):
        put(open_store(tmp_path / "file"), "object", b"1")


@pytest.mark.disks
def test_nothing_is_written_to_the_place_of_a_disk_that_is_not_mounted_any_more(tmp_path: Path) -> None:
    root = tmp_path / "disk"
    store = open_store(root)
    with disks.memory_disk(root):
        put(store, "object", b"1")
    with pytest.raises(StoreUnavailable, match="its disk is not mounted any more"):
        put(store, "object", b"2")
    assert list(root.iterdir()) == []
    with disks.memory_disk(root):
        put(store, "object", b"3")
