"""One journal under watch, and a daemon that watches many: what it sees, does, writes down, and leaves alone."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from tests.monitor.monitors import seen_at, watching, watching_daemon
from tests.shipping.ships import trained
from tests.support.clock import FakeClock
from tests.support.toy import ToyTrainer, open_toy
from tests.support.toy_steps import SIZES, killed
from tranlogs import Monitor
from tranlogs.base.config import MIB, JournalConfig
from tranlogs.base.errors import RecoveryError, UsageError
from tranlogs.cli.reading.find_journals import find_journals
from tranlogs.journal import monitor_launch
from tranlogs.journal.monitor_launch import parse_monitor, start_monitor
from tranlogs.journal.owner_lock import OwnerLock
from tranlogs.recovery.recover import Recovered, recover
from tranlogs.recovery.recovery_plan import Target
from tranlogs.retention import EverySteps, KeepAll, KeepLatest
from tranlogs.retention.prune import Budget
from tranlogs.retention.value_decay import Decay, read_evaluations, read_values
from tranlogs_monitor.daemon import Daemon, find_watched_journals, lock_journal
from tranlogs_monitor.settings import DaemonSettings
from tranlogs_monitor.watching.watch import Evaluation


def sealed(seen: Evaluation) -> list[int]:
    return [row.last_step for row in seen.rows.segments if row.state == "sealed"]


def pruned(seen: Evaluation) -> tuple[list[int], list[int]]:
    """The last steps of segments, and the steps of checkpoints."""
    return [row.last_step for row in seen.pruning.segments], [row.step for row in seen.pruning.checkpoints]


def test_a_damaged_checkpoint_protects_nothing_and_what_the_one_before_needs_stays(
    run: ToyTrainer, caplog: pytest.LogCaptureFixture
) -> None:
    newest = max((run.journal.paths.checkpoints / row.name for row in run.journal.catalog.checkpoints()), key=str)
    data = bytearray((newest / "state.safetensors").read_bytes())
    data[5000] ^= 0xFF
    (newest / "state.safetensors").write_bytes(data)
    watch = watching(run, budget=Budget(1))
    seen = watch.evaluate()
    assert seen.anchor is not None
    assert seen.anchor.step == 10
    assert pruned(seen)[0] == [5, 10]
    assert "is damaged, keeping the log that the previous one needs" in caplog.text
    watch.evaluate()
    assert caplog.text.count("is damaged") == 1, "said once"
    watch.close()


def test_what_other_ranks_may_go_back_to_stays(run: ToyTrainer) -> None:
    """The newest checkpoint is this rank's alone as yet: should another die now, all go back to the one before."""
    run.journal.holds.set_common_step(10, 2)
    watch = watching(run, budget=Budget(1))
    assert pruned(watch.evaluate()) == ([5, 10], [0])
    run.journal.holds.set_common_step(20, 2)
    assert pruned(watch.evaluate())[0] == [15, 20]
    watch.close()


def test_a_live_run_over_its_budget_is_pruned_and_its_trainer_asked_for_a_checkpoint(
    run: ToyTrainer, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder, segments = run.journal.paths.folder, run.journal.catalog.segments()
    before = {path: path.stat().st_size for path in folder.rglob("*") if path.suffix == ".seg" or path.parent.name != "rank0"}
    assert pruned(seen_at(run, budget=Budget(1), is_dry_run=True)) == ([5, 10, 15, 20], [0, 10])
    assert run.journal.catalog.segments() == segments, "a dry run changes nothing"
    assert {path: path.stat().st_size for path in before} == before
    assert read_evaluations(folder) == []

    watch = watching(run, budget=Budget(2 * MIB))
    assert pruned(watch.evaluate()) == ([5, 10, 15, 20], [0, 10])
    assert "requested a checkpoint from its trainer" in caplog.text
    assert len(list(run.journal.paths.log.glob("*.seg"))) == 4  # two sealed, the open one, the one that is ready
    run.train(32)
    run.journal.checkpoints.schedule._request_read_at = 0.0
    run.train(33)
    run.journal.wait_checkpoint()
    assert run.journal.catalog.checkpoints()[-1].step in (32, 33), "the request was not heeded"
    assert pruned(watch.evaluate())[0] == [25, 30]
    watch.close()
    again = open_toy(killed(run, tmp_path / "copy"), sizes=SIZES)
    assert again.recover().step == 33
    again.journal.close()


def test_values_go_on_from_evaluation_to_evaluation_and_daemon_to_daemon(
    run: ToyTrainer, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock, decay = FakeClock(max(row.sealed_at for row in run.journal.catalog.segments())), Decay(100.0, 0.0, 0.0)
    watch = watching(run, clock, decay=decay)
    watch.evaluate()
    clock.advance(50)
    first = watch.evaluate().worth.as_dict()
    watch.close()
    watch = watching(run, clock, decay=decay)  # another daemon
    clock.advance(50)
    second = watch.evaluate().worth.as_dict()
    assert second == {ordinal: value * 0.5 for ordinal, value in first.items()}
    rows = read_evaluations(run.journal.paths.folder)
    assert [row.number for row in rows] == [1, 2, 3]
    assert read_values(rows[2]).as_dict() == second
    assert (rows[2].committed, rows[2].log_bytes > 0) == (31, True)
    monkeypatch.setattr("tranlogs.retention.value_decay._ROWS_MAX", 16)
    for _ in range(40):
        clock.advance(10)
        watch.evaluate()
    watch.close()
    numbers = [row.number for row in read_evaluations(run.journal.paths.folder)]
    assert len(numbers) <= 17, "the history is thinned"
    assert (numbers[0], numbers[-8:]) == (1, list(range(36, 44))), "the curve begins where it began"


def test_a_dead_trainers_log_is_sealed_at_once(run: ToyTrainer, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    copy = killed(run, tmp_path / "copy")
    watch = watching(copy / "rank0")
    seen = watch.evaluate()
    assert seen.owner is not None
    assert (seen.sealed, seen.owner.is_alive) == (2, False)  # the open one, and the one that was ready
    assert sealed(seen) == [5, 10, 15, 20, 25, 30, 31]
    assert "died without closing it; sealed 2 segments of its log" in caplog.text
    (copy / "rank0/catalog.lmdb").write_bytes(b"x" * 8192)
    trainer = open_toy(copy, sizes=SIZES)  # which rebuilds it
    assert trainer.recover().step == 31
    trainer.journal.close()
    assert sealed(watch.evaluate())[:6] == [5, 10, 15, 20, 25, 30], "a catalog that was replaced is opened anew"
    watch.close()


# A trainer has recovered to an older step and has not begun to write: nothing is taken from under it.

LIMITS = Budget(checkpoints_max=2, segments_max=4)
ROLLING = JournalConfig(durability="process", segment_bytes=2 * MIB)


@pytest.fixture
def folder(memory_path: Path) -> Path:
    """A closed run of 60 steps, of which nothing was pruned."""
    trained(memory_path / "run", 60, retention=KeepAll())
    return memory_path / "run"


def reopened(folder: Path, retention: Any = None, **options: Any) -> ToyTrainer:
    options = {"config": ROLLING, "policy": EverySteps(1000)} | options
    return open_toy(folder, sizes=(7, 3000, 40_000), retention=retention or KeepAll(), **options)


def test_what_a_rewind_needs_stays(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trainer = reopened(folder)
    watch = watching(trainer, budget=LIMITS)

    def looked_at(*arguments: Any, **options: Any) -> Recovered | None:
        assert watch.evaluate().did_nothing, "while it is read"
        return recover(*arguments, **options)

    monkeypatch.setattr("tests.support.toy.recover", looked_at)
    trainer.recover(step=25)
    monkeypatch.undo()
    trainer.state.lr *= 2  # another history from here on
    assert watch.evaluate().did_nothing, "only the trainer knows where it will go on"
    trainer.train(40)
    assert not watch.evaluate().did_nothing, "now the catalog does, too"
    watch.close()
    trainer.journal.close()
    again = reopened(folder)
    assert again.recover().step == 40
    assert again.state.everything() == trainer.state.everything()
    again.journal.close()


def test_what_other_journals_need_stays_until_they_do_not(folder: Path) -> None:
    """Also behind a process that died meanwhile, until another one goes on with the run."""
    trainer = reopened(folder, KeepLatest(1))
    trainer.recover()
    trainer.train(63)
    before = [row.step for row in trainer.journal.catalog.checkpoints()]
    trainer.journal.holds.hold_during().__enter__()  # and it never leaves
    assert trainer.journal.checkpoint(trainer.state.snapshot(), wait=True)
    assert [row.step for row in trainer.journal.catalog.checkpoints()] == [*before, 63]
    trainer.journal.close()
    watch = watching(trainer, budget=LIMITS)
    assert watch.evaluate().did_nothing
    trainer = reopened(folder, KeepLatest(1))
    trainer.recover()
    trainer.train(64)
    assert not watch.evaluate().did_nothing
    watch.close()
    with trainer.journal.holds.hold_during():
        assert trainer.journal.checkpoint(trainer.state.snapshot(), wait=True)
    assert trainer.journal.catalog.read(lambda tables: tables.request("hold")) is None
    trainer.journal.close()


def test_what_was_pruned_while_an_unforeseen_landing_was_read_is_not_built_on(folder: Path) -> None:
    trainer = reopened(folder)
    found = recover(trainer.journal.paths.folder, trainer.state, Target(25))
    assert found is not None
    assert not seen_at(trainer, budget=LIMITS).did_nothing
    with pytest.raises(RecoveryError, match="a monitor pruned this journal while it was being recovered"):
        trainer.journal.continue_from(found.position, new_timeline=found.plan.has_later)
    trainer.journal.close()


# The daemon.


def test_a_journal_with_a_monitor_of_its_own_is_left_to_it(run: ToyTrainer, tmp_path: Path) -> None:
    journal = run.journal.paths.folder
    lock = OwnerLock(journal, "monitor")
    for root in (tmp_path / "run", journal):
        watched = watching_daemon(root, FakeClock(1e9))
        with pytest.raises(UsageError, match=f"process {os.getpid()} on .* monitors it"):
            watched.evaluate()
        watched.close()
    waiting = watching_daemon(tmp_path, FakeClock(1e9), waits=True)
    waiting.evaluate()
    assert read_evaluations(journal) == []
    lock.release()
    waiting.evaluate()
    assert len(read_evaluations(journal)) == 1
    waiting.close()


def test_a_folder_of_runs_is_watched_as_they_come_and_go_and_none_holds_up_another(
    memory_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    clock, seen = FakeClock(2e9), list[str]()
    watched = Daemon(
        [memory_path / "runs"],
        DaemonSettings(),
        find=lambda root: find_watched_journals(root, find_journals),
        on_evaluation=lambda what, paths: seen.append(paths.folder.parent.name) if isinstance(what, Evaluation) else None,
        clock=clock,
    )

    def looked_at(failures: int = 0) -> list[str]:
        """What is seen when all are due again."""
        seen.clear()
        clock.advance(1e6)
        assert watched.evaluate() == failures
        return sorted(seen)

    assert looked_at() == looked_at() == []
    assert caplog.text.count("no run found yet") == 1, "it is said once"
    for name in ("a", "b", "c"):
        trained(memory_path / "runs" / name, 2)
    lock = OwnerLock(memory_path / "runs/b/rank0", "monitor")
    assert looked_at() == looked_at() == ["a", "c"]
    assert caplog.text.count("b/rank0: cannot watch") == 1
    lock.release()
    assert looked_at() == ["a", "b", "c"]
    (memory_path / "runs/a/rank0/catalog.lmdb").write_bytes(b"x" * 8192)
    os.rename(memory_path / "runs/c", memory_path / "runs/d")
    assert looked_at(1) == looked_at(1) == ["b", "d"]
    assert caplog.text.count("cannot watch now") == 1
    watched.close()


# A monitor that a trainer starts.


def test_settings_as_users_write_them(monkeypatch: pytest.MonkeyPatch) -> None:
    assert parse_monitor(None) is None
    assert parse_monitor("process", "20GiB") == Monitor("20GiB")
    assert Monitor(budget="20GiB").budget_bytes == 20 << 30
    assert parse_monitor(Monitor(interval="1min")) == Monitor(None, None, "1min")
    shared = parse_monitor("process", "3GiB", budget_sharers=3)  # ranks on a machine share the budget of the run
    assert shared is not None
    assert shared.budget_bytes == 1 << 30
    assert parse_monitor(Monitor("3GiB"), budget_sharers=3) == Monitor("3GiB")
    refused: list[tuple[Any, Any, str]] = [
        (None, "1GiB", "needs a monitor"),
        ("thread", None, 'must be "process"'),
        ("process", "much", "give a size"),
        ("process", 0, "at least 1 byte"),
        (Monitor(), "1GiB", "given twice"),
    ]
    for monitor, budget, why in refused:
        with pytest.raises(UsageError, match=why):
            parse_monitor(monitor, budget)
    monkeypatch.setattr(monitor_launch, "entry_points", lambda **_: [])
    with pytest.raises(UsageError, match=r"pip install 'tranlogs\[monitor\]'"):
        parse_monitor("process")


def test_another_monitor_is_left_alone_and_one_that_fails_is_a_warning(
    run: ToyTrainer, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(*_: Any, **__: Any) -> None:
        raise ZeroDivisionError("a bug")

    held = lock_journal(run.journal.paths.folder)
    start_monitor(Monitor(), run.journal.paths)
    held.release()
    assert caplog.text.count("monitors this journal already") == 1
    assert not (run.journal.paths.folder / "monitor.log").exists()
    monkeypatch.setattr("tranlogs_monitor.detached.subprocess.run", fail)
    start_monitor(Monitor(), run.journal.paths)
    assert "the monitor could not be started (ZeroDivisionError: a bug)" in caplog.text
    run.train(9)


def test_a_hold_for_other_journals_is_not_weakened_by_a_rewind(folder: Path) -> None:
    trainer = reopened(folder)
    trainer.journal.holds.hold_during().__enter__()  # and it never leaves
    trainer.recover(step=25)
    trainer.journal.close()
    assert seen_at(trainer, budget=LIMITS).did_nothing
