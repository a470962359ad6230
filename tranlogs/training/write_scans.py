"""The schedule of scans for foreign writes: writes to the state that no step made, such as clipped or averaged weights.

Most writes raise a version counter or move a tensor, which every scan compares. Some leave no trace (`p.data.clamp_()`, a
numpy alias): only the bytes show them. Reading all bytes takes 0.2 ms for 8 MB, which is too much at every place of every
unit of a small, fast model. So a scan reads all bytes (it is *full*)

* if it takes less than 50 us or 0.5 % of a step,
* in the first units of a run: a script that writes past the counters mostly does so in each unit, at the same place,
* at a place (before a step, or at the boundary) where such a write was ever found,
* and otherwise once in as many units as bring its mean cost to 0.5 % of a step, so to 1 % for both places.

Between full scans, small tensors are read in turn, up to 64 KiB a scan: a script that writes to all parameters is noticed
within a few units. What a full scan finds late is logged at once, and a checkpoint is requested; the fingerprints of the
steps before it show a replay that they differ.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

Place = Literal["before a step", "at a boundary"]

FIRST_UNITS = 32  # of a process, in which every scan is full
_SHARE = 0.005  # of a step, for each of the two places
_FREE_SECONDS = 50e-6
_PART_BYTES = 64 << 10  # read in a scan that is not full


class ScanSchedule:
    """Decides for each scan whether it is full, and what it reads otherwise."""

    def __init__(self) -> None:
        self._units = 0
        self._full_at: dict[Place, int] = {}  # unit of the last full scan
        self._full_before: dict[Place, int] = {}  # unit of the full scan before that
        self._known: set[Place] = set()  # places where a write without a trace was found
        self._next = 0  # the tensor with which the next part starts

    def count_unit(self) -> None:
        """Count a unit that was committed."""
        self._units += 1

    def is_full_scan_due(self, place: Place, look_seconds: float, step_seconds: float) -> bool:
        """Return True if the scan that comes now is a full one.

        Args:
            place: where the training loop is.
            look_seconds: duration of a full scan.
            step_seconds: duration of a step; 0 if unknown.
        """
        is_full = self._is_wanted(place, look_seconds, step_seconds)
        if is_full:
            self._full_before[place], self._full_at[place] = self._full_at.get(place, self._units), self._units
        return is_full

    def _is_wanted(self, place: Place, look_seconds: float, step_seconds: float) -> bool:
        if self._units < FIRST_UNITS or place in self._known or look_seconds < _FREE_SECONDS:
            return True
        share = look_seconds / step_seconds if step_seconds else 1.0
        return share <= _SHARE or self._units - self._full_at.get(place, 0) >= share / _SHARE

    def note_write(self, place: Place) -> bool:
        """Record a write that left no trace.

        Returns:
            True if it may have happened several units before the scan that found it.
        """
        at, before = self._full_at.get(place, self._units), self._full_before.get(place, self._units)
        last = before if at == self._units else at  # the last full scan that found nothing
        is_late = place not in self._known and self._units - last > 1
        self._known.add(place)
        return is_late

    def next_part(self, sizes: Sequence[int]) -> list[int]:
        """Return the tensors to read in a scan that is not full, given their sizes in bytes."""
        found, left = [], _PART_BYTES
        for _ in range(min(len(sizes), 64)):
            index = self._next % len(sizes)
            if sizes[index] > _PART_BYTES:
                self._next += 1
                continue
            if sizes[index] > left:
                break
            found.append(index)
            left -= sizes[index]
            self._next += 1
        return found
