"""Choice of the boundary at which all ranks of a group resume: a pure decision over the summaries of their journals.

what the ranks hold                                    decision
nothing, on every rank                                 a new run
a common boundary N, its gradient shards, and a        all ranks resume at the newest such N; each loads its own checkpoint
checkpoint below N                                     if all shards after it exist, else that of another rank
nothing, on some rank (a lost journal)                 its gradient shards are lost: all ranks resume at the newest checkpoint
the same, and the preceding rank has copies of them    all ranks resume at the newest boundary; the lost rank redoes the copies
the same, records hold whole gradients, and the ranks  all ranks resume at the newest boundary; the lost rank redoes the
are known to be equal                                  journal of another rank
a journal that ends much earlier (from a store), or    the same as if the journal were lost, if that leads further
is damaged
a lost journal, and parameters are sharded             refused: its part of the weights exists nowhere else
ranks that ran out of data before N                    each of these resumes where it ran out, the others at N
no such N                                              refused
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace

from ....base.errors import RecoveryError
from ..summary.journal_summary import CheckpointRef, JournalSummary, LogRange

_STEPS_APART_MAX = 1  # between the ends of journals of ranks that died together


@dataclass(frozen=True, slots=True)
class BaseCheckpoint:
    """The checkpoint that a rank loads.

    Attributes:
        rank: the rank that wrote it.
        ref: the checkpoint.
    """

    rank: int
    ref: CheckpointRef


@dataclass(frozen=True, slots=True)
class Agreement:
    """The boundary at which all ranks resume, and the checkpoint from which each rank reaches it.

    Attributes:
        step: the step of the boundary.
        boundary_number: which of the boundaries at that step, counted from 1.
        bases: the checkpoint that each rank loads; None for a rank that starts with its initial state.
        lost: ranks whose journals are lost or do not count.
        timeline: the newest timeline of all journals.
        is_forked: True if the newest timelines of the journals differ, or if a journal was lost.
        lost_with_copies: the lost ranks whose shards and state the preceding rank has copies of.
        lost_behind: the lost ranks whose journals exist and end earlier than the others.
        short_journals: ranks whose journals end earlier than the others and count, each with its last step.
        last_step: the last step of the longest journal, if there are short ones.
        exhausted: ranks that ran out of data before `step`, each with the step and the boundary number at which it resumes.
        lost_with_equals: the lost ranks that redo the journal of another rank, which has the same state.
        has_full_records: True if records hold whole gradients instead of shards.
        lost_damaged: the lost ranks whose journals exist and are damaged.
    """

    step: int
    boundary_number: int
    bases: tuple[BaseCheckpoint | None, ...]
    lost: tuple[int, ...]
    timeline: int
    is_forked: bool
    lost_with_copies: tuple[int, ...] = ()
    lost_behind: tuple[int, ...] = ()
    short_journals: tuple[tuple[int, int], ...] = ()
    last_step: int = 0
    exhausted: tuple[tuple[int, int, int], ...] = ()
    lost_with_equals: tuple[int, ...] = ()
    has_full_records: bool = False
    lost_damaged: tuple[int, ...] = ()

    def get_target(self, rank: int) -> tuple[int, int]:
        """Return the step at which a rank resumes, and the number of the boundary at that step."""
        return next(((step, number) for one, step, number in self.exhausted if one == rank), (self.step, self.boundary_number))


@dataclass(slots=True)
class Damage:
    """Damage that earlier attempts have met.

    Attributes:
        checkpoints: damaged checkpoints, by rank and name.
        records: damaged records, by rank and step.
        boundaries: damaged boundaries, by rank and step.
        shards: gradient shards that no journal holds, by rank and step.
        states_differ: True if the ranks came to states that differ from each other.
    """

    checkpoints: set[tuple[int, str]] = field(default_factory=set)
    records: set[tuple[int, int]] = field(default_factory=set)
    boundaries: set[tuple[int, int]] = field(default_factory=set)
    shards: set[tuple[int, int]] = field(default_factory=set)
    states_differ: bool = False

    def __len__(self) -> int:
        return len(self.checkpoints) + len(self.records) + len(self.boundaries) + len(self.shards) + self.states_differ


def agree(summaries: Sequence[JournalSummary], damage: Damage, step: int | None = None) -> Agreement | None:
    """Choose the boundary at which all ranks resume. Return None if every journal is empty.

    Args:
        summaries: one summary for each rank, in the order of the ranks.
        damage: what could not be read in earlier attempts.
        step: the step to resume at; None for the newest one.

    Raises:
        RecoveryError: there is no boundary that all ranks can reach, or none at `step`.
    """
    held = [summary for summary in summaries if not summary.is_empty]
    ends = {summary.rank: summary.last_step for summary in held}
    newest = max(ends.values(), default=0)
    behind = {one.rank for one in held if one.exhausted_at < 0 and ends[one.rank] + _STEPS_APART_MAX < newest}
    unreadable = {rank for rank, _ in (*damage.records, *damage.boundaries)}
    damaged = {one.rank for one in held if one.rank in unreadable or _is_torn(one)} - behind
    found: Agreement | None = None
    error: RecoveryError | None = None
    try:
        found = _agree(summaries, damage, step)
    except RecoveryError as caught:
        error = caught
    if (found is None and error is None) or (found is not None and step is not None):
        return found
    for excluded in _list_exclusions(behind, damaged) if found is None or found.step < newest else ():
        rest = [replace(one, ranges=(), checkpoints=()) if one.rank in excluded else one for one in summaries]
        with suppress(RecoveryError):
            other = _agree(rest, damage, step)
            if other is None or any(other.bases[rank] is None for rank in excluded):
                continue
            gain = 0 if excluded <= behind | unreadable else _STEPS_APART_MAX  # a sound journal may end that much earlier
            if found is None or other.step > found.step + gain:
                found = replace(
                    other,
                    lost_behind=tuple(sorted(excluded & behind)),
                    lost_damaged=tuple(sorted(excluded & damaged)),
                )
    if found is None:
        assert error is not None
        raise error
    if found.lost_behind or found.lost_damaged or step is not None:
        return found
    return replace(found, short_journals=tuple((rank, ends[rank]) for rank in sorted(behind)), last_step=newest)


def _is_torn(summary: JournalSummary) -> bool:
    """Return True if none of a rank's own checkpoints leads to the end of its log."""
    last = len(summary.ranges) - 1
    return last > 0 and all(one.range_index != last for one in summary.checkpoints)


def _list_exclusions(behind: set[int], damaged: set[int]) -> list[set[int]]:
    """Return the sets of journals to exclude, in the order in which they are tried: of equally good ones the first wins."""
    found = [behind, *({rank} for rank in sorted(damaged)), damaged, behind | damaged]
    return [excluded for at, excluded in enumerate(found) if excluded and excluded not in found[:at]]


def _agree(summaries: Sequence[JournalSummary], damage: Damage, step: int | None) -> Agreement | None:
    """Choose the boundary, with the journals as they are."""
    held = [summary for summary in summaries if not summary.is_empty]
    if not held:
        return None
    lost = [summary for summary in summaries if summary.is_empty]
    has_copies = any(summary.copies > 1 for summary in held)
    steps = set().union(*(one.list_steps() for one in held))
    common = {at for at in steps if all(_is_exhausted(one, at) or at in one.list_steps() for one in held)}
    for target in sorted(common if step is None else common & {step}, reverse=True):
        counts = [one.count_boundaries(target) for one in held if not _is_exhausted(one, target)]
        last = min((count for count in counts if count is not None), default=0)
        # A copy holds the state that only the lost rank had at the first boundary of a step, not at the later ones.
        for number in [min(last, 1), last] if lost and has_copies and last > 1 else [last]:
            if (found := _agree_on(summaries, damage, target, number)) is not None:
                return found
    raise RecoveryError(_describe_failure(summaries, held, step, damage))


def _agree_on(summaries: Sequence[JournalSummary], damage: Damage, target: int, number: int) -> Agreement | None:
    """Return the agreement on one boundary; None if some rank cannot reach it."""
    held = [summary for summary in summaries if not summary.is_empty]
    lost = tuple(summary.rank for summary in summaries if summary.is_empty)
    new = () if any(summary.has_stepped for summary in held) else lost  # these ranks start with their initial state
    exhausted = tuple(
        (one.rank, one.exhausted_at, one.count_boundaries(one.exhausted_at) or 0) for one in held if _is_exhausted(one, target)
    )
    targets = {rank: (at, count) for rank, at, count in exhausted}
    bases = tuple(_find_base(one, summaries, damage, *targets.get(one.rank, (target, number))) for one in summaries)
    if any(base is None and one.rank not in new for base, one in zip(bases, summaries, strict=True)):
        return None
    with_copies = tuple(rank for rank in lost if _find_base_of_copies(rank, summaries, damage, target, number) is not None)
    with_equals = tuple(
        rank for rank in lost if rank not in with_copies and (base := bases[rank]) is not None and base.ref.step < target
    )
    newest = max(summary.timeline for summary in summaries)
    return Agreement(
        step=target,
        boundary_number=number,
        bases=bases,
        lost=lost,
        timeline=newest,
        is_forked=bool(lost) or any(summary.timeline != newest for summary in summaries),
        lost_with_copies=with_copies,
        exhausted=exhausted,
        lost_with_equals=with_equals,
        has_full_records=all(one.has_full_records for one in held),
    )


def _is_exhausted(summary: JournalSummary, target: int) -> bool:
    """Return True if a rank ran out of data before a step."""
    return 0 <= summary.exhausted_at < target


def _find_base(
    summary: JournalSummary, summaries: Sequence[JournalSummary], damage: Damage, target: int, number: int
) -> BaseCheckpoint | None:
    """Return the newest checkpoint from which a rank reaches the target; of equally new ones, its own."""
    held = [other for other in summaries if not other.is_empty]
    if summary.is_empty:
        if (base := _find_base_of_copies(summary.rank, summaries, damage, target, number)) is not None:
            return base
        if _are_equal(held, damage) and (base := _find_base(held[0], summaries, damage, target, number)) is not None:
            return base
    needs_shards = any(one.is_replicated for one in held) and not all(one.has_full_records for one in held)
    for base in _list_candidates(summary, held, damage, target):
        start = base.ref.step
        reaches = start == target if summary.is_empty else _reaches(summary, base, target, number, damage)
        is_complete = start == target or not (
            any(start < step <= target for _, step in damage.shards)
            or (needs_shards and not all(_has_shards(one, summaries, start, target, damage) for one in summaries))
        )
        if reaches and is_complete:
            return base
    return None


def _list_candidates(
    summary: JournalSummary, held: Sequence[JournalSummary], damage: Damage, target: int
) -> list[BaseCheckpoint]:
    """Return the sound checkpoints that a rank may load, the newest first, and its own before equally new ones."""
    own = [BaseCheckpoint(summary.rank, ref) for ref in summary.checkpoints]
    is_same = all(one.is_replicated for one in held) and (summary.is_empty or not damage.states_differ)
    others = [one for one in held if is_same and one.rank != summary.rank]
    foreign = [
        BaseCheckpoint(one.rank, ref) for one in others for ref in one.checkpoints if not _is_exhausted(one, ref.step + 1)
    ]
    found = [base for base in own + foreign if base.ref.step <= target and (base.rank, base.ref.name) not in damage.checkpoints]
    return sorted(found, key=lambda base: -base.ref.step)  # a stable sort


def _are_equal(held: Sequence[JournalSummary], damage: Damage) -> bool:
    """Return True if any rank can replace a lost one: each has the whole state, and the states are known to be equal."""
    if damage.states_differ or any(one.is_sharded for one in held):
        return False
    if all(one.is_replicated and one.has_full_records for one in held):
        return True
    return all(not one.is_replicated and one.last_equal_step >= 0 for one in held)


def _reaches(summary: JournalSummary, base: BaseCheckpoint, target: int, number: int, damage: Damage) -> bool:
    """Return True if a rank's own entries lead from a checkpoint to the target."""
    start, ref = base.ref.step, base.ref
    is_own = base.rank == summary.rank
    if is_own and start == target and (number in (0, ref.boundary_number) or summary.count_boundaries(target) is None):
        return True
    if any(rank == summary.rank and (start < step <= target or step == target) for rank, step in damage.boundaries):
        return False  # replay reads every boundary on the way
    for i, log_range in enumerate(summary.ranges):
        if target not in log_range.boundary_counts or not _is_sound(summary.rank, log_range, start, target, damage):
            continue
        if is_own and i == ref.range_index and (start < target or ref.boundary_number < number):
            return True
        if not is_own and start in log_range.boundary_counts and (start < target or 0 < number >= ref.boundary_number):
            return True
    return False


def _find_base_of_copies(
    rank: int, summaries: Sequence[JournalSummary], damage: Damage, target: int, number: int
) -> BaseCheckpoint | None:
    """Return the checkpoint from which a lost rank reaches the target by the copies that the preceding rank holds."""
    holder = _find_copy_holder(rank, summaries)
    return None if holder is None or holder.is_empty else _find_base(holder, summaries, damage, target, number)


def _find_copy_holder(rank: int, summaries: Sequence[JournalSummary]) -> JournalSummary | None:
    """Return the journal of the preceding rank if it has copies of this rank's shards and state, else None."""
    preceding = summaries[(rank - 1) % len(summaries)]
    return preceding if preceding.copies > 1 and preceding.rank != rank else None


def _has_shards(summary: JournalSummary, summaries: Sequence[JournalSummary], start: int, target: int, damage: Damage) -> bool:
    """Return True if a rank's gradient shards of a range of steps exist, in its own journal or as copies."""
    if summary.exhausted_at >= 0:  # the rank logged no shards after that step
        target = min(target, summary.exhausted_at)
    if target <= start or _has_records(summary, start, target, damage):
        return True
    holder = _find_copy_holder(summary.rank, summaries)
    return holder is not None and _has_records(holder, start, target, damage)


def _has_records(summary: JournalSummary, start: int, target: int, damage: Damage) -> bool:
    return any(_is_sound(summary.rank, log_range, start, target, damage) for log_range in summary.ranges)


def _is_sound(rank: int, log_range: LogRange, start: int, target: int, damage: Damage) -> bool:
    covers = log_range.after_step <= start and target <= log_range.last_step
    return covers and not any(one == rank and start < step <= target for one, step in damage.records)


def _describe_failure(
    summaries: Sequence[JournalSummary], held: Sequence[JournalSummary], step: int | None, damage: Damage
) -> str:
    lost = [summary.rank for summary in summaries if summary.is_empty]
    what = f"step {step} is not covered on all ranks" if step is not None else "there is no step that all ranks can reach"
    oldest = min((min(one.list_steps()) for one in held), default=0)
    pruned = ""
    if step is not None and step < oldest:
        pruned = "; older steps were pruned or are no longer listed: `keep=` sets how many checkpoints are kept"
    gone = f"; the journals of ranks {_list_ranks(lost)} are gone{_describe_loss(held, damage)}" if lost else ""
    return f"{what}: {', '.join(_describe_coverage(held))}{pruned}{gone}"


def _describe_loss(held: Sequence[JournalSummary], damage: Damage) -> str:
    """Return what is lost with the journals of ranks, and what to do."""
    advice = "Restore these journals (from a store: `tranlogs pull`), or start another run"
    if any(one.is_sharded for one in held):
        return f", and with them their shards of weights and optimizer state, which exist nowhere else. {advice}"
    if all(one.is_replicated for one in held):
        return ""
    is_unequal = damage.states_differ or any(one.is_replicated for one in held)
    why = "the weights of the ranks differ" if is_unequal else "the weights of the ranks were never seen to be equal"
    return f", and with them what these ranks trained: each rank logged its own steps, and {why}. {advice}"


def _describe_coverage(held: Sequence[JournalSummary]) -> Iterator[str]:
    ranks: dict[tuple[int, int], list[int]] = {}  # ranks by first and last step
    for summary in held:
        steps = summary.list_steps()
        ranks.setdefault((min(steps), max(steps)), []).append(summary.rank)
    for (first, last), found in ranks.items():
        who = f"rank {found[0]} has" if len(found) == 1 else f"ranks {_list_ranks(found)} have"
        yield f"{who} steps {first} to {last}"


def _list_ranks(ranks: Sequence[int]) -> str:
    return ", ".join(map(str, ranks))
