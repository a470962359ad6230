"""The journal: units commit as a whole, checkpoints say the truth, rewinds fork, and what is claimed to be safe is."""

from __future__ import annotations

import itertools
import json
import os
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import BuiltinFunctionType, FrameType
from typing import Any

import numpy as np
import pytest

from tests.format.format_reader import DocumentSegment
from tests.support import campaign
from tests.support.clock import FakeClock
from tests.support.command_line import call_tranlogs
from tests.support.faults import failing
from tests.support.toy import ToyTrainer
from tests.support.toy_steps import SIZES, boundary_of, killed, state_at, step_of
from tests.support.verify import problems_of
from tests.support.waiting import wait_until
from tranlogs.base.errors import LogUnavailable, UsageError
from tranlogs.base.types import dense
from tranlogs.catalog import Catalog
from tranlogs.checkpoints import Checkpoint
from tranlogs.journal import JournalPaths
from tranlogs.journal.journal import Journal
from tranlogs.journal.paths import file_system_of, refuse_network_file_system
from tranlogs.log.layout import Payload
from tranlogs.log.record_format import COVERED_MAX
from tranlogs.recovery.journal_facts import read_catalog
from tranlogs.retention import EverySteps, KeepAll


@pytest.mark.parametrize("writer", ["direct", "thread"])
def test_steps_count_once_a_boundary_follows(toy: Callable[..., ToyTrainer], tmp_path: Path, writer: str) -> None:
    trainer = toy(writer=writer)
    trainer.recover()
    trainer.train(2)
    at_two = trainer.state.everything()
    step_of(trainer)
    step_of(trainer)
    trainer.journal.wait_synced()
    assert (trainer.journal.step, trainer.journal.committed) == (4, 2)
    again = toy(killed(trainer, tmp_path / "before"))
    assert (again.recover().step, again.state.everything() == at_two) == (2, True)
    boundary_of(trainer)
    again = toy(killed(trainer, tmp_path / "after"))
    assert (again.recover().step, again.state.everything() == trainer.state.everything()) == (4, True)


def test_a_step_whose_record_was_dropped_is_a_gap_and_no_silent_hole(toy: Callable[..., ToyTrainer], tmp_path: Path) -> None:
    """An image in the middle of a record: the log would go on without the step, and replay would be wrong."""
    clock = FakeClock()
    trainer = toy(clock=clock)
    trainer.recover()
    trainer.train(2)
    state, journal = trainer.state, trainer.journal
    gradients = state.gradients()
    record = journal.begin_step(Payload.of([]))
    journal.append_image(Payload.of([("param/w0", dense(state.parameters["w0"]))]), {})
    state.apply(gradients, state.lr)
    journal.commit_step(record, {"lr": state.lr})
    boundary_of(trainer)
    assert (journal.step, journal.is_suspended, journal.committed) == (3, True, 2)
    again = toy(killed(trainer, tmp_path / "gap"))
    assert (again.recover().step, again.state.everything() == state_at(2)) == (2, True)
    clock.advance(100)
    trainer.train(5)
    again = toy(killed(trainer, tmp_path / "behind"))
    assert (again.recover().step, again.state.everything() == state.everything()) == (5, True)


def test_after_close_nothing_is_logged_and_nothing_breaks(toy: Callable[..., ToyTrainer]) -> None:
    trainer = toy()
    trainer.recover()
    trainer.train(3)
    trainer.journal.close()
    trainer.train(6)
    assert (trainer.journal.step, trainer.journal.committed, trainer.journal.is_writer) == (6, 3, False)
    assert not trainer.journal.checkpoint(trainer.state.snapshot(), wait=True)
    trainer.journal.close()
    assert toy().recover().step == 3


def test_state_that_changes_after_the_boundary_is_not_what_was_committed(
    toy: Callable[..., ToyTrainer], tmp_path: Path
) -> None:
    trainer = toy(writer="thread")
    trainer.recover()
    body = trainer.state.auxiliary()
    order = np.arange(5000)
    body["order"] = order
    trainer.journal.boundary(body, trainer.state.snapshot)
    order[:] = -1
    again = toy(killed(trainer, tmp_path / "killed"))
    again.recover()
    assert np.array_equal(again.state.order, np.arange(5000))


def test_the_same_position_has_one_checkpoint_unless_it_is_damaged(toy: Callable[..., ToyTrainer]) -> None:
    trainer = toy()
    trainer.recover()
    trainer.train(3)
    trainer.journal.checkpoint(trainer.state.snapshot(), wait=True)
    (row,) = [row for row in trainer.journal.catalog.checkpoints() if row.step == 3]
    assert trainer.journal.checkpoint(trainer.state.snapshot(), wait=True)
    assert row in trainer.journal.catalog.checkpoints()
    path = trainer.journal.paths.checkpoints / row.name / "state.safetensors"
    raw = bytearray(path.read_bytes())
    raw[-1] ^= 1
    path.write_bytes(raw)
    assert trainer.journal.checkpoint(trainer.state.snapshot(), wait=True)
    with Checkpoint(path.parent) as checkpoint:
        assert all(damage is None for _, damage in checkpoint.verify())


def test_going_back_and_looking_only_changes_nothing(toy: Callable[..., ToyTrainer]) -> None:
    first = toy()
    first.recover()
    first.train(10)
    first.journal.close()
    second = toy()
    second.recover(step=3)
    second.journal.close()
    third = toy()
    assert third.recover().step == 10
    assert [row.number for row in third.journal.catalog.timelines()] == [1]


def test_a_run_that_cannot_be_opened_for_writing_is_a_usage_error(
    toy: Callable[..., ToyTrainer], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with failing("catalog.before_commit=enospc"), pytest.raises(UsageError, match="cannot be opened for writing"):
        toy()
    trainer = toy()
    assert trainer.recover().step == 0


def test_a_network_file_system_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert file_system_of(Path("/proc/self")) == "proc"
    for kind in ("nfs4", "lustre", "fuse.sshfs"):
        monkeypatch.setattr("tranlogs.journal.paths.file_system_of", lambda _, kind=kind: kind)
        with pytest.raises(UsageError, match=rf"network file system \({kind}\)"):
            refuse_network_file_system(tmp_path)


def test_a_journal_is_not_taken_for_a_run(toy: Callable[..., ToyTrainer]) -> None:
    trainer = toy()
    trainer.recover()
    trainer.journal.close()
    inner = trainer.journal.paths.folder
    with pytest.raises(UsageError, match=f"is the journal of one rank, not a run: use its parent folder, {inner.parent}"):
        Journal.open(inner, framework="toy")
    assert not list(inner.glob("rank*"))


def test_a_run_of_another_framework_is_refused_by_name(toy: Callable[..., ToyTrainer]) -> None:
    trainer = toy()
    trainer.recover()
    trainer.train(2)
    trainer.journal.close()
    with pytest.raises(UsageError, match="holds a run of toy, and this program uses keras: choose another folder"):
        Journal.open(trainer.journal.paths.folder.parent, framework="keras")
    again = toy()
    assert again.recover().step == 2


Calls = Counter[tuple[int, str]]  # by thread and name


_PURE = ("fspath", "strerror")  # functions of `os` that call nothing


@contextmanager
def counting(monkeypatch: pytest.MonkeyPatch) -> Iterator[Calls]:
    """Count what threads call of `os`, and the write transactions of catalogs."""
    calls: Calls = Counter()

    def counted(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **options: Any) -> Any:
            calls[threading.get_ident(), name] += 1
            return function(*arguments, **options)

        return call

    with monkeypatch.context() as patch:
        for name, function in vars(os).copy().items():
            if isinstance(function, BuiltinFunctionType) and name not in _PURE:
                patch.setattr(os, name, counted(name, function))
        patch.setattr(Catalog, "transaction", counted("transaction", Catalog.transaction))
        yield calls


def units(trainer: ToyTrainer, count: int) -> None:
    for _ in range(count):
        step_of(trainer)
        trainer.state.go_on(trainer.journal.step)
        boundary_of(trainer)


def test_a_unit_takes_two_writes_of_the_training_thread_and_no_other_call(
    toy: Callable[..., ToyTrainer], monkeypatch: pytest.MonkeyPatch
) -> None:
    trainer = toy(durability="machine")
    trainer.recover()
    units(trainer, 12)
    with counting(monkeypatch) as calls:
        units(trainer, 8)
    assert {name: n for (thread, name), n in calls.items() if thread == threading.get_ident()} == {"pwritev": 8, "pwrite": 8}


def test_a_group_takes_one_flush_and_one_transaction(toy: Callable[..., ToyTrainer], monkeypatch: pytest.MonkeyPatch) -> None:
    trainer = toy(durability="machine")
    trainer.recover()
    units(trainer, 12)
    assert trainer.journal.wait_synced()
    segments = trainer.journal.catalog.segments
    wait_until(lambda: any(row.state == "ready" for row in segments()), "the next file is made and listed")
    with counting(monkeypatch) as calls:
        for _ in range(8):
            units(trainer, 1)
            assert trainer.journal.wait_synced()
    totals = Counter(name for (_, name), n in calls.items() for _ in range(n))
    assert (totals["fdatasync"], totals["transaction"]) == (8, 8)


def was_interrupted(work: Callable[[], None], moment: int) -> bool:
    """KeyboardInterrupt at the given one (from 0) of the moments at which CPython looks for one: a function is entered, or one
    of C has returned. False if the work has fewer."""
    passed = itertools.count()

    def profile(_: FrameType, event: str, __: Any) -> None:
        if event in ("call", "c_return") and next(passed) == moment:
            raise KeyboardInterrupt

    sys.setprofile(profile)
    try:
        work()
    except KeyboardInterrupt:
        return True
    finally:
        sys.setprofile(None)
    return False


def test_an_interrupted_close_can_be_called_again(toy: Callable[..., ToyTrainer]) -> None:
    """The gate tries every fourth moment."""
    step = 0
    for moment in itertools.count(0, 1 if campaign.is_soak() else 4):
        trainer = toy(writer="thread")
        assert trainer.recover().step == step, f"an interrupt at {moment - 1}"
        step += 1
        trainer.train(step)
        if not was_interrupted(trainer.journal.close, moment):
            break
        trainer.journal.close()
    assert moment > 30
    last = toy()
    assert last.recover().step == step
    assert last.state.everything() == state_at(step)


# Steps without tensors: redo ends before them, and every reader tells which they are.


def covered_steps(trainer: ToyTrainer, count: int) -> None:
    """Steps of which only the boundary after the last one is logged."""
    state, first = trainer.state, trainer.journal.step
    for step in range(first + 1, first + count + 1):
        state.take_step(step)
    boundary_of(trainer, covered=count, digests=state.digest().to_bytes(8, "little"))


def test_redo_ends_before_covered_steps_and_the_boundary_tells_where_training_arrives(
    toy: Callable[..., ToyTrainer], tmp_path: Path
) -> None:
    trainer = toy(writer="thread")
    trainer.recover()
    trainer.train(4)
    covered_steps(trainer, 5)
    trainer.train(11)
    step_of(trainer)
    covered_steps(trainer, 2)
    trainer.journal.wait_synced()
    assert (trainer.journal.step, trainer.journal.committed) == (14, 14)
    run = killed(trainer, tmp_path / "killed")
    assert not problems_of(run)
    again = toy(run)
    report = again.recover()
    assert (report.step, report.replayed, report.exact) == (4, 4, True)
    assert again.state.everything() == state_at(4)
    assert "the log has no tensors of steps 5 to 14: training computes them again" in report.notes
    entries = [entry for path in sorted((run / "rank0" / "log").glob("*.seg")) for entry in DocumentSegment(path).entries()]
    assert [(entry.step, entry.covered) for entry in entries if entry.covered] == [(9, 5), (14, 2)]
    [nine] = [entry for entry in entries if entry.covered == 5]
    again.train(9)
    assert again.state.digest().to_bytes(8, "little") == nine.digests
    assert again.state.lr == nine.boundary["lr"]


def test_covered_steps_count_also_while_logging_is_suspended_and_more_than_the_format_holds_suspend_it(
    toy: Callable[..., ToyTrainer], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    trainer = toy()
    trainer.recover()
    boundary_of(trainer, covered=COVERED_MAX)
    assert not trainer.journal.is_suspended
    boundary_of(trainer, covered=COVERED_MAX + 1)
    assert trainer.journal.is_suspended
    assert str(LogUnavailable(f"a boundary covers at most {COVERED_MAX} steps")) in caplog.text
    boundary_of(trainer, covered=7)
    assert (trainer.journal.step, trainer.journal.committed) == (2 * COVERED_MAX + 8, COVERED_MAX)


def test_no_checkpoint_is_taken_of_a_state_behind_the_newest_boundary(toy: Callable[..., ToyTrainer]) -> None:
    """It would be that of a boundary, with the weights of a later step."""
    trainer = toy()
    trainer.recover()
    trainer.train(2)
    trainer.journal.count_step()
    with pytest.raises(AssertionError, match="a checkpoint of no boundary: 1 steps came since the last one"):
        trainer.journal.checkpoint(trainer.state.snapshot())
    boundary_of(trainer)
    assert trainer.journal.checkpoint(trainer.state.snapshot())


def test_the_command_line_names_covered_steps(
    toy: Callable[..., ToyTrainer], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)  # no line is wrapped
    trainer = toy()
    trainer.recover()
    trainer.train(2)
    covered_steps(trainer, 5)
    run = killed(trainer, tmp_path / "killed")

    def call(*words: object) -> str:
        code, out = call_tranlogs(*words)
        assert code == 0, out
        return out

    assert "goes back to step 2: checkpoint 0 and 2 steps of log; training computes steps 3 to 7 again" in call("status", run)
    [rank] = json.loads(call("status", run, "--json"))["ranks"]
    assert (rank["watermarks"]["committed"], rank["recovery"]["step"], rank["recovery"]["computed_again"]) == (7, 2, 5)
    assert "3 to 7" in call("log", run)
    assert "steps 3 to 7, without tensors: only training can compute them again" in call("log", run, "--step", 5)
    [rank] = json.loads(call("log", run, "--step", 3, "--json"))["ranks"]
    assert [(record["step"], record["covered"]) for record in rank["records"]] == [(7, 5)]


# What a run measures about itself, and how often it fails, is in its catalog and lasts over its processes.


def trained_for(trainer: ToyTrainer, until: int, clock: FakeClock, seconds: float) -> ToyTrainer:
    """Train on, a step in so many seconds; the run is left open."""
    trainer.recover()

    def pass_time(_: int) -> None:
        trainer.journal.wait_checkpoint()
        clock.advance(seconds)

    trainer.train(until, say=pass_time)
    assert trainer.journal.wait_synced()
    return trainer


def test_steps_bytes_and_checkpoints_are_measured(toy: Callable[..., ToyTrainer], tmp_path: Path) -> None:
    clock = FakeClock(1e9)
    trainer = trained_for(toy(clock=clock, policy=EverySteps(10)), 25, clock, 2.0)
    trainer.journal.recovery_speed.observe_replay(0.5)
    trainer.journal.recovery_speed.observe_load(0.25)
    trainer.journal.close()
    row = read_catalog(tmp_path / "run/rank0").measured
    assert row is not None
    # The last interval had 10 steps; the clock stands still while the first one is taken.
    assert row.step_seconds == pytest.approx(2.0, rel=0.15)
    assert row.interval_seconds == pytest.approx(20.0, rel=0.15)
    assert row.step_bytes == pytest.approx(8 * sum(SIZES), rel=0.05)
    assert (row.tensors, row.redo_seconds, row.is_redo_measured, row.load_seconds) == ("gradients", 0.5, True, 0.25)
    assert (row.mtbf_seconds, row.failures, row.trained_seconds, row.since) == (0.0, 0, 0.0, 1e9)


def test_a_process_that_did_not_come_to_its_end_is_a_failure(toy: Callable[..., ToyTrainer], tmp_path: Path) -> None:
    clock = FakeClock(1e9)
    options: dict[str, Any] = {"clock": clock, "policy": EverySteps(10), "durability": "machine"}
    left = killed(trained_for(toy(**options), 12, clock, 10.0), tmp_path / "left")
    clock.advance(86_400)  # the machine was off
    toy(left, **options).journal.close()  # which has not trained hides no failure, and is none
    second = trained_for(toy(left, **options), 20, clock, 10.0)
    # Time after the last group is not known: one step at most.
    found = second.journal.checkpoints.measurements
    assert found.row.failures == 1
    assert found.row.trained_seconds == pytest.approx(110.0, abs=10.0)
    assert found.mtbf_seconds == pytest.approx((3600 + 110 + 80) / 2, abs=10.0)
    second.journal.note_finished("complete")
    second.journal.close()
    third = trained_for(toy(left, **options), 21, clock, 1.0)
    assert third.journal.checkpoints.measurements.row.failures == 1, "it came to its end"
    assert third.journal.checkpoints.measurements.row.trained_seconds == pytest.approx(190.0, abs=20.0)


def test_what_a_crash_left_half_done_is_finished(toy: Callable[..., ToyTrainer], tmp_path: Path) -> None:
    first = toy(retention=KeepAll())
    first.recover()
    first.train(4)
    first.journal.checkpoint(first.state.snapshot(), wait=True)
    first.train(6)
    copy = killed(first, tmp_path / "killed")
    paths = JournalPaths.of(copy)
    (paths.checkpoints / ".tmp-x").mkdir()
    (paths.log / "x.seg.template").write_bytes(b"x")
    journal = Journal.open(copy, framework="toy")
    (row,) = [row for row in journal.catalog.checkpoints() if row.step == 4]
    with journal.catalog.transaction() as tables:
        tables.delete(f"checkpoint/{row.name}")
    journal.close()
    second = toy(copy)
    assert not list(paths.checkpoints.glob(".tmp-*"))
    assert not list(paths.log.glob("*.template"))
    assert [row.step for row in second.journal.catalog.checkpoints()] == [0, 4]
    report = second.recover()
    assert (report.step, report.checkpoint_step) == (6, 4)
