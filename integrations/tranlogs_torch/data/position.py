"""The position in the data: resume at the exact next batch without loading the skipped samples.

A proxy takes the place of a loader's index sampler (sampler.py). It notes the random state before the first draw of an
epoch, counts what it hands out and keeps the index batches that were drawn ahead (prefetch) but not consumed. To resume:
random state as it was before `iter(loader)`; the proxy draws the skipped *indices* again, gives out the drawn-ahead ones
from the log, then draws on; the random state of the boundary comes last. No sample of a map-style dataset is loaded twice.
An IterableDataset has no indices: it is skipped by consuming. Either way a running hash tells whether what was skipped is
what had been seen; a source that does not repeat itself is reported, not believed.
"""

from __future__ import annotations

import inspect
import itertools
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
import torch
import xxhash
from torch.utils.data import DataLoader, IterableDataset

from tranlogs.base.errors import UsageError

from ..distributed.process_group import size
from ..tensors import arrays
from .redivision import Rest, division_of, redivided, rest_of
from .rng import get_rng, set_rng
from .sampler import Draws, SamplerStates, SeekableSampler, nested
from .worker_seeds import SeededDataset, check_workers, seeded

IDLE, LED, COMPANION = 0, 1, 2  # a pass of the script's own that took no steps, that led, or that went along with another
_DIGEST_BYTES = 1 << 16  # of each tensor in a batch of an IterableDataset


@dataclass(slots=True)
class Cursor:
    """One iteration over a loader, from its first batch.

    Attributes:
        batch: batches that were handed to the loop.
        order: running hash of them, where they are read again and not drawn again.
        opened: random state before `iter(loader)`.
        samplers: the samplers' states then.
        rest: where the epoch was divided anew, among another number of processes (redivision.py); None if it was not.
        draws: index batches drawn so far; None before the first, and where the loader has no indices.
        live: the iterator; None before it is opened.
    """

    batch: int = 0
    order: int = 0
    opened: dict[str, Any] | None = None
    samplers: list[Any] = field(default_factory=list)
    rest: Rest | None = None
    draws: Draws | None = None
    live: Iterator[Any] | None = None


class LoaderPosition:
    """Where the loop stands in one DataLoader.

    Args:
        loader: the loader; its index sampler is replaced by a proxy.
        on_boundary: called when the loop asks for the next batch.
        on_open: called before an epoch, or the rest of one, is opened.
        on_doubt: told, in words, what of the data a resume does not bring back, and whether their order is known to be wrong.
        worker_seeds: "batch" seeds each batch's random numbers in the workers.

    Attributes:
        epoch: number of the running epoch, from 0.
        taken: batches handed out over the whole run.
        cursor: the running epoch.
        passes: of the script's own finished loops over the loader, the kind of each (plain_loop.py).
        pass_kind: the kind of the one that the cursor is of; None if it is of a loop of ours.
        leads: whether its batches are the boundaries.
        was_companion: whether the pass before this one went along with another loop.
        doubts: what was found out about the loader that a resume cannot bring back.
    """

    def __init__(
        self,
        loader: DataLoader[Any],
        on_boundary: Callable[[LoaderPosition], None],
        on_open: Callable[[LoaderPosition], None],
        on_doubt: Callable[[str, bool], None],
        worker_seeds: str | None = None,
    ) -> None:
        if any("__class__" in vars(kind) for kind in type(loader).__mro__[:-1]):  # it only says that it is one
            raise UsageError(
                f"a {type(loader).__name__} holds the loader that it stands for. If accelerate has prepared it: "
                "tranlogs_torch.trainers.accelerate.log_prepared(...)"
            )
        self.loader, self._on_boundary, self._on_open, self._on_doubt = loader, on_boundary, on_open, on_doubt
        self.loader_class: Any = getattr(type(loader), "_tranlogs_plain", type(loader))
        self.is_iterable = isinstance(loader.dataset, IterableDataset)
        self._index: SeekableSampler | None = None
        name = "batch_sampler" if loader.batch_sampler is not None else "sampler"
        sampler = getattr(loader, name)
        sampler = sampler.sampler if isinstance(sampler, SeekableSampler) else sampler
        self._samplers = SamplerStates([] if self.is_iterable else [*nested(sampler), loader.sampler])
        found = [getattr(part, "generator", None) for part in (loader, *self._samplers.samplers)]
        self.generators = list({id(g): g for g in found if isinstance(g, torch.Generator)}.values())
        # A class of the user's whose __iter__ is a generator asks for its sampler when nobody looks: read such ones again.
        if not self.is_iterable and not inspect.isgeneratorfunction(self.loader_class.__iter__):
            self._index = SeekableSampler(sampler, self.generators, on_doubt)
            loader.__dict__[name] = self._index  # the public setter refuses
        self._index_name, self._sampler = name, sampler
        self.worker_seeds = worker_seeds if self._index is not None and loader.num_workers else None
        if self.worker_seeds is not None:
            check_workers(loader)
        self.epoch = self.taken = 0
        self.cursor = Cursor()
        self.passes, self.leads, self._is_entered, self._finished = bytearray(), False, False, 0
        self.pass_kind: int | None = None
        self.was_companion = False
        self._redivided = ""  # what was done with the position of another number of processes
        self._is_resized = False  # other batches follow anyhow, which was said
        self.doubts: list[str] = []
        self._looked_at = 0  # the epoch before which the samplers' contents were last compared
        self.entered: dict[str, Any] | None = None  # random state when the script's code before the epoch's loop began
        self._workers: dict[str, Any] | None = None  # random state when persistent workers were made
        self._resume: dict[str, Any] | None = None

    def release(self, *, is_over: bool) -> None:
        """Give the loader its own sampler back; no loop goes on with the open iterator if it `is_over`.

        Workers end at once when the last reference to their iterator goes. The garbage collector would get at it too late:
        it closes the queue by which they are told first, and torch then waits five seconds for each of them.
        """
        if self._index is not None and self.loader.__dict__.get(self._index_name) == self._index:
            self.loader.__dict__[self._index_name] = self._index.sampler
        if is_over:
            self.cursor.live = None

    @property
    def batch(self) -> int:
        """Batches of the epoch that were handed to the loop."""
        return self.cursor.batch

    @property
    def passed(self) -> int:
        """Batches over the whole run with which the loop is done, or has in hand."""
        return self.taken

    def stands_for(self, loader: Any) -> bool:
        """Whether this is the position in the loader."""
        return loader is self.loader

    # State

    def state_dict(self) -> dict[str, Any]:
        """The position, read at a boundary."""
        cursor = self.cursor
        if self._resume is not None and cursor.batch:  # nobody has gone on from it yet
            return self._resume
        if not cursor.batch and self._looked_at != self.epoch:  # once an epoch: arrays may be large
            self._looked_at = self.epoch
            self._note_unkept()
        return {
            "epoch": self.epoch,
            "batch": cursor.batch,
            "taken": self.taken,
            "opened": cursor.opened if cursor.batch else None,
            "index": cursor.draws.position() if cursor.batch and cursor.draws is not None else None,
            "order": cursor.order,
            "workers": self._workers,
            "entered": self.entered,
            "samplers": cursor.samplers if cursor.batch else self._samplers.read(),
            "generators": [g.get_state() for g in self.generators],
            "sizes": self._sizes(),
            "passes": bytes(self.passes),
            "pass_kind": self.pass_kind,
            "leads": self.leads,
            "doubts": list(self.doubts),
            "was_companion": self.was_companion,
            "world": size(),
            "division": division_of(self._sampler),
            "rest": cursor.rest if cursor.batch else None,
        }

    def _sizes(self) -> dict[str, Any]:
        """What must be as it was for the recorded position to mean the same batches."""
        loader = self.loader
        samples = len(loader.dataset) if hasattr(loader.dataset, "__len__") else None
        return {
            "batch_size": loader.batch_size,
            "drop_last": loader.drop_last,
            "samples": samples,
            "worker_seeds": self.worker_seeds,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Resume at a recorded position when the next epoch (or the rest of one) is opened."""
        was, now_divided = state.get("division"), division_of(self._sampler)
        is_resized = state.get("world", size()) != size()
        is_resized |= bool(was and now_divided and was["replicas"] != now_divided["replicas"])
        self._redivided = ""
        if is_resized:
            state, self._redivided = redivided(state, self.loader, self._sampler, size())
        self.epoch, self.taken, self._workers = state["epoch"], state["taken"], state["workers"]
        self.cursor = Cursor(state["batch"], state["order"], state["opened"], state["samplers"], state.get("rest"))
        self._resume, self.entered = state, state.get("entered")
        self.passes, self.pass_kind = bytearray(state.get("passes", b"")), state.get("pass_kind")
        self.leads, self.doubts = state.get("leads", False), list(state.get("doubts", ()))
        self.was_companion = state.get("was_companion", False)
        now = self._sizes()
        self._is_resized = state.get("sizes", now) != now or state.get("is_redrawn", False)
        for what, was in state.get("sizes", now).items():
            if was != now[what]:
                self._on_doubt(f"the loader's {what} was {was}, now it is {now[what]}: other batches follow", not is_resized)
        self._set_sources(state)

    def set_back(self) -> None:
        """Set samplers and generators to the recorded position again: something has drawn from them since."""
        if self._resume is not None:
            self._set_sources(self._resume)

    def _set_sources(self, state: dict[str, Any]) -> None:
        self._samplers.write(state["samplers"])
        for generator, own in zip(self.generators, state["generators"], strict=False):
            generator.set_state(own.clone())

    @property
    def caveats(self) -> list[str]:
        """What a resume cannot bring back of this loader, in words."""
        is_amid = self.batch or (self.loader.persistent_workers and self.taken)  # those draw on from epoch to epoch
        caveat = self._caveat() if is_amid else None
        return [*self.doubts, *(text for text in (self._redivided, caveat) if text)]

    def _caveat(self) -> str | None:
        """What a resume in the middle of an epoch, or between two with persistent workers, cannot bring back."""
        loader = self.loader
        if not loader.num_workers:
            return None
        if self.batch and not getattr(loader, "in_order", True):
            return "in_order=False: batches come in the order in which workers finish, which no log can repeat"
        if self._index is not None and self.worker_seeds is None:
            return (
                "random numbers drawn inside DataLoader workers (augmentation) are not brought back; the order of samples "
                'is. LoggedOptimizer(..., worker_seeds="batch") brings them back, too'
            )
        if self._index is None and loader.persistent_workers and self.epoch:
            return "random numbers drawn by an IterableDataset inside persistent workers are not brought back"
        return None

    def doubt(self, text: str) -> None:
        """Something was found out that makes a resume inexact: say it now, and after each recovery."""
        if text not in self.doubts:
            self.doubts.append(text)
            self._on_doubt(text, False)

    # Loops

    def rest_of_epoch(self) -> Iterator[Any]:
        """The batches of the running epoch that are left. What the body does after each belongs to its unit."""
        self.enter()
        self.pass_kind, self.leads = None, False
        if self.cursor.live is not None:  # the loop before this one was left by `break`; its last batch is complete now
            self._on_boundary(self)
        while (data := self.take()) is not END:
            yield data
            self._on_boundary(self)  # the body is back: all that it did belongs to this unit
        self.end_epoch()

    def batches(self, until: int | None) -> Iterator[Any]:
        """Batches over all epochs until so many were handed out."""
        self.enter()
        while until is None or self.taken < until:
            was_at_start, before = self.batch == 0, self.taken
            for data in self.rest_of_epoch():
                yield data
                if until is not None and self.taken >= until:
                    self._on_boundary(self)
                    return
            if was_at_start and self.taken == before:
                return  # an empty loader would be asked for ever

    def end_epoch(self) -> None:
        """The next batch is the first of the next epoch."""
        self.epoch, self.cursor, self.pass_kind, self.leads = self.epoch + 1, Cursor(), None, False

    # The script's own loops over the loader (plain_loop.py)

    @property
    def is_pending(self) -> bool:
        """Whether a recorded position waits for its loop."""
        return self._resume is not None

    @property
    def is_companion(self) -> bool:
        """Whether the position is in a pass that goes along with another loop."""
        return self.pass_kind == COMPANION and self.batch > 0

    @property
    def is_amid_ours(self) -> bool:
        """Whether the recorded position is of a loop of ours that has not begun yet."""
        return self.is_pending and not self._is_entered and bool(self.batch or self.epoch > sum(self.passes))

    def next_finished(self) -> int | None:
        """Kind of the next pass that was over at the recorded position; None after the last."""
        if self._finished == len(self.passes):
            return None
        self._finished += 1
        return self.passes[self._finished - 1]

    def begin_pass(self, *, is_companion: bool, leads: bool) -> None:
        """A new iteration, from the first batch of an epoch."""
        self.end_pass()
        if self.batch:
            self.end_epoch()
        self.cursor, self.pass_kind, self.leads = Cursor(), COMPANION if is_companion else IDLE, leads

    def end_pass(self) -> None:
        """The pass is over: an epoch if it took steps or went along with a loop that did, else nothing."""
        kind = self.pass_kind
        if kind is None:
            return
        self.was_companion = kind == COMPANION
        if kind != COMPANION:
            self.passes.append(kind)
        if kind != IDLE:
            self.end_epoch()
        else:
            self.taken -= self.batch
            self.cursor, self.pass_kind, self.leads = Cursor(), None, False

    def take_back(self, number: int, cursor: Cursor) -> bool:
        """Go on with a pass that was taken for finished: another one was begun in its body. False if that one took steps."""
        if any(self.passes[number:]) or self.pass_kind != IDLE:
            return False
        del self.passes[number:]
        self.taken += cursor.batch - self.batch
        self.cursor = cursor
        return True

    def enter(self) -> None:
        """A loop of ours begins; it may have nothing left to do."""
        self._is_entered = True
        if self._resume is None:
            self.end_pass()

    # Batches

    def take(self) -> Any:
        """The next batch, or END."""
        cursor = self.cursor
        if cursor.live is None:
            self.open()
        assert cursor.live is not None
        try:
            data = next(cursor.live, END)
        except BaseException:  # the loader's iterator is dead; whoever tries again goes on at this batch
            self._resume, cursor.live = self.state_dict(), None
            raise
        if data is not END:
            self._count(data)
            cursor.batch, self.taken = cursor.batch + 1, self.taken + 1
        return data

    def _count(self, data: Any) -> None:
        draws = self.cursor.draws
        if draws is None:
            self.cursor.order = _digest(data, self.cursor.order) >> 1
        else:
            draws.consume(draws.ahead.pop(0))

    def open(self) -> None:
        """Make the iterator of the epoch, or of the rest of it."""
        self._on_open(self)
        cursor, resume, self._resume = self.cursor, self._resume, None
        before = get_rng(self.generators)  # what the loop goes on with
        if resume is not None and self._workers is not None and self._has_lost_workers:
            self._make_workers(before)
        self._note_unkept()
        if resume is None or not cursor.batch:
            cursor.opened, cursor.samplers = before, self._samplers.read()
            self._workers = self._workers or before
            cursor.live = self._iterate(self._new_draws(None))
            return
        assert cursor.opened is not None
        set_rng(cursor.opened, self.generators)
        self._samplers.write(cursor.samplers)
        cursor.live = self._iterate(
            self._new_draws({**resume["index"], "is_resized": self._is_resized} if resume["index"] else None)
        )
        if self._index is None:
            self._skip_batches(cursor.live, resume["order"])
        caveat = self._caveat()
        if caveat:
            self.doubt(caveat)
        set_rng(before, self.generators)  # last: after every skip, before the loop goes on

    def _note_unkept(self) -> None:
        for name in self._samplers.unkept():
            self.doubt(
                f"{name} changes while training and is not brought back, so after a resume another order may come: "
                "give the sampler state_dict() and load_state_dict()"
            )

    def _new_draws(self, resume: dict[str, Any] | None) -> Draws | None:
        if self._index is not None:
            has_workers = getattr(self.loader, "_iterator", None) is not None and self.loader.persistent_workers
            rest = self.cursor.rest
            self.cursor.draws = Draws(
                resume,
                partial(seeded, self.epoch) if self.worker_seeds else None,
                rounds_now=2 if self.loader.num_workers and not has_workers else 1,
                rest=None if rest is None else partial(rest_of, self._sampler, rest),
            )
        return self.cursor.draws

    def _skip_batches(self, iterator: Iterator[Any], recorded: int) -> None:
        self.cursor.order = 0
        for data in itertools.islice(iterator, self.batch):
            self._count(data)
        if self.cursor.order != recorded and not self._is_resized:
            kind = type(self.loader.dataset if self.is_iterable else self.loader).__name__
            self._on_doubt(
                f"{kind} did not give the same batches again, so some of this epoch are repeated or left out: data that are "
                "read again repeat themselves only if their order does not depend on random numbers that the training loop "
                "draws, too",
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
        self._iterate(Draws(is_muted=True))
        set_rng(before, self.generators)

    def _iterate(self, draws: Draws | None) -> Iterator[Any]:
        if self._index is None:
            return self.iterate_plainly()
        self._index.opening = draws
        try:
            return self.iterate_plainly()
        finally:
            self._index.opening = None

    def iterate_plainly(self) -> Iterator[Any]:
        """Iterate as the loader's own class does, whoever asks; workers can take seeds where they are to get some."""
        loader = self.loader
        dataset = loader.dataset
        if self.worker_seeds is not None:
            loader.__dict__["dataset"] = SeededDataset(dataset)
        try:
            return self.loader_class.__iter__(loader)  # type: ignore[no-any-return]
        finally:
            loader.__dict__["dataset"] = dataset


class Epoch(int):
    """The number of an epoch, to be iterated over for its batches: `sampler.set_epoch(epoch)`, `for batch in epoch`.

    After a crash the loop may enter it in its middle: `enumerate(epoch, start=epoch.batch)` counts on where it was.
    Copies and pickles of it are plain integers.
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

    def __reduce_ex__(self, protocol: Any) -> Any:
        return int, (int(self),)

    def __len__(self) -> int:
        """Batches of the whole epoch, as `len(loader)` has it."""
        return len(self._position.loader)

    def __iter__(self) -> Iterator[Any]:
        return self._position.rest_of_epoch()


# `torch.save({"epoch": epoch})` writes a call of `int`, which `torch.load(weights_only=True)` refuses unless it is listed.
torch.serialization.add_safe_globals([int])

END = object()


def _digest(data: Any, seed: int) -> int:
    """Hash of a batch: the start of each tensor and array, strings, numbers, and what other objects hold."""
    if isinstance(data, Mapping):
        data = list(data.values())
    if isinstance(data, (list, tuple)):
        for part in data:
            seed = _digest(part, seed)
        return seed
    if isinstance(data, torch.Tensor) and data.device.type == "cpu" and data.layout is torch.strided:
        data = arrays.flat_bytes(data.detach().reshape(-1)[:_DIGEST_BYTES])
    if isinstance(data, np.ndarray):
        data = np.ascontiguousarray(data).reshape(-1)[:_DIGEST_BYTES].tobytes()
    if isinstance(data, (str, int, float, bool)):
        data = repr(data).encode()
    if isinstance(data, bytes):
        return xxhash.xxh3_64_intdigest(data, seed=seed)
    return _digest(vars(data), seed) if hasattr(data, "__dict__") and not isinstance(data, torch.Tensor) else seed
