"""One iteration over a loader, as its position counts it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from ..resized_position import Rest
from ..sampler import Draws

END = object()  # in place of a batch: the iteration has no more


@dataclass(slots=True)
class LoaderIteration:
    """One iteration over a loader, from its first batch.

    Attributes:
        batch: number of batches that were handed to the loop.
        order: running hash of these batches, if the loader has no indices and a resume reads them again.
        opened: random state before `iter(loader)`.
        samplers: states of the samplers at that moment.
        rest: part of the epoch that was divided anew (resized_position.py); None if it was not.
        draws: index batches drawn so far; None before the first draw, and if the loader has no indices.
        live: the iterator; None before it is opened.
    """

    batch: int = 0
    order: int = 0
    opened: dict[str, Any] | None = None
    samplers: list[Any] = field(default_factory=list)
    rest: Rest | None = None
    draws: Draws | None = None
    live: Iterator[Any] | None = None
