"""The processes of a rehearsal: the folder in which a script works, and what a process prints."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.launcher import environment
from tranlogs.rehearsal.processes import WorkingFolder, can_mount, find_changed, remove, stamp_files
from tranlogs.training.rehearsed_process import VARIABLE, Orders

_SCRIPT = """
from tranlogs.training.rehearsed_process import current
current()
print("rank", 0, "loss", 1.5)
print("second")
print("a part of a line ", end="", flush=True)
"""


@pytest.fixture
def user(tmp_path: Path) -> Path:
    """A user's folder with a script, data, and the checkpoint of a real run."""
    folder = tmp_path / "user"
    (folder / "data").mkdir(parents=True)
    (folder / "out").mkdir()
    (folder / "data" / "train.txt").write_text("data")
    (folder / "out" / "best.pt").write_text("precious")
    return folder


def run(place: WorkingFolder, script: str) -> str:
    called = subprocess.run(place.launch(["sh", "-c", script]), capture_output=True, text=True, check=True)
    return called.stdout


def test_mounted_folder_takes_up_all_writes(user: Path, tmp_path: Path) -> None:
    scratch = tmp_path / "scratch"
    if not can_mount(user, scratch):
        pytest.skip("this kernel does not allow it to mount a file system")
    place, before = WorkingFolder.make(user, scratch / "arm", is_mounted=True), stamp_files(user, tmp_path)
    script = f"cat data/train.txt; pwd; echo new > out/best.pt; echo log > {user}/log.txt; rm data/train.txt"
    assert run(place, script) == f"data{user}\n"
    assert find_changed(user, tmp_path, before) == []
    assert {name: path.read_text() for name, path in place.files().items()} == {"out/best.pt": "new\n", "log.txt": "log\n"}
    assert run(place, "cat out/best.pt") == "new\n", "the next life sees what this one wrote"
    remove(scratch)
    assert not scratch.exists()


def test_linked_folder_has_the_data_and_keeps_new_files(user: Path, tmp_path: Path) -> None:
    place, before = WorkingFolder.make(user, tmp_path / "arm", is_mounted=False), stamp_files(user, tmp_path)
    assert run(place, "cat data/train.txt; echo new > out/new.pt; echo log > log.txt") == "data"
    assert find_changed(user, tmp_path, before) == []
    assert sorted(place.files()) == ["log.txt", "out/new.pt"]


def test_write_through_a_link_is_noticed(user: Path, tmp_path: Path) -> None:
    place, before = WorkingFolder.make(user, tmp_path / "arm", is_mounted=False), stamp_files(user, tmp_path)
    run(place, "echo other and longer > out/best.pt")
    assert find_changed(user, tmp_path, before) == ["out/best.pt"]


def test_scratch_folder_within_the_working_folder_is_not_linked_into_itself(user: Path) -> None:
    scratch = user / "scratch"
    assert not can_mount(user, scratch), "a file system over a folder cannot keep its files within that folder"
    before = stamp_files(user, scratch)
    place = WorkingFolder.make(user, scratch / "arm", is_mounted=False)
    assert run(place, "ls; echo log > log.txt") == "data\nout\n"
    assert find_changed(user, scratch, before) == []


def test_command_that_cannot_be_started_says_so(user: Path, tmp_path: Path) -> None:
    place = WorkingFolder.make(user, tmp_path / "arm", is_mounted=False)
    called = subprocess.run(place.launch(["no-such-command"]), capture_output=True, text=True)
    assert (called.returncode, called.stderr) == (127, "no-such-command: No such file or directory\n")


def test_line_is_written_by_one_system_call(tmp_path: Path) -> None:
    """A socket of packets shows each call: lines of several ranks in one file are mixed where a line takes two."""
    Orders(runs=str(tmp_path)).write(tmp_path)
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with ours, theirs:
        subprocess.run(
            [sys.executable, "-c", _SCRIPT],
            stdout=theirs,
            env={**environment(), VARIABLE: str(tmp_path), "PYTHONUNBUFFERED": "1"},
            check=True,
        )
        theirs.close()
        packets = list(iter(lambda: os.read(ours.fileno(), 4096), b""))
    assert packets == [b"rank 0 loss 1.5\n", b"second\n", b"a part of a line "]
