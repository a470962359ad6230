"""The arrays behind the data of a fit, where they can be looked at without drawing a batch."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np

from .. import keras_internals


def find_arrays(adapter: Any) -> Any:
    """Return the arrays that the batches are made of, as a nested structure; None if only drawing batches shows them.

    A generator, a PyDataset or a Dataset of the user's own may count or draw random numbers when it is asked for a batch,
    so they are not asked.
    """
    if isinstance(adapter, keras_internals.TorchDataLoaderAdapter):
        return _torch_arrays(adapter._dataloader.dataset)
    if isinstance(adapter, keras_internals.TFDatasetAdapter):
        return _tf_arrays(adapter._dataset)
    return getattr(adapter, "_inputs", None)


def _torch_arrays(dataset: Any) -> Any:
    data = sys.modules["torch"].utils.data
    if isinstance(dataset, data.TensorDataset):
        return list(dataset.tensors)
    if isinstance(dataset, data.Subset):
        inner = _torch_arrays(dataset.dataset)
        return None if inner is None else [np.asarray(dataset.indices), inner]
    found = [getattr(dataset, name, None) for name in ("data", "targets")]  # as torchvision's datasets have them
    return [array for array in found if hasattr(array, "shape")] or None


def _tf_arrays(dataset: Any) -> Any:
    """Return the tensors of the sources of a tf.data pipeline: `from_tensor_slices` and `from_tensors`."""
    found, waiting = [], [dataset]
    while waiting:
        node = waiting.pop()
        found += [tensor for tensor in getattr(node, "_tensors", ()) if hasattr(tensor, "numpy")]
        inputs = getattr(node, "_inputs", None)
        waiting += inputs() if callable(inputs) else []
    return found or None
