"""`tranlogs store check` on folders; tests/alluxio has it on clusters."""

from __future__ import annotations

from pathlib import Path

import pytest

from .conftest import Cli


def test_a_sound_store(cli: Cli, tmp_path: Path) -> None:
    called = cli("store", "check", tmp_path / "store", "--size", "1MiB")
    assert called.code == 0
    for words in ("round trip", "MiB/s", "usable", "the content that is read equals the content that was written"):
        assert words in called.out
    called = cli("store", "check", tmp_path / "store", "--size", "1MiB", "--json")
    assert called.code == 0
    assert called.json["is_usable"] is True
    assert called.json["url"] == (tmp_path / "store").as_uri()
    assert called.json["write_rate"] > 0


def test_a_store_that_cannot_be_written(cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    called = cli("store", "check", tmp_path / "file/store", "--json")
    assert called.code == 1
    assert called.json["is_usable"] is False
    assert "Not a directory" in str(called.json["findings"])
    called = cli("store", "check", tmp_path / "file/store")
    assert "problem: " in called.out


@pytest.mark.parametrize("url", ["alluxio://", "x://y", "file://host/path", "alluxio://host?nothing=1"])
def test_what_is_no_address(cli: Cli, url: str) -> None:
    called = cli("store", "check", url)
    assert (called.code, called.out) == (2, "")
    assert url.partition("?")[0] in called.err
