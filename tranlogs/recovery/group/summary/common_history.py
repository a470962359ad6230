"""Selection of the part of each journal that belongs to the history of the group (pure). timeline_ids.py has the table."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from ....base.errors import RecoveryError
from .journal_summary import JournalSummary
from .timeline_ids import UNKNOWN_IDS, TimelineIds, are_different_runs, find_fork_step


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
        fork = find_fork_step(summary.timeline_ids, choose_timeline_ids(generation))
        if fork is not None and fork < summary.last_step:
            notes.append(
                f"the journal of rank {summary.rank} forks from the history of the run at step {fork}: its steps after that, "
                f"up to step {summary.last_step}, are on a timeline that the other ranks have rewound, and do not count"
            )
            summary = summary.truncate(fork)
        kept.append(summary)
    return kept, notes


def _require_one_run(held: Sequence[JournalSummary]) -> None:
    newest = {one.rank: one.timeline_ids for one in sorted(held, key=lambda one: one.first_timeline)}
    count = Counter(ids[0] for ids in newest.values())
    chosen = max(newest, key=lambda rank: (count[newest[rank][0]], -rank), default=-1)
    others = sorted(rank for rank, ids in newest.items() if are_different_runs(ids, newest[chosen]))
    if others:
        kept = sorted(rank for rank in newest if rank not in others)
        verb, them = ("belongs", "it") if len(others) == 1 else ("belong", "them")
        raise RecoveryError(
            f"{_name_journals(others)} {verb} to another run than {_name_journals(kept)}. Restore the right journals (from a "
            f"store: `tranlogs pull`), or move {them} away to continue as if {them} were lost"
        )


def _name_journals(ranks: Sequence[int]) -> str:
    return f"the journal of rank {ranks[0]}" if len(ranks) == 1 else f"the journals of ranks {', '.join(map(str, ranks))}"
