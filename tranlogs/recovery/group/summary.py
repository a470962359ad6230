"""Summary of one rank's journal: plain values from which all ranks choose the step to resume from (pure).

A rank can resume only at a boundary in its own log. Its replay up to that boundary may start at its own checkpoint or, if the
state is the same on all ranks, at a checkpoint of another rank.

A *generation* is the part of a run that one number of processes trained. It is named by its first timeline, and a journal may
hold parts of several generations: a run of four processes that continues with two starts a generation, and so does a run of
two that continues with four.

All ranks give each timeline that they start together one id. `environment["past"]` of segments and checkpoints lists the ids
of the timelines that lead to them, the oldest first, each with the step at which the timeline started. They show whether two
journals hold the same history. A timeline that one process started has the id "".

the ids of two journals                                  what counts
equal, or one list continues where the other one ends    everything in both journals
equal up to some id                                      of the older history, the steps before the other id started
no common id, and both known from the start of the run   refused: the journals belong to different runs
no common id otherwise                                   everything in both journals, since nothing is known
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from ...base.errors import RecoveryError

TimelineIds = tuple[tuple[str, int], ...]  # the id of each timeline and the step at which it started

UNKNOWN_IDS: TimelineIds = (("", 0),)
_IDS_MAX = 256


@dataclass(frozen=True, slots=True)
class LogRange:
    """A range of the log that is chained without a hole.

    Attributes:
        after_step: the step before the first record in the range.
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
        world: the number of processes that trained together, by the newest checkpoint; 0 if the journal is empty.
        is_replicated: True if parameters and optimizer state were the same on all ranks. A record may then hold only one
            rank's shard of the gradients.
        copies: in how many journals each gradient shard lies. With 2, the journal also holds the shards of the next rank and
            the state that only the next rank has.
        sender: the process that sends the journal to processes that cannot read it; -1 for the process of the same rank.
        is_sharded: True if parameters were sharded, so that each rank has parts that no other rank has.
        has_empty_timeline: True if the journal's newest timeline was started and holds nothing.
        has_full_records: True if each record holds whole gradients, judged by the newest record, although parameters
            are replicated.
        last_equal_step: the step at which ranks that each log everything were last seen to have equal parameters; -1 for
            never.
        recorded_steps: the newest steps with a recorded boundary, at most two, the newest first, whether or not the log has the
            tensors that lead there.
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
    has_full_records: bool = False
    last_equal_step: int = -1
    recorded_steps: tuple[int, ...] = ()

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

    @property
    def end_step(self) -> int:
        """The newest step that the journal has recorded."""
        return max(self.last_step, *self.recorded_steps[:1], 0)

    def list_steps(self) -> set[int]:
        """Return the steps at which the rank can resume."""
        return {step for one in self.ranges for step in one.boundary_counts} | {one.step for one in self.checkpoints}

    def count_boundaries(self, step: int) -> int | None:
        """Return the number of boundaries at a step; None if only a checkpoint is known there."""
        return max((one.boundary_counts[step] for one in self.ranges if step in one.boundary_counts), default=None)

    def without_records(self) -> JournalSummary:
        """Return the summary of the journal as if it were lost."""
        return replace(self, ranges=(), checkpoints=(), recorded_steps=())

    def truncate(self, step: int) -> JournalSummary:
        """Return the summary of what the journal holds up to a step."""
        ranges = tuple(_truncate_range(one, step) for one in self.ranges)
        checkpoints = tuple(one for one in self.checkpoints if one.step <= step)
        is_empty = not checkpoints and not any(one.boundary_counts for one in ranges)
        recorded = tuple(one for one in self.recorded_steps if one <= step)
        return replace(self, ranges=() if is_empty else ranges, checkpoints=checkpoints, recorded_steps=recorded)


def _truncate_range(log_range: LogRange, step: int) -> LogRange:
    counts = {at: count for at, count in log_range.boundary_counts.items() if at <= step}
    return LogRange(min(log_range.after_step, step), min(log_range.last_step, step), counts)


def remove_duplicates(summaries: Sequence[JournalSummary]) -> list[JournalSummary]:
    """Return one summary for each journal and generation: the one that the rank's process sent, or the first one."""
    found: dict[tuple[int, int], JournalSummary] = {}
    for summary in sorted(summaries, key=lambda summary: summary.sender):  # a process sends its own journal with -1
        found.setdefault((summary.rank, summary.first_timeline), summary)
    return [found[key] for key in sorted(found)]


# Ids of timelines.


def new_timeline_id() -> str:
    """Return a new id for a timeline. All ranks use the id that rank 0 made."""
    return os.urandom(8).hex()


def get_timeline_ids(environment: Mapping[str, Any]) -> TimelineIds:
    """Return the ids that the environment of a segment or a checkpoint lists."""
    return tuple((str(name), int(step)) for name, step in environment.get("past", ())) or UNKNOWN_IDS


def get_first_timeline_id(environment: Mapping[str, Any]) -> str:
    """Return the id of the run's first timeline; "" for a run that one process began, or that does not know it."""
    return get_timeline_ids(environment)[0][0]


def extend_timeline_ids(ids: TimelineIds, step: int, name: str = "") -> list[list[Any]]:
    """Return the ids of a history that continues from a step, in the form in which they are recorded."""
    found = [*((known, start) for known, start in ids if start <= step), *([(name, step)] if name else [])]
    if len(found) > _IDS_MAX:
        found = [*UNKNOWN_IDS, *found[1 - _IDS_MAX :]]
    return [] if tuple(found) == UNKNOWN_IDS else [list(one) for one in found]


def choose_timeline_ids(summaries: Sequence[JournalSummary]) -> TimelineIds:
    """Return the timeline ids of the group: those of the newest timeline; of equally new ones, those that most ranks hold."""
    held = [summary for summary in summaries if not summary.is_empty]
    count = Counter(summary.timeline_ids for summary in held)
    chosen = max(held, key=lambda one: (one.timeline, len(one.timeline_ids), count[one.timeline_ids], -one.rank), default=None)
    return UNKNOWN_IDS if chosen is None else chosen.timeline_ids


def keep_common_history(summaries: Sequence[JournalSummary]) -> tuple[list[JournalSummary], list[str]]:
    """Cut off the steps of each journal that lie on a timeline which the group has abandoned.

    Returns:
        The summaries that count, and a sentence about each journal that was cut.

    Raises:
        RecoveryError: the journals belong to different runs.
    """
    _require_one_run([summary for summary in summaries if not summary.is_empty])
    kept, notes = [], []
    for summary in summaries:
        generation = [one for one in summaries if one.first_timeline == summary.first_timeline]
        fork = _find_fork_step(summary.timeline_ids, choose_timeline_ids(generation))
        if fork is not None and fork < summary.last_step:
            notes.append(
                f"the journal of rank {summary.rank} forks from the history of the run at step {fork}: its steps after that, "
                f"up to step {summary.last_step}, are on a timeline that the other ranks have rewound, and do not count"
            )
            summary = summary.truncate(fork)
        kept.append(summary)
    return kept, notes


def _find_fork_step(ids: TimelineIds, newest: TimelineIds) -> int | None:
    """Return the step at which two histories fork; None if one leads to the other's end, or if nothing is known."""
    names = [name for name, _ in newest]
    shared = [at for at, (name, _) in enumerate(ids) if name in names]
    if not shared:
        return None
    last_shared = ids[shared[-1]][0]
    starts = [start for _, start in (*ids[shared[-1] + 1 :], *newest[names.index(last_shared) + 1 :])]
    return min(starts, default=None)


def _require_one_run(held: Sequence[JournalSummary]) -> None:
    newest = {one.rank: one.timeline_ids for one in sorted(held, key=lambda one: one.first_timeline)}
    count = Counter(ids[0] for ids in newest.values())
    chosen = max(newest, key=lambda rank: (count[newest[rank][0]], -rank), default=-1)
    others = sorted(rank for rank, ids in newest.items() if _are_different_runs(ids, newest[chosen]))
    if others:
        kept = sorted(rank for rank in newest if rank not in others)
        verb, them = ("belongs", "it") if len(others) == 1 else ("belong", "them")
        raise RecoveryError(
            f"{_name_journals(others)} {verb} to another run than {_name_journals(kept)}. Restore the right journals (from a "
            f"store: `tranlogs pull`), or move {them} away to continue as if {them} were lost"
        )


def _are_different_runs(ids: TimelineIds, other: TimelineIds) -> bool:
    """Return True if two histories are known from the start of their runs and have no id in common."""
    is_known = ids[0][0] != "" and other[0][0] != ""
    return is_known and not {name for name, _ in ids} & {name for name, _ in other}


def _name_journals(ranks: Sequence[int]) -> str:
    return f"the journal of rank {ranks[0]}" if len(ranks) == 1 else f"the journals of ranks {', '.join(map(str, ranks))}"
