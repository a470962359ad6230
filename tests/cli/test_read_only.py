"""A run on a disk that cannot be written: everything can be read from it, and training on it is refused in words."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support import disks
from tranlogs.base.errors import UsageError

from .conftest import STEPS, Cli, train

pytestmark = pytest.mark.disks


@pytest.fixture
def frozen(trained: Path, tmp_path: Path) -> Iterator[Path]:
    """The run, on a disk that was mounted anew without the right to write."""
    with disks.memory_disk(tmp_path / "disk") as disk:
        shutil.copytree(trained, disk / "run")
        disks.make_read_only(disk)
        yield disk / "run"


def test_every_reading_command_works(cli: Cli, frozen: Path, tmp_path: Path) -> None:
    assert cli("status", frozen).code == 0
    assert cli("status", frozen, "--json").json["ranks"][0]["watermarks"]["committed"] == STEPS
    assert cli("log", frozen).code == 0
    assert cli("log", frozen, "--step", 5).code == 0
    assert cli("verify", frozen).code == 0
    assert cli("verify", frozen, "--replay").code == 0
    replayed = cli("replay", frozen, "--step", 6, "--out", tmp_path / "state.pt", "--json")
    assert (replayed.code, replayed.json["step"], replayed.json["exact"]) == (0, 6, True)


def test_training_is_refused_in_words(frozen: Path) -> None:
    with pytest.raises(UsageError, match=r"cannot be opened for writing: .*Read-only file system"):
        train(frozen, STEPS + 1)


def test_repair_is_refused_in_words(cli: Cli, frozen: Path) -> None:
    refused = cli("verify", frozen, "--repair")
    assert refused.code in (1, 2)
    assert "Read-only file system" in refused.out + refused.err


def test_a_monitor_is_refused_in_words(cli: Cli, frozen: Path) -> None:
    refused = cli("monitor", frozen, "--once")
    assert refused.code == 2
    assert "this process may not write in the folder (Read-only file system)" in " ".join(refused.err.split())
    assert "no run is there" not in refused.out + refused.err
