"""Where batches come from, and how a pass over them is opened at a batch in its middle."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

import numpy as np

from tranlogs.base.errors import UsageError

from .. import private
from ..backends import Backend
from ..state import rng
from ..state.arrays import Values
from ..state.fingerprint import digest

_GLANCED_ROWS = 64

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


class Consumed(Source):
    """Anything that can only be drawn from: generators, DataLoaders, data of another framework.

    A pass is opened with the random number generators as they were, and drawn from up to the batch.
    """

    def __init__(self, epoch_iterator: Any, backend: Backend, doubt: Doubt) -> None:
        self._iterator, self._backend, self._doubt = epoch_iterator, backend, doubt
        adapter = epoch_iterator.data_adapter
        self.sets_rng = not backend.is_prefetching or isinstance(adapter, private.ArrayDataAdapter)
        self._opened_at: dict[str, Any] | None = None  # the generators' states before the pass was opened
        self._first = _first_batches(adapter)
        if isinstance(adapter, private.GeneratorDataAdapter) and private.get_random_seed() is None:
            doubt("the data come from a Python generator and no seed was set: if it draws random numbers, a resume sees other "
                  "batches. Call keras.utils.set_random_seed(...) at the top of the script", False)  # fmt: skip

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
            self._doubt("the generator gives other batches than before: what follows is not what the run would have seen. Seed "
                        "what it draws from", True)  # fmt: skip


def describe_data(adapter: Any, source: Source) -> dict[str, Any]:
    """What must be as it was for a recorded place to mean the same batches, as plain values."""
    inputs = getattr(adapter, "_inputs", None)
    return {
        "kind": type(source).__name__, "batch_size": getattr(adapter, "batch_size", None), "batches": adapter.num_batches,
        "samples": getattr(adapter, "_num_samples", None), "content": None if inputs is None else _glance(inputs),
    }  # fmt: skip


def other_data(recorded: dict[str, Any], now: dict[str, Any]) -> list[str]:
    """What differs, one sentence each."""
    words = {"batch_size": "batch size", "batches": "number of batches", "samples": "number of samples"}
    found = [f"the {word} of the data was {recorded[key]}, now it is {now[key]}: other batches follow than the run had"
             for key, word in words.items() if recorded.get(key) is not None and recorded[key] != now[key]]  # fmt: skip
    if not found and recorded.get("content") is not None and recorded["content"] != now["content"]:
        found.append("the arrays hold other values than in the run: other batches follow than it had")
    return found


def _glance(inputs: Any) -> int | None:
    """Digest of a few rows of each array, and of its shape."""
    parts: list[Any] = []
    try:
        for leaf in private.tree.flatten(inputs):
            count = len(leaf)
            rows = sorted({int(i) for i in np.linspace(0, count - 1, min(count, _GLANCED_ROWS))})
            parts += [tuple(leaf.shape), *(digest(np.asarray(leaf[i])) for i in rows)]
    except (TypeError, ValueError, KeyError, AttributeError, IndexError):  # pandas, sparse: by their sizes alone
        return None
    return digest(np.frombuffer(repr(parts).encode(), np.uint8)) >> 1


def _first_batches(adapter: Any) -> list[int]:
    """Digests of the batches that Keras has looked at ahead."""
    batches = getattr(adapter, "_first_batches", None)
    if not isinstance(adapter, private.GeneratorDataAdapter) or batches is None:
        return []
    try:
        return [digest(np.asarray(leaf)) for leaf in private.tree.flatten(batches) if leaf is not None]
    except (TypeError, ValueError):
        return []


def make_source(epoch_iterator: Any, backend: Backend, *, seed: int, data_order: DataOrder, doubt: Doubt,
                strategy: Any = None) -> Source:  # fmt: skip
    """The source of a fit's batches."""
    from .arrays import Arrays
    from .py_dataset import PyDatasetBatches

    adapter = epoch_iterator.data_adapter
    if data_order not in ("tranlogs", "keras"):
        raise UsageError(f'data_order={data_order!r}: use "tranlogs" or "keras"')
    if isinstance(adapter, private.ArrayDataAdapter):
        if data_order == "tranlogs" or not adapter._shuffle:
            return Arrays(adapter, backend, OwnOrder(seed), strategy)
        if backend.name == "tensorflow" and private.get_random_seed() is None:
            doubt('data_order="keras" shuffles with TensorFlow\'s own generator, which cannot be repeated without a seed: call '
                  'keras.utils.set_random_seed(...), or use data_order="tranlogs"', False)  # fmt: skip
        return Consumed(epoch_iterator, backend, doubt)
    if isinstance(adapter, private.PyDatasetAdapter):
        own = OwnOrder(seed) if data_order == "tranlogs" or not adapter.shuffle else None
        return PyDatasetBatches(epoch_iterator, backend, own, doubt)
    if isinstance(adapter, private.TFDatasetAdapter) and backend.name == "tensorflow":
        from .tf_dataset import TFDatasetBatches
        from .tf_doubts import doubts_about

        for text in doubts_about(adapter._dataset):
            doubt(text, False)
        return TFDatasetBatches(epoch_iterator)
    return Consumed(epoch_iterator, backend, doubt)
