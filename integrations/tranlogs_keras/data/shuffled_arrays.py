"""Arrays in TranLogs's own order: each pass is a permutation drawn from the seed, and any batch of it is found at once.

The order is another one than Keras's. It is the same on every backend, and other in every epoch, also where Keras on
TensorFlow repeats one order for all epochs (with a global seed).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from ..backends import Backend
from ..backends.arrays import Values
from ..keras_internals import array_slicing, tree
from .source import OwnOrder, Source


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
        return self._batches(order, size)

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


def _converted(sliceable: Any, part: Any, name: str) -> Any:
    if name == "torch":
        from keras.src.backend.torch.core import convert_to_tensor

        return convert_to_tensor(sliceable.convert_to_torch_compatible(part))
    return sliceable.convert_to_jax_compatible(part)
