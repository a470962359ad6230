"""Differences between two states of the same object."""

from __future__ import annotations

import contextlib
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tranlogs.encoding import delta, tree


@given(st.binary(max_size=600), st.lists(st.tuples(st.integers(0, 599), st.integers(0, 255)), max_size=8))
def test_a_difference_gives_the_blob_back_and_is_less_than_half(key: bytes, changes: list[tuple[int, int]]) -> None:
    blob = bytearray(key)
    for at, value in changes:
        if at < len(blob):
            blob[at] = value
    packed = delta.encode(bytes(blob), key)
    if packed is not None:
        assert delta.decode(packed, key) == bytes(blob)
        assert len(packed) * 2 < len(blob)


def test_an_rng_that_moved_on_costs_a_few_bytes() -> None:
    rng = np.random.default_rng(0)
    before = tree.encode({"rng": rng.bit_generator.state, "numbers": [0.5] * 300})
    rng.standard_normal(3)
    packed = delta.encode(tree.encode({"rng": rng.bit_generator.state, "numbers": [0.5] * 300}), before)
    assert packed is not None
    assert len(packed) < 80


@pytest.mark.parametrize(("blob", "key"), [(b"", b""), (b"a", b"ab"), (bytes(100), b"\xff" * 100), (b"ab", b"ab")])
def test_no_difference_where_it_would_not_pay(blob: bytes, key: bytes) -> None:
    assert delta.encode(blob, key) is None


def test_another_key_is_refused() -> None:
    packed = delta.encode(bytes(1000), bytes(999) + b"\1")
    assert packed is not None
    with pytest.raises(ValueError, match="expected 1001 bytes, got 1000"):
        delta.decode(packed, bytes(1001))


@given(st.binary(max_size=200), st.binary(max_size=200))
def test_random_bytes_are_refused_or_give_a_blob_of_the_key_s_size(packed: bytes, key: bytes) -> None:
    with contextlib.suppress(ValueError):
        assert len(delta.decode(packed, key)) == len(key)


def test_two_threads_can_pack_at_once() -> None:
    key = np.random.default_rng(1).integers(0, 256, 200_000, np.uint8)

    def work(seed: int) -> bool:
        rng, fine = np.random.default_rng(seed), True
        for _ in range(60):
            blob = key.copy()
            blob[rng.integers(0, key.size, 2000)] += 1
            packed = delta.encode(blob.tobytes(), key.tobytes())
            fine = fine and packed is not None and delta.decode(packed, key.tobytes()) == blob.tobytes()
        return fine

    with ThreadPoolExecutor(4) as pool:
        assert all(pool.map(work, range(4)))
