"""The data of a loop of one's own, in the form in which sources of batches take them."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Iterator
from typing import Any

import keras

from tranlogs.base.errors import UsageError

from ... import keras_internals
from ...backends import Backend
from ...data.factory import make_source
from ...data.py_dataset import PyDatasetBatches
from ...data.source import Doubt, Source


class LoopData:
    """Stand-in for Keras's epoch iterator.

    Args:
        data: as the script gave them.
        batch_size: for arrays.
        shuffle: for arrays.
        is_stateless: whether the script declares that a pass depends on nothing but the global random generators.

    Attributes:
        given: the data as the script gave them.
        is_of_script: whether they are an iterable whose state is known to the script alone.
        data_adapter: Keras's adapter, or a plain one where Keras needs none.
        steps_per_epoch: None.
    """

    steps_per_epoch = None

    def __init__(self, data: Any, batch_size: int | None, shuffle: bool, *, is_stateless: bool) -> None:
        self.given, self.is_stateless = data, is_stateless
        self.data_adapter = _adapter(data, batch_size, shuffle)
        self.is_of_script = isinstance(self.data_adapter, _PlainAdapter) and not isinstance(data, (list, tuple))

    def _get_iterator(self) -> Any:
        adapter = self.data_adapter
        if isinstance(adapter, keras_internals.PyDatasetAdapter):
            return _numbered(adapter.py_dataset)
        return self.given() if inspect.isfunction(self.given) else self.given


class _PyDatasetInThisThread(PyDatasetBatches):
    """Batches that no other thread draws ahead."""

    sets_rng = True


class _PlainAdapter:
    """Any other iterable of batches."""

    def __init__(self, data: Any) -> None:
        self.num_batches = len(data) if hasattr(data, "__len__") else None


def make_loop_source(data: LoopData, backend: Backend, seed: int, doubt: Doubt) -> Source:
    """Return the source of the batches of a loop of one's own. Its batches are drawn on the thread of the loop."""
    if isinstance(data.data_adapter, keras_internals.PyDatasetAdapter):
        source: Source = _PyDatasetInThisThread(data, backend, None, doubt)
    else:
        source = make_source(data, backend, seed=seed, data_order="tranlogs", doubt=doubt)
        source.sets_rng = True
    return source


def _adapter(data: Any, batch_size: int | None, shuffle: bool) -> Any:
    torch = sys.modules.get("torch")
    if isinstance(data, keras.utils.PyDataset):
        return keras_internals.PyDatasetAdapter(data, class_weight=None, shuffle=False)
    if torch is not None and isinstance(data, torch.utils.data.DataLoader):
        return keras_internals.TorchDataLoaderAdapter(data)
    if _is_arrays(data):
        if batch_size is None:
            raise UsageError("batches() of arrays needs batch_size=...")
        parts = data if isinstance(data, tuple) else (data,)
        return keras_internals.ArrayDataAdapter(
            parts[0], y=parts[1] if len(parts) > 1 else None, batch_size=batch_size, shuffle=shuffle
        )
    if batch_size is not None:
        raise UsageError(f"batch_size is for arrays; a {type(data).__name__} has batches of its own")
    kinds = {kind.__module__.partition(".")[0] for kind in type(data).__mro__}
    if "tensorflow" in kinds and hasattr(data, "element_spec") and keras.backend.backend() == "tensorflow":
        return keras_internals.TFDatasetAdapter(data)
    if inspect.isfunction(data) or (hasattr(data, "__iter__") and not isinstance(data, Iterator)):
        return _PlainAdapter(data)
    raise UsageError(
        f"batches() takes a tf.data.Dataset, a DataLoader, a PyDataset, a tuple of arrays with batch_size=..., an iterable, or "
        f"a function that returns a generator, not a {type(data).__name__}: it has to begin anew for each epoch"
    )


def _is_arrays(data: Any) -> bool:
    parts = data if isinstance(data, tuple) else (data,)
    return 0 < len(parts) <= 2 and all(hasattr(part, "shape") and hasattr(part, "dtype") for part in parts)


def _numbered(dataset: Any) -> Iterator[Any]:
    count = dataset.num_batches
    index = 0
    while count is None or index < count:
        yield dataset[index]
        index += 1
