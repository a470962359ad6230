"""Data that can only be drawn from: generators, DataLoaders, data of another framework."""

from __future__ import annotations

import sys
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

    A pass is opened with the random number generators as they were, and drawn from up to the batch. Those of a DataLoader's own
    are among them.
    """

    def __init__(self, epoch_iterator: Any, backend: Backend, doubt: Doubt) -> None:
        self._iterator, self._backend, self._doubt = epoch_iterator, backend, doubt
        adapter = epoch_iterator.data_adapter
        self.sets_rng = not backend.is_prefetching or isinstance(adapter, keras_internals.ArrayDataAdapter)
        self._opened_at: dict[str, Any] | None = None  # the generators' states before the pass was opened
        self._first = _first_batches(adapter)
        self._own = _own_generators(adapter)
        self._own_begun = self._own_end = self._read_own()  # before the pass was opened, and where an epoch ended
        if isinstance(adapter, keras_internals.GeneratorDataAdapter) and keras_internals.get_random_seed() is None:
            doubt(
                "the data come from a Python generator and no seed was set: if it draws random numbers, a resume sees other "
                "batches. Call keras.utils.set_random_seed(...) at the top of the script",
                False,
            )

    def open(self, passes: int, seen: int) -> Any:
        if seen and self._opened_at is not None:
            rng.set_rng(self._opened_at, self._backend)
            self._set_own(self._own_begun)
        else:
            self._opened_at = rng.get_rng(self._backend)
            self._own_begun = self._read_own()
        batches = iter(self._iterator._get_iterator())
        for taken in range(seen):
            try:
                next(batches)
            except StopIteration:
                raise UsageError(f"the data ended after {taken} batches; the run had taken {seen} of them") from None
        return batches

    def open_spare(self) -> None:
        iter(self._iterator._get_iterator())

    def refresh(self) -> None:
        self._own_end = self._read_own()

    def pass_over(self, state: dict[str, Any]) -> None:
        self._set_own(state["own_end"])

    def _read_own(self) -> list[Any]:
        return [generator.get_state().numpy().copy() for generator in self._own]

    def _set_own(self, states: list[Any]) -> None:
        for generator, state in zip(self._own, states, strict=False):  # the script may have given the loader another one
            generator.set_state(sys.modules["torch"].from_numpy(np.array(state)))

    def read_parts(self, rng_now: dict[str, Any]) -> dict[str, Any]:
        return {"rng": self._opened_at, "first": self._first, "own_begun": self._own_begun, "own_end": self._own_end}

    def write(self, state: dict[str, Any]) -> None:
        self._opened_at = state["rng"]
        self._own_begun, self._own_end = state["own_begun"], state["own_end"]
        self._set_own(self._own_end)
        if state["first"] != self._first:
            self._doubt(
                "the generator gives other batches than before: what follows is not what the run would have seen. Seed "
                "what it draws from",
                True,
            )


def _own_generators(adapter: Any) -> list[Any]:
    """Return the random generators that a DataLoader of PyTorch and its sampler hold."""
    loader, torch = getattr(adapter, "_dataloader", None), sys.modules.get("torch")
    if loader is None or torch is None:
        return []
    holders = loader, loader.sampler, loader.batch_sampler, getattr(loader.batch_sampler, "sampler", None)
    found = {id(one): one for one in (getattr(holder, "generator", None) for holder in holders)}
    return [one for one in found.values() if isinstance(one, torch.Generator)]


def _first_batches(adapter: Any) -> list[int]:
    """Digests of the batches that Keras has looked at ahead."""
    batches = getattr(adapter, "_first_batches", None)
    if not isinstance(adapter, keras_internals.GeneratorDataAdapter) or batches is None:
        return []
    try:
        return [digest(np.asarray(leaf)) for leaf in keras_internals.tree.flatten(batches) if leaf is not None]
    except (TypeError, ValueError):
        return []
