"""One writer a journal: the second is told who the first is, a dead one is taken over, children hold nothing."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.kills.launchers import in_child
from tests.support.toy import open_toy
from tranlogs.base.errors import RunInUse, RunLost, UsageError
from tranlogs.journal import read_owner
from tranlogs.journal.owner_lock import OwnerLock
from tranlogs.log.layout import Payload

HOLD = """
import sys
from pathlib import Path
from tranlogs.journal.owner_lock import OwnerLock
lock = OwnerLock(Path(sys.argv[1]), *sys.argv[2:])
print("held", flush=True)
sys.stdin.readline()
"""
TAKE = """
import sys
from pathlib import Path
from tranlogs.base.errors import RunInUse
from tranlogs.journal.owner_lock import OwnerLock
from tranlogs.log.layout import Payload
try:
    OwnerLock(Path(sys.argv[1])).release()
    print("taken")
except RunInUse as error:
    print(error.host, error.pid)
"""
SAY = TAKE.replace("error.host, error.pid", "error")


def holder(*arguments: object, by: Sequence[str] = (sys.executable, "-c")) -> subprocess.Popen[str]:
    """Start a process that holds a lock; it ends with its stdin."""
    command = [*by, HOLD, *map(str, arguments)]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "held\n"
    return process


def take_elsewhere(folder: Path) -> str:
    """What another process gets when it asks for the lock."""
    return subprocess.run([sys.executable, "-c", TAKE, str(folder)], capture_output=True, text=True, check=True).stdout.strip()


def kill(process: subprocess.Popen[str]) -> None:
    process.kill()
    process.communicate()


def test_a_damaged_note_of_the_owner_does_no_harm(tmp_path: Path) -> None:
    process = holder(tmp_path)
    for content in (
        "",
        "{}",
        "[]",
        '{"host": 1}',
        "\0\0",
        "[" * 200_000,
        '{"host": "h", "pid": Infinity, "since": 0}',
        '{"host": "h", "pid": 1, "since": 1' + "0" * 400 + "}",
        '{"host": "h", "pid": 1, "since": 1e40}',
    ):
        (tmp_path / "owner.json").write_text(content)
        found = read_owner(tmp_path)
        assert found is not None
        assert (found.pid, found.is_alive) == (process.pid, True)  # the kernel knows
        with pytest.raises(RunInUse, match=f"process {process.pid} on host"):
            OwnerLock(tmp_path)
    kill(process)
    OwnerLock(tmp_path).release()


def demand_refused(folder: Path, role: str = "owner") -> None:
    with pytest.raises(RunInUse) as caught:
        OwnerLock(folder, role)
    assert caught.value.pid == os.getppid()


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_forked_child_logs_nothing_and_closing_there_takes_nothing_away(tmp_path: Path) -> None:
    trainer = open_toy(tmp_path, sizes=(10,))
    trainer.recover()
    trainer.train(3)

    def child() -> None:
        journal = trainer.journal
        record = journal.begin_step(Payload.of([]))
        journal.commit_step(record, {})
        journal.append_image(Payload.of([]), {})
        journal.boundary({}, trainer.state.snapshot, checkpoint=True)
        has_logged = journal.checkpoint(trainer.state.snapshot(), wait=True)
        journal.close()
        assert (record, has_logged, journal.is_writer) == (None, False, False)

    assert in_child(child) == 0
    assert take_elsewhere(tmp_path / "rank0") != "taken"
    trainer.train(6)
    trainer.journal.close()
    again = open_toy(tmp_path, sizes=(10,))
    assert again.recover().step == 6
    assert again.state.everything() == trainer.state.everything()
    again.journal.close()


def test_a_folder_where_nothing_can_be_made_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    with pytest.raises(UsageError, match="the run's folder cannot be created"):
        open_toy(tmp_path / "file" / "run")


@pytest.mark.root
def test_the_first_process_of_another_container_is_not_taken_for_this_one(tmp_path: Path) -> None:
    """Both have the number 1, and the host's name."""
    container = ["unshare", "--pid", "--fork", "--kill-child", "--mount-proc", sys.executable, "-c"]
    first = holder(tmp_path, by=container)
    try:
        second = subprocess.run([*container, SAY, str(tmp_path)], capture_output=True, text=True, check=True)
        assert f"process 1 on host {socket.gethostname()} (in another container) writes this run" in second.stdout
    finally:
        first.communicate("\n")


def test_opening_a_run_twice_in_one_process_says_so(tmp_path: Path) -> None:
    """By whatever name, and whatever becomes of the file."""
    run, link = tmp_path / "run", tmp_path / "link"
    run.mkdir()
    link.symlink_to("run")
    lock = OwnerLock(run)
    for name in (run, link):
        with pytest.raises(RunInUse, match="this process writes this run already"):
            OwnerLock(name)
    (run / "owner.lock").unlink()
    with pytest.raises(RunInUse, match="this process writes this run already"):
        OwnerLock(run)
    lock.release()
    assert take_elsewhere(link) == "taken"


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_the_other_roles_keep_their_lock_and_notice_its_loss(tmp_path: Path) -> None:
    role = "shipper"
    lock = OwnerLock(tmp_path, role)
    (tmp_path / f"{role}.lock").open("rb").close()
    with pytest.raises(RunInUse):
        OwnerLock(tmp_path, role)
    assert in_child(lambda: demand_refused(tmp_path, role)) == 0
    (tmp_path / f"{role}.lock").unlink()
    lock.keep()
    assert in_child(lambda: demand_refused(tmp_path, role)) == 0
    (tmp_path / f"{role}.lock").unlink()
    process = holder(tmp_path, role)
    with pytest.raises(RunLost, match=f"process {process.pid} on host"):
        lock.keep()
    lock.release()
    found = read_owner(tmp_path, role)
    assert found is not None
    assert (found.pid, found.is_alive) == (process.pid, True)
    kill(process)
