"""fsspec's file systems as stores, here those of memory and of local folders."""

from __future__ import annotations

import threading
import uuid
from collections.abc import Iterator
from pathlib import Path

import fsspec
import pytest

from tests.support.stores import StoreConformance, put, read
from tranlogs.base.errors import StoreRefused, StoreUnavailable
from tranlogs.stores import Store, TimeoutStore, open_store
from tranlogs.stores.fsspec_store import FsspecStore


class TestMemory(StoreConformance):
    @pytest.fixture
    def store(self) -> Iterator[Store]:
        root = f"/{uuid.uuid4().hex}"
        yield open_store(f"memory:/{root}")
        fsspec.filesystem("memory").rm(root, recursive=True)


class TestLocal(StoreConformance):
    @pytest.fixture
    def store(self, tmp_path: Path) -> Store:
        return open_store(f"local://{tmp_path}/store")


def test_an_unknown_address_is_refused() -> None:
    with pytest.raises(StoreRefused, match="store nonsense://x: Protocol not known: nonsense"):
        open_store("nonsense://x")


def test_a_package_that_is_missing_is_named() -> None:
    with pytest.raises(StoreRefused, match="to be installed"):
        open_store("sftp://host/path")


def test_it_connects_when_it_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    """And hangs no earlier, if nobody answers there: only then is it watched (store/patience.py)."""
    answered = threading.Event()

    def connect(*_: object, **__: object) -> None:
        answered.wait()
        raise FileNotFoundError("no such host")

    monkeypatch.setattr(fsspec.core, "url_to_fs", connect)
    store = TimeoutStore(open_store("memory://folder"), 0.05)
    with pytest.raises(StoreUnavailable, match="nothing moved"):
        store.names("run")
    answered.set()
    with pytest.raises(StoreUnavailable, match="no such host"):  # which is not the same as an empty one
        store.names("run")


def test_passwords_are_not_shown() -> None:
    store = FsspecStore("memory://user:secret@host/path")
    assert store.url == "memory://host/path"


def test_errors_of_the_file_system_are_translated(monkeypatch: pytest.MonkeyPatch) -> None:
    store = FsspecStore("memory://folder")
    put(store, "object", b"1")

    def fail(error: Exception) -> None:
        def call(*_: object, **__: object) -> None:
            raise error

        for name in ("open", "info", "find", "rm_file"):
            monkeypatch.setattr(store._root()[0], name, call)

    calls = [
        lambda: put(store, "object", b"1"),
        lambda: read(store, "object"),
        lambda: store.stat("object"),
        lambda: store.names("folder"),
        lambda: store.delete("object"),
    ]
    for error, kind in (
        (PermissionError("no right"), StoreRefused),
        (OSError("reset"), StoreUnavailable),
        (RuntimeError("anything"), StoreUnavailable),
    ):
        fail(error)
        for call in calls:
            with pytest.raises(kind, match=str(error)):
                call()
