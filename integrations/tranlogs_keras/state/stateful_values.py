"""Attributes that hold a state and are set in place: random generators and variables."""

from __future__ import annotations

import random
from typing import Any

import keras
import numpy as np

from tranlogs.base.types import Extension
from tranlogs.training import join_python, split_python

_TAGS = {"numpy.Generator", "numpy.RandomState", "random.Random", "keras.SeedGenerator", "variable"}


def content_of(value: Any) -> Extension | None:
    """Return the state of a generator or a variable; None for anything else."""
    if isinstance(value, np.random.Generator):
        return Extension("numpy.Generator", value.bit_generator.state)
    if isinstance(value, np.random.RandomState):
        return Extension("numpy.RandomState", value.get_state(legacy=True))
    if isinstance(value, random.Random):
        return Extension("random.Random", split_python(value.getstate()))
    if isinstance(value, keras.random.SeedGenerator):
        return Extension("keras.SeedGenerator", _array_of(value.state))
    if _is_variable(value):
        return Extension("variable", _array_of(value))
    return None


def is_random(value: Any) -> bool:
    """Return True for a random generator. No attribute of the value is read: the script's own could raise anything."""
    return issubclass(type(value), (np.random.Generator, np.random.RandomState, random.Random, keras.random.SeedGenerator))


def is_content(value: Any) -> bool:
    """Return True if a recorded value is what `content_of` returned."""
    return isinstance(value, Extension) and value.tag in _TAGS


def set_content(owner: Any, name: str, content: Extension) -> bool:
    """Set the generator or variable that is an attribute of `owner`; return False if it is none of that kind."""
    now: Any = getattr(owner, name, None)
    held = content_of(now)
    if held is None or held.tag != content.tag:
        return False
    if content.tag == "numpy.Generator":
        now.bit_generator.state = content.value
    elif content.tag == "numpy.RandomState":
        now.set_state(content.value)
    elif content.tag == "random.Random":
        now.setstate(join_python(content.value))
    elif content.tag == "keras.SeedGenerator":
        now.state.assign(content.value)
    else:
        now.assign(content.value)
    return True


def _is_variable(value: Any) -> bool:
    if isinstance(value, keras.Variable):
        return True
    kind = type(value)
    return kind.__module__.partition(".")[0] == "tensorflow" and hasattr(kind, "assign") and hasattr(kind, "numpy")


def _array_of(variable: Any) -> np.ndarray[Any, Any]:
    return np.array(keras.ops.convert_to_numpy(variable))  # a copy: a backend may give a view
