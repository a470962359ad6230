"""The start of writing: the position at which recovery ended, and the rows of the catalog before the first record."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from ...base.clock import Clock
from ...catalog import TimelineRow, Watermarks, timeline_key
from ...log.record_format import Position
from ...retention.prune import set_aside
from ..abandoned_segments import retire_unreachable_segments, seal_abandoned_segments
from ..checkpointing.journal_checkpoints import JournalCheckpoints
from ..opening import OpenedJournal
from ..pruning_holds import PruningHolds
from .suspendable_log import SuspendableLog


class WritingStart:
    """Begins the writing of one journal, at the position where recovery ended.

    Args:
        opened: the journal.
        clock: tells the time.
        holds: keep the journal from being pruned.
        log: opened when writing begins.
        checkpoints: started when writing begins.
        syncs: True if the records that a dead process left in its segments are made durable.

    Attributes:
        position: the position after which the first record is written; None until it is set.
    """

    def __init__(
        self,
        opened: OpenedJournal,
        clock: Clock,
        holds: PruningHolds,
        log: SuspendableLog,
        checkpoints: JournalCheckpoints,
        *,
        syncs: bool,
    ) -> None:
        self._opened, self._clock, self._holds, self._journal_log, self._checkpoints = opened, clock, holds, log, checkpoints
        self._syncs = syncs
        self.position: Position | None = None
        self._timeline: TimelineRow | None = None
        self._damaged: Collection[str] = ()

    def set_position(self, position: Position, damaged: Collection[str]) -> None:
        """Set the position, and the names of damaged checkpoints that are set aside when writing begins."""
        assert self.position is None, "the journal has a position already"
        self.position, self._damaged = position, damaged
        self._checkpoints.schedule.note_taken(position.step, 0)

    def begin_timeline(self, number: int | None) -> None:
        """Let the first record begin a new timeline, because there are records after the position.

        Args:
            number: the number of the timeline; None for the next free number.

        Raises:
            RecoveryError: a monitor has pruned the journal since it was opened.
        """
        old = self.position
        assert old is not None
        number = number or max((row.number for row in self._opened.catalog.timelines()), default=1) + 1
        self._timeline = TimelineRow(number, old.timeline, old.sequence, old.step, self._clock.now())
        self.position = replace(old, timeline=number)
        self._holds.hold_start_point()

    def begin(self, position: Position, *, writes_watermarks: bool) -> None:
        """Bring the catalog up to date, open the log, and start checkpoints.

        Args:
            position: the position after which the first record is written.
            writes_watermarks: False if the checkpoint at `position` is not published yet.

        Raises:
            LogUnavailable: the disk is full or fails.
        """
        catalog, paths = self._opened.catalog, self._opened.paths
        seal_abandoned_segments(paths, catalog, sync=self._syncs)
        for name in self._damaged:
            set_aside(catalog, paths.checkpoints, name)
        if self._timeline is not None:
            with catalog.transaction() as tables:
                self._holds.release(tables)
                tables.put(timeline_key(self._timeline.number), self._timeline)
                watermarks = tables.get("watermarks", Watermarks) or Watermarks()
                tables.put("watermarks", watermarks.at_most(position.step))
        else:
            retire_unreachable_segments(paths, catalog, position)
            self._holds.release_stale()
        self._holds.forget_former_group()
        self._journal_log.open(position, writes_watermarks=writes_watermarks)
        self._checkpoints.start(position)
