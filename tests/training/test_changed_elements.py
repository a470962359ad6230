"""Elements that a script has set: bit for bit, and all of an array where most have changed or all have one value."""

from __future__ import annotations

import numpy as np
import pytest

from tranlogs.training import find_changed_elements, is_set_as_a_whole

NAN = float("nan")


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16"])
@pytest.mark.parametrize(
    ("before", "now", "changed", "is_whole"),
    [
        ([0.0, 1.0, NAN, 4.0], [-0.0, 1.0, NAN, 4.0], [True, False, False, False], False),  # bits count, not values
        ([0.0, 0.0, 0.0, 4.0], [0.0, 0.0, 0.0, 0.0], [False, False, False, True], True),  # zero_()
        ([0.0, 2.0, 3.0, 4.0], [0.0, 5.0, 6.0, 4.0], [False, True, True, False], True),  # half of them
        ([7.0], [8.0], [True], True),
    ],
)
def test_elements(before: list[float], now: list[float], changed: list[bool], is_whole: bool, dtype: str) -> None:
    some, other = (np.array(values, dtype) for values in (before, now))
    found = find_changed_elements(some.view(np.uint8), other.view(np.uint8), other.itemsize)
    assert found.tolist() == changed
    assert is_set_as_a_whole(other.view(np.uint8), found, other.itemsize) is is_whole
