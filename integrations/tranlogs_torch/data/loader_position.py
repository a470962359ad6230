"""The position in the data: resume at the exact next batch without loading the skipped samples.

The proxy of a loader's index sampler (tracked_loader.py) notes the random state before the first draw of an epoch, counts what
it hands out and keeps the index batches that were drawn ahead (prefetch) but not consumed. A resume takes these steps: it sets
the random state from before `iter(loader)`; the proxy draws the skipped *indices* again, hands out the index batches that the
log has, and draws on; the random state of the boundary is set last. No sample of a map-style dataset is loaded twice. An
IterableDataset has no indices: its skipped batches are read again. A running hash shows whether the skipped batches are those
of the first time; if they are not, the report has a note.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any

import numpy as np
import torch
import xxhash
from torch.utils.data import DataLoader

from tranlogs.base.notes import Note

from ..distributed.process_group import size
from ..tensors import arrays
from .generators import DRAWS
from .loader_class import seeded
from .loader_iteration import END, LoaderIteration, redivided
from .rng import get_rng, set_rng
from .sampler import Draws
from .tracked_loader import TrackedLoader

_NO_STATES: list[torch.Tensor] = []
_DIGEST_BYTES = 1 << 16  # of each tensor and array


class LoaderPosition:
    """Position of the training loop in one DataLoader.

    Args:
        loader: the loader; its index sampler is replaced by a proxy.
        on_boundary: called when the loop asks for the next batch.
        on_open: called before an epoch, or the rest of one, is opened.
        on_doubt: called with a text on what a resume does not bring back, and whether the order is known to be wrong.
        worker_seeds: "batch" seeds each batch's random numbers in the workers.

    Attributes:
        source: the loader with its samplers and generators.
        epoch: number of the running epoch, from 0.
        taken: number of batches handed out over the whole run.
        iteration: the running epoch.
        is_in_pass: True if another loop asks the iteration for batches (loops/companions.py).
        doubts: texts on what a resume cannot bring back, found while training.
        entered: random state when the script's code before the epoch's loop began.
        is_stopped: True if the loop that runs is to end, because the run was brought back to a later one.
    """

    def __init__(
        self,
        loader: DataLoader[Any],
        on_boundary: Callable[[LoaderPosition], None],
        on_open: Callable[[LoaderPosition], None],
        on_doubt: Callable[[str, bool], None],
        worker_seeds: str | None = None,
    ) -> None:
        self.source = TrackedLoader(loader, on_doubt, worker_seeds)
        self._on_boundary, self._on_open, self._on_doubt = on_boundary, on_open, on_doubt
        self.epoch = self.taken = 0
        self.iteration = LoaderIteration()
        self.is_in_pass = self.is_stopped = False
        self._redivided = ""  # how the position of another number of processes was divided
        self._is_resized = False  # other batches follow because of other sizes, which was reported
        self.doubts: list[str] = []
        self._checked_epoch = 0  # the epoch before which the samplers' contents were last compared
        self.entered: dict[str, Any] | None = None
        self._workers: dict[str, Any] | None = None  # random state when persistent workers were made
        self._resume: dict[str, Any] | None = None  # recorded position that waits for its loop
        self._about: dict[str, Any] = {}  # when the running epoch was opened

    @property
    def loader(self) -> DataLoader[Any]:
        """The loader."""
        return self.source.loader

    def release(self, *, is_over: bool) -> None:
        """Give the loader its own sampler back; drop the open iterator if no loop goes on with it (`is_over`).

        Workers end at once when the last reference to their iterator goes. The garbage collector would come too late: it
        closes the queue through which torch ends the workers, and torch then waits five seconds for each of them.
        """
        self.source.release()
        if is_over:
            self.iteration.live = None

    @property
    def batch(self) -> int:
        """Number of batches of the epoch that were handed to the loop."""
        return self.iteration.batch

    @property
    def passed(self) -> int:
        """Number of batches over the whole run that the loop has finished, or works on."""
        return self.taken

    def stands_for(self, loader: Any) -> bool:
        """Return True if this is the position in the loader."""
        return loader is self.loader

    # State

    def state_dict(self) -> dict[str, Any]:
        """Return the position, read at a boundary."""
        iteration = self.iteration
        is_amid = bool(iteration.batch)
        is_begun = is_amid or self._is_begun_pass
        if self._resume is not None and is_amid:  # no loop has resumed from it yet
            return self._resume
        if not is_amid and self._checked_epoch != self.epoch:  # once an epoch: arrays may be large
            self._checked_epoch = self.epoch
            self._note_unkept()
        if iteration.batch == 1:
            self.source.moved.look()
        return {
            "epoch": self.epoch,
            "batch": iteration.batch,
            "taken": self.taken,
            "opened": iteration.opened if is_begun else None,
            "index": iteration.draws.position() if is_amid and iteration.draws is not None else None,
            "order": iteration.order,
            "workers": self._workers,
            "entered": self.entered,
            "samplers": iteration.samplers if is_begun else self.source.samplers.read(),
            "generators": [g.get_state() for g in self.source.generators] if self.source.generators else _NO_STATES,
            "in_pass": self.is_in_pass,
            "doubts": self.doubts,
            "moved": self.source.moved.read(),
            "rest": iteration.rest if is_amid else None,
            **(self._about if iteration.live is not None else self._describe()),
        }

    def _describe(self) -> dict[str, Any]:
        """Return what the meaning of a position depends on."""
        source = self.source
        return {"sizes": source.sizes, "length": source.length, "world": size(), "division": source.division}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Resume at a recorded position when the next epoch (or the rest of one) is opened."""
        was, now_divided = state.get("division"), self.source.division
        is_resized = state.get("world", size()) != size()
        is_resized |= bool(was and now_divided and was["replicas"] != now_divided["replicas"])
        self._redivided = ""
        if is_resized:
            state, self._redivided = redivided(state, self.loader, self.source.sampler, size())
        self.epoch, self.taken, self._workers = state["epoch"], state["taken"], state["workers"]
        self.iteration = LoaderIteration(state["batch"], state["order"], state["opened"], state["samplers"], state.get("rest"))
        self._resume, self.entered, self.doubts = state, state.get("entered"), list(state.get("doubts", ()))
        self.source.moved.load(state.get("moved", {}))
        self.is_in_pass = state["in_pass"]
        now = self.source.sizes
        self._is_resized = state.get("sizes", now) != now or state.get("is_redrawn", False)
        for what, was in state.get("sizes", now).items():
            if was != now[what]:
                text = f"the loader's {what} was {was} and is now {now[what]}, so different batches follow"
                self._on_doubt(Note("data-changed", text), not is_resized)
        self.source.set_sources(state)

    @property
    def _is_begun_pass(self) -> bool:
        """True if a pass was begun that has given no batch yet: it begins as it began, wherever it is opened again."""
        return self.is_in_pass and not self.iteration.batch and self.iteration.opened is not None

    def set_back(self) -> None:
        """Set samplers and generators to the recorded position again, after other code has drawn from them."""
        if self._resume is not None:
            self.source.set_sources(self._resume)

    @property
    def caveats(self) -> list[str]:
        """Texts on what a resume cannot bring back of this loader."""
        is_amid = self.batch or (self.loader.persistent_workers and self.taken)  # those draw on from epoch to epoch
        caveat = self._caveat() if is_amid else None
        return [*self.doubts, *(text for text in (self._redivided, caveat) if text)]

    def _caveat(self) -> str | None:
        """Return what a resume in the middle of an epoch, or between two with persistent workers, cannot bring back."""
        loader, source = self.loader, self.source
        if not loader.num_workers:
            return None
        if self.batch and not getattr(loader, "in_order", True):
            return "in_order=False: batches arrive in the order in which workers finish, which cannot be repeated"
        seen = source.moved.read() if source.has_indices else {}
        if DRAWS in seen and source.worker_seeds is None:
            return (
                "random numbers drawn inside DataLoader workers (augmentation) are not recovered; the order of samples is. "
                'worker_seeds="batch", given from the start of a run, recovers them, too'
            )
        if not source.has_indices and loader.persistent_workers and self.epoch:
            return "random numbers drawn by an IterableDataset inside persistent workers are not recovered"
        return None

    def doubt(self, text: str) -> None:
        """Report what makes a resume inexact: now, and after each recovery."""
        if text not in self.doubts:
            self.doubts = [*self.doubts, text]  # the one before may lie in a position
            self._on_doubt(text, False)

    # Loops of LoggedOptimizer

    def rest_of_epoch(self) -> Iterator[Any]:
        """Yield the batches of the running epoch that are left. What the body does after each belongs to its unit."""
        self.enter()
        self.is_in_pass = False
        if self.iteration.live is not None:  # `break` left the loop before this one; its last batch is complete now
            self._on_boundary(self)
        number = self.epoch
        while not self.is_stopped and (data := self.take()) is not END:
            yield data
            self._on_boundary(self)  # all that the body did belongs to this unit
            if self.is_set_back(number):
                return
        if not self.is_stopped:
            self.end_epoch()

    def batches(self, until: int | None) -> Iterator[Any]:
        """Yield batches over all epochs until so many were handed out."""
        self.enter()
        while not self.is_stopped and (until is None or self.taken < until):
            is_empty = self.batch == 0
            for data in self.rest_of_epoch():
                is_empty = False
                yield data
                if until is not None and self.taken >= until:
                    self._on_boundary(self)
                    return
            if is_empty:
                return  # an empty loader would be asked for ever

    def enter(self) -> None:
        """Begin a loop of `LoggedOptimizer`, which may have nothing left to do."""
        self.is_stopped = False
        if self._resume is None:
            self.end_pass()

    def end_left_iteration(self) -> None:
        """End an iteration that a loop of `LoggedOptimizer` has left: the next loop begins with the first batch of an epoch."""
        if self.batch and not self.is_in_pass:
            if self.is_pending:  # left at once after a recovery: bring the samplers to where its batches had brought them
                self.open()
            self.end_epoch()

    def end_epoch(self) -> None:
        """End the epoch: the next batch is the first of the next epoch."""
        self.epoch, self.iteration, self.is_in_pass = self.epoch + 1, LoaderIteration(), False

    @property
    def is_pending(self) -> bool:
        """True if a recorded position waits for its loop."""
        return self._resume is not None

    def is_set_back(self, number: int) -> bool:
        """Return True if the run was set back to the end of a unit that lies behind the epoch of this number, which runs."""
        return self._resume is not None and self.epoch > number

    # Passes that another loop asks for batches (loops/companions.py)

    def begin_pass(self) -> None:
        """Begin a pass from the first batch of an epoch."""
        self.end_pass()
        if self.batch:
            self.end_epoch()
        self.iteration, self.is_in_pass = LoaderIteration(), True

    def end_pass(self) -> None:
        """End the pass, if there is one. It counts as an epoch if it gave a batch."""
        if self.is_in_pass and self.batch:
            self.end_epoch()
        elif self.is_in_pass:
            self.iteration, self.is_in_pass = LoaderIteration(), False

    # Batches

    def take(self) -> Any:
        """Return the next batch, or END."""
        iteration = self.iteration
        if iteration.live is None:
            self.open()
        assert iteration.live is not None
        try:
            data = next(iteration.live, END)
        except BaseException:  # the loader's iterator is dead; a loop that tries again resumes at this batch
            self._resume, iteration.live = self.state_dict(), None
            raise
        if data is not END:
            draws = iteration.draws
            if draws is None:
                iteration.order = digest(data, iteration.order) >> 1
            else:
                draws.consume(draws.ahead.pop(0))
            iteration.batch, self.taken = iteration.batch + 1, self.taken + 1
        return data

    def open(self) -> None:
        """Make the iterator of the epoch, or of the rest of it."""
        self._on_open(self)
        iteration, source, resume, self._resume = self.iteration, self.source, self._resume, None
        source.moved.look()
        self._about = self._describe()
        before = get_rng(source.generators)  # the loop draws its next numbers from here
        if resume is not None and self._workers is not None:
            self._make_lost_workers(before)
        self._note_unkept()
        if resume is None or not iteration.batch:
            if resume is not None:
                source.moved.compare()
            if is_begun := self._is_begun_pass:
                assert iteration.opened is not None
                set_rng(iteration.opened, source.generators)
                source.samplers.write(iteration.samplers)
            else:
                iteration.opened, iteration.samplers = before, source.samplers.read()
            self._workers = self._workers or before
            iteration.live = source.iterate(self._new_draws(None))
            if is_begun:
                set_rng(before, source.generators)
            return
        assert iteration.opened is not None
        set_rng(iteration.opened, source.generators)
        source.samplers.write(iteration.samplers)
        index = resume["index"]
        iteration.live = source.iterate(self._new_draws({**index, "is_resized": self._is_resized} if index else None))
        if not source.has_indices:
            self._skip_batches(iteration.live, resume["order"])
        source.moved.compare()
        caveat = self._caveat()
        if caveat:
            self.doubt(caveat)
        set_rng(before, source.generators)  # last: after every skip, before the loop draws again

    def _note_unkept(self) -> None:
        for name in self.source.samplers.unkept():
            self.doubt(
                f"{name} changes while training and is not recovered, so a resume may continue in a different order. Give "
                "the sampler state_dict() and load_state_dict()"
            )

    def _new_draws(self, resume: dict[str, Any] | None) -> Draws | None:
        iteration, source = self.iteration, self.source
        if source.has_indices:
            has_workers = source.has_persistent_workers and source.has_started_workers
            iteration.draws = Draws(
                resume,
                partial(seeded, self.epoch) if source.worker_seeds else None,
                rounds_now=2 if self.loader.num_workers and not has_workers else 1,
                rest=None if iteration.rest is None else partial(source.rest, iteration.rest),
            )
        return iteration.draws

    def _skip_batches(self, iterator: Iterator[Any], recorded: int) -> None:
        self.iteration.order = 0
        for data in itertools.islice(iterator, self.batch):
            self.iteration.order = digest(data, self.iteration.order) >> 1
        if self.iteration.order != recorded and not self._is_resized:
            kind = type(self.loader.dataset if self.source.is_iterable else self.loader).__name__
            self._on_doubt(
                f"{kind} did not yield the same batches again, so some batches of this epoch are repeated or skipped. Data "
                "that are read again repeat themselves only if their order does not depend on random numbers that the "
                "training loop also draws",
                True,
            )

    def _make_lost_workers(self, before: dict[str, Any]) -> None:
        """Make persistent workers that ended with the process.

        They draw their base seed once, when they are made: this happens under the random state of the first time.
        """
        source = self.source
        if not source.has_persistent_workers or source.has_started_workers:
            return
        assert self._workers is not None
        set_rng(self._workers, source.generators)
        source.iterate(Draws(is_muted=True))
        set_rng(before, source.generators)


def digest(data: Any, seed: int) -> int:
    """Return a hash of a batch: the start of each tensor and array, strings, numbers, and attributes of other objects."""
    if isinstance(data, Mapping):
        data = list(data.values())
    if isinstance(data, (list, tuple)):
        for part in data:
            seed = digest(part, seed)
        return seed
    if isinstance(data, torch.Tensor) and data.device.type == "cpu" and data.layout is torch.strided:
        data = arrays.flat_bytes(data.detach().reshape(-1)[:_DIGEST_BYTES])
    if isinstance(data, np.ndarray):
        data = np.ascontiguousarray(data).reshape(-1)[:_DIGEST_BYTES].tobytes()
    if isinstance(data, (str, int, float, bool)):
        data = repr(data).encode()
    if isinstance(data, bytes):
        return xxhash.xxh3_64_intdigest(data, seed=seed)
    return digest(vars(data), seed) if hasattr(data, "__dict__") and not isinstance(data, torch.Tensor) else seed
