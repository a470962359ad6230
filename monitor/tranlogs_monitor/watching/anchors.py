"""Checkpoints that were read back and found sound: only behind one of these may the log go.

A checkpoint that is listed can have been damaged since; if the one before it went on that ground, a recovery that finds the
damage could not fall back on it.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path

from tranlogs.base.errors import CannotRead, CorruptCheckpoint, UnknownFormat
from tranlogs.catalog import CheckpointRow, TimelineRow
from tranlogs.catalog.lineage import is_on_lineage
from tranlogs.checkpoints import Checkpoint
from tranlogs.retention.budget import trace_newest_lineage

_log = logging.getLogger(__name__)


class Anchors:
    """Of one journal. Each checkpoint is read once, the newest first, and no older one than is needed."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._sound: set[str] = set()
        self._broken: set[str] = set()

    def verify(self, checkpoints: Sequence[CheckpointRow], timelines: Sequence[TimelineRow]) -> None:
        """Read the newest of these checkpoints back, and those before it until one is sound."""
        for row in self._newest_first(checkpoints, timelines):
            if row.name in self._sound:
                return
            if row.name not in self._broken:
                problem = self._read(row)
                if problem is None:
                    self._sound.add(row.name)
                    return
                self._broken.add(row.name)
                _log.warning("%s: a checkpoint is damaged, and what the one before it needs is kept: %s", self._folder, problem)

    def forget(self, listed: Sequence[CheckpointRow]) -> None:
        """Forget what is not listed any more."""
        names = {row.name for row in listed}
        self._sound &= names
        self._broken &= names

    def newest(self, checkpoints: Sequence[CheckpointRow], timelines: Sequence[TimelineRow]) -> CheckpointRow | None:
        """The newest one that is known to be sound, of those given."""
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
