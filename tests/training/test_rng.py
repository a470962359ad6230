"""Random states are read in full only when the memory of the generators has changed, and no change is missed."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Iterator
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest

from tranlogs.training import rng
from tranlogs.training.rng import HostRng, is_same_state, numpy_state, python_state, read_memory_of


@pytest.fixture(autouse=True)
def _restored() -> Iterator[None]:
    python, bits = random.getstate(), np.random.get_bit_generator()
    numpys = np.random.get_state()
    yield
    random.setstate(python)
    np.random.set_bit_generator(bits)
    np.random.set_state(numpys)


def _with_normal(value: float, has_normal: int = 1) -> None:
    state: Any = np.random.get_state(legacy=False)
    np.random.set_state({**state, "has_gauss": has_normal, "gauss": value})


CHANGES: dict[str, Callable[[], Any]] = {
    "random": random.random,
    "gauss": lambda: random.gauss(0.0, 1.0),
    "seed": lambda: random.seed(1),
    "other gauss": lambda: random.setstate((*random.getstate()[:2], 0.5)),
    "numpy.random": np.random.random_sample,
    "normal": np.random.standard_normal,
    "numpy.seed": lambda: np.random.seed(1),
    "normal left over": lambda: _with_normal(0.5),
    "another normal left over": lambda: _with_normal(0.25),
    "no normal left over": lambda: _with_normal(0.5, 0),
    "shuffle": lambda: np.random.shuffle(np.arange(5)),
    "other words": lambda: np.random.set_bit_generator(np.random.MT19937(5)),
    "other kind": lambda: np.random.set_bit_generator(np.random.PCG64(5)),
    "nothing": lambda: None,
}


@pytest.mark.parametrize("seed", range(8))
def test_no_change_is_missed(seed: int) -> None:
    chance = random.Random(seed)  # hypothesis itself draws from the global generator
    for _ in range(25):
        np.random.set_bit_generator(np.random.MT19937(3))
        host = HostRng()
        host.read()
        for change in chance.choices(sorted(CHANGES), k=8):
            CHANGES[change]()
            found = host.read()
            assert is_same_state(found["python"], python_state()), change
            assert is_same_state(found["numpy"], numpy_state()), change


def test_a_state_that_has_not_changed_is_the_same_object_and_not_read_again() -> None:
    assert rng.is_python_memory_telling()
    assert rng.is_numpy_memory_telling()
    host = HostRng()
    first = host.read()
    with patch("tranlogs.training.rng.numpy_state", side_effect=AssertionError):
        again = host.read()
    assert again["python"] is first["python"]
    assert again["numpy"] is first["numpy"]


def test_where_memory_tells_nothing_states_are_read_in_full() -> None:
    with (
        patch("tranlogs.training.rng.read_python_memory", return_value=None),
        patch("tranlogs.training.rng.read_numpy_memory", return_value=None),
    ):
        host = HostRng()
        first = host.read()
        _with_normal(0.75)
        random.random()
        found = host.read()
        assert is_same_state(found["python"], python_state())
        assert not is_same_state(found["python"], first["python"])
        assert is_same_state(found["numpy"], numpy_state())
        assert host.read()["numpy"] is found["numpy"]


def test_memory_that_misses_a_change_is_found_out() -> None:
    """A Python whose objects lie elsewhere, or keep their words there, is not trusted."""
    for cached in (rng.is_python_memory_telling, rng.is_numpy_memory_telling):
        cached.cache_clear()
        with patch.object(rng, "_object_memory", return_value=b"always the same"):
            assert not cached()
        cached.cache_clear()
        with patch.object(rng, "_object_memory", return_value=None):
            assert not cached()
        cached.cache_clear()
        assert cached()


def test_the_memory_of_a_generator_shows_each_draw() -> None:
    generator = random.Random(7)
    seen = [read_memory_of(generator)]
    for draw in (generator.random, lambda: generator.gauss(0.0, 1.0), lambda: generator.gauss(0.0, 1.0)):
        draw()  # the second number of a pair changes nothing but the attribute in which Python keeps it
        seen.append(read_memory_of(generator))
    assert None not in seen
    assert all(a != b for a, b in itertools.pairwise(seen))
    assert read_memory_of(generator) == seen[-1]
    assert read_memory_of(random.SystemRandom()) is None
