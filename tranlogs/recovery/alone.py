"""A recovery of one rank by somebody who is alone: a command that reads the journals of all."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from .agreement import Damage, agree
from .holding import Holding, LocalLog, recorded_environment, world_of
from .reach import run_id_of
from .shares import Shares
from .together import Attempt, RankRecovery, SharedState


class Alone:
    """Stands for the other ranks where nobody but one reader is there: what they hold is read from their folders.

    Attributes:
        rank: of the reader's journal.
        world: how many trained together.
        holdings: of all ranks.
    """

    def __init__(self, folder: Path) -> None:
        environment = recorded_environment(folder)
        self.world = world_of(environment)
        self.holdings = [self._read(folder, rank) for rank in range(self.world)]
        own = [holding.rank for holding in self.holdings if Path(holding.folder) == folder.resolve()]
        self.rank = own[0] if own else 0

    def _read(self, folder: Path, rank: int) -> Holding:
        beside = folder.resolve().parent / f"rank{rank}"
        run_id = run_id_of(beside)
        return Holding(rank, str(beside), "") if run_id is None else LocalLog.read(beside).holding(rank, beside, run_id)

    def gather(self, value: Any) -> Sequence[Any]:
        """What all ranks would say, if only this one has something to say."""
        if "holding" in value:
            return [{**value, "holding": holding.packed()} for holding in self.holdings]
        if "far" in value:
            return [value]
        return [value if rank == self.rank else Attempt().packed() for rank in range(self.world)]

    def broadcast(self, blob: bytes, source: int) -> bytes:
        """There is nobody who could send anything."""
        raise AssertionError(f"rank {source} is not there")

    def recovery(self, folder: Path, state: SharedState) -> RankRecovery:
        """The recovery of the reader's rank."""
        return RankRecovery(folder, self.rank, self.world, self.holdings[self.rank].run_id, state, self)

    def shares(self) -> Shares:
        """The journals of the others."""
        return Shares({holding.rank: Path(holding.folder) for holding in self.holdings
                       if holding.rank != self.rank and not holding.is_empty})  # fmt: skip

    def newest(self) -> int:
        """The step at which all would land."""
        agreement = agree(self.holdings, Damage())
        return 0 if agreement is None else agreement.step
