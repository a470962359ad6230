"""Folders, and fsspec's file system of folders, as stores; what an address means; `check_store`.

tests/stores/test_alluxio_answers.py and tests/alluxio have Alluxio.
"""

from __future__ import annotations

import io
import sys
import threading
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, BinaryIO

import fsspec
import pytest

from tests.support import disks
from tests.support.stores import StoreConformance, content_of, put, read
from tranlogs.base.errors import StoreRefused, StoreUnavailable
from tranlogs.stores import ObjectStatus, Store, TimeoutStore, open_store
from tranlogs.stores.alluxio import AlluxioStore
from tranlogs.stores.check import StoreReport, check_store
from tranlogs.stores.fsspec_store import FsspecStore
from tranlogs.stores.local import LocalStore


class TestConformance(StoreConformance):
    large = 9 << 20

    @pytest.fixture(params=["file", "local"])
    def store(self, request: pytest.FixtureRequest, memory_path: Path) -> Store:
        return open_store(f"{request.param}://{memory_path / 'store'}")


# Folders.


def test_an_object_is_there_whole_or_not_at_all(tmp_path: Path) -> None:
    class Failing(io.BytesIO):
        def read(self, _: int | None = None) -> bytes:
            raise OSError(5, "Input/output error")

    store = open_store(tmp_path)
    with pytest.raises(OSError, match="Input/output error"):
        store.put("object", content_of(Failing(), 10))
    assert list(tmp_path.rglob("*")) == []
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
    root.rmdir()
    with pytest.raises(StoreUnavailable, match="the folder has vanished"):
        put(store, "object", b"4")
    assert not root.exists()


# fsspec.


def test_it_connects_when_it_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    """And hangs no earlier, if nobody answers there: only then is it watched (TimeoutStore)."""
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


# Addresses.


def test_addresses_of_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for address in (tmp_path, str(tmp_path), tmp_path.as_uri(), f"file://localhost{tmp_path}"):
        store = open_store(address)
        assert isinstance(store, LocalStore)
        assert store.url == tmp_path.as_uri()
    monkeypatch.chdir(tmp_path)
    assert isinstance(open_store("./run:1"), LocalStore), "whose name looks like an address, but for the dot"
    assert FsspecStore("memory://user:secret@host/path").url == "memory://host/path", "passwords are not shown"


@pytest.mark.parametrize(
    ("address", "shown", "copies"),
    [
        ("alluxio://host", "alluxio://host:39999/", 1),
        ("alluxio://host:1/a/b/", "alluxio://host:1/a/b", 1),
        ("alluxio://host/a%20b?replication=2", "alluxio://host:39999/a%20b?replication=2", 2),
    ],
)
def test_addresses_of_alluxio(address: str, shown: str, copies: int) -> None:
    store = open_store(address)
    assert isinstance(store, AlluxioStore)
    assert (store.url, store.copies_wanted) == (shown, copies)


@pytest.mark.parametrize(
    ("address", "said"),
    [
        ("alluxio:///path", ""),
        ("alluxio://host/?replication=zwei", "replication must be a number, got zwei"),
        ("alluxio://host/?replicaton=2", "unknown option ?replicaton"),
        ("alluxio:/host/path", "SCHEME://"),
        ("aluxio://host/", "alluxio://HOST/path"),
        ("alluxio://me@host/", ""),
        ("file://host/path", ""),
        ("nonsense://x", "store nonsense://x: Protocol not known: nonsense"),
        ("sftp://host/path", "to be installed"),
    ],
)
def test_what_is_no_address_is_refused(address: str, said: str) -> None:
    with pytest.raises(StoreRefused) as refused:
        open_store(address)
    assert said in str(refused.value)


@pytest.mark.parametrize(
    ("package", "address", "extra"),
    [("alluxio", "alluxio://host/", "tranlogs[alluxio]"), ("fsspec", "s3://bucket/", "tranlogs[fsspec]")],
)
def test_a_missing_package_is_named_with_what_installs_it(
    monkeypatch: pytest.MonkeyPatch, package: str, address: str, extra: str
) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    monkeypatch.delitem(sys.modules, "tranlogs.stores.alluxio", raising=False)
    monkeypatch.delitem(sys.modules, "tranlogs.stores.fsspec_store", raising=False)
    with pytest.raises(StoreRefused) as refused:
        open_store(address)
    assert extra in str(refused.value)


# `check_store`.


class Unfit(LocalStore):
    """A folder that says, or does, something else."""

    def __init__(self, root: Path, **says: object) -> None:
        super().__init__(root)
        self.says: dict[str, Any] = says
        self.wrong_bytes = False
        self.copies_wanted = 2
        self.hastened: list[str] = []

    def stat(self, name: str) -> ObjectStatus | None:
        status = super().stat(name)
        return status and replace(status, **{"copies": 2} | self.says)

    def get(self, name: str, into: BinaryIO) -> int:
        if self.wrong_bytes:
            return into.write(b"wrong")
        return super().get(name, into)

    def request_durability(self, name: str) -> None:
        self.hastened.append(name)


@dataclass
class Clock:
    """Time goes on only by sleeping."""

    now: float = 0.0
    slept: list[float] = field(default_factory=list)

    def __call__(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.now += seconds


def checked(store: LocalStore) -> StoreReport:
    clock = Clock()
    return check_store(store, nbytes=1 << 16, patience_seconds=10, clock=clock, sleep=clock.sleep)


def test_a_sound_store_is_usable_and_left_empty(tmp_path: Path) -> None:
    report = check_store(open_store(tmp_path), nbytes=1 << 20)
    assert report.problem is None
    assert list(report.seconds) == ["put", "stat", "get", "durable", "delete"]
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("says", "problem"),
    [
        ({"is_complete": False}, "writing the object was not finished: 65536 of 65536 bytes"),
        ({"nbytes": 3}, "writing the object was not finished: 3 of 65536 bytes"),
        ({"copies": 1}, "1 of 2 copies in the memory of workers"),
        (
            {"is_durable": False, "is_forgotten": True},
            "the write type is not honoured: the store will not make the object durable",
        ),
        ({"is_durable": False, "is_lost": True}, "the object was lost before it was durable"),
        ({"is_durable": False}, "the object is not durable after 10 s"),
        ({"wrong_bytes": True}, "the content that is read differs from the content that was written"),
    ],
)
def test_what_is_wrong_with_a_store(tmp_path: Path, says: dict[str, Any], problem: str) -> None:
    store = Unfit(tmp_path, **{name: value for name, value in says.items() if name != "wrong_bytes"})
    store.wrong_bytes = "wrong_bytes" in says
    assert checked(store).problem == problem
    assert list(tmp_path.iterdir()) == []
    assert len(store.hastened) == ("not durable" in problem)  # once, before it is given up


@pytest.mark.parametrize("kind", [StoreRefused, StoreUnavailable])
def test_an_error_is_a_finding(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: type[Exception]) -> None:
    def fail(*_: object) -> None:
        raise kind("url://", "no answer")

    for method in ("stat", "put", "get", "delete"):
        store = Unfit(tmp_path)
        monkeypatch.setattr(store, method, fail)
        assert "store url://: no answer" in (checked(store).problem or "")
