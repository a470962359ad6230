"""The data that the script gives: the source of their batches, and the description that a run records and compares."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np

from tranlogs.base.errors import UsageError
from tranlogs.base.notes import Note

from .. import keras_internals
from ..backends import Backend
from ..backends.backend import Doubt
from ..state.state import digest
from .py_dataset import PyDatasetBatches
from .source import Arrays, Consumed, DataOrder, OwnOrder, Source

_UNSEEDED = Note(
    "not-recovered",
    'data_order="keras" shuffles with TensorFlow\'s own generator, which cannot be repeated without a seed',
    'Call keras.utils.set_random_seed(...), or use data_order="tranlogs"',
)


def make_source(
    epoch_iterator: Any,
    backend: Backend,
    *,
    seed: int,
    data_order: DataOrder = "tranlogs",
    doubt: Doubt,
    strategy: Any = None,
    reads_ahead: bool,
) -> Source:
    """Return the source of the batches of a fit, or of a loop. With `reads_ahead`, other threads may draw them."""
    adapter = epoch_iterator.data_adapter
    if isinstance(adapter, keras_internals.ArrayDataAdapter):
        if data_order == "tranlogs" or not adapter._shuffle:
            return Arrays(adapter, backend, OwnOrder(seed), strategy)
        if backend.name == "tensorflow" and keras_internals.get_random_seed() is None:
            doubt(_UNSEEDED, False)
        return Consumed(epoch_iterator, backend, doubt, reads_ahead=reads_ahead)
    if isinstance(adapter, keras_internals.PyDatasetAdapter):
        own = OwnOrder(seed) if data_order == "tranlogs" or not adapter.shuffle else None
        return PyDatasetBatches(epoch_iterator, backend, own, doubt, reads_ahead=reads_ahead)
    if isinstance(adapter, keras_internals.TFDatasetAdapter):
        from .tf_dataset import TFDatasetBatches, TFDatasetConsumed, doubts_about, stages_of

        stages = stages_of(adapter._dataset)
        for note in doubts_about(adapter._dataset, stages):
            doubt(note, False)
        if backend.name != "tensorflow":
            return TFDatasetConsumed(epoch_iterator, backend, doubt, stages, reads_ahead=reads_ahead)
        return TFDatasetBatches(epoch_iterator, stages)
    return Consumed(epoch_iterator, backend, doubt, reads_ahead=reads_ahead)


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


_GLANCED_ROWS = 64


def describe_data(adapter: Any, source: Source) -> dict[str, Any]:
    """Return the properties of the data on which the meaning of a recorded position depends, as plain values."""
    return {"kind": type(source).__name__, **describe_content(adapter)}


def describe_content(adapter: Any) -> dict[str, Any]:
    """Return sizes of the data and a digest of their values, where these can be read without changing what a fit sees."""
    inputs = find_arrays(adapter)
    return {
        "adapter": type(adapter).__name__,
        "batch_size": getattr(adapter, "batch_size", None),
        "batches": adapter.num_batches,
        "samples": getattr(adapter, "_num_samples", None),
        "content": None if inputs is None else _glance(inputs),
    }


def check_kind(run: object, recorded: dict[str, Any], now: dict[str, Any], what: str) -> None:
    """Refuse data of another kind than the recorded ones. `what` tells what to do.

    Raises:
        UsageError: a position in the recorded data means nothing in these.
    """
    if recorded["kind"] != now["kind"]:
        raise UsageError(
            f"{run}: the data were {recorded['kind']}, now they are {now['kind']}. A position in one kind has no meaning in "
            f"the other. {what}"
        )


def other_data(recorded: dict[str, Any], now: dict[str, Any]) -> list[str]:
    """Return the differences between two descriptions, one sentence each."""
    words = {
        "batch_size": "batch size",
        "batches": "number of batches",
        "samples": "number of samples",
        "steps_per_epoch": "steps_per_epoch",
        "shuffle": "shuffling",
    }
    found = [
        f"the {word} of the data was {recorded[key]}, now it is {now[key]}: other batches follow than the run had"
        for key, word in words.items()
        if recorded.get(key) is not None and recorded[key] != now.get(key)
    ]
    if not found and recorded.get("adapter") != now.get("adapter"):
        found.append(f"the data were given by a {recorded.get('adapter')}, now by a {now.get('adapter')}")
    if not found and recorded.get("content") is not None and recorded["content"] != now["content"]:
        found.append("the arrays hold other values than in the run: other batches follow than it had")
    return found


def _glance(inputs: Any) -> int | None:
    """Digest of a few rows of each array, and of its shape."""
    parts: list[Any] = []
    try:
        for leaf in keras_internals.tree.flatten(inputs):
            count = len(leaf)
            rows = sorted({int(i) for i in np.linspace(0, count - 1, min(count, _GLANCED_ROWS))})
            parts += [tuple(leaf.shape), *(digest(np.asarray(leaf[i])) for i in rows)]
    except (TypeError, ValueError, KeyError, AttributeError, IndexError):  # pandas, sparse: by their sizes alone
        return None
    return digest(np.frombuffer(repr(parts).encode(), np.uint8)) >> 1
