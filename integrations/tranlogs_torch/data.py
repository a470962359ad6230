"""The position in the data: resume at the exact next batch without loading the skipped samples.

A proxy takes the place of a loader's index sampler. It notes the random state before the first draw of an epoch, counts
what it hands out and keeps the index batches that were drawn ahead (prefetch) but not consumed. To resume: random state
as it was before `iter(loader)`; the proxy draws the skipped *indices* again, gives out the drawn-ahead ones from the
log, then draws on; the random state of the boundary comes last. No sample of a map-style dataset is loaded twice. An
IterableDataset has no indices: it is skipped by consuming. Either way a running hash tells whether what was skipped is
what had been seen; a source that does not repeat itself is reported, not believed.
"""

from __future__ import annotations

import copy
import itertools
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
import xxhash
from torch.utils.data import DataLoader, IterableDataset

from tranlogs.codec import tree
from tranlogs.errors import UnencodableState, UsageError

from . import adapt
from .rng import get_rng, set_rng

_DIGEST_BYTES = 1 << 16  # of each tensor in a batch of an IterableDataset


class SeekableSampler:
    """Stands in for `loader.batch_sampler` (`loader.sampler` where batch_size is None).

    It counts in the epochs that `LoaderPosition` opens; whoever else iterates over the loader gets the sampler itself.
    """

    sampler: Any
    generators: list[torch.Generator]
    on_doubt: Callable[[str, bool], None]
    resume: dict[str, Any] | None
    is_opening: bool
    is_muted: bool
    drawn: int  # index batches handed out in this epoch
    ahead: list[Any]  # of these, those that the loop has not seen
    first_draw: dict[str, Any] | None  # random state before the first draw of this epoch
    order: int  # running hash of what the loop has seen
    is_encodable: bool | None  # whether index batches can be logged; None before the first is seen

    def __init__(self, sampler: Any, generators: list[torch.Generator],
                 on_doubt: Callable[[str, bool], None]) -> None:  # fmt: skip
        self.__dict__.update(
            sampler=sampler, generators=generators, on_doubt=on_doubt, resume=None, is_opening=False, is_muted=False, drawn=0,
            ahead=[], first_draw=None, order=0, is_encodable=None,
        )  # fmt: skip

    def __getattr__(self, name: str) -> Any:  # set_epoch, batch_size, drop_last, ...
        return getattr(self.__dict__["sampler"], name)

    def __reduce_ex__(self, protocol: Any) -> Any:  # a copied or pickled loader has the plain sampler
        return _itself, (self.sampler,)

    def __len__(self) -> int:
        return len(self.sampler)

    def __iter__(self) -> Iterator[Any]:  # with workers this is called twice an epoch: nothing changes before a draw
        inner = iter(self.sampler)
        return self._draw(inner) if self.is_opening else inner

    def _draw(self, inner: Iterator[Any]) -> Iterator[Any]:
        if self.is_muted:
            return
        resume, self.resume = self.resume, None
        self.drawn, self.ahead, self.order = 0, [], 0
        self.first_draw = get_rng(self.generators)
        waiting: list[Any] = []
        if resume is not None:
            waiting = self._skip(inner, resume)
        for indices in itertools.chain(waiting, inner):
            self.drawn += 1
            self.ahead.append(indices)
            yield indices

    def _skip(self, inner: Iterator[Any], resume: dict[str, Any]) -> list[Any]:
        """Draw the consumed and the waiting indices again; returns the waiting ones."""
        now, recorded = self.first_draw, resume["first_draw"]
        assert now is not None
        self.first_draw = recorded
        set_rng(recorded, self.generators)
        for indices in itertools.islice(inner, resume["seen"]):
            self.consume(indices)
        again = list(itertools.islice(inner, resume["drawn"] - resume["seen"]))
        set_rng(now, self.generators)  # no draw below may see the random state of the skip
        self.drawn = resume["seen"]
        waiting = again if resume["ahead"] is None else list(resume["ahead"])
        if not resume["is_resized"] and (self.order != resume["order"] or _plain(again) != _plain(waiting)):
            kind = type(getattr(self.sampler, "sampler", self.sampler)).__name__
            self.on_doubt(
                f"{kind} did not draw the same order again, so batches of this epoch are repeated or left out: its draws "
                "depend on something that is not recorded. Give it state_dict() and load_state_dict(), or let it draw the "
                "whole epoch's order at once",
                True,
            )
        return waiting

    def consume(self, indices: Any) -> None:
        """Count an index batch as seen by the loop: a running hash over the epoch."""
        self.order = xxhash.xxh3_64_intdigest(repr(_plain(indices)).encode(), seed=self.order) >> 1

    def position(self) -> dict[str, Any]:
        """What `resume` needs. Index batches that cannot be logged are drawn again, like those consumed."""
        if self.ahead and self.is_encodable is None:
            self.is_encodable = _is_encodable(self.ahead)
        ahead = None if self.is_encodable is False else list(self.ahead)
        return {"first_draw": self.first_draw, "drawn": self.drawn, "seen": self.drawn - len(self.ahead), "ahead": ahead,
                "order": self.order}  # fmt: skip


class LoaderPosition:
    """Where the loop stands in one DataLoader.

    Args:
        loader: the loader; its index sampler is replaced by a proxy.
        on_boundary: called when the loop asks for the next batch.
        on_open: called before an epoch, or the rest of one, is opened.
        on_doubt: told, in words, what of the data a resume does not bring back, and whether their order is known to be wrong.

    Attributes:
        epoch: number of the running epoch, from 0.
        batch: batches of it that were handed to the loop.
        taken: batches handed out over the whole run.
    """

    def __init__(self, loader: DataLoader[Any], on_boundary: Callable[[LoaderPosition], None], on_open: Callable[[], None],
                 on_doubt: Callable[[str, bool], None]) -> None:  # fmt: skip
        if not isinstance(loader, DataLoader):
            raise UsageError(f"a torch.utils.data.DataLoader is wanted, not a {type(loader).__name__}; "
                             "for other sources there is steps(until=...)")  # fmt: skip
        self.loader, self._on_boundary, self._on_open, self._on_doubt = loader, on_boundary, on_open, on_doubt
        self.is_iterable = isinstance(loader.dataset, IterableDataset)
        self._index: SeekableSampler | None = None
        name = "batch_sampler" if loader.batch_sampler is not None else "sampler"
        sampler = getattr(loader, name)
        sampler = sampler.sampler if isinstance(sampler, SeekableSampler) else sampler
        samplers = [] if self.is_iterable else [sampler, getattr(sampler, "sampler", None), loader.sampler]
        self._samplers = list({id(part): part for part in samplers if part is not None}.values())
        found = [getattr(part, "generator", None) for part in (loader, *self._samplers)]
        self.generators = list({id(g): g for g in found if isinstance(g, torch.Generator)}.values())
        if not self.is_iterable:
            self._index = SeekableSampler(sampler, self.generators, on_doubt)
            loader.__dict__[name] = self._index  # the public setter refuses
        self.epoch = self.batch = self.taken = 0
        self._order = 0  # running hash of the batches of an IterableDataset
        self._is_resized = False  # other batches follow anyhow, which was said
        self._opened: dict[str, Any] | None = None  # random state before iter(loader) of this epoch
        self._opened_samplers: list[Any] = []
        self._workers: dict[str, Any] | None = None  # random state when persistent workers were made
        self._resume: dict[str, Any] | None = None
        self._live: Iterator[Any] | None = None

    # State

    def state_dict(self) -> dict[str, Any]:
        """The position, read at a boundary."""
        return {
            "epoch": self.epoch, "batch": self.batch, "taken": self.taken,
            "opened": self._opened if self.batch else None,
            "index": self._index.position() if self.batch and self._index is not None else None,
            "order": self._order, "workers": self._workers,
            "samplers": self._opened_samplers if self.batch else self._sampler_states(),
            "generators": [g.get_state() for g in self.generators], "sizes": self._sizes(),
        }  # fmt: skip

    def _sizes(self) -> dict[str, Any]:
        """What must be as it was for the recorded position to mean the same batches."""
        loader = self.loader
        samples = len(loader.dataset) if hasattr(loader.dataset, "__len__") else None
        return {"batch_size": loader.batch_size, "drop_last": loader.drop_last, "samples": samples}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Resume at a recorded position when the next epoch (or the rest of one) is opened."""
        self.epoch, self.batch, self.taken = state["epoch"], state["batch"], state["taken"]
        self._opened, self._opened_samplers, self._workers = state["opened"], state["samplers"], state["workers"]
        self._order, self._resume, self._live = state["order"], state, None
        now = self._sizes()
        self._is_resized = state.get("sizes", now) != now
        for what, was in state.get("sizes", now).items():
            if was != now[what]:
                self._on_doubt(f"the loader's {what} was {was}, now it is {now[what]}: other batches follow", True)
        self._set_samplers(state["samplers"])
        for generator, own in zip(self.generators, state["generators"], strict=False):
            generator.set_state(own.clone())

    @property
    def caveat(self) -> str | None:
        """What a resume in the middle of an epoch cannot bring back of this loader, in words; None if nothing."""
        loader = self.loader
        if not loader.num_workers:
            return None
        if not getattr(loader, "in_order", True):
            return "in_order=False: batches come in the order in which workers finish, which no log can repeat"
        if not self.is_iterable:
            return "random numbers drawn inside DataLoader workers (augmentation) are not brought back; the order of samples is"
        if loader.persistent_workers and self.epoch:
            return "random numbers drawn by an IterableDataset inside persistent workers are not brought back"
        return None

    def _sampler_states(self) -> list[Any]:
        """Of each sampler that has any state: its state_dict, or its epoch."""
        states: list[Any] = []
        for sampler in self._samplers:
            if hasattr(sampler, "state_dict") and hasattr(sampler, "load_state_dict"):
                states.append(copy.deepcopy(sampler.state_dict()))
            else:
                epoch = getattr(sampler, "epoch", None)
                states.append(None if epoch is None else int(epoch))
        return states

    def _set_samplers(self, states: list[Any]) -> None:
        for sampler, state in zip(self._samplers, states, strict=False):
            if isinstance(state, int):
                if hasattr(sampler, "set_epoch"):
                    sampler.set_epoch(state)
                else:
                    sampler.epoch = state
            elif state is not None:
                sampler.load_state_dict(copy.deepcopy(state))

    # Loops

    def rest_of_epoch(self) -> Iterator[Any]:
        """The batches of the running epoch that are left. What the body does after each belongs to its unit."""
        if self._live is not None:  # the loop before this one was left by `break`; its last batch is complete now
            self._on_boundary(self)
        while (data := self._next()) is not _END:
            yield data
            self._on_boundary(self)  # the body is back: all that it did belongs to this unit
        self._live = None
        self.epoch, self.batch, self._order = self.epoch + 1, 0, 0

    def batches(self, until: int | None) -> Iterator[Any]:
        """Batches over all epochs until so many were handed out."""
        while until is None or self.taken < until:
            was_at_start, before = self.batch == 0, self.taken
            for data in self.rest_of_epoch():
                yield data
                if until is not None and self.taken >= until:
                    self._on_boundary(self)
                    return
            if was_at_start and self.taken == before:
                return  # an empty loader would be asked for ever

    def _next(self) -> Any:
        if self._live is None:
            self._live = self._open()
        try:
            data = next(self._live, _END)
        except BaseException:  # the loader's iterator is dead; whoever tries again goes on at this batch
            self._resume, self._live = self.state_dict(), None
            raise
        if data is not _END:
            self._count(data)
            self.batch, self.taken = self.batch + 1, self.taken + 1
        return data

    def _count(self, data: Any) -> None:
        if self._index is None:
            self._order = _digest(data, self._order) >> 1
        else:
            self._index.consume(self._index.ahead.pop(0))

    def _open(self) -> Iterator[Any]:
        self._on_open()
        resume, self._resume = self._resume, None
        before = get_rng(self.generators)  # what the loop goes on with
        if resume is not None and self._workers is not None and self._has_lost_workers:
            self._make_workers(before)
        if resume is None or not self.batch:
            self._opened, self._opened_samplers = before, self._sampler_states()
            self._workers = self._workers or before
            return self._iterate()
        assert self._opened is not None
        set_rng(self._opened, self.generators)
        self._set_samplers(self._opened_samplers)
        if self._index is not None:
            self._index.resume = {**resume["index"], "is_resized": self._is_resized}
        iterator = self._iterate()
        if self._index is None:
            self._skip_batches(iterator, resume["order"])
        if self.caveat:
            self._on_doubt(self.caveat, False)
        set_rng(before, self.generators)  # last: after every skip, before the loop goes on
        return iterator

    def _skip_batches(self, iterator: Iterator[Any], recorded: int) -> None:
        self._order = 0
        for data in itertools.islice(iterator, self.batch):
            self._count(data)
        if self._order != recorded and not self._is_resized:
            self._on_doubt(
                f"{type(self.loader.dataset).__name__} did not give the same batches again, so some of this epoch are repeated "
                "or left out: an IterableDataset repeats itself only if its order does not depend on random numbers that the "
                "training loop draws, too",
                True,
            )

    @property
    def _has_lost_workers(self) -> bool:
        loader = self.loader
        return bool(loader.persistent_workers and loader.num_workers and getattr(loader, "_iterator", None) is None)

    def _make_workers(self, before: dict[str, Any]) -> None:
        """Persistent workers draw their base seed once in their life: make them under the random state of then."""
        assert self._workers is not None
        set_rng(self._workers, self.generators)
        if self._index is not None:
            self._index.is_muted = True
        self._iterate()
        if self._index is not None:
            self._index.is_muted = False
        set_rng(before, self.generators)

    def _iterate(self) -> Iterator[Any]:
        if self._index is None:
            return iter(self.loader)
        self._index.is_opening = True
        try:
            return iter(self.loader)
        finally:
            self._index.is_opening = False


class Epoch(int):
    """The number of an epoch, to be iterated over for its batches: `sampler.set_epoch(epoch)`, `for batch in epoch`.

    After a crash the loop may enter it in its middle: `enumerate(epoch, start=epoch.batch)` counts on where it was.
    """

    _position: LoaderPosition

    @classmethod
    def of(cls, position: LoaderPosition) -> Epoch:
        """The epoch that a loader is in."""
        epoch = cls(position.epoch)
        epoch._position = position
        return epoch

    @property
    def batch(self) -> int:
        """Batches of this epoch that were handed out; before the loop over it, the index of the next one."""
        return self._position.batch

    def __len__(self) -> int:
        """Batches of the whole epoch, as `len(loader)` has it."""
        return len(self._position.loader)

    def __iter__(self) -> Iterator[Any]:
        return self._position.rest_of_epoch()


_END = object()


def _itself(sampler: Any) -> Any:
    return sampler


def _plain(indices: Any) -> Any:
    if isinstance(indices, (torch.Tensor, np.ndarray)):
        return indices.tolist()
    return [_plain(i) for i in indices] if isinstance(indices, (list, tuple)) else indices


def _is_encodable(values: Any) -> bool:
    try:
        tree.encode(values, adapt=adapt.adapt)
    except UnencodableState:
        return False
    return True


def _digest(data: Any, seed: int) -> int:
    """Hash of a batch's tensors (the start of each), arrays, strings and numbers."""
    if isinstance(data, dict):
        data = list(data.values())
    if isinstance(data, (list, tuple)):
        for part in data:
            seed = _digest(part, seed)
        return seed
    if isinstance(data, torch.Tensor) and data.device.type == "cpu" and data.layout is torch.strided:
        data = adapt.flat_bytes(data.detach().reshape(-1)[:_DIGEST_BYTES])
    if isinstance(data, np.ndarray):
        data = np.ascontiguousarray(data).reshape(-1)[:_DIGEST_BYTES].tobytes()
    if isinstance(data, (str, int, float, bool)):
        data = repr(data).encode()
    return xxhash.xxh3_64_intdigest(data, seed=seed) if isinstance(data, bytes) else seed
