"""What the gate runs of a product: no value, and where that is said no pair of values, is left out."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import pytest

from tests.support import campaign

DIMENSIONS = (["a", "b", "c"], [1, 2], [True, False], ["x", "y", "z", "w"])


def pairs(combinations: list[tuple[Any, ...]]) -> set[Any]:
    return {pair for one in combinations for pair in itertools.combinations(enumerate(one), 2)}


@pytest.mark.parametrize("allows", [lambda *_: True, lambda a, b, c, d: c or a != "b"], ids=["all", "some"])
def test_pairwise_leaves_out_no_pair_that_is_allowed(allows: Callable[..., bool], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(campaign, "is_soak", lambda: False)
    every = [one for one in itertools.product(*DIMENSIONS) if allows(*one)]
    chosen = campaign.pairwise(*DIMENSIONS, allows=allows)
    assert set(chosen) <= set(every)
    assert pairs(chosen) == pairs(every)
    assert len(chosen) < len(every) / 2
    monkeypatch.setattr(campaign, "is_soak", lambda: True)
    assert campaign.pairwise(*DIMENSIONS, allows=allows) == every


def test_each_once_leaves_out_no_value(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(campaign, "is_soak", lambda: False)
    chosen = campaign.each_once(*DIMENSIONS)
    assert [set(values) for values in zip(*chosen, strict=True)] == [set(values) for values in DIMENSIONS]
    assert len(chosen) == 4
