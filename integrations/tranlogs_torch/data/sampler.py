"""A proxy for a loader's index sampler: it notes, counts and repeats what is drawn, and changes neither order nor draws."""

from __future__ import annotations

import copy
import itertools
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
import xxhash
from torch.utils.data import Dataset

from tranlogs.base.errors import UnencodableState
from tranlogs.records import tree

from ..tensors import arrays
from .generators import generators_in, trackable
from .rng import get_rng, set_rng


@dataclass(slots=True)
class Draws:
    """The index batches of one epoch.

    Attributes:
        resume: recorded draws to go on from, until the first draw.
        seed_of: gives the number of an index batch a seed for the worker that loads it (worker_seeds.py).
        is_muted: whether nothing is to be drawn: the workers are being made, the epoch is not begun.
        drawn: index batches handed out.
        ahead: of these, those that the loop has not seen.
        first_draw: random state before the first draw.
        order: running hash of what the loop has seen.
        is_encodable: whether index batches can be logged; None before the first is seen.
        rounds: how often the sampler was iterated over when the epoch was opened: with new workers twice, the first in vain.
        rounds_now: how often that is going to be, where an epoch is resumed.
        rest: gives what is drawn instead of the sampler's own, where an epoch was divided anew (resized_position.py).
    """

    resume: dict[str, Any] | None = None
    seed_of: Callable[[dict[str, Any], int, Any], Any] | None = None
    is_muted: bool = False
    drawn: int = 0
    ahead: list[Any] = field(default_factory=list)
    first_draw: dict[str, Any] | None = None
    order: int = 0
    is_encodable: bool | None = None
    rounds: int = 0
    rounds_now: int = 1
    rest: Callable[[], Iterable[Any]] | None = None

    def consume(self, indices: Any) -> None:
        """Count an index batch as seen by the loop: a running hash over the epoch."""
        self.order = xxhash.xxh3_64_intdigest(repr(_plain(indices)).encode(), seed=self.order) >> 1

    def position(self) -> dict[str, Any]:
        """Return the position for `resume`. Index batches that cannot be logged are drawn again, like those consumed."""
        if self.resume is not None:  # nothing was drawn since the position that it goes on from
            return {key: value for key, value in self.resume.items() if key != "is_resized"}
        if self.ahead and self.is_encodable is None:
            self.is_encodable = _is_encodable(self.ahead)
        ahead = None if self.is_encodable is False else list(self.ahead)
        return {
            "first_draw": self.first_draw,
            "drawn": self.drawn,
            "seen": self.drawn - len(self.ahead),
            "ahead": ahead,
            "order": self.order,
            "rounds": self.rounds,
        }


class SeekableSampler:
    """Stands in for `loader.batch_sampler` (`loader.sampler` where batch_size is None).

    It counts in the epochs that `LoaderPosition` opens; whoever else iterates over the loader gets the sampler itself.
    """

    sampler: Any
    generators: list[torch.Generator]
    on_doubt: Callable[[str, bool], None]
    opening: Draws | None  # where to count what the iterator draws that is being made

    def __init__(self, sampler: Any, generators: list[torch.Generator], on_doubt: Callable[[str, bool], None]) -> None:
        self.__dict__.update(sampler=sampler, generators=generators, on_doubt=on_doubt, opening=None)

    def __getattr__(self, name: str) -> Any:  # set_epoch, batch_size, drop_last, ...
        return getattr(self.__dict__["sampler"], name)

    def __setattr__(self, name: str, value: Any) -> None:  # a schedule of batch sizes
        if name in self.__dict__:
            self.__dict__[name] = value
        else:
            setattr(self.sampler, name, value)

    @property  # type: ignore[misc]
    def __class__(self) -> type:  # isinstance(loader.batch_sampler, BatchSampler)
        return type(self.__dict__["sampler"])

    def __reduce_ex__(self, protocol: Any) -> Any:  # a copied or pickled loader has the plain sampler
        return _itself, (self.sampler,)

    def __len__(self) -> int:
        return len(self.sampler)

    def __iter__(self) -> Iterator[Any]:  # with workers this is called twice an epoch: nothing is noted before a draw
        draws = self.opening
        if draws is None:
            return iter(self.sampler)
        if draws.is_muted:
            return iter(())
        if draws.resume is not None and not draws.rounds:  # as often as then: a sampler may draw whenever it is asked
            recorded = draws.resume.get("rounds", draws.rounds_now)
            if draws.rounds_now > recorded:
                draws.rounds_now -= 1
                return iter(())
            for _ in range(recorded - draws.rounds_now):
                draws.rounds += 1
                iter(self.sampler)
        draws.rounds += 1
        return self._draw(iter(self.sampler if draws.rest is None else draws.rest()), draws)

    def _draw(self, inner: Iterator[Any], draws: Draws) -> Iterator[Any]:
        resume, draws.resume = draws.resume, None
        draws.first_draw = get_rng(self.generators)
        waiting = self._skip(inner, draws, resume) if resume is not None else []
        for indices in itertools.chain(waiting, inner):
            draws.ahead.append(indices)
            draws.drawn += 1
            yield indices if draws.seed_of is None else draws.seed_of(draws.first_draw, draws.drawn, indices)

    def _skip(self, inner: Iterator[Any], draws: Draws, resume: dict[str, Any]) -> list[Any]:
        """Draw the consumed and the waiting indices again; returns the waiting ones."""
        now, recorded = draws.first_draw, resume["first_draw"]
        assert now is not None
        draws.first_draw = recorded
        set_rng(recorded, self.generators)
        for indices in itertools.islice(inner, resume["seen"]):
            draws.consume(indices)
        again = list(itertools.islice(inner, resume["drawn"] - resume["seen"]))
        set_rng(now, self.generators)  # no draw below may see the random state of the skip
        draws.drawn = resume["seen"]
        waiting = again if resume["ahead"] is None else list(resume["ahead"])
        if not resume["is_resized"] and (draws.order != resume["order"] or _plain(again) != _plain(waiting)):
            kind = type(getattr(self.sampler, "sampler", self.sampler)).__name__
            self.on_doubt(
                f"{kind} did not draw the same order again, so batches of this epoch are repeated or skipped: its draws "
                "depend on something that is not recorded. Give it state_dict() and load_state_dict(), or let it draw the "
                "whole epoch's order at once",
                True,
            )
        return waiting


def nested(sampler: Any) -> Iterator[Any]:
    """Return a sampler, and the samplers from which it takes its indices."""
    seen: set[int] = set()
    while sampler is not None and id(sampler) not in seen:
        seen.add(id(sampler))
        yield sampler
        inner = getattr(sampler, "sampler", None)
        sampler = getattr(sampler, "batch_sampler", None) if inner is None else inner


class SamplerStates:
    """State that samplers keep from epoch to epoch: state_dict, epoch, and generators of their own.

    Args:
        samplers: a loader's samplers, outer and inner; each counts once.
    """

    def __init__(self, samplers: list[Any]) -> None:
        self.samplers = list({id(part): part for part in samplers if part is not None}.values())
        self._generators = [_generators(part) for part in self.samplers]
        self._contents = [_contents(part) for part in self.samplers]

    def read(self) -> list[Any]:
        """Return the state_dict of each sampler, or its epoch, or None; and the states of its numpy and Python generators."""
        states: list[Any] = []
        for sampler, generators in zip(self.samplers, self._generators, strict=True):
            epoch = getattr(sampler, "epoch", None)
            kept = copy.deepcopy(sampler.state_dict()) if _has_state(sampler) else None if epoch is None else int(epoch)
            states.append([kept, *(g.state_dict() for g in generators)] if generators else kept)
        return states

    def write(self, states: list[Any]) -> None:
        """Set them."""
        for sampler, generators, state in zip(self.samplers, self._generators, states, strict=False):
            if generators and isinstance(state, list):
                for generator, own in zip(generators, state[1:], strict=False):
                    generator.load_state_dict(own)
                state = state[0]
            if isinstance(state, int):
                if hasattr(sampler, "set_epoch"):
                    sampler.set_epoch(state)
                else:
                    sampler.epoch = state
            elif state is not None:
                sampler.load_state_dict(copy.deepcopy(state))

    def unkept(self) -> list[str]:
        """Numbers and arrays that an order depends on, and that have changed though `read` does not have them."""
        return [
            f"{type(part).__name__}.{name}"
            for part, was in zip(self.samplers, self._contents, strict=True)
            for name, value in _contents(part).items()
            if was.get(name, value) != value
        ]


def _has_state(sampler: Any) -> bool:
    """Return True if the state_dict of a sampler covers epochs; torchdata's covers only the place in one epoch."""
    return hasattr(sampler, "state_dict") and hasattr(sampler, "load_state_dict") and not _is_torchs(sampler)


def _is_torchs(sampler: Any) -> bool:
    return type(sampler).__module__.partition(".")[0] in ("torch", "torchdata")


def _generators(sampler: Any) -> list[Any]:
    """Return a sampler's own generators, except its `generator` attribute, which the position records."""
    if _has_state(sampler) or _is_torchs(sampler):
        return []
    taken = getattr(sampler, "generator", None)
    found = (generator for _, generator in generators_in(sampler, "", without=(Dataset,)) if generator is not taken)
    return [trackable(generator) for generator in {id(g): g for g in found}.values()]


def _contents(sampler: Any) -> dict[str, Any]:
    if _has_state(sampler):
        return {}
    found = {}
    for name, value in getattr(sampler, "__dict__", {}).items():
        if name in ("data_source", "dataset"):  # the samples, which may be a large tensor or list
            continue
        if isinstance(value, torch.Tensor) and value.layout is torch.strided:
            found[name] = xxhash.xxh3_64_intdigest(arrays.flat_bytes(value.detach().cpu().contiguous()).data)
        elif isinstance(value, np.ndarray) and value.dtype != object:
            found[name] = xxhash.xxh3_64_intdigest(value.tobytes())
        elif isinstance(value, list) and all(type(item) in (int, float) for item in value):
            found[name] = xxhash.xxh3_64_intdigest(repr(value).encode())
        elif type(value) in (int, float, str) and name != "epoch" and not _is_torchs(sampler):
            found[name] = value
    return found


def _itself(sampler: Any) -> Any:
    return sampler


def _plain(indices: Any) -> Any:
    if isinstance(indices, (torch.Tensor, np.ndarray)):
        return indices.tolist()
    if type(indices) is list and set(map(type, indices)) == {int}:
        return indices
    return [_plain(i) for i in indices] if isinstance(indices, (list, tuple)) else indices


def _is_encodable(values: Any) -> bool:
    try:
        tree.encode(values, adapt=arrays.adapt)
    except UnencodableState:
        return False
    return True
