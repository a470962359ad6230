"""As a user moves: a run that died goes on in plain PyTorch, and a script that loads its checkpoint starts another run, which
dies, too.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.conftest import Cli, cli
from tests.torch.lab import in_child
from tests.torch.offline import own_checkpoint_child
from tests.torch.offline.own_checkpoint_child import logged

__all__ = ["cli"]

LAST = 16

pytestmark = pytest.mark.crash


def in_plain_torch(*arguments: object) -> None:
    """In a process that imports nothing of TranLogs (it checks that itself)."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    command = [sys.executable, own_checkpoint_child.__file__, *map(str, arguments)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]


def test_a_script_that_loads_a_checkpoint_before_recover_starts_a_fresh_run_from_it(cli: Cli, tmp_path: Path) -> None:
    first, second, folder = tmp_path / "first", tmp_path / "second", tmp_path / "folder"
    assert in_child(lambda: logged(first, LAST, 7, tmp_path / "never")) == -signal.SIGKILL
    called = cli("replay", first, "--format", "dcp", "--out", folder, "--json")
    assert (called.code, called.json["step"], called.json["exact"]) == (0, 7, True)
    in_plain_torch(folder, 7, LAST, tmp_path / "plain")

    own = tmp_path / "plain.pt"
    assert in_child(lambda: logged(second, LAST, 13, tmp_path / "never", own)) == -signal.SIGKILL
    assert in_child(lambda: logged(second, LAST, -1, tmp_path / "second.out", own)) == 0
    assert in_child(lambda: logged(first, LAST, -1, tmp_path / "first.out")) == 0
    assert not (tmp_path / "never").exists()
    outcomes = {(tmp_path / name).read_text() for name in ("plain", "first.out", "second.out")}
    assert len(outcomes) == 1
