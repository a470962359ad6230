"""keras.utils.PyDataset: batches are numbered, so that the rest of an epoch is a view of the dataset.

What the dataset keeps on itself (an order that it shuffles in `on_epoch_end`) comes back with it. Where its batches draw
random numbers (augmentation), the epoch's batches are made again from the first one, with the generators as they were.
"""

from __future__ import annotations

import random
from typing import Any

import keras
import numpy as np

from tranlogs.base.notes import Note
from tranlogs.training import is_same_state

from ..backends import Backend
from ..backends.backend import Doubt
from ..state import rng
from ..state.attributes import (
    ChangedAttributes,
    GivenAttributes,
    content_of,
    is_random,
)
from .source import OwnOrder, Source

_WORKERS = Note(
    "not-recovered",
    "batches of the PyDataset draw random numbers in several workers: after a crash they cannot be drawn again in the same "
    "order",
    "Use workers=1, or draw from a generator seeded by the batch's number",
)


class PyDatasetBatches(Source):
    """The batches of a PyDataset.

    Whether a dataset draws random numbers, and from which generators, is found out while its batches are read. The class keeps
    the states that show it, so it has many attributes.

    Without `order`, Keras's own shuffling draws the order of the samples.
    """

    def __init__(
        self, epoch_iterator: Any, backend: Backend, order: OwnOrder | None, doubt: Doubt, *, reads_ahead: bool
    ) -> None:
        self._iterator, self._backend, self._own, self._doubt = epoch_iterator, backend, order, doubt
        self._reads_ahead = reads_ahead  # by threads
        self._adapter = adapter = epoch_iterator.data_adapter
        self._dataset, self._shuffles = adapter.py_dataset, bool(adapter.shuffle)
        adapter.shuffle = False
        self._attributes = ChangedAttributes(self._dataset, GivenAttributes.of(vars(self._dataset)), self._lose)
        self._held: dict[str, Any] = {}  # the attributes when they were last looked at
        self._order: np.ndarray[Any, Any] | None = None  # of the present pass, where Keras's way has drawn it
        self._begun: dict[str, Any] | None = None  # the generators' states before the pass's first batch
        self._is_open = False
        self._opened: dict[str, Any] | None = None  # the states by which it is seen whether batches draw
        self._draws = False  # whether batches draw from the global random numbers
        self._entered_with: dict[str, Any] = {}  # the states of the dataset's own random generators at the pass's beginning
        self._draws_own = False  # whether batches draw from these
        self._has_doubted = False
        self._unreadable: Exception | None = None
        self._reported: set[str] = set()  # names of attributes that cannot be stored

    @property
    def _is_redrawn(self) -> bool:
        """True if a pass is drawn again from its first batch."""
        return self._draws or self._draws_own

    @property
    def sets_rng(self) -> bool:  # type: ignore[override]
        """Threads that draw batches ahead have drawn their random numbers, too."""
        return not (self._draws and self._reads_ahead)

    def prepare(self, passes: int, seen: int, *, is_amid: bool) -> None:
        adapter = self._adapter
        count = self._dataset.num_batches
        skipped = 0 if self._is_redrawn else seen
        view = _Rest(self._dataset, None if count is None else self._order_of(passes, count, seen)[skipped:].tolist(), skipped)
        view.passes_hook_over = is_amid
        adapter.py_dataset = view
        if adapter.enqueuer is not None:
            adapter.enqueuer.stop()
            while not adapter.enqueuer.ready_queue.empty():  # stop() has put stale batches there
                adapter.enqueuer.ready_queue.get()
            adapter.enqueuer.py_dataset, adapter.enqueuer.shuffle = view, False
        if is_amid and self._is_redrawn and self._begun is not None:
            rng.set_rng(self._begun, self._backend)

    def _order_of(self, passes: int, count: int, seen: int) -> np.ndarray[Any, Any]:
        if not self._shuffles:
            return np.arange(count)
        if self._own is not None:
            return self._own.generator(passes).permutation(count)
        if self._order is None or not seen:
            order = list(range(count))
            random.shuffle(order)
            self._order = np.array(order, np.int64)
        return self._order

    def entered(self, *, is_amid: bool) -> None:
        if not is_amid:
            self._look()
            self._begun = rng.get_rng(self._backend)
            self._entered_with = self._random_states()
            self._draws = self._draws_own = False

    def _look(self) -> None:
        """Read the dataset's own attributes. An error is raised at the next boundary, where logging can suspend."""
        try:
            self._held, self._unreadable = self._attributes.read(vars(self._dataset)), None
        except Exception as error:
            self._unreadable = error

    def _lose(self, name: str) -> None:
        if name not in self._reported:
            self._reported.add(name)
            kind = type(self._dataset).__name__
            text = f"{kind}.{name} has changed, and is of a kind that cannot be stored: it is not brought back"
            self._doubt(Note("not-recovered", text), False)

    def _random_states(self) -> dict[str, Any]:
        """Return the states of the dataset's own random generators."""
        held = {name: content_of(value) for name, value in vars(self._dataset).items() if is_random(value)}
        return {name: content.value for name, content in held.items() if content is not None}

    def open(self, passes: int, seen: int) -> Any:
        batches = iter(self._iterator._get_iterator())
        for _ in range(seen if self._is_redrawn else 0):
            next(batches)
        self._is_open = True
        self._opened = rng.get_rng(self._backend) if self._backend.is_prefetching else None
        return batches

    def open_spare(self) -> None:
        iter(self._iterator._get_iterator())

    def close(self) -> None:
        self._is_open = False  # what is drawn from here on, is drawn by others

    def refresh(self) -> None:
        self._look()

    def read_parts(self, rng_now: dict[str, Any]) -> dict[str, Any]:
        if self._unreadable is not None:
            raise self._unreadable
        if self._is_open and self._opened is None:
            self._opened = rng_now  # after the first batch: opening draws, too (a DataLoader its seed)
        elif self._is_open and not self._draws and rng.has_drawn(self._opened or {}, rng_now, self._backend):
            self._draws = True
        if self._is_open and not self._draws_own and self._entered_with:
            self._draws_own = not is_same_state(self._entered_with, self._random_states())
        if self._is_redrawn and self._adapter.enqueuer is not None and not self._has_doubted:
            self._has_doubted = True
            self._doubt(_WORKERS, False)
        return {
            "attributes": self._held,
            "order": self._order,
            "begun": self._begun,  # always: a process that goes on here may find out later that batches draw
            "draws": self._draws,
            "draws_own": self._draws_own,
        }

    def write(self, state: dict[str, Any]) -> None:
        self._held, self._order = state["attributes"], state["order"]
        self._begun, self._draws, self._draws_own = state["begun"], state["draws"], state["draws_own"]
        self._attributes.write(self._held)
        self._entered_with = self._random_states()

    def pass_over(self, state: dict[str, Any]) -> None:
        self.write(state)


class _Rest(keras.utils.PyDataset):  # type: ignore[misc]
    """The rest of a pass over a PyDataset, in a fixed order."""

    def __init__(self, dataset: Any, order: list[int] | None, first: int) -> None:
        super().__init__(dataset.workers, dataset.use_multiprocessing, dataset.max_queue_size)
        self._dataset, self._order, self._first = dataset, order, first
        self.passes_hook_over = False

    @property
    def num_batches(self) -> int | None:
        return None if self._order is None else len(self._order)

    def __getitem__(self, index: int) -> Any:
        return self._dataset[index + self._first if self._order is None else self._order[index]]

    def on_epoch_begin(self) -> None:
        if self.passes_hook_over:
            self.passes_hook_over = False
        else:
            self._dataset.on_epoch_begin()

    def on_epoch_end(self) -> None:
        self._dataset.on_epoch_end()
