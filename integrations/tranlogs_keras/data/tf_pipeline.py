"""Facts about a tf.data pipeline, read from its datasets: whether it ends, repeats, shuffles, and keeps an order."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import tensorflow as tf

# Datasets with one input that end only if their input ends.
_PASSING = (
    "Batch",
    "Map",
    "Prefetch",
    "Filter",
    "Shuffle",
    "Repeat",
    "Options",
    "Skip",
    "Shard",
    "Unbatch",
    "FlatMap",
    "Interleave",
)
_GRAPH_BYTES_MAX = 64 << 20  # a graph contains the arrays of from_tensor_slices

Graph = Any  # a tf.compat.v1.GraphDef


def datasets_of(dataset: Any) -> Iterator[Any]:
    """Yield a dataset and all the datasets from which it is made."""
    yield dataset
    for source in dataset._inputs():
        yield from datasets_of(source)


def is_endless(dataset: Any) -> bool:
    """Return True if the dataset certainly never ends."""
    if int(dataset.cardinality()) == tf.data.INFINITE_CARDINALITY:
        return True
    while any(name in type(dataset).__name__ for name in _PASSING):
        if _is_repeat(dataset) and int(dataset._count) < 0:
            return True
        inputs = dataset._inputs()
        if len(inputs) != 1:
            return False
        dataset = inputs[0]
    return False


def repeats(dataset: Any) -> bool:
    """Return True if a part of the dataset is repeated, so that a shuffle below it begins anew within a pass."""
    return any(_is_repeat(part) for part in datasets_of(dataset))


def reshuffling(dataset: Any) -> list[Any]:
    """Return the shuffles that draw another order each time they begin."""
    return [part for part in datasets_of(dataset) if _is_shuffle(part) and part._reshuffle_each_iteration in (None, True)]


def has_unseeded_shuffle(dataset: Any) -> bool:
    """Return True if a shuffle has neither a seed of its own nor a global seed."""
    return any(int(part._seed) == int(part._seed2) == 0 for part in datasets_of(dataset) if _is_shuffle(part))


def allows_any_order(dataset: Any) -> bool:
    """Return True if a parallel part of the dataset may give its elements in the order in which they become ready."""
    parallel = [part for part in datasets_of(dataset) if "Parallel" in type(part).__name__]
    if any(getattr(part, "_deterministic", "default") == "false" for part in parallel):
        return True
    if parallel and dataset.options().deterministic is False:
        return True
    interleaves = [part for part in parallel if "Interleave" in type(part).__name__]
    return bool(interleaves) and _has_unordered_node(dataset)


def _has_unordered_node(dataset: Any) -> bool:
    """Return True if a node of the graph has deterministic="false": an interleave does not keep that on its object."""
    held = (getattr(part, "_tensors", None) or () for part in datasets_of(dataset))
    if sum(tensor.dtype.size * int(tf.size(tensor)) for tensors in held for tensor in tensors) > _GRAPH_BYTES_MAX:
        return False
    graph = tf.compat.v1.GraphDef()
    graph.ParseFromString(dataset._as_serialized_graph().numpy())
    return any(node.attr["deterministic"].s == b"false" for node in graph.node if "deterministic" in node.attr)


def _is_repeat(dataset: Any) -> bool:
    return "Repeat" in type(dataset).__name__


def _is_shuffle(dataset: Any) -> bool:
    return type(dataset).__name__ == "_ShuffleDataset"
