"""Random number generators of the user's own: tracked like anything with a state_dict, or held by a dataset.

Those of a dataset that passes over it move are found by comparing their states. A generator that a dataset merely holds (one
that `__init__` alone used, or one that is copied before it is drawn from) is the same whenever the script builds the dataset.
Only one whose state has changed since the first pass can be another after a crash. The same holds for what only a worker has:
its global generators.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator
from contextlib import contextmanager
from types import CellType, FunctionType
from typing import Any

import numpy as np
import torch
import xxhash

from tranlogs.base.errors import UnencodableState
from tranlogs.records import tree
from tranlogs.training import join_python, read_memory_of, split_python

from ..tensors import arrays
from .loader_class import DatasetProxy
from .rng import KeptRng

_FIRST = 64  # of a container: transforms stand in short ones, samples in long ones
KINDS = (torch.Generator, np.random.Generator, np.random.RandomState, random.Random)


class TorchGenerator:
    """A torch.Generator."""

    def __init__(self, generator: torch.Generator) -> None:
        self.generator = generator

    def state_dict(self) -> dict[str, Any]:
        return {"torch": self.generator.get_state()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.generator.set_state(state["torch"].clone())


class NumpyGenerator:
    """A numpy.random.Generator."""

    def __init__(self, generator: np.random.Generator) -> None:
        self.generator = generator

    def state_dict(self) -> dict[str, Any]:
        return {"numpy": dict(self.generator.bit_generator.state)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.generator.bit_generator.state = state["numpy"]


class NumpyRandomState:
    """A numpy.random.RandomState."""

    def __init__(self, generator: np.random.RandomState) -> None:
        self.generator = generator

    def state_dict(self) -> dict[str, Any]:
        return {"numpy": self.generator.get_state(legacy=True)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.generator.set_state(state["numpy"])


class PythonGenerator:
    """A random.Random."""

    def __init__(self, generator: random.Random) -> None:
        self.generator = generator

    def state_dict(self) -> dict[str, Any]:
        return {"python": split_python(self.generator.getstate())}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.generator.setstate(join_python(state["python"]))


GENERATORS = (TorchGenerator, NumpyGenerator, NumpyRandomState, PythonGenerator)


def trackable(thing: Any) -> Any:
    """Return the object, or a wrapper with a state_dict if it is a generator."""
    if isinstance(thing, torch.Generator):
        return TorchGenerator(thing)
    if isinstance(thing, np.random.Generator):
        return NumpyGenerator(thing)
    if isinstance(thing, np.random.RandomState):
        return NumpyRandomState(thing)
    if type(thing) is random.Random:
        return PythonGenerator(thing)
    return thing


def generators_in(thing: Any, path: str, depth: int = 3, without: tuple[type, ...] = ()) -> Iterator[tuple[str, Any]]:
    """Generators among the attributes of a dataset or sampler, of what it wraps, in containers and closures."""
    for name, value in _parts(thing):
        if isinstance(value, KINDS):
            yield path + name, value
        elif depth and not isinstance(value, (type, torch.Tensor, torch.nn.Module, *without)):
            yield from generators_in(value, path + name, depth - 1, without)


def _parts(thing: Any) -> list[tuple[str, Any]]:
    if isinstance(thing, dict):
        return [(f"[{key!r}]", value) for key, value in itertools.islice(thing.items(), _FIRST)]
    if isinstance(thing, (list, tuple)):
        return [(f"[{i}]", value) for i, value in enumerate(thing[:_FIRST])]
    if isinstance(thing, FunctionType):
        cells = zip(thing.__code__.co_freevars, thing.__closure__ or (), strict=False)
        return [(f".{name}", cell.cell_contents) for name, cell in cells if _is_filled(cell)]
    return [(f".{name}", value) for name, value in getattr(thing, "__dict__", {}).items()]


def _is_filled(cell: CellType) -> bool:
    try:
        cell.cell_contents  # noqa: B018
    except ValueError:
        return False
    return True


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
        self._read: dict[str, str] = {}  # what was read last
        self._lost: set[str] = set()  # places whose recorded state no resume of this process has brought back yet
        self._places: dict[str, int] = {}  # that workers watch: the number of its flag, by place
        self._flags: torch.Tensor | None = None  # one for each of these, in memory that workers share

    def look(self) -> None:
        """Find the generators, before a pass and when its first batch was handed out: a pass may make some."""
        for place, generator in generators_in(self._dataset, ".dataset"):
            _, state = self._found.get(place, (None, None))
            self._found[place] = generator, _state_of(generator) if state is None else state

    def read(self) -> dict[str, str]:
        """Return the digests of what passes have moved, as of now; the same object while they are the same."""
        for place, (generator, state) in self._found.items():
            if self.recorded.get(place) == "":  # unknown, or known to workers alone
                continue
            if place in self.recorded or _state_of(generator) != state:
                self.recorded[place] = _digest_of(generator)
        if self._flags is not None:
            self.recorded |= {place: "" for place, number in self._places.items() if self._flags[number]}
        if self._read != self.recorded:
            self._read = dict(self.recorded)
        return self._read

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
