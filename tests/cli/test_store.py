"""`tranlogs verify URL` on folders; tests/alluxio has it on clusters."""

from __future__ import annotations

from pathlib import Path

import pytest

from .conftest import Cli


def test_a_sound_store(cli: Cli, tmp_path: Path) -> None:
    url = (tmp_path / "store").as_uri()
    called = cli("verify", url)
    assert called.code == 0
    for words in ("round trip", "MiB/s", "durable", "usable"):
        assert words in called.out
    called = cli("verify", url, "--json")
    assert called.code == 0
    assert called.json["is_usable"] is True
    assert called.json["url"] == url
    assert called.json["problem"] is None
    assert called.json["seconds"]["put"] > 0


def test_a_store_that_cannot_be_written(cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    url = (tmp_path / "file/store").as_uri()
    called = cli("verify", url, "--json")
    assert called.code == 1
    assert called.json["is_usable"] is False
    assert "Not a directory" in str(called.json["problem"])
    assert "problem: " in cli("verify", url).out


@pytest.mark.parametrize("command", ["verify", "status"])
@pytest.mark.parametrize("url", ["alluxio://", "file://host/path", "alluxio://host?nothing=1"])
def test_what_is_no_address(cli: Cli, url: str, command: str) -> None:
    called = cli(command, url)
    assert (called.code, called.out) == (2, "")
    assert url.partition("?")[0] in called.err


def test_options_of_a_run_are_refused(cli: Cli, tmp_path: Path) -> None:
    for option in ("--repair", "--replay"):
        called = cli("verify", (tmp_path / "store").as_uri(), option)
        assert (called.code, "`tranlogs pull`" in called.err) == (2, True)
