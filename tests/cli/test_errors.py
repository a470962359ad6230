"""Whatever lies at RUN: an exit code, one line for people, JSON for programs, never a traceback."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from .conftest import Cli, flip, segment_files

COMMANDS = {
    "status": ["status"],
    "log": ["log"],
    "log --step": ["log", "--step", "5"],
    "verify": ["verify"],
    "verify --replay": ["verify", "--replay"],
    "replay": ["replay", "--out", "OUT"],
    "verify --repair": ["verify", "--repair"],
}


def _call(cli: Cli, name: str, run: Path, *more: str) -> tuple[int, str, str]:
    words = [str(run.parent / "state.pt") if word == "OUT" else word for word in COMMANDS[name]]
    called = cli(*words, run, *more)
    if "--json" in more:
        assert isinstance(called.json, dict)
    return called.code, called.out, called.err


def _empty(run: Path) -> None:
    run.mkdir()


def _foreign(run: Path) -> None:
    run.mkdir()
    (run / "log").mkdir()
    (run / "model.pt").write_bytes(b"no run")
    (run / "rank0").mkdir()


def _file(run: Path) -> None:
    run.write_text("no folder")


def _missing(run: Path) -> None:
    assert not run.exists()


@pytest.mark.parametrize("make", [_missing, _empty, _foreign, _file])
@pytest.mark.parametrize("name", COMMANDS)
def test_what_is_no_run_is_refused_in_one_line(cli: Cli, tmp_path: Path, name: str, make: Callable[[Path], None]) -> None:
    run = tmp_path / "run"
    make(run)
    code, out, err = _call(cli, name, run)
    assert (code, out) == (2, "")
    assert err.startswith(f"tranlogs: {run}: ")
    assert err.count("\n") == 1
    before = sorted(tmp_path.rglob("*"))
    code, out, _ = _call(cli, name, run, "--json")
    assert (code, '"NotARun"' in out) == (2, True)
    assert sorted(tmp_path.rglob("*")) == before


def _cut_catalog(run: Path) -> None:
    path = run / "rank0" / "catalog.lmdb"
    os.truncate(path, 3 * 4096)  # of what it uses: behind that some space is kept


def _delete_catalog(run: Path) -> None:
    (run / "rank0" / "catalog.lmdb").unlink()


def _garble_catalog(run: Path) -> None:
    path = run / "rank0" / "catalog.lmdb"
    path.write_bytes(os.urandom(path.stat().st_size))


def _cut_segment(run: Path) -> None:
    os.truncate(segment_files(run)[0], 20_000)


def _delete_segment(run: Path) -> None:
    segment_files(run)[0].unlink()


def _garble_segment(run: Path) -> None:
    path = segment_files(run)[0]
    path.write_bytes(os.urandom(path.stat().st_size))


def _flip_manifest(run: Path) -> None:
    flip(max((run / "rank0" / "checkpoints").iterdir()) / "manifest.json", 200)


def _delete_checkpoint(run: Path) -> None:
    shutil.rmtree(max((run / "rank0" / "checkpoints").iterdir()))


def _delete_checkpoints(run: Path) -> None:
    shutil.rmtree(run / "rank0" / "checkpoints")


def _delete_log(run: Path) -> None:
    shutil.rmtree(run / "rank0" / "log")


DAMAGES = [
    _cut_catalog,
    _delete_catalog,
    _garble_catalog,
    _cut_segment,
    _delete_segment,
    _garble_segment,
    _flip_manifest,
    _delete_checkpoint,
    _delete_checkpoints,
    _delete_log,
]


@pytest.mark.sampled(21)
@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize("name", COMMANDS)
def test_no_damage_gives_a_traceback(cli: Cli, run: Path, name: str, damage: Callable[[Path], None]) -> None:
    damage(run)
    code, out, err = _call(cli, name, run)
    assert code in (0, 1, 2)
    assert out or err
    assert "unexpected error" not in err
    damaged_for_json = shutil.copytree(run, run.parent / "again")
    assert _call(cli, name, damaged_for_json, "--json")[0] in (0, 1, 2)


@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize("name", ["status", "verify"])
def test_damage_is_named_with_its_file(cli: Cli, run: Path, name: str, damage: Callable[[Path], None]) -> None:
    assert _call(cli, name, run)[0] == 0
    damage(run)
    code, out, _ = _call(cli, name, run, "--json")
    assert code == 1
    assert str(run / "rank0") in out


def test_an_unexpected_error_is_one_line_with_a_hint(cli: Cli, run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise KeyError("a bug")

    monkeypatch.setattr("tranlogs.cli.commands.status.survey", fail)
    called = cli("status", run)
    assert called.code == 1
    assert called.err == ("tranlogs: unexpected error (KeyError: 'a bug'); run `tranlogs --debug ...` to see where\n")


def test_an_error_of_the_system_names_the_file(cli: Cli, run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise PermissionError(13, "Permission denied", "/some/file")

    monkeypatch.setattr("tranlogs.cli.commands.status.survey", fail)
    called = cli("status", run, "--json")
    assert (called.code, called.err) == (1, "tranlogs: /some/file: Permission denied\n")
    assert called.json == {"error": {"kind": "PermissionError", "message": "/some/file: Permission denied"}}


def test_debug_shows_the_traceback(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "tranlogs", "--debug", "status", str(tmp_path / "none")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "Traceback" in done.stderr
    assert "NotARun" in done.stderr


def test_a_reader_that_goes_away_is_no_error(trained: Path) -> None:
    command = f"{sys.executable} -m tranlogs log {trained} --json | head -1"
    done = subprocess.run(command, shell=True, capture_output=True, text=True, check=True)
    assert (done.stdout, done.stderr) == ("{\n", "")
