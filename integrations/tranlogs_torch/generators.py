"""Random number generators of the user's own, tracked like anything with a state_dict."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import torch


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
    if type(thing) is random.Random:
        return PythonGenerator(thing)
    return thing
