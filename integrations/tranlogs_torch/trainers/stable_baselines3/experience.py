"""State that grows while an algorithm learns: its replay buffer, and lists of rewards, episodes and evaluations.

A replay buffer is a ring. What was added since the last boundary are the rows from the place at that boundary to the present
place.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from .restored_values import restored
from .values import stored

Lists = dict[str, tuple[Any, str]]


class Experience:
    """Replay buffer and growing lists of an algorithm; a boundary records what was added (`data.growing_state.Growing`).

    Args:
        model: the algorithm.
        lists: owners and names of attributes that are lists which grow, by name. A list may be replaced by another one.
    """

    def __init__(self, model: Any, lists: Lists) -> None:
        buffer = getattr(model, "replay_buffer", None)
        self._ring = None if buffer is None else _Ring(model, buffer)
        self._lists = lists
        self._known: dict[str, tuple[list[Any], int]] = {}  # each list as it was at the last boundary, and its length then
        self._remember()

    def _remember(self) -> None:
        self._known = {name: (found := getattr(*place), len(found)) for name, place in self._lists.items()}

    def read_added(self) -> dict[str, Any]:
        added = {}
        for name, place in self._lists.items():
            found: list[Any] = getattr(*place)
            before, length = self._known[name]
            start = length if found is before and len(found) >= length else 0
            if len(found) != start or start != length:
                added[name] = [start, stored(found[start:], name)]
        self._remember()
        return {"lists": added, "ring": None if self._ring is None else self._ring.read_added()}

    def read_whole(self) -> dict[str, Any]:
        lists = {name: [0, stored(getattr(*place), name)] for name, place in self._lists.items()}
        return {"lists": lists, "ring": None if self._ring is None else self._ring.read_whole()}

    def load_whole(self, whole: dict[str, Any]) -> None:
        self.add(whole)

    def add(self, added: dict[str, Any]) -> None:
        for name, (start, items) in added["lists"].items():
            if name in self._lists:
                getattr(*self._lists[name])[start:] = restored(None, items)
        self._remember()
        if self._ring is not None and added["ring"] is not None:
            self._ring.add(added["ring"])


class _Ring:
    """A replay buffer.

    Args:
        model: the algorithm, which counts what it collects.
        buffer: its replay buffer.
    """

    def __init__(self, model: Any, buffer: Any) -> None:
        self._model, self._buffer = model, buffer
        self._remember()

    def _remember(self) -> None:
        self._pos, self._timesteps = self._buffer.pos, self._model.num_timesteps

    def _arrays(self) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for name, value in vars(self._buffer).items():
            if isinstance(value, np.ndarray):
                found[name] = value
            elif isinstance(value, dict):  # of observations in parts
                found |= {f"{name}/{key}": part for key, part in value.items() if isinstance(part, np.ndarray)}
        return {name: array for name, array in found.items() if array.ndim and len(array) == self._buffer.buffer_size}

    def read_added(self) -> dict[str, Any]:
        buffer, size, collected = self._buffer, self._buffer.buffer_size, self._model.num_timesteps - self._timesteps
        start = self._pos
        self._remember()
        is_all_new = not 0 <= collected // self._model.n_envs < size
        found = self.read_whole() if is_all_new else self._read(start, (buffer.pos - start) % size)
        return {**found, "rows": {name: rows.copy() for name, rows in found["rows"].items()}}

    def read_whole(self) -> dict[str, Any]:
        buffer = self._buffer
        return self._read(0, buffer.buffer_size if buffer.full else buffer.pos)

    def _read(self, start: int, count: int) -> dict[str, Any]:
        buffer = self._buffer
        if count and buffer.optimize_memory_usage:  # the row after the last holds its next observation
            count = min(count + 1, buffer.buffer_size)
        found = {name: _rows(array, start, count) for name, array in self._arrays().items()} if count else {}
        at = {"start": start, "pos": buffer.pos, "full": bool(buffer.full), "timesteps": self._model.num_timesteps}
        return {**at, "rows": found}

    def add(self, added: dict[str, Any]) -> None:
        arrays, size = self._arrays(), self._buffer.buffer_size
        for name, rows in added["rows"].items():
            arrays[name][np.arange(added["start"], added["start"] + len(rows)) % size] = rows
        self._buffer.pos, self._buffer.full = added["pos"], added["full"]
        self._pos, self._timesteps = added["pos"], added["timesteps"]  # the model gets its own count back later


def _rows(array: Any, start: int, count: int) -> Any:
    """Return rows of a ring; a view where they lie behind one another."""
    end = start + count
    return array[start:end] if end <= len(array) else array[np.arange(start, end) % len(array)]
