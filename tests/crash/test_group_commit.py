"""The power goes between the sync of a segment and the transaction that makes its records `synced`, or right behind that
commit, and the disk has nothing that no sync covered: the records are there."""

from __future__ import annotations

import random
import shutil
from pathlib import Path
from typing import Any, Literal

import pytest

from tests.crash.judging import judging
from tests.crash.lossy_disk import LossyDisk
from tests.support import campaign
from tests.support.toy import open_toy
from tranlogs.base.config import JournalConfig
from tranlogs.log.group_commit import GroupCommit
from tranlogs.log.record_format import unpack_head
from tranlogs.log.record_rows import RecordRow
from tranlogs.log.segment_file import SegmentFile
from tranlogs.retention import EverySteps, KeepLatest

pytestmark = pytest.mark.crash

SIZES = (7, 3000, 5000)  # those of power_child.py
SEED, CUTS = campaign.seed(), campaign.rounds(40)

Moment = Literal["between", "behind"]


class Cutter:
    """Cuts the power at commits of groups.

    Attributes:
        cuts: the moment of each image of the disk, and the step of the newest boundary that was synced with its segment.
    """

    def __init__(self, disk: LossyDisk, chance: random.Random) -> None:
        self._disk, self._chance, self.cuts = disk, chance, list[tuple[Moment, int]]()

    def install(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Cut around every few commits."""
        write = GroupCommit._write

        def writing(group: GroupCommit, changes: Any, records: list[RecordRow], *more: Any, **options: Any) -> None:
            step = max(map(_boundary_step, records), default=0)
            is_cut = step > 0 and len(self.cuts) < 2 * CUTS and self._chance.random() < 0.2
            if is_cut:
                self._cut("between", step)
            write(group, changes, records, *more, **options)
            if is_cut:
                self._cut("behind", step)

        monkeypatch.setattr(GroupCommit, "_write", writing)

    def _cut(self, moment: Moment, step: int) -> None:
        self._disk.take()
        self.cuts.append((moment, step))


def _boundary_step(record: RecordRow) -> int:
    """The step of a boundary; 0 for another record."""
    head = unpack_head(record.head)
    return head.step if head is not None and head.kind.is_boundary else 0


def cut_run(folder: Path, monkeypatch: pytest.MonkeyPatch, writer: Any, fault: str | None) -> list[dict[str, Any]]:
    """Train until the power was cut often enough; return the verdict on each image, with the moment of its cut.

    Args:
        folder: for the disk and its images.
        monkeypatch: of the test.
        writer: of the journal.
        fault: under which the verdicts are taken down; None for a control.
    """
    chance, verdicts = random.Random(SEED), list[dict[str, Any]]()
    print(f"repeat with TRANLOGS_SEED={SEED}")
    (folder / "disk").mkdir()
    disk = LossyDisk(folder / "disk", folder / "images", 0.0, chance)
    disk.install(monkeypatch)
    config = JournalConfig(durability="machine", segment_bytes=1 << 20, writer=writer)
    trainer = open_toy(folder / "disk" / "run", sizes=SIZES, config=config, policy=EverySteps(9), retention=KeepLatest(1))
    trainer.recover()
    cutter = Cutter(disk, chance)
    cutter.install(monkeypatch)
    with judging(fault) as judge:
        for _ in range(4000):
            trainer.train(trainer.journal.step + 1)
            if len(cutter.cuts) >= 2 * CUTS:
                break
        trainer.journal.close()
        disk.close()
        assert len(cutter.cuts) >= 2 * CUTS
        for image, (moment, step) in zip(disk.images, cutter.cuts, strict=True):
            verdicts.append({"moment": moment, **judge(image.folder / "run", step)})
            print(step, verdicts[-1])
            shutil.rmtree(image.folder)
    assert not disk.refused
    return verdicts


@pytest.mark.sampled(1)
@pytest.mark.parametrize("writer", ["direct", "thread"])
def test_records_survive_a_power_cut_around_the_commit_of_their_group(
    memory_path: Path, monkeypatch: pytest.MonkeyPatch, writer: Any
) -> None:
    verdicts = cut_run(memory_path, monkeypatch, writer, "power cut around the commit of a group")
    assert not [verdict["failed"] for verdict in verdicts if "failed" in verdict]
    assert not [verdict["problems"] for verdict in verdicts if verdict["problems"]]
    assert {verdict["moment"] for verdict in verdicts} == {"between", "behind"}
    assert any(verdict["step"] == verdict["least"] for verdict in verdicts)  # what was written later was really lost


def test_without_the_sync_of_the_segment_such_a_power_cut_loses_steps(
    memory_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The cuts are real: the rows alone do not bring the tensors back."""
    monkeypatch.setattr(SegmentFile, "sync", lambda segment: None)
    verdicts = cut_run(memory_path, monkeypatch, "direct", None)
    assert [verdict for verdict in verdicts if "was synced, and recovery landed on" in verdict.get("failed", "")]
