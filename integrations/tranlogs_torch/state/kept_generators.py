"""Generators whose state the run keeps: tracked ones, and those whose state stands in that of something else."""

from __future__ import annotations

import random
from collections.abc import Iterable, Mapping, Sequence
from itertools import islice
from typing import Any

import numpy as np
import torch

from tranlogs.training import LoopState, split_python

_OTHERS = ("torch", "tranlogs_torch")  # whose objects keep no generator of a dataset
_DEPTH = 6  # of containers in a state
_ITEMS_MAX = 64  # of a container that are looked at


def is_kept_generator(generator: Any, tracked: Iterable[Any]) -> bool:
    """Return True if a random generator comes back with what is tracked.

    Args:
        generator: of torch, numpy or Python.
        tracked: the tracked objects.
    """
    objects = list(tracked)
    if any(getattr(one, "generator", None) is generator for one in objects):
        return True
    forms = _forms_of(generator)
    return any(_has(one.state_dict(), forms) for one in objects if _may_have(one))


def _may_have(thing: Any) -> bool:
    """Return True for what the script remembers, and for an object of its own: its state is small, as a rule."""
    return isinstance(thing, LoopState) or type(thing).__module__.partition(".")[0] not in _OTHERS


def _forms_of(generator: Any) -> list[Any]:
    """Return the forms in which the state of a generator is written."""
    if isinstance(generator, np.random.Generator):
        return [generator.bit_generator.state]
    if isinstance(generator, np.random.RandomState):
        return [generator.get_state(legacy=False), generator.get_state(legacy=True)]
    if isinstance(generator, random.SystemRandom):
        return []
    if isinstance(generator, random.Random):
        return [generator.getstate()[1], split_python(generator.getstate())]
    return [generator.get_state()]


def _has(found: Any, forms: Sequence[Any], depth: int = _DEPTH) -> bool:
    """Return True if one of the forms stands in a state."""
    if any(_is_equal(found, form) for form in forms):
        return True
    if not depth:
        return False
    values = found.values() if isinstance(found, Mapping) else found if isinstance(found, (list, tuple)) else ()
    return any(_has(value, forms, depth - 1) for value in islice(values, _ITEMS_MAX))


def _is_equal(one: Any, other: Any) -> bool:
    if type(one) is not type(other) and not (isinstance(one, (list, tuple)) and isinstance(other, (list, tuple))):
        return False
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(_is_equal(value, other[key]) for key, value in one.items())
    if isinstance(one, (list, tuple)):
        return len(one) == len(other) and all(map(_is_equal, one, other))
    if isinstance(one, torch.Tensor):
        return torch.equal(one, other)
    return bool(np.array_equal(one, other))
