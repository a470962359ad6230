"""Recovery of one rank's state by a single process, such as a command, which reads the journals of all ranks."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from ...base.errors import RecoveryError
from ...checkpoints import Checkpoint
from .decision.agreement import Damage, agree
from .decision.generations import Generation, choose_target, group_by_generation
from .gradient_shards import GradientShards
from .group_recovery import GroupRecovery
from .group_state import GroupState
from .journal_access import read_run_id
from .outcome import RankAttempt
from .summary.common_history import keep_common_history
from .summary.journal_summary import JournalSummary
from .summary.log_summary import (
    find_unused_timelines,
    list_journals,
    read_generations,
    read_timeline_use,
    summarize_generations,
)
from .summary.recorded_environment import get_first_timeline


class SingleReader:
    """A `Transport` of a single process, which answers for the other ranks from what their folders hold.

    Args:
        folder: the journal of one rank.
        step: the step that is to be recovered; None for the newest one.
        checkpoint: the name of the checkpoint that recovery is to start from; None for any.

    Attributes:
        generation: the generation that is read: that of `checkpoint`, or of `step`, or the newest one in which the journal has
            a part.
        world: the number of processes that trained together in it.
        rank: the rank of the journal, or the first rank of the generation if the journal has no part in it.
        stopped_ranks: ranks whose journals exist and which do not train any more.
    """

    def __init__(self, folder: Path, *, step: int | None = None, checkpoint: str | None = None) -> None:
        folder = folder.resolve()
        journals = list_journals(folder)
        self._timeline_uses = [read_timeline_use(path) for _, path in journals]
        self._unused = find_unused_timelines(self._timeline_uses)
        known = [summary for rank, path in journals for summary in self._summarize(rank, path)]
        generations = group_by_generation(keep_common_history(known)[0])
        if not generations:
            raise RecoveryError(f"{folder}: the journal is empty; there is nothing to recover")
        own = [one.first_timeline for one in known if one.folder == str(folder) and not one.is_empty]
        newest = max(own, default=generations[0].first_timeline)
        if checkpoint is not None:
            with Checkpoint(folder / "checkpoints" / checkpoint) as found:
                newest = get_first_timeline(found.manifest["environment"])
        self.generation = _choose_generation([one for one in generations if one.first_timeline <= newest], step)
        self.world = self.generation.world
        self.stopped_ranks = [rank for rank, _ in journals if rank >= generations[0].world]
        ranks = [summary.rank for summary in self.generation.summaries if summary.folder == str(folder)]
        held = [summary.rank for summary in self.generation.summaries if not summary.is_empty]
        self.rank = ranks[0] if ranks else held[0]

    def _summarize(self, rank: int, path: Path) -> list[JournalSummary]:
        logs = read_generations(path, self._unused)
        return summarize_generations(logs, rank, path, read_run_id(path) or "", self._unused)

    def for_rank(self, rank: int) -> SingleReader:
        """Return a reader of another rank's journal in the same generation."""
        other = copy.copy(self)
        other.rank = rank
        return other

    def gather(self, value: Any) -> Sequence[Any]:
        """Return what the ranks would answer if only the reader's rank had something to report."""
        if "summaries" in value:
            return [{**value, "summaries": [summary.pack()]} for summary in self.generation.summaries]
        if "empty" in value:
            return self._timeline_uses
        if "misplaced" in value:  # The reader has searched all places.
            return []
        if "unreadable" in value:
            return [value]
        return [value if rank == self.rank else RankAttempt().pack() for rank in range(self.world)]

    def broadcast(self, blob: bytes, source: int) -> bytes:
        """Raise AssertionError: no other process can send anything."""
        raise AssertionError(f"rank {source} does not run")

    def send(self, blob: bytes, to: int) -> None:
        """Raise AssertionError: no other process can receive anything."""
        raise AssertionError(f"rank {to} does not run")

    def receive(self, source: int) -> bytes:
        """Raise AssertionError: no other process can send anything."""
        raise AssertionError(f"rank {source} does not run")

    def make_recovery(self, state: GroupState) -> GroupRecovery:
        """Return the recovery of the reader's rank."""
        own = self.generation.summaries[self.rank]
        return GroupRecovery(Path(own.folder), self.rank, self.world, own.run_id, state, self)

    def open_shards(self) -> GradientShards:
        """Return the journals of the other ranks, which hold the other gradient shards."""
        others = [one for one in self.generation.summaries if one.rank != self.rank and not one.is_empty]
        folders = {summary.rank: Path(summary.folder) for summary in others}
        return GradientShards(folders, self.generation.first_timeline, self._unused)

    def find_newest_step(self) -> int:
        """Return the step at which all ranks would resume.

        Raises:
            RecoveryError: there is no boundary that all ranks can reach.
        """
        agreement = agree(self.generation.summaries, Damage())
        return 0 if agreement is None else agreement.step

    def find_newest_step_from(self, step: int) -> int:
        """Return the step to which the log leads from the checkpoints of a step, as far as no gradient shard was pruned."""
        summaries = [
            replace(summary, checkpoints=tuple(ref for ref in summary.checkpoints if ref.step == step))
            for summary in self.generation.summaries
        ]
        with suppress(RecoveryError):
            agreement = agree(summaries, Damage())
            return step if agreement is None else agreement.step
        return step


def _choose_generation(generations: Sequence[Generation], step: int | None) -> Generation:
    """Return the generation in which a recovery would end."""
    try:
        target = choose_target(generations, Damage(), step)
    except RecoveryError:  # recovery of the newest generation raises it again, with the reason
        return generations[0]
    return generations[0] if target is None else target.generation
