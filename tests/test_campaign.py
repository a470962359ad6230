"""What the gate runs of a product and of a test that is marked `sampled`: no value, or no pair of values, is left out."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import pytest

from tests.support import campaign
from tests.support.samples import sample

DIMENSIONS = (["a", "b", "c"], [1, 2], [True, False], ["x", "y", "z", "w"])


def pairs(combinations: list[tuple[Any, ...]]) -> set[Any]:
    return {pair for one in combinations for pair in itertools.combinations(enumerate(one), 2)}


@pytest.mark.parametrize("allows", [lambda *_: True, lambda a, b, c, d: c or a != "b"], ids=["all", "some"])
def test_the_gate_leaves_out_no_value_of_a_product(allows: Callable[..., bool], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(campaign, "is_soak", lambda: False)
    every = [one for one in itertools.product(*DIMENSIONS) if allows(*one)]
    chosen = campaign.pairwise(*DIMENSIONS, allows=allows)
    assert set(chosen) <= set(every)
    assert pairs(chosen) == pairs(every)
    assert len(chosen) < len(every) / 2
    once = campaign.each_once(*DIMENSIONS)
    assert [set(values) for values in zip(*once, strict=True)] == [set(values) for values in DIMENSIONS]
    monkeypatch.setattr(campaign, "is_soak", lambda: True)
    assert campaign.pairwise(*DIMENSIONS, allows=allows) == every


@pytest.mark.parametrize(("count", "chosen"), [(3, {0, 3, 4}), (0, set()), (9, set(range(6)))])  # a1, b2, c1
def test_a_sample_has_values_that_the_others_do_not_have(count: int, chosen: set[int]) -> None:
    assert sample([{("name", name), ("size", size)} for name in "abc" for size in "12"], count) == chosen
