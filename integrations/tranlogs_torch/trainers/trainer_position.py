"""The position in a DataLoader that a trainer iterates over by itself, and perhaps reads ahead of what it trains on.

accelerate's loaders fetch one batch more than they give out, to know the last one. So when a step is complete the next batch
lies there already, drawn (and augmented, and masked by its collator) under random numbers of a moment ago. The position of
that moment, and the random state, are what is recorded. A resumed loop fetches that batch again as it was fetched then, and
the random state of the boundary comes after it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from torch.utils.data import DataLoader

from tranlogs.base.errors import UsageError
from tranlogs.records import Fixed

from ..data.loader_class import iterating
from ..data.loader_iteration import END
from ..data.loader_position import LoaderPosition
from ..data.rng import KeptRng, get_rng, set_rng
from ..distributed.process_group import size


class TrainerPosition(LoaderPosition):
    """Position of a loader that a trainer reads ahead: it knows the batches that were read, and those that were trained on.

    Attributes:
        trained: batches of the epoch that were trained on.
    """

    def __init__(
        self,
        loader: DataLoader[Any],
        on_boundary: Callable[[LoaderPosition], None],
        on_open: Callable[[LoaderPosition], None],
        on_doubt: Callable[[str, bool], None],
        worker_seeds: str | None = None,
    ) -> None:
        super().__init__(loader, on_boundary, on_open, on_doubt, worker_seeds)
        self.trained = 0
        self._fetched: dict[int, dict[str, Any]] = {}  # by number of a batch at hand: the position before it was fetched
        self._at_hand: dict[str, Any] | None = None  # recorded random state in which the first batch is to be fetched again
        self._rng = KeptRng()
        self._seeded = [part for part in self.source.samplers.samplers if hasattr(part, "initial_seed")]
        loader.__class__ = iterating(loader, self.source.plain_class, self.iterate)

    def release(self, *, is_over: bool) -> None:
        """Give the loader its class and its sampler back."""
        super().release(is_over=is_over)
        self.loader.__class__ = self.source.plain_class

    def state_dict(self) -> dict[str, Any]:
        """Return the position after the last batch that was trained on."""
        found = self._fetched.get(self.trained)
        return self._here() if found is None else found

    def _here(self) -> dict[str, Any]:
        return {**super().state_dict(), "at_hand": None, "seeds": [part.initial_seed for part in self._seeded]}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Resume there when the trainer iterates.

        Raises:
            UsageError: other processes train together now: the trainer counts batches and epochs by their number.
        """
        if (world := state.get("world", size())) != size():
            raise UsageError(
                f"the run is at a batch counted by {world} processes, and there are {size()}. Under a trainer, start {world} "
                "processes, or take the weights with `tranlogs replay`"
            )
        super().load_state_dict(state)
        at_hand = state["at_hand"]
        self.trained, self._at_hand = self.batch, at_hand.value if isinstance(at_hand, Fixed) else at_hand
        self._fetched.clear()
        for part, seed in zip(self._seeded, state["seeds"], strict=False):  # accelerate's sampler: its order is seed and epoch
            part.initial_seed = seed

    @property
    def passed(self) -> int:
        """Batches that were trained on over the whole run."""
        return self.taken - (self.batch - self.trained)

    def advance(self, trained: int) -> None:
        """Set the number of batches of the epoch that were trained on."""
        self.trained = trained
        for number in [n for n in self._fetched if n < trained]:
            del self._fetched[number]

    def end_epoch(self) -> None:
        """Move on to the first batch of the next epoch."""
        super().end_epoch()
        self.trained = 0
        self._fetched.clear()

    def end_left_iteration(self) -> None:
        """Do nothing: the trainer may have read ahead for the loop that begins, and `iterate` ends what it has left."""

    def iterate(self) -> Iterator[Any]:
        """Return the iterator for `iter(loader)`. It opens the loader at once; a resumed one opens it at its first batch."""
        if self.batch and not self.is_pending:
            self.end_epoch()
        if not (self.is_pending and self.taken):
            self.open()
        return self._batches()

    def _batches(self) -> Iterator[Any]:
        while True:
            self.ask()
            if self.is_pending:
                self._on_open(self)  # undoes what was done since the recovery, before anything is fetched
            later, self._at_hand = self._at_hand, None
            if later is not None:
                recorded, later = later, get_rng()
                set_rng(recorded)
            number = self.batch
            self._fetched[number] = {**self._here(), "at_hand": self._rng.now()}
            data = self.take()
            if later is not None:  # after the batch that was at hand training goes on
                set_rng(later)
            if data is END:
                del self._fetched[number]
                return
            yield data

    def ask(self) -> None:
        """Note that the trainer asks for a batch."""
