"""Progress of the training that a journal logs: batch and epoch of the newest boundary, and the scalars of the boundaries.

Each reading decodes only the boundaries that were added since the one before, without the framework that wrote them.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tranlogs.base.errors import TranLogsError
from tranlogs.log.reader import SegmentReader
from tranlogs.recovery.history import Link
from tranlogs.recovery.journal_facts import JournalRows, read_log, read_rows, sort_newest_first

_log = logging.getLogger(__name__)

_BOUNDARIES_MAX = 2000  # boundaries that one reading decodes
_POINTS_MAX = 4000  # points of a curve; a longer one loses every other point

Curve = tuple[tuple[int, ...], tuple[float, ...]]  # steps, values


@dataclass(frozen=True, slots=True)
class TrainingProgress:
    """Progress of the training at the newest boundary, and the scalars that the loop has logged, by name.

    The run has consumed `batch` batches, and stands in an epoch, from 0. Both are None if the boundary does not record them.
    """

    step: int = 0
    batch: int | None = None
    epoch: int | None = None
    curves: Mapping[str, Curve] = field(default_factory=dict)


class ProgressReader:
    """Reads the progress of one journal, again and again. One thread calls it."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._timeline, self._sequence = 0, 0
        self._points: dict[str, list[tuple[int, float]]] = {}
        self._progress: TrainingProgress | None = None

    def read(self) -> TrainingProgress | None:
        """Return the progress; None if there is no boundary yet. If the log cannot be read now, return what is known."""
        try:
            links, timeline = self._find_boundaries()
            if not links or (timeline, links[-1].sequence) == (self._timeline, self._sequence):
                return self._progress
            if timeline != self._timeline or links[-1].sequence < self._sequence:  # the run was taken back to an older step
                self._points, self._sequence = {}, 0
            self._add([link for link in links if link.sequence > self._sequence])
            self._timeline, self._sequence = timeline, links[-1].sequence
        except (TranLogsError, OSError) as error:
            _log.debug("%s: the progress cannot be read now: %s", self._folder, error)
        return self._progress

    def _find_boundaries(self) -> tuple[list[Link], int]:
        """Return the newest boundaries, and the newest timeline."""
        rows = read_rows(self._folder)
        facts = read_log(self._folder, rows, self._choose(rows))
        links = [link for run in facts.build_history().runs for link in run if link.kind.is_boundary]
        return links[-_BOUNDARIES_MAX:], rows.timeline

    def _choose(self, rows: JournalRows) -> set[int]:
        """Choose the newest segments, back to what was read before."""
        limits, known = rows.limits, self._sequence if rows.timeline == self._timeline else 0
        chosen: set[int] = set()
        entries = 0
        for row in sort_newest_first(rows.segments):
            if row.state == "retired" or (row.state == "sealed" and row.timeline not in limits):
                continue
            is_known = row.state == "sealed" and row.last_sequence <= known
            if chosen and entries and (is_known or entries >= 2 * _BOUNDARIES_MAX):
                break
            chosen.add(row.ordinal)
            entries += max(row.last_sequence - row.base_sequence, 0)
        return chosen

    def _add(self, links: Sequence[Link]) -> None:
        batch = epoch = None
        for segment in {link.segment.row.ordinal: link.segment for link in links}.values():
            with SegmentReader(segment.path) as reader:
                for link in links:
                    if link.segment is not segment:
                        continue
                    for name, value in reader.scalars(link.location).items():
                        self._points.setdefault(name, []).append((link.step, float(value)))
                    if link is links[-1]:
                        batch, epoch = find_position(reader.decode(link.location).boundary())
        for name, points in self._points.items():
            if len(points) > _POINTS_MAX:
                self._points[name] = points[::2] if points[::2][-1] == points[-1] else [*points[::2], points[-1]]
        curves = {
            name: (tuple(step for step, _ in points), tuple(value for _, value in points))
            for name, points in self._points.items()
        }
        self._progress = TrainingProgress(links[-1].step, batch, epoch, curves)


def find_position(body: Any) -> tuple[int | None, int | None]:
    """Return the number of consumed batches and the epoch that a boundary's body names; None for what it does not name.

    Keras has one position; PyTorch has one for each DataLoader, and a count of batches for loops without one.
    """
    if not isinstance(body, Mapping):
        return None, None
    if isinstance(position := body.get("position"), Mapping):
        return _number(position.get("total")), _number(position.get("epoch"))
    loaders = body.get("data")
    if isinstance(loaders, Mapping) and loaders and isinstance(first := next(iter(loaders.values())), Mapping):
        return _number(first.get("taken")), _number(first.get("epoch"))
    return _number(body.get("count")), None


def _number(value: Any) -> int | None:
    return int(value) if isinstance(value, int) and not isinstance(value, bool) else None
