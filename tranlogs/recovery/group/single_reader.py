"""A recovery of one rank by somebody who is alone: a command that reads the journals of all."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from ...base.errors import RecoveryError
from ...checkpoints import Checkpoint
from .agreement import Damage, agree
from .generations import Era, eras_of, settle
from .gradient_shards import Shares
from .group_recovery import RankRecovery
from .journal_access import run_id_of
from .journal_summary import holdings_of, journals_beside, read_eras, since_of, timelines_in, unused
from .landing import Attempt, SharedState
from .timeline_ids import of_one_past


class Alone:
    """Stands for the other ranks where nobody but one reader is there: what they hold is read from their folders.

    Attributes:
        era: what is read: the newest in which the reader's journal has a part, or that of `checkpoint`, or of `step`.
        world: how many trained together in it.
        rank: of the reader's journal, or of the first one there if it has no part in it.
        left: ranks whose journals are beside, and which do not train any more.
    """

    def __init__(self, folder: Path, *, step: int | None = None, checkpoint: str | None = None) -> None:
        folder = folder.resolve()
        beside = journals_beside(folder)
        self._timelines = [timelines_in(path) for _, path in beside]
        self._unused = unused(self._timelines)
        known = [holding for rank, path in beside for holding in
                 holdings_of(read_eras(path, self._unused), rank, path, run_id_of(path) or "", self._unused)]  # fmt: skip
        eras = eras_of(of_one_past(known)[0])
        if not eras:
            raise RecoveryError(f"{folder}: it holds nothing yet")
        newest = max((h.since for h in known if h.folder == str(folder) and not h.is_empty), default=eras[0].since)
        if checkpoint is not None:
            with Checkpoint(folder / "checkpoints" / checkpoint) as found:
                newest = since_of(found.manifest["environment"])
        self.era = _chosen([era for era in eras if era.since <= newest], step)
        self.world = self.era.world
        self.left = [rank for rank, _ in beside if rank >= eras[0].world]
        own = [holding.rank for holding in self.era.holdings if holding.folder == str(folder)]
        held = [holding.rank for holding in self.era.holdings if not holding.is_empty]
        self.rank = own[0] if own else held[0]

    def of(self, rank: int) -> Alone:
        """The same for another rank's journal."""
        other = copy.copy(self)
        other.rank = rank
        return other

    def gather(self, value: Any) -> Sequence[Any]:
        """What all ranks would say, if only this one has something to say."""
        if "holdings" in value:
            return [{**value, "holdings": [holding.packed()]} for holding in self.era.holdings]
        if "empty" in value:
            return self._timelines
        if "strays" in value:  # what lies where it was looked for is all that there is
            return []
        if "far" in value:
            return [value]
        return [value if rank == self.rank else Attempt().packed() for rank in range(self.world)]

    def broadcast(self, blob: bytes, source: int) -> bytes:
        """There is nobody who could send anything."""
        raise AssertionError(f"rank {source} is not there")

    def send(self, blob: bytes, to: int) -> None:
        """There is nobody who could take anything."""
        raise AssertionError(f"rank {to} is not there")

    def receive(self, source: int) -> bytes:
        """There is nobody who could send anything."""
        raise AssertionError(f"rank {source} is not there")

    def recovery(self, state: SharedState) -> RankRecovery:
        """The recovery of the reader's rank."""
        own = self.era.holdings[self.rank]
        return RankRecovery(Path(own.folder), self.rank, self.world, own.run_id, state, self)

    def shares(self) -> Shares:
        """The journals of the others."""
        return Shares({holding.rank: Path(holding.folder) for holding in self.era.holdings
                       if holding.rank != self.rank and not holding.is_empty}, self.era.since,
                      self._unused)  # fmt: skip

    def newest(self) -> int:
        """The step at which all would land."""
        agreement = agree(self.era.holdings, Damage())
        return 0 if agreement is None else agreement.step

    def newest_from(self, step: int) -> int:
        """The step to which the log leads from the checkpoints of a step: as far as no share was pruned."""
        holdings = [replace(holding, anchors=tuple(anchor for anchor in holding.anchors if anchor.step == step))
                    for holding in self.era.holdings]  # fmt: skip
        with suppress(RecoveryError):
            agreement = agree(holdings, Damage())
            return step if agreement is None else agreement.step
        return step


def _chosen(eras: Sequence[Era], step: int | None) -> Era:
    """The era in which a recovery would land."""
    try:
        settled = settle(eras, Damage(), step)
    except RecoveryError:  # the newest one's own words say why
        return eras[0]
    return eras[0] if settled is None else settled.era
