"""The description of the data that a run records, and its comparison with other data."""

from __future__ import annotations

from typing import Any

import numpy as np

from .. import keras_internals
from ..state.fingerprint import digest
from .contents import find_arrays
from .source import Source

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
