"""States that are split into words and the rest: what is joined is what was split, and a draw changes only the rest."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tests.support import campaign
from tranlogs.encoding import tree
from tranlogs.training import join_python, join_torch, split_python, split_torch

seeds = st.integers(0, (1 << 64) - 1)


def stored(value: Any) -> Any:
    """What a record gives back."""
    return tree.decode(tree.encode(value))


@given(seeds, st.integers(0, 1300), st.booleans())
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


def test_words_of_python_change_once_in_624_draws() -> None:
    generator = random.Random(1)
    generator.getrandbits(32)
    words = split_python(generator.getstate())[1]
    for number in range(2, 626):
        generator.getrandbits(32)
        assert np.array_equal(words, split_python(generator.getstate())[1]) == (number <= 624)


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
    found = split_torch(np.frombuffer(raw, np.uint8))
    assert (found is not None) == (len(raw) == 5056)


@pytest.mark.parametrize(
    ("words", "rest"),
    [(np.zeros(623, np.uint32), bytes(64)), (np.zeros(624, np.uint32), bytes(63)), (np.zeros(624), bytes(64))],
)
def test_parts_of_other_sizes_are_refused(words: Any, rest: bytes) -> None:
    with pytest.raises(ValueError, match="a random state of"):
        join_torch(words, rest)
