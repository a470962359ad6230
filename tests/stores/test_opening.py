"""From a URL to a store, and what is none."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tranlogs.base.errors import StoreRefused
from tranlogs.stores import open_store
from tranlogs.stores.alluxio import AlluxioStore
from tranlogs.stores.local import LocalStore


def test_a_path_and_a_file_url_are_a_folder(tmp_path: Path) -> None:
    for address in (tmp_path, str(tmp_path), tmp_path.as_uri(), f"file://localhost{tmp_path}"):
        store = open_store(address)
        assert isinstance(store, LocalStore)
        assert store.url == tmp_path.as_uri()


@pytest.mark.parametrize(
    ("address", "shown", "copies"),
    [
        ("alluxio://host", "alluxio://host:39999/", 1),
        ("alluxio://host:1/a/b/", "alluxio://host:1/a/b", 1),
        ("alluxio://host/a%20b?replication=2", "alluxio://host:39999/a%20b?replication=2", 2),
        ("alluxio://[::1]:5/a", "alluxio://[::1]:5/a", 1),
    ],
)
def test_alluxio(address: str, shown: str, copies: int) -> None:
    store = open_store(address)
    assert isinstance(store, AlluxioStore)
    assert (store.url, store.copies_wanted) == (shown, copies)


@pytest.mark.parametrize(
    "address",
    [
        "alluxio:///path",
        "alluxio://host:port/",
        "alluxio://host:99999/",
        "alluxio://host/?replication=0",
        "alluxio://host/?replication=x",
        "alluxio://host/?replication=1000",
        "alluxio://host/?copies=2",
        "alluxio://host/?x",
        "alluxio:/host/path",
        "file:/path",
        "s3:bucket",
        "aluxio://host/",
        "alluxio://me@host/",
        "alluxio://host/#x",
        "file://host/path",
        "alluxio://[::1",
        "://",
        "x://",
    ],
)
def test_what_is_no_address_is_refused(address: str) -> None:
    with pytest.raises(StoreRefused):
        open_store(address)


@pytest.mark.parametrize(
    ("address", "words"),
    [
        ("alluxio:/host/path", "SCHEME://"),
        ("alluxio://host/?replicaton=2", "unknown option ?replicaton"),
        ("alluxio://host/?replication=zwei", "replication must be a number, got zwei"),
        ("aluxio://host/", "alluxio://HOST/path"),
    ],
)
def test_what_is_wrong_with_an_address_is_said(address: str, words: str) -> None:
    with pytest.raises(StoreRefused) as refused:
        open_store(address)
    assert words in str(refused.value)


def test_a_folder_whose_name_looks_like_an_address_is_one_with_a_dot(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert isinstance(open_store("./run:1"), LocalStore)


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
