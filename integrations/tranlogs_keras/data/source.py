"""The interface of data to TranLogs: a pass over the data can be opened at a batch in its middle."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

import numpy as np

from ..backends.arrays import Values

DataOrder = Literal["tranlogs", "keras"]
Doubt = Callable[[str, bool], None]  # what cannot be brought back, and whether the order is wrong for sure


class Source:
    """One kind of data. The methods of this class do nothing, for kinds that do not need them.

    Attributes:
        sets_rng: whether Python's and numpy's generators are to be set at the place where a run goes on (not where threads
            draw batches ahead with them).
    """

    sets_rng = True

    def prepare(self, passes: int, seen: int, *, is_amid: bool) -> None:
        """Prepare to open pass number `passes` after its first `seen` batches; hooks of the data run in between.

        `is_amid`: in the middle of an epoch, where a run goes on, and where they have run before.
        """

    def entered(self, *, is_amid: bool) -> None:
        """Note that the hooks have run."""

    def open(self, passes: int, seen: int) -> Any:
        """Return an iterator over pass number `passes`, without its first `seen` batches."""
        raise NotImplementedError

    def close(self) -> None:
        """End the pass."""

    def open_spare(self) -> None:
        """Draw the random numbers of the iterator that Keras opens at the end of a pass and never uses."""

    def refresh(self) -> None:
        """Keep what the end of an epoch has changed."""

    _last: dict[str, Any] = {}  # never written to

    def read(self, rng_now: dict[str, Any]) -> dict[str, Any]:
        """Return the state that a boundary keeps: the same object as before if nothing has changed."""
        now = self.read_parts(rng_now)
        if now.keys() != self._last.keys() or any(now[name] is not self._last[name] for name in now):
            self._last = now
        return self._last

    def read_parts(self, rng_now: dict[str, Any]) -> dict[str, Any]:
        """Return the parts of this state by name. Values are new objects, which are never written to."""
        return {}

    def write(self, state: dict[str, Any]) -> None:
        """Set the state that a boundary has kept."""

    def pass_over(self, state: dict[str, Any]) -> None:
        """Leave the data as a fit left them that was over before: a later one may go on with the same data set.

        `state` is what the boundary at the end of that fit has kept.
        """

    def read_for_checkpoint(self) -> dict[str, Any]:
        """Return the state that only a checkpoint keeps."""
        return {}

    def write_from_checkpoint(self, state: dict[str, Any], seen: int) -> None:
        """Set the state that a checkpoint has kept. `seen` batches of its pass had been taken."""


class OwnOrder:
    """The order of each pass as a function of a seed and its number: nothing needs to be logged, and any batch is found."""

    def __init__(self, seed: int) -> None:
        self.seed = seed

    def generator(self, passes: int) -> np.random.Generator:
        """Return the generator of pass number `passes` (Philox, counter-based: Salmon et al. 2011)."""
        return np.random.Generator(np.random.Philox(key=[self.seed, passes]))

    def of_samples(self, passes: int, count: int, batch_size: int, shuffle: bool | str) -> Values:
        """Indices of samples; with shuffle="batch" they stay within their batch."""
        draw = self.generator(passes)
        if shuffle == "batch":
            blocks = [np.arange(at, min(at + batch_size, count)) for at in range(0, count, batch_size)]
            return np.concatenate([draw.permutation(block) for block in blocks])
        return draw.permutation(count) if shuffle else np.arange(count)
