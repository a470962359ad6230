"""A run whose parameters lie otherwise now: they are or were sharded, over another number of processes, or another mesh.

The redo of a part needs no other part. So each journal of before is redone by one process of now, into a state that is made as
its checkpoint describes it, and a process that had a journal redoes that. Then all tell what came out, and each takes from it
what is its own. A log is read once, by one process; nobody has to hold more than its share of what was, and of what is.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from ...catalog import CheckpointRow
from ...log.record import Position
from ..plan import Plan
from ..protocol import Divergence
from ..recover import Recovered
from .generations import Era
from .journal_access import Channel, run_id_of
from .journal_summary import Holding
from .landing import SharedState


class Resharding:
    """See the module.

    Args:
        rank: of this process.
        world: how many there are.
        era: what is brought back.
        folders: where to read each rank's journal.
        channel: connects the processes. All must make one of these at the same time.
    """

    def __init__(self, rank: int, world: int, era: Era, folders: Mapping[int, Path], channel: Channel) -> None:
        self._rank, self._channel = rank, channel
        held = [holding for holding in era.holdings if not holding.is_empty]
        held = held if era.is_sharded else held[:world]  # each had all parameters, and what was a rank's own
        reads = [holding.rank for holding in held if _can_read(rank, holding, folders)]
        readers = [one["reads"] for one in channel.gather({"reads": reads})]
        self._owners = {holding.rank: _owner(holding.rank, readers, world) for holding in held}
        self._parts: dict[int, SharedState] = {}
        self._redone: dict[int, Recovered] = {}

    @property
    def mine(self) -> list[int]:
        """The ranks whose journals this process redoes."""
        return [rank for rank, owner in self._owners.items() if owner == self._rank]

    def add(self, rank: int, part: SharedState, recovered: Recovered) -> None:
        """A journal was redone, into `part`."""
        self._parts[rank], self._redone[rank] = part, recovered

    def join(self, state: SharedState, position: Position) -> Recovered:
        """Give this process its part of what all have redone; all must call it.

        Args:
            state: of this process.
            position: where its journal goes on.

        Raises:
            StateMismatch: the state does not fit the run.
            UsageError: what ranks have redone does not make up whole parameters.
        """
        told = self._channel.gather([[rank, _packed(found)] for rank, found in self._redone.items()])
        found = dict(sorted((rank, _unpacked(one)) for packed in told for rank, one in packed))
        body: dict[str, Any] = state.take(self._parts, self._owners, self._rank, self._channel)
        first = min(found)
        own = found[self._rank if self._rank in found else first]
        diverged = [one.divergence for one in found.values() if one.divergence is not None]
        joined: Recovered = replace(
            own, position=position, body=body, replayed=max(one.replayed for one in found.values()),
            seconds_load=max(one.seconds_load for one in found.values()),
            seconds_replay=max(one.seconds_replay for one in found.values()),
            divergence=min(diverged, key=lambda one: one.step, default=None),
            notes=[text for one in found.values() for text in one.notes],
        )  # fmt: skip
        return joined


def _can_read(rank: int, holding: Holding, folders: Mapping[int, Path]) -> bool:
    """Whether a process has a journal, or one that it found beside its own, or sees it on a disk that all see."""
    return rank in (holding.rank, holding.keeper) or run_id_of(folders[holding.rank]) == holding.run_id


def _owner(rank: int, readers: list[list[int]], world: int) -> int:
    """The process that redoes a rank's journal: its own, or else they take turns."""
    if rank < world:
        return rank
    able = [process for process, read in enumerate(readers) if rank in read]
    return able[rank % len(able)]


def _packed(found: Recovered) -> dict[str, Any]:
    """Plain values, to be sent; of where it landed only what a report tells."""
    diverged = found.divergence
    return {"checkpoint": asdict(found.plan.checkpoint), "notes": found.notes, "replayed": found.replayed,
            "seconds_load": found.seconds_load, "seconds_replay": found.seconds_replay, "log_bytes": found.log_bytes,
            "scalars": found.scalars, "divergence": None if diverged is None else [diverged.step, diverged.tensor]}  # fmt: skip


def _unpacked(packed: dict[str, Any]) -> Recovered:
    row, diverged = CheckpointRow(**packed["checkpoint"]), packed["divergence"]
    position = Position(row.sequence, row.step, int(row.chain, 16), row.timeline)
    scalars = [(int(step), dict(noted)) for step, noted in packed["scalars"]]
    return Recovered(Plan(row, (), position, True, ()), position, {}, packed["replayed"], packed["seconds_load"],
                     packed["seconds_replay"], None if diverged is None else Divergence(*diverged), scalars, packed["notes"],
                     packed["log_bytes"])  # fmt: skip
