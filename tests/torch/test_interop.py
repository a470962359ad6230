"""As a user moves: a run that died goes on in plain PyTorch, and its checkpoint under a log again, through another death."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.conftest import Cli, cli

__all__ = ["cli"]

ROOT = Path(__file__).parents[2]
LAST = 20

pytestmark = pytest.mark.crash


def child(*arguments: object) -> int:
    paths = os.pathsep.join(str(ROOT / folder) for folder in ("integrations", "monitor", "."))
    command = [sys.executable, str(Path(__file__).with_name("interop_child.py")), *map(str, arguments)]
    done = subprocess.run(command, env={**os.environ, "PYTHONPATH": paths}, capture_output=True, text=True)
    assert done.returncode in (0, -signal.SIGKILL), done.stderr[-3000:]
    return done.returncode


def test_out_of_a_log_and_into_another_with_every_bit(cli: Cli, tmp_path: Path) -> None:
    first, second, folder = tmp_path / "first", tmp_path / "second", tmp_path / "folder"
    assert child("logged", first, LAST, 7, tmp_path / "never") == -signal.SIGKILL
    called = cli("export", first, "--to", "dcp", folder, "--json")
    assert (called.code, called.json["step"], called.json["exact"]) == (0, 7, True)
    assert child("plain", folder, 7, LAST, tmp_path / "plain") == 0

    assert cli("import", tmp_path / "plain.pt", second).code == 0
    assert child("logged", second, LAST, 13, tmp_path / "never") == -signal.SIGKILL
    assert child("logged", second, LAST, -1, tmp_path / "second.out") == 0
    assert child("logged", first, LAST, -1, tmp_path / "first.out") == 0
    assert not (tmp_path / "never").exists()
    outcomes = {(tmp_path / name).read_text() for name in ("plain", "first.out", "second.out")}
    assert len(outcomes) == 1
