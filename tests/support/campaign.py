"""How much of a random campaign runs, and from which seed.

The gate (`make test`) runs a fifth of each campaign of kills, and all examples of properties and of damage, from a fixed seed,
so that two runs of the gate try the same cases. `make soak` and `pytest --soak` run the whole campaign, from a seed that is
drawn anew and printed. tests/conftest.py sets two environment variables before any test module is imported:

    TRANLOGS_SOAK   how many times the whole campaign runs ("1" with --soak); unset in the gate
    TRANLOGS_SEED   the seed

To repeat a failure, set both to what the failing run printed in its header.
"""

from __future__ import annotations

import os
import random

GATE_SHARE = 0.2
GATE_SEED = 20_261_124


def is_soak() -> bool:
    """Return True if whole campaigns run, False in the gate."""
    return "TRANLOGS_SOAK" in os.environ


def rounds(full: int) -> int:
    """Return how many of the `full` rounds of a campaign to run now; at least one."""
    return max(1, round(full * float(os.environ.get("TRANLOGS_SOAK", GATE_SHARE))))


def examples(full: int) -> int:
    """Return how many of the `full` examples of a property, or damaged files, to try now: all of them in the gate, too."""
    return max(full, round(full * float(os.environ.get("TRANLOGS_SOAK", 1))))


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
