"""A run that another process is writing is read without disturbing it."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from .conftest import Cli, train

SCRIPT = """
import sys
from pathlib import Path
import torch
from tests.cli.conftest import train

def say(step):
    if step == 6:
        print("ready", flush=True)
        sys.stdin.readline()

torch.save(train(Path(sys.argv[1]), 10, say).state_dict(), sys.argv[2])
"""


@pytest.fixture
def trainer(tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    """A process in the middle of its sixth step: five are committed, the sixth is not."""
    command = [sys.executable, "-c", SCRIPT, str(tmp_path / "run"), str(tmp_path / "end.pt")]
    root = Path(__file__).parents[2]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=root) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == "ready\n"
        yield child
        child.kill()


def _finish(trainer: subprocess.Popen[str]) -> None:
    out, _ = trainer.communicate("go on\n")
    assert (out, trainer.returncode) == ("", 0)


def test_a_live_run_is_read_while_it_is_written(cli: Cli, trainer: subprocess.Popen[str], tmp_path: Path) -> None:
    run = tmp_path / "run"
    status = cli("status", run, "--json")
    assert (status.code, status.json["problems"]) == (0, [])
    (rank,) = status.json["ranks"]
    assert (rank["writer"]["pid"], rank["writer"]["is_alive"]) == (trainer.pid, True)
    assert rank["watermarks"]["committed"] == 5
    assert "open" in {row["state"] for row in rank["segments"]}

    records = cli("log", run, "--json").json["ranks"][0]["records"]
    assert [r["step"] for r in records if r["is_boundary"]] == [1, 2, 3, 4, 5]
    assert all(r["is_committed"] for r in records), "the record of a step is closed at its boundary"

    assert cli("verify", run).code == 0
    assert cli("verify", run, "--replay").code == 0
    replayed = cli("replay", run, "--out", tmp_path / "state.pt", "--json")
    assert (replayed.code, replayed.json["step"], replayed.json["exact"]) == (0, 5, True)
    assert cli("verify", run, "--repair").code == 2

    _finish(trainer)
    right, end = train(tmp_path / "right", 10).state_dict(), torch.load(tmp_path / "end.pt", weights_only=True)
    assert all(torch.equal(end[name], right[name]) for name in right)
    assert cli("status", run, "--json").json["ranks"][0]["watermarks"]["committed"] == 10
    assert cli("verify", run, "--replay").code == 0


def test_a_killed_writer_is_seen_as_dead(cli: Cli, trainer: subprocess.Popen[str], tmp_path: Path) -> None:
    trainer.kill()
    trainer.wait()
    status = cli("status", tmp_path / "run", "--json")
    assert status.code == 0
    (rank,) = status.json["ranks"]
    assert rank["writer"]["is_alive"] is False
    assert rank["watermarks"]["committed"] == 5
    assert cli("verify", tmp_path / "run").code == 0
