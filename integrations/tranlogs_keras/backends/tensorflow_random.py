"""TensorFlow's random operations whose state lies in the runtime, and the seeds of those that are executed eagerly."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from tensorflow.python.eager import context
from tensorflow.python.framework import op_callbacks

RANDOM_OPERATIONS = {
    "Multinomial",
    "ParameterizedTruncatedNormal",
    "RandomGamma",
    "RandomPoissonV2",
    "RandomShuffle",
    "RandomStandardNormal",
    "RandomUniform",
    "RandomUniformInt",
    "TruncatedNormal",
}


def _operations_of_function(name: str) -> set[str]:
    """Return the names of the operations in a function that eager code calls, and in the functions that it calls."""
    found: set[str] = set()
    names, seen = [name], set[str]()
    while names:
        name = names.pop()
        if name in seen or not context.context().has_function(name):
            continue
        seen.add(name)
        for node in context.context().get_function_def(name).node_def:
            found.add(node.op)
            names += [value.func.name for value in node.attr.values() if value.HasField("func")]
    return found


def operations_of(graph: Any) -> set[str]:
    """Return the names of the operations in a graph, and in the functions that it calls."""
    definition = graph.as_graph_def()
    inner = (node.op for called in definition.library.function for node in called.node_def)
    return {node.op for node in definition.node} | set(inner)


def eager_generator() -> Any:
    """Return the generator from which TensorFlow draws a seed for each random operation in eager mode.

    It is a `random.Random`, made by `tf.random.set_seed`; None without that.
    """
    return getattr(context.context(), "_rng", None)


@contextmanager
def note_unrepeatable_operations(found: set[str]) -> Iterator[None]:
    """Add to `found` the random operations, executed or traced while it lasts, whose numbers `eager_generator` does not give.

    These are operations with a seed of their own, operations of a `tf.function`, and all of them if no global seed was set.
    """
    state = _state_of(eager_generator())

    def note(kind: str, _inputs: Any, _attributes: Any, _outputs: Any, op_name: Any = None, graph: Any = None) -> None:
        nonlocal state
        if kind not in RANDOM_OPERATIONS:
            found.update(_operations_of_function(kind) & RANDOM_OPERATIONS)
            return
        before, state = state, _state_of(eager_generator())
        if graph is not None or before == state:
            found.add(kind)

    op_callbacks.add_op_callback(note)
    try:
        yield
    finally:
        op_callbacks.remove_op_callback(note)


def _state_of(generator: Any) -> Any:
    return None if generator is None else generator.getstate()
