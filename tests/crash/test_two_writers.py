"""A run that several want to write, and runs that are copied, moved and deleted under their trainer: the second writer is
refused by name, or the first one stops and says so."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from tests.crash.processes import Judge, Processes, open_run, trainer, training
from tests.crash.toy_trainers import SIZES
from tests.support import campaign
from tests.support.command_line import call_tranlogs
from tests.support.toy import open_toy, uninterrupted
from tests.support.verify import verify_run
from tests.support.waiting import wait_until
from tranlogs.base.errors import UsageError
from tranlogs.recovery.journal_facts import read_catalog
from tranlogs.verify import Finding, Problem

pytestmark = pytest.mark.crash

HOST = socket.gethostname()
COPIES, RACES = campaign.rounds(50), campaign.rounds(20)


def status(run: Path) -> dict[str, Any]:
    """What the command line says of a run's journal."""
    found: dict[str, Any] = json.loads(call_tranlogs("status", run, "--json")[1])["ranks"][0]
    return found


def problems(run: Path) -> list[Finding]:
    return [one for one in verify_run(run) if isinstance(one, Problem)]


def assert_recovers(run: Path, step: int, *, is_listed: bool = True) -> None:
    """The run is sound, goes back to a step, to the state that an uninterrupted training has there, and goes on from it."""
    assert not is_listed or problems(run) == []
    trainer = open_toy(run, sizes=SIZES)
    assert trainer.recover().step == step
    assert trainer.state.everything() == uninterrupted(step, sizes=SIZES).everything()
    trainer.train(step + 3)
    assert trainer.journal.committed == step + 3
    trainer.journal.close()
    assert problems(run) == []


def is_suspended(answer: str) -> bool:
    return answer == "suspended"


def is_logged(answer: str) -> bool:
    return answer != "suspended"


def refused_by(pid: int) -> str:
    return f"process {pid} on host {HOST} writes this run"


# Two at once.


def test_of_many_that_open_a_run_at_once_exactly_one_wins(tmp_path: Path, start: Processes) -> None:
    run, count = tmp_path / "run", 10
    for turn in range(RACES):
        racers = [start(trainer, run, waits=True) for _ in range(count)]
        for one in racers:
            one.begin("go")
        answers = [one.answer() for one in racers]
        (winner,) = (number for number, answer in enumerate(answers) if answer == f"recovered {20 * turn}")
        assert all(refused_by(racers[winner].pid) in answer for answer in answers if answer != answers[winner])
        racers[winner].begin("die")
        assert racers[winner].wait() == -signal.SIGKILL
    assert_recovers(run, 20 * RACES)


def test_a_process_that_copies_the_files_of_its_run_keeps_the_run(tmp_path: Path, start: Processes) -> None:
    """A POSIX lock would be dropped with the first descriptor that is closed."""
    run, copy = tmp_path / "run", tmp_path / "copy"
    first = start(trainer, run)
    first.answer()
    first.do("train 20")
    assert first.do(f"copy {copy}") == "done"
    assert refused_by(first.pid) in start(trainer, run).answer()
    assert first.do("train 10") == "30"
    assert (status(run)["writer"]["pid"], status(run)["writer"]["is_alive"]) == (first.pid, True)
    assert first.end() == ""
    assert_recovers(run, 30)
    assert_recovers(copy, 20)


def test_a_process_that_closes_all_its_descriptors_stops_logging_for_a_second_writer(tmp_path: Path, start: Processes) -> None:
    run = tmp_path / "run"
    first = start(trainer, run)
    assert first.answer() == "recovered 0"
    first.do("train 20")
    first.begin("closeall")
    first.wait_stopped()
    second = start(trainer, run)
    assert second.answer() == "recovered 20"
    assert second.do("train 10") == "30"
    first.go_on()
    assert first.answer() == "done"
    first.do_until("train 5", is_suspended)
    assert second.do("train 5") == "35"
    said = first.end()
    assert f"process {second.pid} on host {HOST} writes this run now, because this process has lost its lock" in said
    assert "Logging does not resume" in said
    assert second.end() == ""
    assert_recovers(run, 35)


def test_a_process_that_closes_its_descriptors_logs_again(tmp_path: Path, start: Processes) -> None:
    run = tmp_path / "run"
    first = start(trainer, run)
    first.answer()
    assert first.do("train 20") == "20"
    first.do("closeowned")
    first.do("train 20")
    answer = first.do_until("train 50", is_logged)
    first.end()
    assert_recovers(run, int(answer))


@pytest.mark.parametrize("command", ["fork", "exec"])
def test_a_child_that_outlives_the_trainer_does_not_keep_the_run(tmp_path: Path, start: Processes, command: str) -> None:
    run = tmp_path / "run"
    first = start(trainer, run)
    first.answer()
    first.do("train 20")
    child = int(first.do(command))
    try:
        first.end()
        os.kill(child, 0)
        assert start(trainer, run).answer() == "recovered 20"
    finally:
        os.kill(child, signal.SIGKILL)


@pytest.mark.parametrize(
    ("names", "is_stopped"),
    campaign.each_once(
        [("owner.lock", "owner.json", "catalog.lmdb-lock"), ("owner.lock",), ("owner.json",)], [False, True, True]
    ),
)
def test_a_trainer_keeps_its_run_although_the_files_of_its_locks_are_deleted(
    tmp_path: Path, start: Processes, names: tuple[str, ...], is_stopped: bool
) -> None:
    """By a cleaner of old files. They are made again; a stopped trainer keeps its run, and is not taken for a dead one."""
    run = tmp_path / "run"
    first = start(trainer, run)
    first.answer()
    first.do("train 20")
    if is_stopped:
        first.stop()
    for name in names:
        (run / "rank0" / name).unlink()
    assert status(run)["writer"]["is_alive"]
    assert "refused" in start(trainer, run).answer()
    if is_stopped:
        first.go_on()
    assert first.do("train 10") == "30"
    wait_until(lambda: all((run / "rank0" / name).exists() for name in names), "the files are made again")
    found = status(run)["writer"]
    assert (found["pid"], found["host"], found["is_alive"]) == (first.pid, HOST, True)
    assert refused_by(first.pid) in start(trainer, run).answer()
    first.stop()
    assert first.end() == ""  # killed while it is stopped, it gives the run free
    assert_recovers(run, 30)


# The folder.


@pytest.mark.parametrize(("what", "durability"), campaign.each_once(["run", "parent"], ["machine", "process"]))
def test_a_live_run_that_is_moved_loses_nothing_and_says_so(
    tmp_path: Path, start: Processes, durability: str, what: str
) -> None:
    run = tmp_path / "parent/run"
    moved = tmp_path / "parent/moved" if what == "run" else tmp_path / "moved/run"
    first = start(trainer, run, durability)
    first.answer()
    assert first.do("train 20") == "20"
    (run if what == "run" else run.parent).rename(moved if what == "run" else moved.parent)
    first.do_until("train 5", is_suspended)
    found = status(moved)
    assert (found["writer"]["pid"], found["writer"]["is_alive"]) == (first.pid, True)
    assert found["recovery"]["step"] == found["watermarks"]["committed"] >= 20
    assert f"the folder was moved to {moved}/rank0" in found["incidents"][0]["why"]
    assert refused_by(first.pid) in start(trainer, moved).answer()
    if what == "parent":  # moved back, it is logged again
        moved.parent.rename(run.parent)
        answer = first.do_until("train 5", is_logged)
        assert "logging resumed from a fresh checkpoint" in first.end()
        assert_recovers(run, int(answer))
        return
    said = first.end()
    assert f"the folder was moved to {moved}/rank0, and all that was logged is there" in said
    assert f"start it with run={str(moved)!r}" in said
    assert not run.exists()
    assert_recovers(moved, found["recovery"]["step"])


def test_a_run_that_is_deleted_is_said_to_be_lost(tmp_path: Path, start: Processes) -> None:
    run = tmp_path / "run"
    first = start(trainer, run)
    first.answer()
    first.do("train 20")
    run.rename(tmp_path / "doomed")
    while (tmp_path / "doomed").exists():  # the writer may make a file meanwhile
        shutil.rmtree(tmp_path / "doomed", ignore_errors=True)
    first.do_until("train 5", is_suspended)
    said = first.end()
    assert "the folder was deleted, with all that was logged. Training continues; a crash now would lose all of it" in said
    assert "Logging does not resume" in said
    assert not run.exists()


@pytest.mark.parametrize(
    ("what", "durability"),
    campaign.each_once(["all", "log", "catalog", "checkpoints", "folders"], ["machine", "process"]),
)
def test_a_run_whose_files_are_deleted_is_logged_again(tmp_path: Path, start: Processes, durability: str, what: str) -> None:
    """A move to another file system is a copy, and then the files are deleted one by one."""
    run = tmp_path / "run"
    first = start(trainer, run, durability)
    first.answer()
    assert first.do("train 20") == "20"
    pattern = {"catalog": "catalog.lmdb*", "log": "log/*", "checkpoints": "checkpoints/*/*"}.get(what, "*")
    for path in list(run.rglob(pattern)):
        if path.is_file():
            path.unlink(missing_ok=True)
    for path in [*run.glob("rank0/log"), *run.glob("rank0/checkpoints")] if what == "folders" else []:
        shutil.rmtree(path)
    first.do_until("train 5", is_suspended)
    first.do_until("train 5", is_logged)
    answer = first.do("train 5")
    said = first.end()
    assert ("catalog.lmdb was deleted, and was written again" in said) is (what not in ("log", "checkpoints"))
    if what in ("log", "checkpoints"):
        assert "was deleted while" in said
        assert "a crash now would lose what was logged since the last checkpoint that is left" in said
    assert "logging resumed from a fresh checkpoint" in said
    assert_recovers(run, int(answer))


@pytest.mark.parametrize("what", ["garbage", "cut off", "emptied"])
def test_a_run_whose_catalog_is_damaged_while_it_is_open_is_logged_again(tmp_path: Path, start: Processes, what: str) -> None:
    run = tmp_path / "run"
    first = start(trainer, run, "machine")
    first.answer()
    assert first.do("train 20") == "20"
    # Within a transaction, a look at what is missing would end the process.
    wait_until(lambda: read_catalog(run / "rank0").watermarks.synced == 20, "synced")
    catalog = run / "rank0" / "catalog.lmdb"
    with catalog.open("r+b") as file:
        if what == "garbage":
            file.seek(8192)
            file.write(os.urandom(catalog.stat().st_size - 8192))
        else:
            file.truncate(0 if what == "emptied" else 8192)
    first.do_until("train 5", is_suspended)
    first.do_until("train 5", is_logged)
    answer = first.do("train 5")
    said = first.end()
    assert "logging resumed from a fresh checkpoint" in said
    assert "the catalog was rebuilt from" in said
    assert_recovers(run, int(answer))


@pytest.mark.parametrize("what", ["moved", "deleted"])
def test_a_trainer_whose_folder_is_gone_leaves_the_run_at_its_path_alone(tmp_path: Path, start: Processes, what: str) -> None:
    """The step that it stops in is followed by a checkpoint, of which the other run has one of the same name."""
    run = tmp_path / "run"
    first = start(trainer, run)
    first.answer()
    assert first.do("train 49") == "49"
    first.begin("stopin 2")
    first.wait_stopped()
    if what == "moved":
        (run / "rank0").rename(run / "rank0.old")
    else:
        shutil.rmtree(run)
    second = start(trainer, run)
    second.answer()
    assert second.do("train 80") == "80"
    first.go_on()
    first.answer()
    first.do_until("train 5", is_suspended)
    assert ("move the folder to RUN/rank0" in first.end()) == (what == "moved"), first.said
    second.end()
    assert_recovers(run, 80)


def test_checkpoint_that_is_retired_while_it_is_looked_for_was_not_deleted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The thread that writes checkpoints publishes the next one, and retires this one, in that very moment."""
    trainer = open_run(tmp_path / "run", every=1000)
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


# Copies.


@pytest.mark.sampled(1)
@pytest.mark.parametrize("durability", ["machine", "process"])
def test_a_copy_of_a_run_that_is_written_recovers_to_a_committed_boundary(memory_path: Path, durability: str) -> None:
    chance, verdicts, run = campaign.dice(durability), [], memory_path / "run"
    options: dict[str, Any] = {"durability": durability, "pause": 0.001, "every": 20, "keep": 3}
    with closing(Judge(memory_path, None)) as judge:
        with training(memory_path / "said", run, **options) as trainer:
            trainer.wait_for(25)
            for number in range(COPIES):
                before = trainer.wait_for(chance.randrange(1, 30))[0]
                copy = memory_path / f"copy{number}"
                # What is deleted while it is copied cannot be copied: cp says so and goes on.
                subprocess.run(["cp", "-r", str(run), str(copy)], capture_output=True, check=False)
                after = trainer.marks[0]
                step = judge(copy, 0, 3, is_whole=False)["step"]
                print(f"copied from step {before} to {after}")
                assert 0 < step <= after + 1  # what is committed is noted a moment later
                verdicts.append(step)
                shutil.rmtree(copy)
        judge(run, trainer.marks[0])
    assert len(set(verdicts)) > 1


def test_a_copy_by_hard_links_is_refused_and_the_original_is_whole(tmp_path: Path, start: Processes) -> None:
    run, copy = tmp_path / "run", tmp_path / "copy"
    first = start(trainer, run)
    first.answer()
    assert first.do("train 60") == "60"
    assert first.do("close") == "done"
    first.end()
    shutil.copytree(run, copy, copy_function=os.link)
    with pytest.raises(UsageError, match=r"hard links.*cp -r RUN NEW"):
        open_toy(copy, sizes=SIZES)
    shutil.rmtree(copy)
    assert_recovers(run, 60)
