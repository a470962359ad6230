"""The interface of data to TranLogs, by which a pass is opened at a batch in its middle, and the plainer kinds of data."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any, Literal

import numpy as np

from tranlogs.base.errors import UsageError
from tranlogs.base.notes import Note

from .. import keras_internals
from ..backends import Backend
from ..backends.arrays import Values
from ..backends.backend import Doubt
from ..keras_internals import array_slicing, tree
from ..state import rng

DataOrder = Literal["tranlogs", "keras"]


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


class Arrays(Source):
    """Batches of arrays, in an order that TranLogs draws."""

    def __init__(self, adapter: Any, backend: Backend, order: OwnOrder, strategy: Any) -> None:
        self._adapter, self._backend, self._order, self._strategy = adapter, backend, order, strategy

    def open(self, passes: int, seen: int) -> Any:
        adapter = self._adapter
        size = adapter._batch_size
        order = self._order.of_samples(passes, adapter._num_samples, size, adapter._shuffle)[seen * size :]
        if self._backend.name == "tensorflow":
            return iter(self._tf_dataset(order, size))
        self.open_spare()
        return MadeAhead(self._batches(order, size))

    def open_spare(self) -> None:
        """Open a DataLoader, which draws a seed from torch's generator. Dropout draws from the same generator."""
        if self._backend.name == "torch":
            iter(self._adapter.get_torch_dataloader())

    def _tf_dataset(self, order: Values, size: int) -> Any:
        """Return the rest of a pass, made like Keras's own pipeline except for the order."""
        import tensorflow as tf

        # Copied in each pass: a loop of the script may have changed its arrays since the last one.
        inputs = array_slicing.convert_to_sliceable(self._adapter._inputs, target_backend="tensorflow")
        samples = tf.data.Dataset.from_tensors(tree.lists_to_tuples(inputs)).repeat()
        # Rows of indices, not a function that slices them: each pass would trace it. The rest, which has another length than a
        # row and may be none, keeps the size of a batch out of what the train step is traced for.
        full, rest = np.split(np.asarray(order, np.int64), [len(order) // size * size])
        batches = tf.data.Dataset.from_tensor_slices(full.reshape(-1, size))
        batches = batches.concatenate(tf.data.Dataset.from_tensors(rest).take(min(len(rest), 1)))
        as_it_is = tf.autograph.experimental.do_not_convert  # there is nothing to convert, and each fit would wait to learn so
        data = tf.data.Dataset.zip((batches, samples))

        def take(i: Any, held: Any) -> Any:
            def one(x: Any) -> Any:
                if isinstance(x, array_slicing.TensorflowSparseWrapper):
                    return array_slicing.slice_tensorflow_sparse_wrapper(x, i)
                if isinstance(x, (list, tuple, dict)):
                    return None
                return tf.gather(x, i, axis=0) if tf.is_tensor(x) else x

            return tree.traverse(one, held)

        options = tf.data.Options()
        options.experimental_optimization.apply_default_optimizations = False
        options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.DATA
        data = data.map(as_it_is(take), num_parallel_calls=tf.data.AUTOTUNE, deterministic=True).with_options(options)
        data = data.prefetch(tf.data.AUTOTUNE)
        return data if self._strategy is None else self._strategy.experimental_distribute_dataset(data)

    def _batches(self, order: Values, size: int) -> Iterator[Any]:
        name = self._backend.name
        inputs = array_slicing.convert_to_sliceable(self._adapter._inputs, target_backend=name)
        for at in range(0, len(order), size):
            chosen = order[at : at + size]
            indices = chosen if self._adapter._shuffle else slice(int(chosen[0]), int(chosen[-1]) + 1)
            yield tree.map_structure(lambda x, i=indices: _converted(x, x[i], name), inputs, none_is_leaf=False)


class MadeAhead(Iterator[Any]):
    """Batches, of which one may be made ahead of time. Making it draws no random numbers."""

    def __init__(self, batches: Iterator[Any]) -> None:
        self._batches = batches
        self._next: Any = None

    def prepare(self) -> None:
        """Make the next batch."""
        self._next = next(self._batches, None) if self._next is None else self._next

    def __next__(self) -> Any:
        self.prepare()
        found, self._next = self._next, None
        if found is None:
            raise StopIteration
        return found


def _converted(sliceable: Any, part: Any, name: str) -> Any:
    if name == "torch":
        from keras.src.backend.torch.core import convert_to_tensor

        return convert_to_tensor(sliceable.convert_to_torch_compatible(part))
    return sliceable.convert_to_jax_compatible(part)


_UNSEEDED = Note(
    "not-recovered",
    "the data come from a Python generator and no seed was set: if it draws random numbers, a resume sees other batches",
    "Call keras.utils.set_random_seed(...) at the top of the script",
)


class Consumed(Source):
    """Anything that can only be drawn from: generators, DataLoaders, data of another framework.

    A pass is opened with the random number generators as they were, and drawn from up to the batch. Those of a DataLoader's own
    are among them.
    """

    def __init__(self, epoch_iterator: Any, backend: Backend, doubt: Doubt, *, reads_ahead: bool) -> None:
        self._iterator, self._backend = epoch_iterator, backend
        adapter = epoch_iterator.data_adapter
        self.sets_rng = not reads_ahead or isinstance(adapter, keras_internals.ArrayDataAdapter)
        self._opened_at: dict[str, Any] | None = None  # the generators' states before the pass was opened
        self._own = _own_generators(adapter)
        self._own_begun = self._own_end = self._read_own()  # before the pass was opened, and where an epoch ended
        if isinstance(adapter, keras_internals.GeneratorDataAdapter) and keras_internals.get_random_seed() is None:
            doubt(_UNSEEDED, False)

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
        return {"rng": self._opened_at, "own_begun": self._own_begun, "own_end": self._own_end}

    def write(self, state: dict[str, Any]) -> None:
        self._opened_at = state["rng"]
        self._own_begun, self._own_end = state["own_begun"], state["own_end"]
        self._set_own(self._own_end)


def _own_generators(adapter: Any) -> list[Any]:
    """Return the random generators that a DataLoader of PyTorch and its sampler hold."""
    loader, torch = getattr(adapter, "_dataloader", None), sys.modules.get("torch")
    if loader is None or torch is None:
        return []
    holders = loader, loader.sampler, loader.batch_sampler, getattr(loader.batch_sampler, "sampler", None)
    found = {id(one): one for one in (getattr(holder, "generator", None) for holder in holders)}
    return [one for one in found.values() if isinstance(one, torch.Generator)]
