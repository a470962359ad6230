"""The commands name a run in format 1, say what to do, and leave it alone."""

from __future__ import annotations

import tarfile
from pathlib import Path

import pytest

from tests.cli.conftest import Cli
from tests.format.test_newer_version import content
from tests.format.test_older_format import ADVICE, ARCHIVE, WHAT


@pytest.mark.parametrize("command", ["status", "log", "verify", "replay --out state.pt"])
def test_format_1_is_named(tmp_path: Path, command: str, cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "1000")
    with tarfile.open(ARCHIVE) as archive:
        archive.extractall(tmp_path, **({"filter": "data"} if hasattr(tarfile, "data_filter") else {}))  # type: ignore[arg-type]
    before = content(tmp_path / "run")
    name, *options = command.split()
    called = cli(name, "run", *options)
    said = " ".join((called.out + called.err).split())
    assert called.code == 1
    assert WHAT in said
    assert ADVICE in said
    assert content(tmp_path / "run") == before
