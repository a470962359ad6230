"""When the state is looked at for writes that no step made: clipped or averaged weights, layers that were begun anew.

Most writes raise a version counter or move a tensor, which is compared at every look. Some leave no trace (`p.data.clamp_()`,
a numpy alias): only the bytes tell. Reading all of them takes 0.2 ms for 8 MB, which is too much to do at every place of
every unit of a stiff model. So a look is *full*

* wherever it costs less than 50 us or 1 % of a step,
* in the first units of a run: a script that writes past the counters mostly does so in each unit, at the same place,
* at a place (before a step, or at the boundary) where such a write was ever found,
* and otherwise once in so many units that it costs 1 % of a step in the mean.

Between those, small tensors are read in turn, up to 64 KiB a look: who writes to all parameters is noticed within a few
units. What a full look finds late is logged at once, and a checkpoint is asked for; the fingerprint of the steps between
tells a replay of them that they differ.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

Place = Literal["before a step", "at a boundary"]

FIRST_UNITS = 32  # of a process, in which every look is full
_SHARE = 0.01  # of a step
_FREE_SECONDS = 50e-6
_PART_BYTES = 64 << 10  # that are read in a look that is not full


class Looks:
    """Decides for each look whether it is full, and what is read if it is not."""

    def __init__(self) -> None:
        self._units = 0
        self._full_at: dict[Place, int] = {}  # unit of the last full look
        self._full_before: dict[Place, int] = {}  # unit of the one before that
        self._known: set[Place] = set()  # where a write was found that left no trace
        self._next = 0  # tensor of the next part

    def unit(self) -> None:
        """Note that a unit was committed."""
        self._units += 1

    def is_full(self, place: Place, look_seconds: float, step_seconds: float) -> bool:
        """Return True if the look that comes now is a full one.

        Args:
            place: where the loop is.
            look_seconds: what a full look takes.
            step_seconds: what a step takes; 0 if that is not known yet.
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

    def found(self, place: Place) -> bool:
        """Note a write that left no trace; True if it may have been there for some units before the look that found it."""
        at, before = self._full_at.get(place, self._units), self._full_before.get(place, self._units)
        last = before if at == self._units else at  # the full look that found nothing
        is_late = place not in self._known and self._units - last > 1
        self._known.add(place)
        return is_late

    def part(self, sizes: Sequence[int]) -> list[int]:
        """Return the tensors that are read in a look that is not full, by their sizes in bytes."""
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
