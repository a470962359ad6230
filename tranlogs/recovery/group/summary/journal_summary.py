"""Summary of one rank's journal: plain values that ranks exchange to agree on the step to resume from.

A rank can resume only at a boundary in its own log. Its replay up to that boundary may start at its own checkpoint or, if the
state is the same on all ranks, at a checkpoint of another rank.

A *generation* is the part of a run that one number of processes trained. It is named by its first timeline, and a journal may
hold parts of several generations: a run of four processes that continues with two starts a generation, and so does a run of
two that continues with four.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from typing import Any

from .timeline_ids import UNKNOWN_IDS, TimelineIds


@dataclass(frozen=True, slots=True)
class LogRange:
    """A range of the log that is chained without a hole.

    Attributes:
        after_step: the step before the first record in the range.
        last_step: the step of the last record in the range.
        boundary_counts: the number of boundaries in the range, by step. The beginning of the run is listed as step 0 unless
            it was pruned.
    """

    after_step: int
    last_step: int
    boundary_counts: dict[int, int]


@dataclass(frozen=True, slots=True)
class CheckpointRef:
    """Reference to a checkpoint of a rank.

    Attributes:
        step: the step of the checkpoint.
        name: the name of the checkpoint's folder.
        boundary_number: which of the boundaries at that step the checkpoint was taken at, counted from 1; 0 if the log does
            not hold these boundaries any more.
        range_index: index of the log range that continues after the checkpoint; -1 if none does.
    """

    step: int
    name: str
    boundary_number: int
    range_index: int


@dataclass(frozen=True, slots=True)
class JournalSummary:
    """Summary of one generation in one rank's journal. It has many attributes because every decision of the group reads it.

    Attributes:
        rank: the rank that wrote the journal.
        folder: the folder of the journal.
        run_id: the id of the journal.
        world: the number of processes that trained together, by the newest checkpoint; 0 if the journal is empty.
        is_replicated: True if parameters and optimizer state were the same on all ranks. A record may then hold only one
            rank's shard of the gradients.
        timeline: the newest timeline in the journal.
        ranges: the ranges of its log.
        checkpoints: its checkpoints.
        first_timeline: the timeline that started the generation.
        copies: in how many journals each gradient shard lies. With 2, the journal also holds the shards of the next rank and
            the state that only the next rank has.
        sender: the process that sends the journal to processes that cannot read it; -1 for the process of the same rank.
        is_sharded: True if parameters were sharded, so that each rank has parts that no other rank has.
        has_empty_timeline: True if the journal's newest timeline was started and holds nothing.
        timeline_ids: the ids of the timelines that lead to the end of the journal (timeline_ids.py).
        exhausted_at: the step at which the rank ran out of data and after which it took no step; -1 if it did not run out.
        has_full_records: True if each record holds whole gradients, judged by the newest record, although parameters
            are replicated.
        last_equal_step: the step at which ranks that each log everything were last seen to have equal parameters; -1 for
            never.
    """

    rank: int
    folder: str
    run_id: str
    world: int = 0
    is_replicated: bool = False
    timeline: int = 1
    ranges: tuple[LogRange, ...] = ()
    checkpoints: tuple[CheckpointRef, ...] = ()
    first_timeline: int = 1
    copies: int = 1
    sender: int = -1
    is_sharded: bool = False
    has_empty_timeline: bool = False
    timeline_ids: TimelineIds = UNKNOWN_IDS
    exhausted_at: int = -1
    has_full_records: bool = False
    last_equal_step: int = -1

    @property
    def is_empty(self) -> bool:
        """True if the journal holds nothing to recover from: the run is new, or the journal was lost."""
        return not self.checkpoints and not self.ranges

    @property
    def has_stepped(self) -> bool:
        """True if any step was taken."""
        return any(one.step for one in self.checkpoints) or any(one.last_step for one in self.ranges)

    @property
    def last_step(self) -> int:
        """The newest step at which the rank can resume; 0 if there is none."""
        return max(self.list_steps(), default=0)

    def list_steps(self) -> set[int]:
        """Return the steps at which the rank can resume."""
        return {step for one in self.ranges for step in one.boundary_counts} | {one.step for one in self.checkpoints}

    def count_boundaries(self, step: int) -> int | None:
        """Return the number of boundaries at a step; None if only a checkpoint is known there."""
        return max((one.boundary_counts[step] for one in self.ranges if step in one.boundary_counts), default=None)

    def truncate(self, step: int) -> JournalSummary:
        """Return the summary of what the journal holds up to a step."""
        ranges = tuple(_truncate_range(one, step) for one in self.ranges)
        checkpoints = tuple(one for one in self.checkpoints if one.step <= step)
        is_empty = not checkpoints and not any(one.boundary_counts for one in ranges)
        exhausted_at = self.exhausted_at if self.exhausted_at <= step else -1
        return replace(self, ranges=() if is_empty else ranges, checkpoints=checkpoints, exhausted_at=exhausted_at)

    def pack(self) -> dict[str, Any]:
        """Return the summary as plain values that can be sent to other ranks."""
        packed = asdict(self)
        for one in packed["ranges"]:
            one["boundary_counts"] = list(one["boundary_counts"].items())
        return packed

    @classmethod
    def unpack(cls, packed: dict[str, Any]) -> JournalSummary:
        """Return the summary that `pack` turned into plain values."""
        ranges = tuple(LogRange(one["after_step"], one["last_step"], dict(one["boundary_counts"])) for one in packed["ranges"])
        checkpoints = tuple(CheckpointRef(**one) for one in packed["checkpoints"])
        timeline_ids = tuple((name, step) for name, step in packed["timeline_ids"])
        return cls(**{**packed, "ranges": ranges, "checkpoints": checkpoints, "timeline_ids": timeline_ids})


def _truncate_range(log_range: LogRange, step: int) -> LogRange:
    counts = {at: count for at, count in log_range.boundary_counts.items() if at <= step}
    return LogRange(min(log_range.after_step, step), min(log_range.last_step, step), counts)


def remove_duplicates(summaries: list[JournalSummary]) -> list[JournalSummary]:
    """Return one summary for each journal and generation: the one that the rank's process sent, or the first one."""
    found: dict[tuple[int, int], JournalSummary] = {}
    for summary in sorted(summaries, key=lambda summary: summary.sender):  # a process sends its own journal with -1
        found.setdefault((summary.rank, summary.first_timeline), summary)
    return [found[key] for key in sorted(found)]
