"""Random number generators of the user's own, tracked like anything with a state_dict."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch

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
        return {"python": self.generator.getstate()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.generator.setstate(state["python"])


def trackable(thing: Any) -> Any:
    """The thing, or what gives it a state_dict if it is a generator."""
    if isinstance(thing, torch.Generator):
        return TorchGenerator(thing)
    if isinstance(thing, np.random.Generator):
        return NumpyGenerator(thing)
    if isinstance(thing, np.random.RandomState):
        return NumpyRandomState(thing)
    if type(thing) is random.Random:
        return PythonGenerator(thing)
    return thing


def generators_in(thing: Any, path: str, depth: int = 3) -> Iterator[tuple[str, Any]]:
    """Generators among the attributes of a dataset, of the dataset that it wraps, of its transforms."""
    for name, value in getattr(thing, "__dict__", {}).items():
        if isinstance(value, KINDS):
            yield f"{path}.{name}", value
        elif depth and hasattr(value, "__dict__") and not isinstance(value, (type, torch.Tensor, torch.nn.Module)):
            yield from generators_in(value, f"{path}.{name}", depth - 1)
