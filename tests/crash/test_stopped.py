"""Processes that are stopped (SIGSTOP), and killed, while they hold something of a run: a reader the catalog and segments, a
tool of LMDB a write transaction of the catalog, a monitor the run that it changes. No step is lost, and training goes on.

Processes of TranLogs never hold a write transaction of the catalog of a run that another one trains: only the owner writes it.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from tests.crash.processes import Process, Processes, holder, monitor, open_run, reader, trainer
from tests.crash.test_two_writers import assert_recovers, problems
from tests.crash.toy_trainers import SIZES
from tests.support import campaign
from tests.support.clock import FakeClock
from tests.support.toy import ToyState, ToyTrainer, open_toy, uninterrupted
from tranlogs.base.config import MIB, JournalConfig
from tranlogs.base.errors import UsageError
from tranlogs.catalog import CATALOG_NAME, Catalog
from tranlogs.catalog import catalog as catalogs
from tranlogs.journal import owner_lock, read_owner
from tranlogs.log import preallocator
from tranlogs.recovery.recover import recover
from tranlogs.retention import EverySteps, KeepLatest

pytestmark = pytest.mark.crash


@pytest.fixture(autouse=True)
def _named_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let who holds the catalog be named after a second, and not after five."""
    monkeypatch.setattr(catalogs, "CATALOG_HELD_SECONDS", 1.0)


def stopped(start: Processes, work: Callable[..., None], *arguments: Any) -> Process:
    """A process that has said a line, and does not go on."""
    made = start(work, *arguments)
    made.answer()
    made.stop()
    return made


def in_catalog(run: Path, query: Callable[[Catalog], Any]) -> Any:
    catalog = Catalog.open(run / "rank0")
    try:
        return query(catalog)
    finally:
        catalog.close()


# A tool of LMDB.


def names(trainer: Process, holder: Process, run: Path) -> bool:
    """Whether the trainer has named the holder, which it does a second after the transaction began."""
    return f"WARNING {run}/rank0/{CATALOG_NAME}: process {holder.pid} holds a write transaction" in trainer.said


@pytest.mark.parametrize(("durability", "writer"), [("machine", "direct"), campaign.in_soak("process", "thread")])
def test_training_goes_on_and_no_step_is_lost_when_it_is_killed(
    tmp_path: Path, start: Processes, durability: str, writer: str
) -> None:
    """What lies in segments that the catalog does not know is read, and no trainer opens the run before it can list them."""
    run = tmp_path / "run"
    first = start(trainer, run, durability, every=8, writer=writer)
    first.answer()
    first.do("train 10")
    tool = stopped(start, holder, run)
    first.do_until("train 5", lambda _: names(first, tool, run))
    first.do_until("train 5", lambda _: unlisted_segments(run) > 1)  # one is prepared ahead
    last = int(first.do("train 5"))
    said = first.end()
    assert said.count(f"process {tool.pid} holds a write transaction") == 1  # said once
    assert "suspended" not in said
    slack = 0 if writer == "direct" else 256  # of queued steps a kill loses those that are not written
    with pytest.raises(UsageError, match=f"process {tool.pid} holds a write transaction"):
        open_run(run)
    assert read_to(run) >= last - slack
    tool.end()
    assert_recovers(run, read_to(run), is_listed=False)


def unlisted_segments(run: Path) -> int:
    """How many files of segments the catalog does not know."""
    files = {path.name for path in (run / "rank0" / "log").glob("*.seg")}
    return len(files - set(in_catalog(run, lambda catalog: [row.file for row in catalog.segments()])))


def read_to(run: Path) -> int:
    """The step that `tranlogs replay` and `status` find, which read the run only."""
    state = ToyState(SIZES)
    found = recover(run / "rank0", state)
    assert found is not None
    assert state.everything() == uninterrupted(found.position.step, sizes=SIZES).everything()
    return found.position.step


@pytest.mark.parametrize("end", ["goes on", "killed"])
def test_the_catalog_has_everything_soon_after_the_holder_has_let_go(tmp_path: Path, start: Processes, end: str) -> None:
    run = tmp_path / "run"
    first = start(trainer, run, every=8)
    first.answer()
    first.do("train 10")
    tool = stopped(start, holder, run)
    first.do_until("train 5", lambda _: names(first, tool, run))
    if end == "killed":
        tool.end()
    else:
        tool.go_on()
        assert tool.do("go on") == "done"
    first.do_until("train 1", lambda _: "the catalog can be written again" in first.said)
    last = int(first.do("train 5"))
    first.do_until("train 1", lambda _: in_catalog(run, lambda catalog: catalog.watermarks().synced) >= last)
    last = int(first.do("train 1"))
    assert first.end().count("WARNING") == 2, first.said
    assert_recovers(run, last)


@pytest.mark.parametrize("end", ["close", "shut_down", "seal"])
def test_a_run_that_is_closed_meanwhile_ends_and_says_what_was_not_done(tmp_path: Path, start: Processes, end: str) -> None:
    run = tmp_path / "run"
    first = start(trainer, run)
    first.answer()
    first.do("train 20")
    tool = stopped(start, holder, run)
    assert first.do(end) in ("done", "True", "False", "None")
    if end != "shut_down":
        assert first.do("close") == "done"
        assert f"the log could not be closed cleanly: {run}/rank0/{CATALOG_NAME}: process {tool.pid} holds" in first.said
    first.end()
    owner = read_owner(run / "rank0")
    assert owner is not None
    assert (owner.is_alive, owner.has_closed) == (False, False)
    tool.end()
    assert_recovers(run, 20)


# A monitor.


@pytest.mark.parametrize("point", ["log.retire", "log.unlink", "checkpoint.delete"])
def test_a_monitor_that_is_stopped_and_killed_while_it_prunes_a_live_run_holds_nobody_up(
    tmp_path: Path, start: Processes, point: str
) -> None:
    """What it wants changed it asks of the trainer."""
    run = tmp_path / "runs" / "run"
    first = start(trainer, run, every=4, keep=9, segment_age_seconds=0.03)
    first.answer()
    first.do("train 20")
    watching = start(monitor, run.parent, point)
    first.do_until("train 5", lambda _: watching.is_stopped)
    last = int(first.do("train 30"))
    assert first.end() == ""
    second = start(trainer, run)
    assert second.answer() == f"recovered {last}"
    second.end()
    watching.end()
    assert_recovers(run, last)


@pytest.mark.parametrize("point", ["log.retire", "catalog.before_commit", "catalog.after_commit", "log.unlink"])
def test_a_monitor_that_is_stopped_inside_a_change_of_a_run_is_named_and_once_it_is_killed_nothing_is_lost(
    tmp_path: Path, start: Processes, monkeypatch: pytest.MonkeyPatch, point: str
) -> None:
    """It owns a run that nobody trains for a moment."""
    run = tmp_path / "runs" / "run"
    made = open_run(run, every=4, keep=9)
    made.recover()
    made.train(20, lambda _: made.journal.log.wal.roll())  # type: ignore[union-attr]
    made.journal.close()
    watching = start(monitor, run.parent, point)
    watching.wait_stopped()
    monkeypatch.setattr(owner_lock, "_BRIEF_SECONDS", 0.1)
    if point.startswith("catalog."):
        with pytest.raises(UsageError, match=f"process {watching.pid} "):
            open_run(run)
    else:
        open_run(run).journal.close()
    watching.end()
    assert_recovers(run, 20)


# A reader.


def test_a_stopped_reader_stalls_nobody_and_pins_nothing_once_it_is_killed(
    tmp_path: Path, memory_path: Path, start: Processes, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The catalog is written all the time: a segment a step, and rows of pruned segments are deleted at once."""
    monkeypatch.setattr(preallocator, "SEGMENT_RECORDS_WANTED", 1)
    monkeypatch.setattr(catalogs, "CATALOG_BYTES", MIB // 4)
    monkeypatch.setattr("tranlogs.log.group_commit.SWEEP_SECONDS", -1.0)
    run = memory_path / "run"
    with closing(opened(run).journal):
        pass
    process = start(reader, run)
    readers = int(process.answer().split()[1])
    process.stop()
    trainer = opened(run)
    train(trainer, 120)
    messages = [record.getMessage() for record in caplog.records if "holds an old snapshot" in record.getMessage()]
    assert messages
    assert all(str(process.pid) in message for message in messages)
    assert (run / "rank0" / CATALOG_NAME).stat().st_size > MIB // 4
    assert len(list((run / "rank0" / "log").glob("*.seg"))) < readers + 8  # deleted, if not reused
    assert problems(run) == []
    process.end()
    train(trainer, 240)
    pages = pages_of_catalog(trainer)
    train(trainer, 320)
    assert pages_of_catalog(trainer) == pages  # what was pinned is used again
    assert not trainer.journal.is_suspended
    trainer.journal.close()
    assert_recovers(run, 320)


def opened(run: Path) -> ToyTrainer:
    config, retention = JournalConfig(durability="process", segment_bytes=MIB), KeepLatest(1)
    trainer = open_toy(run, sizes=SIZES, config=config, policy=EverySteps(6), retention=retention, clock=FakeClock())
    trainer.recover()
    train(trainer, 20)
    return trainer


def train(trainer: ToyTrainer, until: int) -> None:
    def roll(_: int) -> None:
        trainer.journal.wait_checkpoint()
        assert trainer.journal.log.wal is not None, "logging is suspended"
        trainer.journal.log.wal.roll()

    trainer.train(until, roll)


def pages_of_catalog(trainer: ToyTrainer) -> int:
    """How far its file is used; behind that some space is kept."""
    env = trainer.journal.catalog._env
    assert env is not None
    return int(env.info()["last_pgno"])
