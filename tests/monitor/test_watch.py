"""One journal under watch: what an evaluation sees, does, and writes down."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.support.clock import FakeClock
from tests.support.toy import ToyTrainer, open_toy
from tests.support.toy_steps import killed
from tranlogs.base.config import MIB
from tranlogs.base.errors import UsageError
from tranlogs.cli.reading.find_journals import find_journals
from tranlogs.journal import JournalPaths, opening
from tranlogs.retention import KeepAll
from tranlogs.retention.evaluations import read_evaluations, read_values
from tranlogs.retention.prune import Budget
from tranlogs.retention.value_decay import Decay
from tranlogs_monitor.daemon import Daemon, find_watched_journals
from tranlogs_monitor.settings import DaemonSettings
from tranlogs_monitor.watching.watch import Evaluation, JournalWatch

Toy = Callable[..., ToyTrainer]


@pytest.fixture
def run(toy: Toy, tmp_path: Path) -> ToyTrainer:
    """30 steps, a segment every 5, checkpoints at 0, 10 and 20."""
    trainer = toy(tmp_path / "run", retention=KeepAll())
    trainer.recover()
    for until in range(5, 31, 5):
        trainer.train(until)
        assert trainer.journal.log.wal is not None
        trainer.journal.log.wal.roll()
        if until in (10, 20):
            trainer.journal.checkpoint(trainer.state.snapshot(), wait=True)
    trainer.train(31)
    settle(trainer)
    return trainer


def settle(trainer: ToyTrainer) -> None:
    """Until the background has sealed and written down everything."""
    journal = trainer.journal
    assert journal.wait_synced()
    assert journal.log.wal is not None
    deadline = 2000
    while deadline and (
        [row.state for row in journal.catalog.segments()] != ["sealed"] * 6 + ["open", "ready"]
        or journal.catalog.watermarks().committed < 31
    ):
        time.sleep(0.005)  # the thread behind writes watermarks down when nothing has woken it for a while
        deadline -= 1
    assert deadline, "the segments were not sealed"


def watching(trainer: ToyTrainer | Path, clock: FakeClock | None = None, **settings: Any) -> JournalWatch:
    folder = trainer if isinstance(trainer, Path) else trainer.journal.paths.folder
    return JournalWatch(JournalPaths(folder), DaemonSettings(**settings), clock or FakeClock(1e9))


def flip(path: Path, offset: int) -> None:
    """Change one byte."""
    data = bytearray(path.read_bytes())
    data[offset] ^= 0xFF
    path.write_bytes(data)


def sealed(seen: Evaluation) -> list[int]:
    return [row.last_step for row in seen.rows.segments if row.state == "sealed"]


def test_an_evaluation_protects_what_is_behind_the_newest_sound_checkpoint(run: ToyTrainer) -> None:
    seen = watching(run).evaluate()
    assert sealed(seen) == [5, 10, 15, 20, 25, 30]
    assert seen.anchor is not None
    assert seen.anchor.step == 20
    assert list(seen.protected.values()) == [False] * 4 + [True] * 2
    assert not seen.pruning.segments


def test_a_damaged_checkpoint_protects_nothing_and_what_the_one_before_needs_stays(
    run: ToyTrainer, caplog: pytest.LogCaptureFixture
) -> None:
    newest = max((run.journal.paths.checkpoints / row.name for row in run.journal.catalog.checkpoints()), key=str)
    flip(newest / "state.safetensors", 5000)
    watch = watching(run, budget=Budget(1))
    seen = watch.evaluate()
    assert seen.anchor is not None
    assert seen.anchor.step == 10
    assert [row.last_step for row in seen.pruning.segments] == [5, 10]
    assert "is damaged, keeping the log that the previous one needs" in caplog.text
    watch.evaluate()
    assert caplog.text.count("is damaged") == 1, "said once"
    watch.close()


def test_what_other_ranks_may_go_back_to_stays(run: ToyTrainer) -> None:
    """The newest checkpoint is this rank's alone as yet: should another die now, all go back to the one before."""
    run.journal.holds.set_common_step(10, 2)
    watch = watching(run, budget=Budget(1))
    seen = watch.evaluate()
    assert seen.anchor is not None
    assert seen.anchor.step == 10
    assert [row.last_step for row in seen.pruning.segments] == [5, 10]
    assert [row.step for row in seen.pruning.checkpoints] == [0]
    run.journal.holds.set_common_step(20, 2)
    assert [row.last_step for row in watch.evaluate().pruning.segments] == [15, 20]
    watch.close()


def test_a_live_run_over_its_budget_is_pruned_and_its_trainer_asked_for_a_checkpoint(
    run: ToyTrainer, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    watch = watching(run, budget=Budget(2 * MIB))
    seen = watch.evaluate()
    assert [row.last_step for row in seen.pruning.segments] == [5, 10, 15, 20]
    assert [row.step for row in seen.pruning.checkpoints] == [0, 10]
    assert "requested a checkpoint from its trainer" in caplog.text
    assert len(list(run.journal.paths.log.glob("*.seg"))) == 4  # two sealed, the open one, the one that is ready
    run.train(32)
    run.journal.checkpoints.schedule._request_read_at = 0.0
    run.train(33)
    run.journal.wait_checkpoint()
    assert run.journal.catalog.checkpoints()[-1].step in (32, 33), "the request was not heeded"
    seen = watch.evaluate()
    assert [row.last_step for row in seen.pruning.segments] == [25, 30]
    watch.close()
    again = open_toy(killed(run, tmp_path / "copy"), sizes=(7, 300))
    assert again.recover().step == 33
    again.journal.close()


def test_values_go_on_from_evaluation_to_evaluation_and_daemon_to_daemon(run: ToyTrainer) -> None:
    clock, decay = FakeClock(max(row.sealed_at for row in run.journal.catalog.segments())), Decay(100.0, 0.0, 0.0)
    watch = watching(run, clock, decay=decay)
    watch.evaluate()
    clock.advance(50)
    first = watch.evaluate().worth.as_dict()
    watch.close()
    watch = watching(run, clock, decay=decay)  # another daemon
    clock.advance(50)
    second = watch.evaluate().worth.as_dict()
    watch.close()
    assert second == {ordinal: value * 0.5 for ordinal, value in first.items()}
    rows = read_evaluations(run.journal.paths.folder)
    assert [row.number for row in rows] == [1, 2, 3]
    assert read_values(rows[2]).as_dict() == second
    assert rows[2].log_bytes > 0
    assert rows[2].committed == 31


def test_a_dry_run_changes_nothing(run: ToyTrainer) -> None:
    folder = run.journal.paths.folder
    before = {path: path.stat().st_size for path in folder.rglob("*") if path.suffix == ".seg" or path.parent.name != "rank0"}
    segments = run.journal.catalog.segments()
    seen = watching(run, budget=Budget(1), is_dry_run=True).evaluate()
    assert [row.last_step for row in seen.pruning.segments] == [5, 10, 15, 20]
    assert run.journal.catalog.segments() == segments
    assert {path: path.stat().st_size for path in before} == before
    assert read_evaluations(run.journal.paths.folder) == []


def test_a_dead_trainers_log_is_sealed_at_once(run: ToyTrainer, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    copy = killed(run, tmp_path / "copy") / "rank0"
    watch = watching(copy)
    seen = watch.evaluate()
    watch.close()
    assert seen.owner is not None
    assert not seen.owner.is_alive
    assert seen.sealed == 2  # the open one, and the one that was ready
    assert sealed(seen) == [5, 10, 15, 20, 25, 30, 31]
    assert "died without closing it; sealed 2 segments of its log" in caplog.text
    assert len(list((copy / "log").glob("*.seg"))) == 7, "the segment that was never written is not kept"
    again = open_toy(copy.parent, sizes=(7, 300))
    assert again.recover().step == 31
    again.journal.close()


def test_a_live_trainers_log_is_not_sealed(run: ToyTrainer) -> None:
    seen = watching(run).evaluate()
    assert seen.sealed == 0
    assert [row.state for row in run.journal.catalog.segments()].count("open") == 1


def test_a_catalog_that_was_replaced_is_opened_anew(run: ToyTrainer, tmp_path: Path) -> None:
    copy = killed(run, tmp_path / "copy") / "rank0"
    watch = watching(copy)
    watch.evaluate()
    (copy / "catalog.lmdb").write_bytes(b"x" * 8192)
    trainer = open_toy(copy.parent, sizes=(7, 300))  # which rebuilds it
    trainer.recover()
    trainer.journal.close()
    assert sealed(watch.evaluate())[:6] == [5, 10, 15, 20, 25, 30]
    watch.close()


def test_the_history_is_thinned(run: ToyTrainer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tranlogs.retention.evaluations._ROWS_MAX", 16)
    clock = FakeClock(1e9)
    watch = watching(run, clock)
    for _ in range(100):
        watch.evaluate()
        clock.advance(10)
    watch.close()
    rows = read_evaluations(run.journal.paths.folder)
    assert len(rows) <= 17
    assert rows[0].number == 1, "the curve begins where it began"
    assert [row.number for row in rows][-8:] == list(range(93, 101))


# The daemon.


def daemon(*roots: Path, clock: FakeClock | None = None, **settings: Any) -> Daemon:
    return Daemon(
        roots,
        DaemonSettings(**settings),
        find=lambda root: find_watched_journals(root, find_journals),
        clock=clock or FakeClock(1e9),
    )


def test_a_second_daemon_is_refused_by_name_or_waits(run: ToyTrainer, tmp_path: Path) -> None:
    code = (
        "import sys; from pathlib import Path; from tranlogs_monitor.daemon import lock_journal\n"
        f"held = lock_journal(Path({str(run.journal.paths.folder)!r})); print('held', flush=True); sys.stdin.readline()"
    )
    path = os.pathsep.join(["monitor", "."])
    with subprocess.Popen(
        [sys.executable, "-c", code],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=Path(__file__).parents[2],
        env={**os.environ, "PYTHONPATH": path},
    ) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == "held\n"
        with pytest.raises(UsageError, match=f"process {other.pid} on .* monitors it"):
            daemon(tmp_path / "run").evaluate()
        waiting = daemon(tmp_path, waits=True)
        waiting.evaluate()
        assert read_evaluations(run.journal.paths.folder) == []
        other.kill()
    waiting.evaluate()
    assert len(read_evaluations(run.journal.paths.folder)) == 1
    waiting.close()


def test_a_folder_of_runs_is_watched_as_they_come_and_go(run: ToyTrainer, tmp_path: Path) -> None:
    watched = daemon(tmp_path)
    watched.evaluate()
    assert len(watched._watched) == 1
    killed(run, tmp_path / "copy")
    assert watched.evaluate() == 0
    assert len(watched._watched) == 2
    os.rename(tmp_path / "copy", tmp_path / "gone-copy")
    watched.evaluate()
    assert {folder.parent.name for folder in watched._watched} == {"run", "gone-copy"}
    watched.close()


def test_a_damaged_journal_is_said_once_and_does_not_hold_up_others(
    run: ToyTrainer, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    copy = killed(run, tmp_path / "a-copy")
    (copy / "rank0" / "catalog.lmdb").write_bytes(b"x" * 8192)
    clock = FakeClock(1e9)
    watched = daemon(tmp_path, clock=clock)
    for _ in range(3):
        assert watched.evaluate() == 1
        clock.advance(1000)
    assert caplog.text.count("cannot watch now") == 1
    assert len(read_evaluations(run.journal.paths.folder)) == 3
    watched.close()


def test_a_trainer_waits_while_a_monitor_seals_what_a_dead_one_left(
    run: ToyTrainer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    copy = killed(run, tmp_path / "copy")
    watch, right, waiting = watching(copy / "rank0"), opening.read_segment, list[threading.Thread]()
    opened: list[ToyTrainer] = []

    def read(path: Path, timeline: int) -> Any:
        if not waiting:
            waiting.append(threading.Thread(target=lambda: opened.append(open_toy(copy, sizes=(7, 300)))))
            waiting[0].start()
            waiting[0].join(0.2)
        assert not opened, "a trainer was opened meanwhile"
        return right(path, timeline)

    monkeypatch.setattr(opening, "read_segment", read)
    assert watch.evaluate().sealed == 2
    watch.close()
    waiting[0].join()
    assert opened[0].recover().step == 31
    opened[0].journal.close()
