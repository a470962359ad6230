"""TensorFlow's random operations whose state lies in the runtime, where nobody can read or set it."""

from __future__ import annotations

from typing import Any

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


def operations_of(graph: Any) -> set[str]:
    """Return the names of the operations in a graph, and in the functions that it calls."""
    definition = graph.as_graph_def()
    inner = (node.op for called in definition.library.function for node in called.node_def)
    return {node.op for node in definition.node} | set(inner)
