"""Recovery of one rank's state by a single process, such as a command, which reads the journals of all ranks."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from ...base.errors import RecoveryError
from ...checkpoints import Checkpoint
from ..journal_facts import read_facts
from .decide import Damage, Generation, agree, choose_target, group_by_generation
from .exchange import Known, OwnJournal, Solo
from .group_state import GroupState
from .journals import (
    find_unused_timelines,
    get_first_timeline,
    get_timeline_use,
    list_journals,
    read_generations,
    read_run_id,
    select_generation,
    summarize_generations,
)
from .recover import GroupRecovery
from .shards import GradientShards
from .summary import keep_common_history


class SingleReader:
    """Reads the journals of all ranks of a run, given the folder of one of them.

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
        facts = {rank: read_facts(path) for rank, path in journals}
        self._unused = find_unused_timelines([get_timeline_use(one) for one in facts.values()])
        self._logs = {rank: read_generations(path, self._unused, facts[rank]) for rank, path in journals}
        known = [
            summary
            for rank, path in journals
            for summary in summarize_generations(self._logs[rank], rank, path, read_run_id(path) or "", self._unused)
        ]
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
        ranks = [summary.rank for summary in self.generation.held if summary.folder == str(folder)]
        self.rank = ranks[0] if ranks else self.generation.held[0].rank

    def for_rank(self, rank: int) -> SingleReader:
        """Return a reader of another rank's journal in the same generation."""
        other = copy.copy(self)
        other.rank = rank
        return other

    def make_recovery(self, state: GroupState) -> GroupRecovery:
        """Return the recovery of the reader's rank."""
        own = self.generation.summaries[self.rank]
        folder = Path(own.folder)
        known = Known(
            logs=self._logs[self.rank],
            other_logs=self._logs,
            summaries=[replace(summary, sender=self.rank) for summary in self.generation.summaries],
            unused_timelines=self._unused,
        )
        return GroupRecovery(OwnJournal(folder, self.rank, self.world, own.run_id), state, Solo(), known)

    def open_shards(self) -> GradientShards:
        """Return the journals of the other ranks, which hold the other gradient shards."""
        folders = {one.rank: Path(one.folder) for one in self.generation.held if one.rank != self.rank}
        first_timeline = self.generation.first_timeline
        return GradientShards(folders, lambda rank: select_generation(self._logs[rank], first_timeline))

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
