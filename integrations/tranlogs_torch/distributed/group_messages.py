"""Notes that the processes of a group leave for each other, in the store through which the group was made: nobody waits.

Private name of torch that this module uses: `distributed_c10d._get_default_store`.
"""

from __future__ import annotations

import itertools
import os
from contextlib import suppress
from typing import Any

import torch.distributed as dist

_numbers = itertools.count()


class NoteBoard:
    """A place for notes of one LoggedOptimizer. All must make theirs in the same order.

    A restart by torchrun may find the store of the start before: the number of the start is in the name of each note.
    """

    def __init__(self, rank: int, world: int) -> None:
        self._rank, self._world, self._store = rank, world, _store(next(_numbers))

    @property
    def is_there(self) -> bool:
        """True if notes can be left: a group that was made without a store has no place for them."""
        return self._store is not None

    @property
    def seconds_max(self) -> float:
        """The time limit of the group's processes for each other."""
        return 0.0 if self._store is None else float(self._store.timeout.total_seconds())

    def write(self, name: str, text: str) -> None:
        """Leave a note; it replaces this rank's former note of that name.

        Raises:
            RuntimeError: the process that holds the store is gone, and the group with it; so does `read`.
        """
        if self._store is not None:
            self._store.set(f"{name}/{self._rank}", text)

    def is_full(self, name: str) -> bool:
        """Return True if all ranks have left a note of that name."""
        return self._store is not None and self._store.check([f"{name}/{rank}" for rank in range(self._world)])

    def read(self, name: str) -> dict[int, str]:
        """Return the notes of that name, by rank."""
        if self._store is None:
            return {}
        there = (rank for rank in range(self._world) if self._store.check([f"{name}/{rank}"]))
        return {rank: self._store.get(f"{name}/{rank}").decode() for rank in there}


def _store(number: int) -> Any:
    start = os.environ.get("TORCHELASTIC_RUN_ID", ""), os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
    with suppress(Exception):  # a private name, and not every store can all of it
        made = dist.distributed_c10d
        store: Any = made.PrefixStore(f"tranlogs/{'/'.join(start)}/{number}", made._get_default_store())
        store.set("there", "")
        return store if store.check(["there"]) and store.timeout.total_seconds() else None
    return None
