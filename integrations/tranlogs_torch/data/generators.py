"""Random number generators of the user's own, tracked like anything with a state_dict."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator
from types import CellType, FunctionType
from typing import Any

import numpy as np
import torch

from tranlogs.training import join_python, split_python

_FIRST = 64  # of a container: transforms stand in short ones, samples in long ones
KINDS = (torch.Generator, np.random.Generator, np.random.RandomState, random.Random)


class TorchGenerator:
    """A torch.Generator."""

    def __init__(self, generator: torch.Generator) -> None:
        self.generator = generator

    def state_dict(self) -> dict[str, Any]:
        return {"torch": self.generator.get_state()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.generator.set_state(state["torch"].clone())


class NumpyGenerator:
    """A numpy.random.Generator."""

    def __init__(self, generator: np.random.Generator) -> None:
        self.generator = generator

    def state_dict(self) -> dict[str, Any]:
        return {"numpy": dict(self.generator.bit_generator.state)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.generator.bit_generator.state = state["numpy"]


class NumpyRandomState:
    """A numpy.random.RandomState."""

    def __init__(self, generator: np.random.RandomState) -> None:
        self.generator = generator

    def state_dict(self) -> dict[str, Any]:
        return {"numpy": self.generator.get_state(legacy=True)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.generator.set_state(state["numpy"])


class PythonGenerator:
    """A random.Random."""

    def __init__(self, generator: random.Random) -> None:
        self.generator = generator

    def state_dict(self) -> dict[str, Any]:
        return {"python": split_python(self.generator.getstate())}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.generator.setstate(join_python(state["python"]))


GENERATORS = (TorchGenerator, NumpyGenerator, NumpyRandomState, PythonGenerator)


def trackable(thing: Any) -> Any:
    """Return the object, or a wrapper with a state_dict if it is a generator."""
    if isinstance(thing, torch.Generator):
        return TorchGenerator(thing)
    if isinstance(thing, np.random.Generator):
        return NumpyGenerator(thing)
    if isinstance(thing, np.random.RandomState):
        return NumpyRandomState(thing)
    if type(thing) is random.Random:
        return PythonGenerator(thing)
    return thing


def generators_in(thing: Any, path: str, depth: int = 3, without: tuple[type, ...] = ()) -> Iterator[tuple[str, Any]]:
    """Generators among the attributes of a dataset or sampler, of what it wraps, in containers and closures."""
    for name, value in _parts(thing):
        if isinstance(value, KINDS):
            yield path + name, value
        elif depth and not isinstance(value, (type, torch.Tensor, torch.nn.Module, *without)):
            yield from generators_in(value, path + name, depth - 1, without)


def _parts(thing: Any) -> list[tuple[str, Any]]:
    if isinstance(thing, dict):
        return [(f"[{key!r}]", value) for key, value in itertools.islice(thing.items(), _FIRST)]
    if isinstance(thing, (list, tuple)):
        return [(f"[{i}]", value) for i, value in enumerate(thing[:_FIRST])]
    if isinstance(thing, FunctionType):
        cells = zip(thing.__code__.co_freevars, thing.__closure__ or (), strict=False)
        return [(f".{name}", cell.cell_contents) for name, cell in cells if _is_filled(cell)]
    return [(f".{name}", value) for name, value in getattr(thing, "__dict__", {}).items()]


def _is_filled(cell: CellType) -> bool:
    try:
        cell.cell_contents  # noqa: B018
    except ValueError:
        return False
    return True
