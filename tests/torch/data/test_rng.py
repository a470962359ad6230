"""The random state is stored again only after somebody drew, and after every way to draw."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch

from tranlogs.encoding.tree import decode, encode
from tranlogs_torch.data.rng import KeptRng, get_rng, set_rng
from tranlogs_torch.tensors.arrays import adapt, make_array, make_extension

_KEY = np.arange(624, dtype=np.uint32)
DRAWS: dict[str, Callable[[], Any]] = {
    "torch": lambda: torch.rand(1),
    "python": random.random,
    "numpy": np.random.rand,
    "numpy, few bits": lambda: np.random.randint(0, 2, dtype=np.uint8),
    "a pair of normals, its first": np.random.randn,
    "a pair of normals, its second": np.random.randn,
    "shuffle": lambda: np.random.shuffle([1, 2, 3]),
    "seed": lambda: np.random.seed(3),
    "set_state": lambda: np.random.set_state(("MT19937", _KEY, 5, 1, 0.5)),
    "set_state, only the kept normal": lambda: np.random.set_state(("MT19937", _KEY, 5, 0, 0.0)),
    "set_state, only the kept normal, again": lambda: np.random.set_state(("MT19937", _KEY, 5, 1, 0.25)),
}


@pytest.fixture(autouse=True)
def random_state() -> Iterator[None]:
    state, generator = get_rng(), np.random.get_bit_generator()
    yield
    np.random.set_bit_generator(generator)
    torch.set_rng_state(state["torch"])
    np.random.set_state(state["numpy"])


def test_each_draw_is_noticed_and_nothing_else() -> None:
    kept = KeptRng()
    before = kept.now()
    for name, draw in DRAWS.items():
        assert kept.now() is before, f"before {name}: nobody drew"
        draw()
        after = kept.now()
        assert after is not before, name
        key, *rest = after.value["numpy"][1:]
        now = np.random.get_state(legacy=True)
        assert key.tobytes() == now[1].tobytes(), name
        assert tuple(rest) == now[2:], name
        before = after


def test_a_kept_normal_that_is_set_back_is_noticed() -> None:
    """Of one that was never there when anybody looked: the words are the same, and the next normal is another."""
    kept = KeptRng()
    np.random.seed(4)
    np.random.randn()
    state = np.random.get_state()
    np.random.randn()
    kept.now()
    np.random.set_state(state)
    assert kept.now().value["numpy"][3:] == state[3:]
    assert state[3] == 1


@pytest.mark.parametrize("kind", ["PCG64", "Philox", "SFC64", "MT19937"])
def test_another_generator_of_numpys_comes_back(kind: str) -> None:
    kept = KeptRng()
    before = kept.now()
    np.random.set_bit_generator(getattr(np.random, kind)(1))
    now = kept.now()
    assert now is not before
    drawn = np.random.rand(3), np.random.randn(3)
    assert kept.now() is not now
    set_rng(decode(encode(now.value, adapt=adapt), make_array=make_array, make_extension=make_extension))
    assert [found.tobytes() for found in (np.random.rand(3), np.random.randn(3))] == [one.tobytes() for one in drawn]
