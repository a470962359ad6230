"""Exchange of journal summaries: each rank reads its journal, and all ranks learn what every journal holds."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from ...base.errors import RecoveryError, UsageError, error_text
from ..journal_facts import replace_damaged
from ..state_protocol import ReplacementSource
from .decision.generations import group_by_generation
from .group_state import GroupState
from .journal_access import Transport, read_run_id
from .misplaced_journals import describe_misnamed, describe_misplaced, find_misnamed, find_misplaced
from .summary.common_history import keep_common_history
from .summary.journal_summary import JournalSummary, remove_duplicates
from .summary.log_summary import (
    GenerationLog,
    find_unused_timelines,
    list_journals,
    read_generations,
    read_timeline_use,
    summarize_generations,
)
from .summary.timeline_ids import new_timeline_id


class SummaryExchange:
    """Exchange of journal summaries, for one rank. All ranks must call its methods at the same time.

    Args:
        folder: the rank's journal.
        rank: the rank of this process.
        world: the number of processes.
        run_id: the id of the journal.
        transport: connects the ranks.
        spare: source of sound copies that replace damaged files of the rank's journal.

    Attributes:
        logs: the generations of this rank's journal.
        segments: the segments of the journals that this process can send to the others, by rank.
        summaries: the summaries of all journals and generations.
        notes: what to report, one sentence each.
        abandoned: those of the notes that name journals on a timeline which the group has abandoned.
        timeline_id: the id of the timeline that the group starts if it needs a new one.
        resharded: the first timelines of generations whose parameters are sharded in another way now.
        unused_timelines: timelines whose start a crash interrupted; they do not count.
    """

    def __init__(
        self,
        folder: Path,
        rank: int,
        world: int,
        run_id: str,
        transport: Transport,
        spare: ReplacementSource | None = None,
    ) -> None:
        self._folder, self._rank, self._world, self._run_id = folder, rank, world, run_id
        self._transport, self._spare = transport, spare
        self.logs: list[GenerationLog] = []
        self.segments: dict[int, list[Path]] = {}
        self.summaries: list[JournalSummary] = []
        self.notes: list[str] = []
        self.abandoned: list[str] = []
        self.timeline_id = ""
        self.resharded: set[int] = set()
        self.unused_timelines: frozenset[int] = frozenset()

    def run(self, state: GroupState, step: int | None) -> None:
        """Read this rank's journal and exchange summaries.

        Args:
            state: the state that is recovered.
            step: the step that this rank is asked to recover; None for the newest one.

        Raises:
            RecoveryError: a journal cannot be read, or is misplaced, or the journals belong to several runs.
            UsageError: the ranks are asked for different steps.
        """
        error: Exception | None = None
        misnamed: list[list[Any]] = []
        own = [JournalSummary(self._rank, str(self._folder.resolve()), self._run_id)]
        self.unused_timelines = find_unused_timelines(self._transport.gather(self._read_timeline_use()))
        try:
            own = self._read_summaries()
            misnamed = find_misnamed([] if own[0].is_empty else [(self._rank, self._folder)])
        except Exception as caught:  # the other ranks wait for this one's answer
            error = caught
        held = [log for log in self.logs if not log.is_empty]  # a lost journal records no environment
        answer = {
            "summaries": [summary.pack() for summary in own],
            "misnamed": misnamed,
            "step": step,
            "resharded": [log.first_timeline for log in held if state.is_resharded(log.environment.get("sharding", {}))],
            "timeline_id": new_timeline_id(),
            "error": error_text(error) if error else "",
        }
        answers = self._transport.gather(answer)
        if error is not None:
            raise error
        self._check_answers(answers)
        self.resharded = {number for one in answers for number in one["resharded"]}
        self.timeline_id = answers[0]["timeline_id"]
        self._accept(remove_duplicates([JournalSummary.unpack(packed) for one in answers for packed in one["summaries"]]))

    def replace_damaged(self, paths: Sequence[Path]) -> list[str]:
        """Replace damaged files of this rank's journal by sound copies and read the journal again.

        Returns:
            What was replaced, one sentence each.
        """
        notes = replace_damaged(self._spare, paths)
        if notes:
            self._read_own_log()
        return notes

    def _check_answers(self, answers: Sequence[dict[str, Any]]) -> None:
        failed = [f"rank {rank}: {one['error']}" for rank, one in enumerate(answers) if one["error"]]
        if failed:
            raise RecoveryError(f"{self._folder.parent}: another rank cannot read its journal: {'; '.join(failed)}")
        if len({one["step"] for one in answers}) > 1:
            steps = [one["step"] for one in answers]
            raise UsageError(f"recover(step=...) must name the same step on all ranks, got {steps}")
        if swapped := describe_misnamed(found for one in answers for found in one["misnamed"]):
            raise RecoveryError(f"{self._folder.parent}: {swapped}")

    def _read_timeline_use(self) -> dict[str, list[int]]:
        """Return the timelines that the journals of this process use, and those that they only started."""
        found: dict[str, list[int]] = {"used": [], "empty": []}
        with suppress(Exception):  # reading the journals raises the error again, where all ranks learn of it
            for folder in (self._folder, *(folder for _, folder in self._list_stopped())):
                for kind, numbers in read_timeline_use(folder).items():
                    found[kind] += numbers
        return found

    def _read_summaries(self) -> list[JournalSummary]:
        """Return the summaries of this rank's journal, and of the journals next to it whose ranks no longer exist."""
        self._read_own_log()
        if self.logs:
            self.notes += self.replace_damaged(self.logs[0].facts.torn_paths)
        own = summarize_generations(self.logs, self._rank, self._folder, self._run_id, self.unused_timelines)
        for rank, folder in self._list_stopped():
            logs = read_generations(folder, self.unused_timelines)
            own += [
                replace(summary, sender=self._rank)
                for summary in summarize_generations(logs, rank, folder, read_run_id(folder) or "", self.unused_timelines)
            ]
            self.segments[rank] = _list_segments(logs)
        return own

    def _read_own_log(self) -> None:
        self.logs = read_generations(self._folder, self.unused_timelines)
        self.segments[self._rank] = _list_segments(self.logs)

    def _accept(self, summaries: list[JournalSummary]) -> None:
        """Keep the part of the summaries that belongs to the history of the group.

        Raises:
            RecoveryError: the journals belong to several runs, or a missing journal lies with the process of another rank.
                No new run is started then.
        """
        generations = group_by_generation(summaries)
        needed = min(self._world, generations[0].world) if generations else self._world
        missing = set(range(needed)) - {summary.rank for summary in summaries if not summary.is_empty}
        answers = self._transport.gather({"misplaced": find_misplaced(self._folder, missing)}) if missing else ()
        found = [(rank, one) for rank, answer in enumerate(answers) for one in answer["misplaced"]]
        if misplaced := describe_misplaced(found):
            raise RecoveryError(f"{self._folder.parent}: {misplaced}")
        try:
            self.summaries, self.abandoned = keep_common_history(summaries)
        except RecoveryError as error:
            raise RecoveryError(f"{self._folder.parent}: {error}") from None
        self.notes += self.abandoned

    def _list_stopped(self) -> list[tuple[int, Path]]:
        """Return the journals next to this one whose ranks no longer exist."""
        return [(rank, folder) for rank, folder in list_journals(self._folder) if rank >= self._world]


def _list_segments(logs: Sequence[GenerationLog]) -> list[Path]:
    return [segment.path.resolve() for segment in logs[0].facts.segments]
