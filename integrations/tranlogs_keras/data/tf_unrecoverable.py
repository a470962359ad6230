"""Parts of a tf.data pipeline that cannot be recovered, found in its functions before training starts."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Any

from ..backends.tensorflow_random import RANDOM_OPERATIONS, operations_of
from .tf_pipeline import Stages

_log = logging.getLogger("tranlogs")

_PYTHON = {"PyFunc", "EagerPyFunc", "PyFuncStateless"}
_WRITES = {"AssignVariableOp", "AssignAddVariableOp", "AssignSubVariableOp", "RngReadAndSkip"}

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
    "a shuffle of the dataset has no seed, so that each start of the script has another order: call "
    "keras.utils.set_random_seed(...) before the dataset is made, or give shuffle(..., seed=...)"
)
_UNORDERED = (
    "the dataset gives its elements in the order in which threads finish (deterministic=False), which no log can repeat. Leave "
    "the option out"
)


def doubts_about(dataset: Any, stages: Stages) -> list[str]:
    """Return these parts, one sentence each; none for a dataset whose structure is not known."""
    facts = {
        _UNSEEDED: stages.has_unseeded_shuffle,
        _UNORDERED: stages.is_unordered,
    }
    found: dict[str, None] = dict.fromkeys(text for text, holds in facts.items() if holds)
    try:
        for name, kinds in _functions(dataset):
            if kinds & _WRITES:
                found[_VARIABLES] = None
            if "Map" in name and "FlatMap" not in name and kinds & _PYTHON:  # a flat map: from_generator
                found[_CALLS] = None
            if "Parallel" in name and kinds & RANDOM_OPERATIONS:
                found[_PARALLEL] = None
    except Exception as error:  # TensorFlow's inside
        _log.debug("the dataset could not be looked into: %s", error)
    return list(found)


def _functions(dataset: Any) -> Iterator[tuple[str, set[str]]]:
    """Yield the class of the dataset and the operations of each function in the pipeline."""
    for function in dataset._functions():
        yield type(dataset).__name__, operations_of(function.function.graph)
    for source in dataset._inputs():
        yield from _functions(source)
