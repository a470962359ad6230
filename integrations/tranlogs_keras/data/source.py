"""What TranLogs needs of data: how a pass over it is opened at a batch in its middle."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

import numpy as np

from ..backends.arrays import Values

DataOrder = Literal["tranlogs", "keras"]
Doubt = Callable[[str, bool], None]  # what cannot be brought back, and whether the order is wrong for sure


class Source:
    """One kind of data; what a kind does not need stays as it is here.

    Attributes:
        sets_rng: whether Python's and numpy's generators are to be set at the place where a run goes on (not where threads
            draw batches ahead with them).
    """

    sets_rng = True

    def prepare(self, passes: int, seen: int, *, is_amid: bool) -> None:
        """Pass number `passes` is about to be opened behind its first `seen` batches; hooks of the data run in between.

        `is_amid`: in the middle of an epoch, where a run goes on, and where they have run before.
        """

    def entered(self, *, is_amid: bool) -> None:
        """The hooks have run."""

    def open(self, passes: int, seen: int) -> Any:
        """An iterator over pass number `passes`, without its first `seen` batches."""
        raise NotImplementedError

    def close(self) -> None:
        """The pass is over."""

    def open_spare(self) -> None:
        """At the end of a pass Keras opens an iterator that it never uses: what that draws must be drawn here, too."""

    def refresh(self) -> None:
        """An epoch is over, and what its end has changed is to be kept."""

    _last: dict[str, Any] = {}  # never written to

    def read(self, rng_now: dict[str, Any]) -> dict[str, Any]:
        """What a boundary keeps of it: the same object as before where nothing has changed."""
        now = self.read_parts(rng_now)
        if now.keys() != self._last.keys() or any(now[name] is not self._last[name] for name in now):
            self._last = now
        return self._last

    def read_parts(self, rng_now: dict[str, Any]) -> dict[str, Any]:
        """The same, by name, made anew; no value is written to once it was given."""
        return {}

    def write(self, state: dict[str, Any]) -> None:
        """Set that."""

    def read_for_checkpoint(self) -> dict[str, Any]:
        """What a checkpoint keeps besides."""
        return {}

    def write_from_checkpoint(self, state: dict[str, Any], seen: int) -> None:
        """Set that; `seen` batches of its pass had been taken."""


class OwnOrder:
    """The order of each pass as a function of a seed and its number: nothing needs to be logged, and any batch is found."""

    def __init__(self, seed: int) -> None:
        self.seed = seed

    def generator(self, passes: int) -> np.random.Generator:
        """For pass number `passes` (Philox, counter-based: Salmon et al. 2011)."""
        return np.random.Generator(np.random.Philox(key=[self.seed, passes]))

    def of_samples(self, passes: int, count: int, batch_size: int, shuffle: bool | str) -> Values:
        """Indices of samples; with shuffle="batch" they stay within their batch."""
        draw = self.generator(passes)
        if shuffle == "batch":
            blocks = [np.arange(at, min(at + batch_size, count)) for at in range(0, count, batch_size)]
            return np.concatenate([draw.permutation(block) for block in blocks])
        return draw.permutation(count) if shuffle else np.arange(count)
