"""Which members of a test the gate runs: of a test that is marked `sampled(n)`, n; a soak runs all of them.

A mark belongs on a test that takes long, and whose members show the same fault in many variants. The members that are chosen
have as many values of the test's parameters as possible.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

import pytest


def left_out(items: Sequence[pytest.Item]) -> set[pytest.Item]:
    """Return the items that the gate leaves out."""
    members: dict[str, list[pytest.Item]] = defaultdict(list)
    for item in items:
        if item.get_closest_marker("sampled") is not None:
            members[item.nodeid.partition("[")[0]].append(item)
    return {item for each in members.values() for item in _left_out(each)}


def _left_out(members: list[pytest.Item]) -> list[pytest.Item]:
    mark = members[0].get_closest_marker("sampled")
    assert mark is not None
    (count,) = mark.args
    chosen = sample([_values(item) for item in members], count)
    return [item for number, item in enumerate(members) if number not in chosen]


def _values(item: pytest.Item) -> set[tuple[str, str]]:
    """Return the values of an item's parameters, each with the name of its parameter."""
    callspec = getattr(item, "callspec", None)
    return {(name, repr(value)) for name, value in callspec.params.items()} if callspec is not None else set()


def sample(members: Sequence[set[tuple[str, str]]], count: int) -> set[int]:
    """Return the numbers of `count` members that have as many values as possible together, the first ones of several.

    Args:
        members: the values of each member.
        count: how many are wanted; all are taken if there are fewer.
    """
    chosen: set[int] = set()
    seen: set[tuple[str, str]] = set()
    while len(chosen) < min(count, len(members)):
        best = max(set(range(len(members))) - chosen, key=lambda number: (len(members[number] - seen), -number))
        chosen.add(best)
        seen |= members[best]
    return chosen
