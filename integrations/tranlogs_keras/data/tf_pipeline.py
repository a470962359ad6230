"""The stages of a tf.data pipeline, as far as the order of its batches depends on them."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import tensorflow as tf

_log = logging.getLogger("tranlogs")
_GRAPH_BYTES_MAX = 64 << 20  # a graph contains the arrays of `from_tensor_slices`


@dataclass(frozen=True, slots=True)
class Stages:
    """Facts about a pipeline. A pipeline whose inside looks otherwise than expected has none of these properties.

    Attributes:
        is_endless: True if it is repeated without end.
        repeats_shuffle: True if a shuffle that reorders each time lies below a finite `repeat`.
        stacks_shuffles: True if a shuffle that reorders each time lies below another one.
        has_unseeded_shuffle: True if a shuffle takes its order from no seed.
        is_unordered: True if elements come in the order in which threads finish (`deterministic=False`).
    """

    is_endless: bool = False
    repeats_shuffle: bool = False
    stacks_shuffles: bool = False
    has_unseeded_shuffle: bool = False
    is_unordered: bool = False


def stages_of(dataset: Any) -> Stages:
    """Look into a dataset of tf.data."""
    try:
        return _stages_of(dataset)
    except Exception as error:  # TensorFlow's inside may change
        _log.debug("the stages of the dataset could not be read: %s", error)
        return Stages()


def _stages_of(dataset: Any) -> Stages:
    paths = list(_paths(dataset))
    stages = [stage for path in paths for stage in path]
    return Stages(
        is_endless=int(dataset.cardinality()) == tf.data.INFINITE_CARDINALITY or any(map(_is_endless_repeat, stages)),
        repeats_shuffle=any(
            _is_repeat(stage) and any(map(_reorders, path[place:])) for path in paths for place, stage in enumerate(path)
        ),
        stacks_shuffles=any(sum(map(_reorders, path)) > 1 for path in paths),
        has_unseeded_shuffle=any(_is_shuffle(stage) and not (int(stage._seed) or int(stage._seed2)) for stage in stages),
        is_unordered=_is_unordered(dataset, stages),
    )


def _paths(dataset: Any) -> Iterator[list[Any]]:
    """Yield the stages from the last one to each of the sources."""
    sources = dataset._inputs()
    if not sources:
        yield [dataset]
    for source in sources:
        for path in _paths(source):
            yield [dataset, *path]


def _is_shuffle(stage: Any) -> bool:
    return type(stage).__name__ == "_ShuffleDataset"


def _reorders(stage: Any) -> bool:
    return _is_shuffle(stage) and stage._reshuffle_each_iteration is not False


def _is_repeat(stage: Any) -> bool:
    return type(stage).__name__ == "_RepeatDataset"


def _is_endless_repeat(stage: Any) -> bool:
    return _is_repeat(stage) and int(stage._count) < 0


def _is_unordered(dataset: Any, stages: list[Any]) -> bool:
    if dataset.options().deterministic is False:
        return True
    kinds = {type(stage).__name__ for stage in stages}
    if any(getattr(stage, "_deterministic", None) == "false" for stage in stages):
        return True
    if "_ParallelInterleaveDataset" not in kinds:  # it alone keeps the setting where only its graph has it
        return False
    held = [tensor for stage in stages for tensor in getattr(stage, "_tensors", None) or ()]
    if sum(tensor.dtype.size * int(tf.size(tensor)) for tensor in held) > _GRAPH_BYTES_MAX:
        return False
    raw = tf.raw_ops.DatasetToGraphV2(
        input_dataset=dataset._variant_tensor, external_state_policy=1, strip_device_assignment=True
    )
    graph = tf.compat.v1.GraphDef.FromString(raw.numpy())
    return any(node.attr["deterministic"].s == b"false" for node in graph.node if "deterministic" in node.attr)
