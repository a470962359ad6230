"""Choose the source of the batches of a fit."""

from __future__ import annotations

from typing import Any

from tranlogs.base.errors import UsageError

from .. import keras_internals
from ..backends import Backend
from .consumed import Consumed
from .py_dataset import PyDatasetBatches
from .shuffled_arrays import Arrays
from .source import DataOrder, Doubt, OwnOrder, Source


def make_source(
    epoch_iterator: Any, backend: Backend, *, seed: int, data_order: DataOrder, doubt: Doubt, strategy: Any = None
) -> Source:
    """Return the source of a fit's batches."""
    adapter = epoch_iterator.data_adapter
    if data_order not in ("tranlogs", "keras"):
        raise UsageError(f'data_order={data_order!r}: use "tranlogs" or "keras"')
    if isinstance(adapter, keras_internals.ArrayDataAdapter):
        if data_order == "tranlogs" or not adapter._shuffle:
            return Arrays(adapter, backend, OwnOrder(seed), strategy)
        if backend.name == "tensorflow" and keras_internals.get_random_seed() is None:
            doubt(
                'data_order="keras" shuffles with TensorFlow\'s own generator, which cannot be repeated without a seed: call '
                'keras.utils.set_random_seed(...), or use data_order="tranlogs"',
                False,
            )
        return Consumed(epoch_iterator, backend, doubt)
    if isinstance(adapter, keras_internals.PyDatasetAdapter):
        own = OwnOrder(seed) if data_order == "tranlogs" or not adapter.shuffle else None
        return PyDatasetBatches(epoch_iterator, backend, own, doubt)
    if isinstance(adapter, keras_internals.TFDatasetAdapter):
        from .tf_dataset import TFDatasetBatches, TFDatasetConsumed, doubts_about
        from .tf_pipeline import stages_of

        stages = stages_of(adapter._dataset)
        for text in doubts_about(adapter._dataset, stages):
            doubt(text, False)
        if backend.name != "tensorflow":
            return TFDatasetConsumed(epoch_iterator, backend, doubt, stages)
        return TFDatasetBatches(epoch_iterator, stages)
    return Consumed(epoch_iterator, backend, doubt)
