"""Two writers on one run, whatever is done to its files: the second is refused by name, or the first one stops and says so."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.crash.power_child import SIZES
from tests.support.toy import open_toy, uninterrupted
from tests.support.verify import verify_run
from tranlogs.base.errors import UsageError
from tranlogs.retention import EverySteps, KeepLatest
from tranlogs.verify import Finding, Problem

pytestmark = pytest.mark.crash

HERE, ROOT = Path(__file__).parent, Path(__file__).parents[2]
HOST = socket.gethostname()


class Trainer:
    """A trainer in another process, which does what it is told."""

    def __init__(self, run: Path, durability: str = "machine") -> None:
        command = [sys.executable, str(HERE / "commanded_child.py"), str(run), durability]
        pipe = subprocess.PIPE
        self.process = subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, text=True, cwd=ROOT)
        self.pid, self.said, self._has_ended = self.process.pid, "", False
        self.first = self.answer()

    def answer(self) -> str:
        assert self.process.stdout is not None
        line = self.process.stdout.readline().strip()
        if not line:
            self.end()
            pytest.fail(f"no answer: {self.said}")
        return line

    def do(self, command: str) -> str:
        """Let it do something; gives the answer."""
        self.begin(command)
        return self.answer()

    def begin(self, command: str) -> None:
        """Let it do something."""
        assert self.process.stdin is not None
        self.process.stdin.write(command + "\n")
        self.process.stdin.flush()

    def train_until(self, answer: str) -> None:
        """Let it train until it gives an answer."""
        for _ in range(500):
            if self.do("train 5") == answer:
                return
        pytest.fail(f"it never said {answer}")

    def end(self) -> str:
        """Kill it; gives what it has said."""
        if not self._has_ended:
            self._has_ended = True
            self.process.kill()
            self.said = self.process.communicate()[1]
        return self.said


Start = Callable[..., Trainer]


@pytest.fixture
def start() -> Iterator[Start]:
    """Starts trainers, which are killed after the test."""
    made: list[Trainer] = []

    def begin(run: Path, durability: str = "machine") -> Trainer:
        made.append(Trainer(run, durability))
        return made[-1]

    yield begin
    for one in made:
        one.end()


def status(run: Path) -> dict[str, Any]:
    """What the command line says of a run's journal."""
    command = [sys.executable, "-m", "tranlogs", "status", str(run), "--json"]
    answer = json.loads(subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=False).stdout)
    found: dict[str, Any] = answer["ranks"][0]
    return found


def problems(run: Path) -> list[Finding]:
    return [one for one in verify_run(run) if isinstance(one, Problem)]


def assert_recovers(run: Path, step: int) -> None:
    """The run is sound, goes back to a step, to the state that an uninterrupted training has there, and goes on from it."""
    assert problems(run) == []
    trainer = open_toy(run, sizes=SIZES)
    assert trainer.recover().step == step
    assert trainer.state.everything() == uninterrupted(step, sizes=SIZES).everything()
    trainer.train(step + 3)
    assert trainer.journal.committed == step + 3
    trainer.journal.close()
    assert problems(run) == []


# What the training process does with the files.


@pytest.mark.parametrize("command", ["copy", "reopen"])
def test_a_process_that_opens_the_files_of_its_run_keeps_the_run(tmp_path: Path, start: Start, command: str) -> None:
    run, copy = tmp_path / "run", tmp_path / "copy"
    first = start(run)
    first.do("train 20")
    assert first.do(f"{command} {copy}") == "done"
    second = start(run)
    assert second.first.startswith("refused")
    assert f"process {first.pid} on host {HOST} writes this run" in second.first
    assert first.do("train 10") == "30"
    assert (status(run)["writer"]["pid"], status(run)["writer"]["is_alive"]) == (first.pid, True)
    assert first.end() == ""
    assert_recovers(run, 30)
    if command == "copy":
        assert_recovers(copy, 20)


def test_a_process_that_closes_all_its_descriptors_stops_logging_for_a_second_writer(tmp_path: Path, start: Start) -> None:
    run = tmp_path / "run"
    first = start(run)
    first.do("train 20")
    first.begin("closeall")
    assert os.WIFSTOPPED(os.waitpid(first.pid, os.WUNTRACED)[1])
    second = start(run)
    assert second.first == "recovered 20"
    assert second.do("train 10") == "30"
    os.kill(first.pid, signal.SIGCONT)
    assert first.answer() == "done"
    first.train_until("suspended")
    assert second.do("train 5") == "35"
    said = first.end()
    assert f"process {second.pid} on host {HOST} writes this run now, because this process has lost its lock" in said
    assert "Logging does not resume" in said
    assert second.end() == ""
    assert_recovers(run, 35)


@pytest.mark.parametrize("command", ["fork", "exec"])
def test_a_child_that_outlives_the_trainer_does_not_keep_the_run(tmp_path: Path, start: Start, command: str) -> None:
    run = tmp_path / "run"
    first = start(run)
    first.do("train 20")
    child = int(first.do(command))
    try:
        first.process.kill()
        first.process.wait()
        os.kill(child, 0)
        assert start(run).first == "recovered 20"
    finally:
        os.kill(child, signal.SIGKILL)
        first.end()


# What others do with the files.


def clean(run: Path, *names: str) -> None:
    """As a cleaner of old files."""
    for name in names or ("owner.lock", "owner.json"):
        (run / "rank0" / name).unlink()


@pytest.mark.parametrize("names", [("owner.lock", "owner.json"), ("owner.lock",), ("owner.json",)])
def test_the_files_of_the_lock_are_made_again(tmp_path: Path, start: Start, names: tuple[str, ...]) -> None:
    run = tmp_path / "run"
    first = start(run)
    first.do("train 20")
    clean(run, *names)
    second = start(run)
    assert f"process {first.pid} on host {HOST} writes this run" in second.first
    first.do("train 10")
    assert all((run / "rank0" / name).exists() for name in names)
    found = status(run)["writer"]
    assert (found["pid"], found["host"], found["is_alive"]) == (first.pid, HOST, True)
    assert first.end() == ""
    assert_recovers(run, 30)


def test_a_stopped_trainer_keeps_its_run_although_the_files_of_its_lock_are_deleted(tmp_path: Path, start: Start) -> None:
    run = tmp_path / "run"
    first = start(run)
    first.do("train 20")
    os.kill(first.pid, signal.SIGSTOP)
    clean(run)
    assert status(run)["writer"]["is_alive"]
    assert start(run).first.startswith("refused")
    os.kill(first.pid, signal.SIGCONT)
    assert first.do("train 10") == "30"
    assert f"process {first.pid} on host" in start(run).first
    assert first.end() == ""
    assert_recovers(run, 30)


@pytest.mark.parametrize("what", ["nothing", "copied", "deleted"])
def test_two_processes_write_the_catalog_in_turn(tmp_path: Path, what: str) -> None:
    """Whatever happens to the file with LMDB's lock."""
    command = [sys.executable, str(HERE / "catalog_child.py"), str(tmp_path / "journal"), what]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=False, timeout=120)
    assert (done.stdout, done.stderr) == ("12\n", "")


# The folder.


@pytest.mark.parametrize("durability", ["machine", "process"])
@pytest.mark.parametrize("what", ["run", "parent"])
def test_a_live_run_that_is_moved_loses_nothing_and_says_so(tmp_path: Path, start: Start, durability: str, what: str) -> None:
    run = tmp_path / "parent/run"
    moved = tmp_path / "parent/moved" if what == "run" else tmp_path / "moved/run"
    first = start(run, durability)
    assert first.do("train 20") == "20"
    (run if what == "run" else run.parent).rename(moved if what == "run" else moved.parent)
    first.train_until("suspended")
    found = status(moved)
    assert (found["writer"]["pid"], found["writer"]["is_alive"]) == (first.pid, True)
    assert found["recovery"]["step"] == found["watermarks"]["committed"] >= 20
    assert f"the folder was moved to {moved}/rank0" in found["incidents"][0]["why"]
    assert f"process {first.pid} on host" in start(moved).first
    said = first.end()
    assert f"the folder was moved to {moved}/rank0, and all that was logged is there" in said
    assert f"start it with run={str(moved)!r}" in said
    assert not run.exists()
    assert_recovers(moved, found["recovery"]["step"])


def test_a_run_that_is_moved_back_is_logged_again(tmp_path: Path, start: Start) -> None:
    run, moved = tmp_path / "run", tmp_path / "moved"
    first = start(run)
    first.do("train 20")
    run.rename(moved)
    first.train_until("suspended")
    moved.rename(run)
    while (answer := first.do("train 5")) == "suspended":
        pass
    assert "logging resumed from a fresh checkpoint" in first.end()
    assert_recovers(run, int(answer))


def test_a_run_that_is_deleted_is_said_to_be_lost(tmp_path: Path, start: Start) -> None:
    run = tmp_path / "run"
    first = start(run)
    first.do("train 20")
    run.rename(tmp_path / "doomed")
    while (tmp_path / "doomed").exists():  # the writer may make a file meanwhile
        shutil.rmtree(tmp_path / "doomed", ignore_errors=True)
    first.train_until("suspended")
    said = first.end()
    assert "the folder was deleted, with all that was logged. Training continues; a crash now would lose all of it" in said
    assert "Logging does not resume" in said
    assert not run.exists()


@pytest.mark.parametrize("durability", ["machine", "process"])
@pytest.mark.parametrize("what", ["all", "log", "catalog", "checkpoints", "folders"])
def test_a_run_whose_files_are_deleted_is_logged_again(tmp_path: Path, start: Start, durability: str, what: str) -> None:
    """A move to another file system is a copy, and then the files are deleted one by one."""
    run = tmp_path / "run"
    first = start(run, durability)
    assert first.do("train 20") == "20"
    pattern = {"catalog": "catalog.lmdb*", "log": "log/*", "checkpoints": "checkpoints/*/*"}.get(what, "*")
    for path in list(run.rglob(pattern)):
        if path.is_file():
            path.unlink(missing_ok=True)
    for path in [*run.glob("rank0/log"), *run.glob("rank0/checkpoints")] if what == "folders" else []:
        shutil.rmtree(path)
    first.train_until("suspended")
    while first.do("train 5") == "suspended":
        pass
    answer = first.do("train 5")
    said = first.end()
    assert ("catalog.lmdb was deleted, and was written again" in said) is (what not in ("log", "checkpoints"))
    if what in ("log", "checkpoints"):
        assert "was deleted while" in said
        assert "a crash now would lose what was logged since the last checkpoint that is left" in said
    assert "logging resumed from a fresh checkpoint" in said
    assert_recovers(run, int(answer))


def test_checkpoint_that_is_retired_while_it_is_looked_for_was_not_deleted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The thread that writes checkpoints publishes the next one, and retires this one, in that very moment."""
    trainer = open_toy(tmp_path / "run", sizes=SIZES, policy=EverySteps(1000), retention=KeepLatest(1))
    trainer.recover()
    checkpoints = trainer.journal.checkpoints
    look, looked_for = checkpoints._is_at_place, list[str]()

    def look_late(name: str) -> bool:
        looked_for.append(name)
        if len(looked_for) == 1:
            trainer.train(trainer.journal.step + 1)
            assert trainer.journal.checkpoint(trainer.state.snapshot(), wait=True)
        return look(name)

    monkeypatch.setattr(checkpoints, "_is_at_place", look_late)
    checkpoints.demand_newest()
    assert not (tmp_path / "run" / "rank0" / "checkpoints" / looked_for[0]).exists()
    trainer.train(4)
    trainer.journal.close()
    assert_recovers(tmp_path / "run", 4)


def test_a_script_may_change_its_working_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    trainer = open_toy("run", sizes=SIZES)
    trainer.recover()
    trainer.train(5)
    (tmp_path / "other").mkdir()
    monkeypatch.chdir(tmp_path / "other")
    trainer.train(10)
    assert trainer.journal.checkpoint(trainer.state.snapshot(), wait=True)
    trainer.journal.close()
    assert_recovers(tmp_path / "run", 10)


@pytest.mark.parametrize("what", ["moved", "deleted"])
def test_a_trainer_whose_folder_is_gone_leaves_the_run_at_its_path_alone(tmp_path: Path, start: Start, what: str) -> None:
    """The step that it stops in is followed by a checkpoint, of which the other run has one of the same name."""
    run = tmp_path / "run"
    first = start(run)
    assert first.do("train 49") == "49"
    first.begin("stopin 2")
    os.waitpid(first.pid, os.WUNTRACED)
    if what == "moved":
        (run / "rank0").rename(run / "rank0.old")
    else:
        shutil.rmtree(run)
    second = start(run)
    assert second.do("train 80") == "80"
    os.kill(first.pid, signal.SIGCONT)
    first.answer()
    first.train_until("suspended")
    said = first.end()
    second.end()
    assert ("move the folder to RUN/rank0" in said) == (what == "moved"), said
    assert_recovers(run, 80)


def test_a_folder_under_the_number_of_the_locked_one_is_not_taken_for_it(tmp_path: Path, start: Start) -> None:
    run, other = tmp_path / "run", tmp_path / "other"
    other.mkdir()
    first = start(run)
    assert first.do("train 20") == "20"
    first.do(f"steal {other}")
    assert first.do("train 20") == "40"
    assert list(other.iterdir()) == []
    second = start(run)
    assert second.first.startswith("refused")
    assert str(first.pid) in second.first
    first.end()
    assert_recovers(run, 40)


def test_a_process_that_closes_its_descriptors_logs_again(tmp_path: Path, start: Start) -> None:
    run = tmp_path / "run"
    first = start(run)
    assert first.do("train 20") == "20"
    first.do("closeowned")
    first.do("train 20")
    end = time.monotonic() + 120
    while (answer := first.do("train 50")) == "suspended" and time.monotonic() < end:
        pass
    said = first.end()
    assert answer != "suspended", said
    assert_recovers(run, int(answer))


def test_a_copy_by_hard_links_is_refused_and_the_original_is_whole(tmp_path: Path, start: Start) -> None:
    run, copy = tmp_path / "run", tmp_path / "copy"
    first = start(run)
    assert first.do("train 60") == "60"
    assert first.do("close") == "done"
    first.end()
    shutil.copytree(run, copy, copy_function=os.link)
    with pytest.raises(UsageError, match=r"hard links.*cp -r RUN NEW"):
        open_toy(copy, sizes=SIZES)
    shutil.rmtree(copy)
    assert_recovers(run, 60)
