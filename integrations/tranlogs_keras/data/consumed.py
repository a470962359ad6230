"""Data that can only be drawn from: generators, DataLoaders, data of another framework."""

from __future__ import annotations

from typing import Any

import numpy as np

from tranlogs.base.errors import UsageError

from .. import keras_internals
from ..backends import Backend
from ..state import rng
from ..state.fingerprint import digest
from .source import Doubt, Source


class Consumed(Source):
    """Anything that can only be drawn from: generators, DataLoaders, data of another framework.

    A pass is opened with the random number generators as they were, and drawn from up to the batch.
    """

    def __init__(self, epoch_iterator: Any, backend: Backend, doubt: Doubt) -> None:
        self._iterator, self._backend, self._doubt = epoch_iterator, backend, doubt
        adapter = epoch_iterator.data_adapter
        self.sets_rng = not backend.is_prefetching or isinstance(adapter, keras_internals.ArrayDataAdapter)
        self._opened_at: dict[str, Any] | None = None  # the generators' states before the pass was opened
        self._first = _first_batches(adapter)
        if isinstance(adapter, keras_internals.GeneratorDataAdapter) and keras_internals.get_random_seed() is None:
            doubt(
                "the data come from a Python generator and no seed was set: if it draws random numbers, a resume sees other "
                "batches. Call keras.utils.set_random_seed(...) at the top of the script",
                False,
            )

    def open(self, passes: int, seen: int) -> Any:
        if seen and self._opened_at is not None:
            rng.set_rng(self._opened_at, self._backend)
        else:
            self._opened_at = rng.get_rng(self._backend)
        batches = iter(self._iterator._get_iterator())
        for taken in range(seen):
            try:
                next(batches)
            except StopIteration:
                raise UsageError(f"the data ended after {taken} batches; the run had taken {seen} of them") from None
        return batches

    def open_spare(self) -> None:
        iter(self._iterator._get_iterator())

    def read_parts(self, rng_now: dict[str, Any]) -> dict[str, Any]:
        return {"rng": self._opened_at, "first": self._first}

    def write(self, state: dict[str, Any]) -> None:
        self._opened_at = state["rng"]
        if state["first"] != self._first:
            self._doubt(
                "the generator gives other batches than before: what follows is not what the run would have seen. Seed "
                "what it draws from",
                True,
            )


def _first_batches(adapter: Any) -> list[int]:
    """Digests of the batches that Keras has looked at ahead."""
    batches = getattr(adapter, "_first_batches", None)
    if not isinstance(adapter, keras_internals.GeneratorDataAdapter) or batches is None:
        return []
    try:
        return [digest(np.asarray(leaf)) for leaf in keras_internals.tree.flatten(batches) if leaf is not None]
    except (TypeError, ValueError):
        return []
