"""How much of a test runs, and from which seed: the gate, or a soak.

The gate (`make test`) runs a fifth of each campaign of kills, and all examples of properties and of damage, from a fixed
seed, so that two runs of the gate try the same cases. Of a product, such as all styles of a script on all backends, it runs
each value once (`each_once`), or any two values of two dimensions together (`pairwise`), or a sample (`sampled`); of faults
that come one after the other in a test it tries two (`few`). A soak (`make soak`, `pytest --soak`) runs all of it, and what
is marked `soak` (`in_soak`), from a seed that is drawn anew and printed.

tests/conftest.py sets two environment variables before any test module is imported:

    TRANLOGS_SOAK   how many times the whole campaign runs ("1" with --soak); unset in the gate
    TRANLOGS_SEED   the seed

To repeat a failure, set both to what the failing run printed in its header.
"""

from __future__ import annotations

import itertools
import os
import random
from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import Any

import pytest

GATE_SHARE = 0.2
GATE_SEED = 20_261_124


def is_soak() -> bool:
    """Return True if whole campaigns run, False in the gate."""
    return "TRANLOGS_SOAK" in os.environ


def rounds(full: int) -> int:
    """Return how many of the `full` rounds of a campaign to run now; at least one."""
    return max(1, round(full * float(os.environ.get("TRANLOGS_SOAK", GATE_SHARE))))


def few(full: int) -> int:
    """Return how many of the `full` faults that come one after the other in a test to try now: two at most in the gate."""
    return full if is_soak() else min(full, 2)


def examples(full: int) -> int:
    """Return how many of the `full` examples of a property, or damaged files, to try now: all of them in the gate, too."""
    return max(full, round(full * float(os.environ.get("TRANLOGS_SOAK", 1))))


def each_once(*values: Sequence[Any]) -> list[tuple[Any, ...]]:
    """Return all combinations in a soak; in the gate as few as have each value: the first of all, the second of all, and so on.

    A sequence that is shorter than the longest one begins again.
    """
    if is_soak():
        return list(itertools.product(*values))
    return [tuple(each[i % len(each)] for each in values) for i in range(max(map(len, values)))]


def pairwise(*values: Sequence[Any], allows: Callable[..., bool] = lambda *_: True) -> list[tuple[Any, ...]]:
    """Return all combinations in a soak; in the gate some of them, in which any two values of two dimensions meet.

    Each time, the combination with the most pairs that have not met is taken, the first one of several.

    Args:
        values: the dimensions.
        allows: tells of a combination whether it is one.
    """
    numbers = itertools.product(*(range(len(each)) for each in values))
    every = [one for one in numbers if allows(*_values(values, one))]
    chosen = every if is_soak() else []
    missing = {pair for one in every for pair in _pairs(one)} if not is_soak() else set()
    while missing:
        best = max(every, key=lambda one: len(missing & _pairs(one)))
        missing -= _pairs(best)
        chosen.append(best)
    return [_values(values, one) for one in chosen]


def _values(values: Sequence[Sequence[Any]], numbers: tuple[int, ...]) -> tuple[Any, ...]:
    return tuple(each[i] for each, i in zip(values, numbers, strict=True))


def _pairs(combination: tuple[int, ...]) -> set[tuple[tuple[int, int], ...]]:
    return set(itertools.combinations(enumerate(combination), 2))


def left_out(items: Sequence[pytest.Item]) -> set[pytest.Item]:
    """Return the members that the gate leaves out of tests that are marked `sampled(n)`.

    A mark belongs on a test that takes long, and whose members show the same fault in many variants. The members that are
    chosen have as many values of the test's parameters as possible.
    """
    members: dict[str, list[pytest.Item]] = defaultdict(list)
    for item in items:
        if item.get_closest_marker("sampled") is not None:
            members[item.nodeid.partition("[")[0]].append(item)
    return {item for each in members.values() for item in _left_out(each)}


def _left_out(members: list[pytest.Item]) -> list[pytest.Item]:
    mark = members[0].get_closest_marker("sampled")
    assert mark is not None
    (count,) = mark.args
    chosen = sample([_values_of(item) for item in members], count)
    return [item for number, item in enumerate(members) if number not in chosen]


def _values_of(item: pytest.Item) -> set[tuple[str, str]]:
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


def in_soak(*values: Any) -> Any:
    """Return a parameter of a test that runs in a soak: another variant of what the gate tries once."""
    return pytest.param(*values, marks=pytest.mark.soak)


def seed() -> int:
    """Return the seed of this run of the tests."""
    return int(os.environ["TRANLOGS_SEED"])


def seeds(full: int) -> range:
    """Return one seed for each of `rounds(full)`."""
    return range(seed(), seed() + rounds(full))


def dice(*about: object) -> random.Random:
    """Return a generator that depends on the seed and on `about`, and print how to repeat what it decides."""
    print(f"repeat with TRANLOGS_SEED={seed()}")
    return random.Random(repr((seed(), *about)))
