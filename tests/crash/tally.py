"""What crash tests found, for the report of `make soak`: a line of JSON for each fault, in the file that TRANLOGS_TALLY names.

Without the variable nothing is written: the tests are the same, alone or in a soak.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Tried:
    """What became of a number of tries.

    Attributes:
        fault: what happened to the runs.
        tries: how often.
        losses: of them, those after which a step that had to be there was not, a bit was wrong, or a reader died.
        refusals: of them, those that were refused by name, since nothing sound was left.
        seconds: that the slowest recovery took, from opening the run on.
    """

    fault: str
    tries: int = 1
    losses: int = 0
    refusals: int = 0
    seconds: float = 0.0


def note(fault: str, tries: int = 1, *, losses: int = 0, refusals: int = 0, seconds: float = 0.0) -> None:
    """Take down what was tried; see `Tried`."""
    name = os.environ.get("TRANLOGS_TALLY")
    if name is None:
        return
    with open(name, "a") as file:  # one write a line: several processes may add to it
        file.write(json.dumps(asdict(Tried(fault, tries, int(losses), int(refusals), round(seconds, 4)))) + "\n")


@contextmanager
def trying(fault: str) -> Iterator[None]:
    """What fails in the block was lost to the fault."""
    try:
        yield
    except BaseException:
        note(fault, losses=1)
        raise


def read(path: Path) -> list[Tried]:
    """All that was taken down."""
    return [Tried(**json.loads(line)) for line in path.read_text().splitlines()] if path.exists() else []


def summed(tried: Iterable[Tried]) -> list[Tried]:
    """One for each fault, in the order in which they came first."""
    found: dict[str, Tried] = {}
    for one in tried:
        before = found.get(one.fault, Tried(one.fault, 0))
        found[one.fault] = Tried(
            one.fault,
            before.tries + one.tries,
            before.losses + one.losses,
            before.refusals + one.refusals,
            max(before.seconds, one.seconds),
        )
    return list(found.values())
