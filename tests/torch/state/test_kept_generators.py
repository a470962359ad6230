"""Whether a generator comes back with what is tracked: by the forms in which its state is written."""

from __future__ import annotations

import random
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from tranlogs_torch.data.generators import trackable
from tranlogs_torch.state.auxiliary.kept_generators import is_kept_generator

MADE: dict[str, tuple[Callable[[], Any], Callable[[Any], Any]]] = {
    "numpy.Generator": (lambda: np.random.default_rng(3), lambda one: one.bit_generator.state),
    "numpy.RandomState": (lambda: np.random.RandomState(3), lambda one: one.get_state()),
    "numpy.RandomState as a dict": (lambda: np.random.RandomState(3), lambda one: one.get_state(legacy=False)),
    "random.Random": (lambda: random.Random(3), lambda one: one.getstate()),
    "random.Random as a list": (lambda: random.Random(3), lambda one: {"a": list(one.getstate()[1])}),
    "torch.Generator": (lambda: torch.Generator().manual_seed(3), lambda one: one.get_state()),
}


@pytest.mark.parametrize("name", MADE)
def test_a_state_within_another_one_is_found(name: str) -> None:
    make, read = MADE[name]
    generator, other = make(), make()
    if isinstance(other, torch.Generator):
        torch.rand(3, generator=other)
    else:
        other.random() if isinstance(other, random.Random) else other.normal(size=700)
    kept = SimpleNamespace(state_dict=lambda: {"n": 1, "parts": [0.5, {"rng": read(generator)}]})
    lost = SimpleNamespace(state_dict=lambda: {"n": 1, "parts": [0.5, {"rng": read(other)}]})
    assert is_kept_generator(generator, [lost, kept])
    assert not is_kept_generator(generator, [lost])
    assert is_kept_generator(generator, [lost, trackable(generator)])
    assert not is_kept_generator(generator, [trackable(other)])
