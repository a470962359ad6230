"""Anchors: checkpoints that were read back and found intact. Only the log before such a checkpoint may be pruned.

A checkpoint in the catalog may have been damaged since it was written. A recovery that finds the damage needs the previous
checkpoint and the log after it.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path

from tranlogs.base.errors import CannotRead, CorruptCheckpoint, UnknownFormat
from tranlogs.catalog import CheckpointRow, TimelineRow
from tranlogs.catalog.rows import is_on_lineage
from tranlogs.checkpoints import Checkpoint
from tranlogs.retention.prune import trace_newest_lineage

_log = logging.getLogger(__name__)


class Anchors:
    """The verified checkpoints of one journal. Each is read once, from the newest one back to the first intact one."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._sound: set[str] = set()
        self._broken: set[str] = set()

    def verify(self, checkpoints: Sequence[CheckpointRow], timelines: Sequence[TimelineRow]) -> None:
        """Read the newest of these checkpoints back, and older ones until one is intact."""
        for row in self._newest_first(checkpoints, timelines):
            if row.name in self._sound:
                return
            if row.name not in self._broken:
                problem = self._read(row)
                if problem is None:
                    self._sound.add(row.name)
                    return
                self._broken.add(row.name)
                _log.warning(
                    "%s: a checkpoint is damaged, keeping the log that the previous one needs: %s", self._folder, problem
                )

    def forget(self, listed: Sequence[CheckpointRow]) -> None:
        """Forget the checkpoints that are not listed any more."""
        names = {row.name for row in listed}
        self._sound &= names
        self._broken &= names

    def newest(self, checkpoints: Sequence[CheckpointRow], timelines: Sequence[TimelineRow]) -> CheckpointRow | None:
        """Return the newest of these checkpoints that is known to be intact; None if there is none."""
        found = (row for row in self._newest_first(checkpoints, timelines) if row.name in self._sound)
        return next(found, None)

    def _newest_first(self, checkpoints: Sequence[CheckpointRow], timelines: Sequence[TimelineRow]) -> list[CheckpointRow]:
        limits = trace_newest_lineage(checkpoints, timelines)
        return sorted((row for row in checkpoints if is_on_lineage(row, limits)), key=lambda row: row.sequence, reverse=True)

    def _read(self, row: CheckpointRow) -> Exception | None:
        try:
            with Checkpoint(self._folder / row.name) as checkpoint:
                return next((damage for _, damage in checkpoint.verify() if damage is not None), None)
        except (CorruptCheckpoint, UnknownFormat, CannotRead) as error:
            return error
