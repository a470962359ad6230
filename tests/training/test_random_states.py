"""Random states: read in full only when the memory of the generators has changed, and split so that a draw changes little."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Iterator
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tests.support import campaign
from tranlogs.encoding import tree
from tranlogs.training import join_python, join_torch, rng, split_python, split_torch
from tranlogs.training.rng import HostRng, is_same_state, numpy_state, python_state, read_memory_of


@pytest.fixture
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
    "few bits": lambda: np.random.randint(0, 2, dtype=np.uint8),
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


@pytest.mark.usefixtures("_restored")
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


@pytest.mark.usefixtures("_restored")
def test_a_state_is_read_again_only_where_memory_has_changed_or_tells_nothing() -> None:
    host = HostRng()
    first = host.read()
    with patch("tranlogs.training.rng.numpy_state", side_effect=AssertionError):
        again = host.read()
    assert again["python"] is first["python"]
    assert again["numpy"] is first["numpy"]
    with (
        patch("tranlogs.training.rng.is_python_memory_telling", return_value=False),
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
        for memory in (b"always the same", None):
            cached.cache_clear()
            with patch.object(rng, "_object_memory", return_value=memory):
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


# States that are split into words and the rest


def stored(value: Any) -> Any:
    """What a record gives back."""
    return tree.decode(tree.encode(value))


@given(st.integers(0, (1 << 64) - 1), st.integers(0, 1300), st.booleans())
@settings(max_examples=campaign.examples(100), deadline=None)
def test_state_of_python_comes_back(seed: int, draws: int, has_normal: bool) -> None:
    generator, again = random.Random(seed), random.Random()
    for _ in range(draws):
        generator.getrandbits(32)
    if has_normal:
        generator.gauss(0.0, 1.0)  # it makes two, and keeps one
    state = generator.getstate()
    again.setstate(join_python(stored(split_python(state))))
    assert again.getstate() == state
    assert [again.gauss(0.0, 1.0) for _ in range(3)] == [generator.gauss(0.0, 1.0) for _ in range(3)]


@given(
    st.binary(min_size=64, max_size=64), st.lists(st.integers(0, (1 << 32) - 1), min_size=1, max_size=624), st.integers(0, 623)
)
@settings(max_examples=campaign.examples(200), deadline=None)
def test_bytes_of_the_form_of_torch_come_back(rest: bytes, numbers: list[int], at: int) -> None:
    """Whatever stands around the words, which a later version of torch may use otherwise."""
    words = np.resize(np.array(numbers, np.uint64), 624)
    raw = np.frombuffer(rest[:24] + words.tobytes() + rest[24:], np.uint8)
    split = split_torch(raw)
    assert split is not None
    assert (split[0].nbytes, len(split[1])) == (2496, 64)
    assert join_torch(*stored(split)).tobytes() == raw.tobytes()
    words[at] |= np.uint64(1 << 32)
    assert split_torch(np.frombuffer(rest[:24] + words.tobytes() + rest[24:], np.uint8)) is None, "a word of more than 32 bits"


@given(st.binary(max_size=6000))
@example(bytes(5055))
@example(bytes(5057))
@settings(max_examples=campaign.examples(100))
def test_bytes_of_another_length_are_not_split(raw: bytes) -> None:
    assert (split_torch(np.frombuffer(raw, np.uint8)) is not None) == (len(raw) == 5056)


@pytest.mark.parametrize(
    ("words", "rest"),
    [(np.zeros(623, np.uint32), bytes(64)), (np.zeros(624, np.uint32), bytes(63)), (np.zeros(624), bytes(64))],
)
def test_parts_of_other_sizes_are_refused(words: Any, rest: bytes) -> None:
    with pytest.raises(ValueError, match="a random state of"):
        join_torch(words, rest)
