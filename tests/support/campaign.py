"""How much of a random campaign runs, and from which seed.

The gate (`make test`) runs a fifth of each campaign of kills, damage and random input, from a fixed seed, so that two runs of
the gate try the same cases. `make soak` and `pytest --soak` run the whole campaign, from a seed that is drawn anew and printed.
tests/conftest.py sets two environment variables before any test module is imported:

    TRANLOGS_SOAK   how many times the whole campaign runs ("1" with --soak); unset in the gate
    TRANLOGS_SEED   the seed

To repeat a failure, set both to what the failing run printed in its header.
"""

from __future__ import annotations

import itertools
import os
import random
from collections.abc import Sequence
from typing import Any

GATE_SHARE = 0.2
GATE_SEED = 20_261_124


def is_soak() -> bool:
    """Return True if whole campaigns run, False in the gate."""
    return "TRANLOGS_SOAK" in os.environ


def rounds(full: int) -> int:
    """Return how many of the `full` rounds of a campaign to run now; at least one."""
    return max(1, round(full * float(os.environ.get("TRANLOGS_SOAK", GATE_SHARE))))


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


def combinations(*axes: Sequence[Any]) -> list[tuple[Any, ...]]:
    """Return the product of the axes in a soak; in the gate, few combinations in which any two values of two axes meet."""
    product = list(itertools.product(*axes))
    if is_soak():
        return product
    places = itertools.product(*(range(len(axis)) for axis in axes))
    covered = [set(itertools.combinations(enumerate(place), min(2, len(axes)))) for place in places]
    missing, chosen = set[Any]().union(*covered), list[int]()
    while missing:
        best = max(range(len(product)), key=lambda number: len(covered[number] & missing))
        missing -= covered[best]
        chosen.append(best)
    return [product[number] for number in sorted(chosen)]
