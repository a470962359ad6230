"""Derived checkpoints of a toy: the trainer's own bytes, recovery from each, and when they are not published."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.monitor.compacting import ALWAYS, compacted, daemon, install_toy
from tests.monitor.shadows import checkpoints, contents, forget_checkpoints
from tests.monitor.shadows import made as made_by
from tests.monitor.toy_offline import OfflineRun
from tests.support.clock import FakeClock
from tests.support.toy import ToyTrainer, open_toy
from tests.support.toy_steps import boundary_of, killed, state_at, step_of
from tranlogs.base.errors import CorruptCheckpoint, RecoveryError
from tranlogs.base.types import dense
from tranlogs.catalog import Catalog, CheckpointRow, segment_key
from tranlogs.checkpoints import Checkpoint
from tranlogs.checkpoints.derived import DerivedCheckpoint, derived_folder, publish
from tranlogs.log.layout import Payload
from tranlogs.recovery.derived_checkpoint import plan_derived_checkpoint
from tranlogs.retention import KeepAll, KeepLatest
from tranlogs.retention.compaction_policy import Compaction
from tranlogs_monitor.watching.lock import lock_journal

Toy = Callable[..., ToyTrainer]


@pytest.fixture(autouse=True)
def _children_find_the_toy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", install_toy(tmp_path / "site"))


@pytest.fixture
def run(toy: Toy, tmp_path: Path) -> ToyTrainer:
    """20 steps, a segment every 5, one checkpoint before the first; live."""
    trainer = toy(tmp_path / "run", retention=KeepAll())
    trainer.recover()
    for until in range(5, 21, 5):
        train_and_seal(trainer, until)
    trainer.train(21)
    return trainer


def train_and_seal(trainer: ToyTrainer, until: int) -> None:
    trainer.train(until)
    seal(trainer)


def seal(trainer: ToyTrainer) -> None:
    """Seal the open segment, and wait until the catalog says so."""
    wal = trainer.journal.log.wal
    assert wal is not None
    count = sum(row.state == "sealed" for row in trainer.journal.catalog.segments())
    wal.roll()
    with wal._lock:
        for _ in range(2000):
            wal._lock.notify_all()
            wal._lock.wait(0.005)
            if sum(row.state == "sealed" for row in trainer.journal.catalog.segments()) > count:
                return
    pytest.fail("the segment was not sealed")


def made(journal: Path) -> DerivedCheckpoint:
    return made_by(journal, OfflineRun)


def published(journal: Path, shadow: Any) -> str:
    catalog = Catalog.open(journal, writable=True)
    try:
        return publish(catalog, journal / "checkpoints", shadow)
    finally:
        catalog.close()


def clip(trainer: ToyTrainer) -> None:
    """What the toy does after every third step."""
    weights = trainer.state.parameters["w0"]
    np.clip(weights, -1, 1, out=weights)
    trainer.journal.append_image(Payload.of([("param/w0", dense(weights))]), {})


def recovered(run: Path, step: int, checkpoint: int) -> None:
    """Recovery starts at this checkpoint, lands on this step, and what follows is right."""
    again = open_toy(run, sizes=(7, 300), retention=KeepLatest(9))
    report = again.recover()
    assert (report.step, report.checkpoint_step, report.exact) == (step, checkpoint, True)
    assert again.state.everything() == state_at(step)
    again.train(step + 7)
    again.journal.close()
    assert again.state.everything() == state_at(step + 7)


def test_it_has_the_bytes_of_the_trainers_own(run: ToyTrainer, tmp_path: Path) -> None:
    folder = run.journal.paths.checkpoints
    run.journal.checkpoint(run.state.snapshot(), wait=True)  # at step 21, where the segment ends
    seal(run)
    own = max(folder.iterdir())
    copy = killed(run, tmp_path / "copy") / "rank0"
    forget_checkpoints(copy)
    shadow = made(copy)
    assert shadow.row.name == own.name
    assert contents(derived_folder(copy / "checkpoints", own.name)) == contents(own)
    assert published(copy, shadow) == ""
    found = {row.name: row for row in Catalog.open(copy).checkpoints()}[own.name]
    known = {row.name: row for row in run.journal.catalog.checkpoints()}[own.name]
    assert replace(found, created_at=0, seconds=0) == replace(known, created_at=0, seconds=0)


def test_a_daemon_makes_it_beside_a_live_trainer(run: ToyTrainer, tmp_path: Path) -> None:
    run.train(23)
    compacted(tmp_path / "run")
    assert checkpoints(run.journal.paths.folder) == [0, 20]
    run.train(25)
    assert not list(run.journal.paths.checkpoints.glob("derived-*"))
    recovered(killed(run, tmp_path / "copy"), 25, 20)


@pytest.mark.parametrize("sealed", [1, 2, 3, 4])
def test_recovery_from_it_at_every_sealed_boundary_is_exact(run: ToyTrainer, tmp_path: Path, sealed: int) -> None:
    """Of the log before it nothing is left."""
    copy = killed(run, tmp_path / "copy") / "rank0"
    catalog = Catalog.open(copy, writable=True)
    with catalog.transaction() as tables:
        for row in catalog.segments()[sealed:]:
            if row.state == "sealed":  # as if it had been open when the monitor looked
                tables.put(segment_key(row.ordinal), replace(row, state="open"))
    shadow = made(copy)
    assert shadow.row.step == 5 * sealed
    with catalog.transaction() as tables:
        for row in run.journal.catalog.segments():
            tables.put(segment_key(row.ordinal), row)
    assert publish(catalog, copy / "checkpoints", shadow) == ""
    catalog.close()
    compacted(copy.parent, Compaction(1 << 40), segments_max=0, checkpoints_max=1)
    assert checkpoints(copy) == [5 * sealed]
    recovered(copy.parent, 21, 5 * sealed)


@pytest.mark.parametrize("is_dead", [False, True])
@pytest.mark.parametrize("is_cut_after", ["step", "image"])
def test_a_unit_that_straddles_two_segments_is_decoded_from_it(
    run: ToyTrainer, tmp_path: Path, is_cut_after: str, is_dead: bool
) -> None:
    """Its first entries refer to descriptions that stand before the checkpoint, in the same segment."""
    run.train(23)
    step_of(run)
    if is_cut_after == "image":
        clip(run)
    seal(run)
    if not is_dead:
        if is_cut_after == "step":
            clip(run)
        run.state.go_on(24)
        boundary_of(run)
    copy = killed(run, tmp_path / "copy") / "rank0"
    shadow = made(copy)
    assert shadow.row.step == 23
    straddling = {row.ordinal: row for row in Catalog.open(copy).segments()}[shadow.ordinal]
    assert (straddling.last_step, straddling.last_sequence > shadow.row.sequence) == (24, True)
    assert published(copy, shadow) == ""
    compacted(copy.parent, Compaction(1 << 40), segments_max=0, checkpoints_max=1)
    assert checkpoints(copy) == [23]
    recovered(copy.parent, 23 if is_dead else 24, 23)


def test_there_is_none_without_sealed_log_behind_a_checkpoint(toy: Toy, tmp_path: Path) -> None:
    trainer = toy(tmp_path / "run")
    assert plan_derived_checkpoint(trainer.journal.paths.folder) is None
    trainer.recover()
    trainer.train(3)
    assert plan_derived_checkpoint(trainer.journal.paths.folder) is None, "the segment is open"
    step_of(trainer)
    seal(trainer)
    boundary_of(trainer)
    trainer.journal.checkpoint(trainer.state.snapshot(), wait=True)
    assert plan_derived_checkpoint(trainer.journal.paths.folder) is None, "the trainer's own is newer"


def test_a_change_of_the_environment_is_refused(run: ToyTrainer, tmp_path: Path) -> None:
    copy = killed(run, tmp_path / "copy")
    again = open_toy(copy, sizes=(7, 300), environment={"threads": 4, "tranlogs": "9", "past": [["a", 0]]})
    again.recover()
    again.train(25)
    again.journal.close()
    with pytest.raises(RecoveryError, match=r"in another environment after its checkpoint of step 0 \(threads differ\)"):
        plan_derived_checkpoint(copy / "rank0")


# What comes in between.


def test_a_trainer_that_was_wound_back_meanwhile(run: ToyTrainer, tmp_path: Path) -> None:
    copy = killed(run, tmp_path / "copy")
    watches = lock_journal(copy / "rank0")
    shadow = made(copy / "rank0")
    again = open_toy(copy, sizes=(7, 300))
    again.recover(12)
    again.train(14)
    assert published(copy / "rank0", shadow) == "the run was rewound to an earlier step"
    again.journal.close()
    watches.release()
    assert not list((copy / "rank0/checkpoints").glob("derived-*"))
    recovered(copy, 14, 0)


def test_a_trainer_that_took_one_meanwhile(run: ToyTrainer) -> None:
    shadow = made(run.journal.paths.folder)
    run.journal.checkpoint(run.state.snapshot(), wait=True)
    assert published(run.journal.paths.folder, shadow) == "there is a newer checkpoint"


def test_a_trainer_that_pruned_meanwhile(run: ToyTrainer) -> None:
    journal = run.journal.paths.folder
    shadow = made(journal)
    with run.journal.catalog.transaction() as tables:
        row = run.journal.catalog.segments()[3]
        tables.put(segment_key(row.ordinal), replace(row, state="retired"))
    assert published(journal, shadow) == "the log that it was made from does not exist any more"


def test_a_log_that_went_on_from_before_it(run: ToyTrainer) -> None:
    journal = run.journal.paths.folder
    shadow = made(journal)
    with run.journal.catalog.transaction() as tables:
        row = run.journal.catalog.segments()[4]
        tables.put(segment_key(row.ordinal), replace(row, state="open", base_sequence=shadow.row.sequence - 1))
    assert published(journal, shadow) == "the log continues from an earlier step"


def test_another_run(run: ToyTrainer) -> None:
    shadow = made(run.journal.paths.folder)
    assert published(run.journal.paths.folder, replace(shadow, run_id="other")) == "the folder holds another run now"


@pytest.mark.parametrize("lost", ["manifest.json", "state.safetensors"])
def test_a_folder_that_somebody_has_deleted(run: ToyTrainer, lost: str) -> None:
    shadow = made(run.journal.paths.folder)
    (derived_folder(run.journal.paths.checkpoints, shadow.row.name) / lost).unlink()
    assert published(run.journal.paths.folder, shadow) == "its folder is incomplete"


@pytest.mark.parametrize("is_listed", [False, True])
def test_the_trainer_comes_to_the_same_place(toy: Toy, tmp_path: Path, is_listed: bool) -> None:
    """Its own checkpoint is there already, whether or not the row came before the monitor died."""
    trainer = toy(tmp_path / "run", retention=KeepAll())
    trainer.recover()
    train_and_seal(trainer, 5)
    journal = trainer.journal.paths.folder
    shadow = made(journal)
    if is_listed:
        assert published(journal, shadow) == ""
    else:
        os.rename(derived_folder(journal / "checkpoints", shadow.row.name), journal / "checkpoints" / shadow.row.name)
    inode = os.stat(journal / "checkpoints" / shadow.row.name).st_ino
    assert trainer.journal.checkpoint(trainer.state.snapshot(), wait=True)
    trainer.journal.wait_checkpoint()
    assert trainer.journal.checkpoints.checkpointer is not None
    assert trainer.journal.checkpoints.checkpointer.failure is None
    assert checkpoints(journal) == [0, 5]
    assert os.stat(journal / "checkpoints" / shadow.row.name).st_ino == inode
    assert not [path for path in trainer.journal.paths.checkpoints.iterdir() if not path.name.startswith("step-")]


def test_the_trainer_is_a_moment_later(toy: Toy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The monitor publishes between the trainer's look and its rename."""
    trainer = toy(tmp_path / "run", retention=KeepAll())
    trainer.recover()
    train_and_seal(trainer, 5)
    journal = trainer.journal.paths.folder
    shadow = made(journal)

    def write(*arguments: Any) -> int:
        monkeypatch.undo()
        assert published(journal, shadow) == ""
        from tranlogs.checkpoints import write_checkpoint

        return write_checkpoint(*arguments)

    monkeypatch.setattr("tranlogs.journal.checkpointing.checkpointer.write_checkpoint", write)
    assert trainer.journal.checkpoint(trainer.state.snapshot(), wait=True)
    assert trainer.journal.checkpoints.checkpointer is not None
    assert trainer.journal.checkpoints.checkpointer.failure is None
    assert checkpoints(journal) == [0, 5]


def test_a_folder_that_was_renamed_by_one_that_died_is_taken(run: ToyTrainer) -> None:
    journal = run.journal.paths.folder
    shadow = made(journal)
    shutil.copytree(derived_folder(journal / "checkpoints", shadow.row.name), journal / "checkpoints" / shadow.row.name)
    assert published(journal, shadow) == ""
    assert checkpoints(journal) == [0, 20]


def test_a_damaged_folder_of_its_name_is_left_alone(run: ToyTrainer) -> None:
    journal = run.journal.paths.folder
    shadow = made(journal)
    (journal / "checkpoints" / shadow.row.name).mkdir()
    assert published(journal, shadow) == "another checkpoint has its name"
    with pytest.raises(CorruptCheckpoint):
        Checkpoint(journal / "checkpoints" / shadow.row.name)


def test_what_a_monitor_left_goes_when_the_run_is_opened_without_one(run: ToyTrainer, tmp_path: Path) -> None:
    copy = killed(run, tmp_path / "copy")
    made(copy / "rank0")
    open_toy(copy, sizes=(7, 300)).journal.close()
    assert not list((copy / "rank0/checkpoints").glob("derived-*"))


# The daemon.


def test_it_waits_until_enough_log_is_sealed(run: ToyTrainer, tmp_path: Path) -> None:
    sizes = [row.used_bytes for row in run.journal.catalog.segments() if row.state == "sealed"]
    compacted(tmp_path / "run", Compaction(sum(sizes) + 1))
    assert checkpoints(run.journal.paths.folder) == [0]
    assert run.journal.catalog.checkpoints()[0].nbytes < sum(sizes)
    compacted(tmp_path / "run", Compaction())  # by default, the checkpoint's own size
    assert checkpoints(run.journal.paths.folder) == [0, 20]


def test_over_budget_it_is_made_here_and_the_trainer_is_not_asked(run: ToyTrainer, tmp_path: Path) -> None:
    watching = daemon(tmp_path / "run", Compaction(1 << 40), FakeClock(1e9), nbytes=3 << 20)
    watching.evaluate()
    assert run.journal.catalog.read(lambda tables: tables.request("checkpoint")) is None
    watching.finish()
    watching._clock.advance(100)  # type: ignore[attr-defined]
    watching.evaluate()
    watching.close()
    assert checkpoints(run.journal.paths.folder)[-1] == 20
    assert [row.last_step for row in run.journal.catalog.segments() if row.state == "sealed"] == []


def test_a_request_that_it_fulfils_is_withdrawn(run: ToyTrainer, tmp_path: Path) -> None:
    with run.journal.catalog.transaction() as tables:
        tables.put_request("checkpoint", {"step": 1})
    compacted(tmp_path / "run")
    assert run.journal.catalog.read(lambda tables: tables.request("checkpoint")) is None


def test_a_refusal_is_said_once_and_the_trainer_is_asked_instead(
    run: ToyTrainer, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    clock = FakeClock(1e9)
    watching = daemon(tmp_path / "run", Compaction(1, optimizers=("doubtful",)), clock, nbytes=3 << 20)
    for _ in range(3):
        watching.evaluate()
        watching.finish()
        clock.advance(1000)
    watching.close()
    assert caplog.text.count("cannot derive a checkpoint from the log after step 0") == 1
    assert "must take one: a doubt" in caplog.text
    assert checkpoints(run.journal.paths.folder) == [0]
    assert run.journal.catalog.read(lambda tables: tables.request("checkpoint")) is not None


@pytest.mark.parametrize("point", ["recovery.restored", "recovery.replayed", "checkpoint.state", "checkpoint.manifest"])
def test_a_child_that_is_killed_leaves_nothing_and_is_tried_again(
    run: ToyTrainer, tmp_path: Path, point: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    clock = FakeClock(1e9)
    watching = daemon(tmp_path / "run", ALWAYS, clock)
    monkeypatch.setenv("TRANLOGS_FAILPOINTS", f"{point}=kill")
    watching.evaluate()
    watching.finish()
    assert "its process was killed by SIGKILL; trying again later" in caplog.text
    assert {path.name for path in run.journal.paths.checkpoints.iterdir()} == {
        row.name for row in run.journal.catalog.checkpoints()
    }
    monkeypatch.delenv("TRANLOGS_FAILPOINTS")
    clock.advance(30)
    watching.evaluate()
    assert checkpoints(run.journal.paths.folder) == [0], "not at once"
    clock.advance(60)
    watching.evaluate()
    watching.finish()
    watching.close()
    assert checkpoints(run.journal.paths.folder) == [0, 20]


def test_one_that_takes_too_long_is_ended(run: ToyTrainer, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    compacted(tmp_path / "run", Compaction(1, seconds_max=0.01))
    assert "its process was killed by SIGKILL" in caplog.text
    assert checkpoints(run.journal.paths.folder) == [0]


def test_a_full_disk_is_said(
    run: ToyTrainer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("TRANLOGS_FAILPOINTS", "checkpoint.meta=enospc")
    compacted(tmp_path / "run")
    assert "No space left on device" in caplog.text
    assert [path.name for path in run.journal.paths.checkpoints.glob("derived-*")] == []


def test_the_child_ends_with_its_daemon(run: ToyTrainer, tmp_path: Path) -> None:
    watching = daemon(tmp_path / "run")
    watching.evaluate()
    assert watching._compactor is not None
    making = watching._compactor._job
    assert making is not None
    watching.close()
    assert making.process.returncode is not None
    assert not list(run.journal.paths.checkpoints.glob("derived-*"))


def test_a_dry_run_makes_none(run: ToyTrainer, tmp_path: Path) -> None:
    watching = daemon(tmp_path / "run")
    watching._settings = replace(watching._settings, is_dry_run=True)
    dry = type(watching)([tmp_path / "run"], watching._settings, find=watching._find)
    dry.evaluate()
    dry.finish()
    dry.close()
    assert checkpoints(run.journal.paths.folder) == [0]


def test_several_runs_have_one_child_at_a_time(run: ToyTrainer, tmp_path: Path) -> None:
    killed(run, tmp_path / "runs/a")
    killed(run, tmp_path / "runs/b")
    watching = daemon(tmp_path / "runs")
    watching.evaluate()
    assert watching._compactor is not None
    assert len(watching._compactor._waiting) == 1
    watching.finish()
    watching.close()
    assert [checkpoints(tmp_path / f"runs/{name}/rank0") for name in "ab"] == [[0, 21], [0, 21]]


def test_a_row_is_what_a_checkpoint_says_of_itself(run: ToyTrainer) -> None:
    known = run.journal.catalog.checkpoints()[0]
    with Checkpoint(run.journal.paths.checkpoints / known.name) as checkpoint:
        found: CheckpointRow = checkpoint.row(known.name)
    assert replace(found, seconds=known.seconds) == known
