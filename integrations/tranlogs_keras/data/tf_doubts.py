"""What of a tf.data pipeline cannot be brought back, told from its functions before training starts."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Any

from .tf_pipeline import allows_any_order, has_unseeded_shuffle, reshuffling

_log = logging.getLogger("tranlogs")

_PYTHON = {"PyFunc", "EagerPyFunc", "PyFuncStateless"}
_WRITES = {"AssignVariableOp", "AssignAddVariableOp", "AssignSubVariableOp", "RngReadAndSkip"}
_RANDOM = {
    "RandomUniform",
    "RandomUniformInt",
    "RandomStandardNormal",
    "TruncatedNormal",
    "RandomShuffle",
    "Multinomial",
    "RandomGamma",
    "RandomPoissonV2",
    "ParameterizedTruncatedNormal",
}

_VARIABLES = (
    "a map of the dataset writes variables, such as the seed of a Keras layer that augments: they are not brought back, and a "
    "resume in the middle of an epoch sees other batches. Augment inside the model, or with stateless operations"
)
_CALLS = (
    "a map of the dataset calls Python: if that draws random numbers, they are not brought back. Use stateless operations of "
    "TensorFlow"
)
_PARALLEL = (
    "a map of the dataset draws random numbers in parallel (num_parallel_calls), which TensorFlow itself does not repeat from "
    "one run to the next. Leave num_parallel_calls out, or use stateless operations"
)
_UNSEEDED = (
    "a shuffle of the dataset has no seed: after a resume the order of later epochs is another one than an uninterrupted run "
    "would have drawn. Give shuffle(seed=...), or call keras.utils.set_random_seed before the dataset is made"
)
_SEVERAL = (
    "the dataset shuffles in several places, and TensorFlow's checkpoint of its iterator does not bring all of them back in "
    "every case: after a resume the order may be another one. Use one shuffle, or reshuffle_each_iteration=False"
)
_UNORDERED = (
    "the dataset allows TensorFlow to give elements in the order in which they become ready (deterministic=False), which "
    "TensorFlow does not repeat from one run to the next. Leave deterministic=False out"
)


def doubts_about(dataset: Any) -> list[str]:
    """One sentence each. A dataset whose inside looks otherwise than expected is not doubted."""
    found: dict[str, None] = {}
    try:
        for name, kinds in _functions(dataset):
            if kinds & _WRITES:
                found[_VARIABLES] = None
            if "Map" in name and "FlatMap" not in name and kinds & _PYTHON:  # a flat map: from_generator
                found[_CALLS] = None
            if "Parallel" in name and kinds & _RANDOM:
                found[_PARALLEL] = None
        if has_unseeded_shuffle(dataset):
            found[_UNSEEDED] = None
        in_functions = any("Shuffle" in kind for _, kinds in _functions(dataset) for kind in kinds if "Dataset" in kind)
        if len(reshuffling(dataset)) + in_functions > 1:
            found[_SEVERAL] = None
        if allows_any_order(dataset):
            found[_UNORDERED] = None
    except Exception as error:  # TensorFlow's inside
        _log.debug("the dataset could not be looked into: %s", error)
    return list(found)


def _functions(dataset: Any) -> Iterator[tuple[str, set[str]]]:
    """Of each function in the pipeline the class of its dataset, and the operations in it."""
    for function in dataset._functions():
        graph = function.function.graph.as_graph_def()
        inner = (node.op for called in graph.library.function for node in called.node_def)
        yield type(dataset).__name__, {node.op for node in graph.node} | set(inner)
    for source in dataset._inputs():
        yield from _functions(source)
