"""Random generators of a dataset that passes over it move, found by comparing their states.

A generator that a dataset merely holds (one that `__init__` alone used, or one that is copied before it is drawn from) is the
same whenever the script builds the dataset. Only one whose state has changed since the first pass can be another after a crash.
The same holds for what only a worker has: its global generators.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
import xxhash

from tranlogs.base.errors import UnencodableState
from tranlogs.records import tree
from tranlogs.training import read_memory_of

from ..tensors import arrays
from .generators import generators_in, trackable
from .loader_class import DatasetProxy
from .rng import KeptRng

DRAWS = "draws"  # the place of the global generators of workers


class MovedGenerators:
    """The generators of a dataset that have changed since the first pass of this process, or of a former one.

    Args:
        dataset: of a loader.

    Attributes:
        recorded: digests of the states of generators that passes have moved, by their place in the dataset; "" if unknown.
            Also DRAWS, if workers drew from their global ones.
    """

    def __init__(self, dataset: Any) -> None:
        self._dataset = dataset
        self._found: dict[str, tuple[Any, Any]] = {}  # the generator, and its state when it was first seen, by place
        self.recorded: dict[str, str] = {}
        self._lost: set[str] = set()  # places whose recorded state no resume of this process has brought back yet
        self._places: dict[str, int] = {}  # that workers watch: the number of its flag, by place
        self._flags: torch.Tensor | None = None  # one for each of these, in memory that workers share

    def look(self) -> None:
        """Find the generators, before a pass and when its first batch was handed out: a pass may make some."""
        for place, generator in generators_in(self._dataset, ".dataset"):
            _, state = self._found.get(place, (None, None))
            self._found[place] = generator, _state_of(generator) if state is None else state

    def read(self) -> dict[str, str]:
        """Return the digests of what passes have moved, as of now."""
        for place, (generator, state) in self._found.items():
            if self.recorded.get(place) == "":  # unknown, or known to workers alone
                continue
            if place in self.recorded or _state_of(generator) != state:
                self.recorded[place] = _digest_of(generator)
        if self._flags is not None:
            self.recorded |= {place: "" for place, number in self._places.items() if self._flags[number]}
        return dict(self.recorded)

    @property
    def is_watched(self) -> bool:
        """True if the dataset was given to workers that watch it."""
        return self._flags is not None

    def watched_by_workers(self) -> WatchedDataset:
        """Return the dataset for workers, whose copies of it and of its generators nobody else sees."""
        if self._flags is None:
            self._places = {place: number for number, place in enumerate([*self._found, DRAWS])}
            self._flags = torch.zeros(len(self._places), dtype=torch.uint8).share_memory_()
        return WatchedDataset(self._dataset, self._places, self._flags)

    def note_unwatched(self) -> None:
        """Note that workers run that nobody watches."""
        self.recorded[DRAWS] = ""

    def load(self, recorded: dict[str, str]) -> None:
        """Take the digests of a recorded position."""
        self.recorded, self._lost = dict(recorded), set(recorded) - {DRAWS}

    def compare(self) -> None:
        """Note which generators have the recorded state, when a resume has opened the loader: the data brought them back."""
        self.look()
        self._lost -= {
            place
            for place, digest in self.recorded.items()
            if place in self._found and digest and digest == _digest_of(self._found[place][0])
        }

    def lost(self) -> list[tuple[str, Any]]:
        """Return places of generators that passes of former processes have moved and no resume of this one has brought back.

        Returns:
            Each with the generator that is there now; None if there is none yet.
        """
        now = dict(generators_in(self._dataset, ".dataset")) if self._lost else {}
        return [(place, now.get(place)) for place in self.recorded if place in self._lost]


class WatchedDataset(DatasetProxy):
    """A map-style dataset in a worker: notes what has changed when the worker has loaded a batch.

    Args:
        dataset: to load from.
        places: numbers of the flags of its generators, by place, and of DRAWS.
        flags: in shared memory.
    """

    def __init__(self, dataset: Any, places: dict[str, int], flags: torch.Tensor) -> None:
        super().__init__(dataset)
        self.__dict__.update(_places=dict(places), _flags=flags, _first=None, _rng=KeptRng())

    def __reduce__(self) -> Any:
        return WatchedDataset, (self._dataset, self._places, self._flags)

    def __getitem__(self, index: Any) -> Any:
        with self._watching():
            return super().__getitem__(index)

    def __getitems__(self, indices: Any) -> Any:
        with self._watching():
            return super().__getitems__(indices)

    @contextmanager
    def _watching(self) -> Iterator[None]:
        if not self._places:
            yield
            return
        if self._first is None:
            self.__dict__["_first"] = self._states()
        yield
        now = self._states()
        for place in [place for place in self._places if now.get(place) != self._first.get(place)]:
            self._flags[self._places[place]] = 1
            del self._places[place]

    def _states(self) -> dict[str, Any]:
        found: dict[str, Any] = {place: _state_of(one) for place, one in generators_in(self._dataset, ".dataset")}
        return found | {DRAWS: self._rng.now()}


def _state_of(generator: Any) -> Any:
    """Return a value that is equal to an earlier one only if the generator has the same state."""
    memory = read_memory_of(generator) if type(generator) is random.Random else None
    return memory or _digest_of(generator) or object()


def _digest_of(generator: Any) -> str:
    """Return a digest of the state; "" if the state cannot be read, such as that of `random.SystemRandom`."""
    try:
        own = trackable(generator)
        state = own.getstate() if own is generator else own.state_dict()
        return xxhash.xxh3_128_hexdigest(tree.encode(state, adapt=arrays.adapt))
    except (NotImplementedError, AttributeError, TypeError, ValueError, UnencodableState):
        return ""
