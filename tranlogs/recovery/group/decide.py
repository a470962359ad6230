"""Choice of the boundary at which all ranks of a group resume: a pure decision over the summaries of their journals.

Two rules, the first that leads to a step of which every rank has a way (`WAYS`):

1. the newest boundary that every journal reaches. For a lost journal stand the copies that the preceding rank has
   (`copies=2`), or the journal of any other rank if the ranks are known to be equal and their records hold whole gradients;
2. the newest checkpoint that all ranks can load. A lost journal costs its gradient shards, so this is where all go back to.

A journal that is damaged, or that ends much earlier than the others (an older copy, or of a disk that was full for a while),
counts as lost if that leads further: with copies, or where each rank logs all, no step is then lost. The choice is made in the
newest generation; in the one before it, if a crash interrupted the start of the newest one, or if that cannot be recovered.

A boundary is reached if the log has the tensors of all steps before it. What all journals have behind it is computed again.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from enum import Enum

from ...base.errors import RecoveryError
from .summary import CheckpointRef, JournalSummary, LogRange

_STEPS_APART_MAX = 1  # between the ends of journals of ranks that died together


class Way(Enum):
    """How a rank comes to the state at which the group resumes."""

    OWN = "redoes its own journal"
    COPIES = "redoes the journal of the preceding rank, which has copies of its shards and state"
    EQUAL = "redoes the journal of another rank, which had the same state"
    CHECKPOINT = "loads a checkpoint that another rank took at that step"
    BUILT = "keeps the state that the script built: no rank has taken a step"
    NEW = "is none of the ranks that recorded the run, and redoes the journal of the first rank"
    PARTS = "reads its parts of the parameters, which are sharded in another way, from checkpoints of all former ranks"


@dataclass(frozen=True, slots=True)
class RankFacts:
    """What decides on the way of a rank to a boundary.

    Attributes:
        has_journal: its journal is neither lost nor excluded.
        is_reached: the records of its journal lead from a checkpoint to the boundary.
        has_copies: the preceding rank has copies that lead there.
        has_equal: the ranks are known to be equal, and the journal of another one leads there.
        has_checkpoint: another rank took a checkpoint there that this rank can load.
        has_trained: some rank has taken a step.
    """

    has_journal: bool
    is_reached: bool
    has_copies: bool
    has_equal: bool
    has_checkpoint: bool
    has_trained: bool


# The table: the facts in the order of `RankFacts` (None: either), and the way. None: the rank cannot reach the boundary.
WAYS: tuple[tuple[tuple[bool | None, ...], Way | None], ...] = (
    # journal reached copies equal checkpoint trained
    ((True, True, None, None, None, None), Way.OWN),
    ((True, False, None, None, None, None), None),
    ((False, None, True, None, None, None), Way.COPIES),
    ((False, None, False, True, None, None), Way.EQUAL),
    ((False, None, False, False, True, None), Way.CHECKPOINT),
    ((False, None, False, False, False, False), Way.BUILT),
    ((False, None, False, False, False, True), None),
)


def choose_way(facts: RankFacts) -> Way | None:
    """Return the way of a rank to a boundary by the table; None if it cannot reach the boundary."""
    given = tuple(getattr(facts, name) for name in RankFacts.__slots__)
    return next(way for row, way in WAYS if all(want in (None, fact) for want, fact in zip(row, given, strict=True)))


@dataclass(frozen=True, slots=True)
class BaseCheckpoint:
    """The checkpoint that a rank loads: the rank that wrote it, and its reference."""

    rank: int
    ref: CheckpointRef


@dataclass(frozen=True, slots=True)
class Agreement:
    """The boundary at which all ranks resume, and the way of each rank to it.

    Attributes:
        boundary_number: which of the boundaries at that step, counted from 1.
        bases: the checkpoint that each rank loads; None for a rank that starts with its initial state.
        timeline: the newest timeline of all journals.
        is_forked: True if the newest timelines of the journals differ, or if a journal was lost.
        has_full_records: True if records hold whole gradients instead of shards.
        behind: the lost ranks whose journals exist and end earlier than the others.
        damaged: the lost ranks whose journals exist and are damaged.
        short_journals: ranks whose journals end earlier than the others and count, each with its last step.
        last_step: the last step of the longest journal, if there are short ones.
    """

    step: int
    boundary_number: int
    ways: tuple[Way, ...]
    bases: tuple[BaseCheckpoint | None, ...]
    timeline: int
    is_forked: bool
    has_full_records: bool = False
    behind: tuple[int, ...] = ()
    damaged: tuple[int, ...] = ()
    short_journals: tuple[tuple[int, int], ...] = ()
    last_step: int = 0

    @property
    def lost(self) -> tuple[int, ...]:
        """The ranks whose journals are lost or do not count."""
        return tuple(rank for rank, way in enumerate(self.ways) if way is not Way.OWN)


@dataclass(slots=True)
class Damage:
    """Damage that attempts have met.

    Attributes:
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

    def add(self, other: Damage) -> None:
        """Add the damage that another attempt has met."""
        self.checkpoints |= other.checkpoints
        self.records |= other.records
        self.boundaries |= other.boundaries
        self.shards |= other.shards
        self.states_differ |= other.states_differ


def agree(summaries: Sequence[JournalSummary], damage: Damage, step: int | None = None) -> Agreement | None:
    """Choose the boundary at which all ranks resume. Return None if every journal is empty.

    Raises:
        RecoveryError: there is no boundary that all ranks can reach, or none at `step`.
    """
    held = [summary for summary in summaries if not summary.is_empty]
    if not held:
        return None
    ends = {summary.rank: summary.end_step for summary in held}
    newest = max(ends.values())
    # Ranks that died together have the same boundaries, but perhaps for the newest one.
    before = min(
        [newest - _STEPS_APART_MAX, *(step for one in held if ends[one.rank] == newest for step in one.recorded_steps)]
    )
    behind = {one.rank for one in held if ends[one.rank] < before}
    unreadable = {rank for rank, _ in (*damage.records, *damage.boundaries)}
    damaged = {one.rank for one in held if one.rank in unreadable or _is_torn(one)} - behind
    found: Agreement | None = None
    error: RecoveryError | None = None
    try:
        found = _Journals(summaries, damage).agree(step)
    except RecoveryError as caught:
        error = caught
    if found is not None and step is not None:
        return found
    for excluded in _list_exclusions(behind, damaged) if found is None or found.step < newest else ():
        rest = [one.without_records() if one.rank in excluded else one for one in summaries]
        with suppress(RecoveryError):
            other = _Journals(rest, damage).agree(step)
            if Way.BUILT in (other.ways[rank] for rank in excluded):
                continue
            gain = 0 if excluded <= behind | unreadable else _STEPS_APART_MAX  # a sound journal may end that much earlier
            if found is None or other.step > found.step + gain:
                named = tuple(sorted(excluded & behind)), tuple(sorted(excluded & damaged))
                found = replace(other, behind=named[0], damaged=named[1])
    if found is None:
        assert error is not None
        raise error
    if found.behind or found.damaged or step is not None:
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


class _Journals:
    """The journals of a generation, of which those that are lost or excluded are empty."""

    def __init__(self, summaries: Sequence[JournalSummary], damage: Damage) -> None:
        self._summaries, self._damage = summaries, damage
        self._held = held = [summary for summary in summaries if not summary.is_empty]
        self._is_replicated = all(one.is_replicated for one in held)
        self._has_full_records = all(one.has_full_records for one in held)
        self._needs_shards = any(one.is_replicated for one in held) and not self._has_full_records

    def agree(self, step: int | None) -> Agreement:
        """Choose the newest boundary, or that of `step`, to which every rank has a way.

        Raises:
            RecoveryError: there is none.
        """
        held = self._held
        common = set[int].intersection(*(one.list_steps() for one in held)) if held else set[int]()
        has_lost_copies = len(held) < len(self._summaries) and any(one.copies > 1 for one in held)
        for target in sorted(common if step is None else common & {step}, reverse=True):
            counts = [one.count_boundaries(target) for one in held]
            last = min((count for count in counts if count is not None), default=0)
            # A copy holds the state that only the lost rank had at the first boundary of a step, not at the later ones.
            for number in [min(last, 1), last] if has_lost_copies and last > 1 else [last]:
                if (found := self._agree_on(target, number)) is not None:
                    return found
        raise RecoveryError(self._describe_failure(step))

    def _agree_on(self, target: int, number: int) -> Agreement | None:
        """Return the agreement on one boundary; None if some rank cannot reach it."""
        ways, bases = [], []
        for summary in self._summaries:
            way, base = self._find_way(summary, target, number)
            if way is None:
                return None
            ways.append(way)
            bases.append(base)
        newest = max(summary.timeline for summary in self._summaries)
        return Agreement(
            target,
            number,
            tuple(ways),
            tuple(bases),
            newest,
            is_forked=len(self._held) < len(ways) or any(summary.timeline != newest for summary in self._summaries),
            has_full_records=self._has_full_records,
        )

    def _find_way(self, summary: JournalSummary, target: int, number: int) -> tuple[Way | None, BaseCheckpoint | None]:
        """Return how a rank comes to a boundary, and the checkpoint that it loads."""
        own = copies = equal = there = None
        if not summary.is_empty:
            own = self._find_base(summary, target, number)
        else:
            holder = self._find_copy_holder(summary.rank)
            if holder is not None and not holder.is_empty:
                copies = self._find_base(holder, target, number)
            if copies is None and self._are_equal():
                equal = self._find_base(self._held[0], target, number)
            there = equal if equal is not None and equal.ref.step == target else None
            if copies is None and equal is None:
                there = next((base for base in self._list_candidates(summary, target) if base.ref.step == target), None)
        way = choose_way(
            RankFacts(
                has_journal=not summary.is_empty,
                is_reached=own is not None,
                has_copies=copies is not None,
                has_equal=equal is not None and there is None,
                has_checkpoint=there is not None,
                has_trained=any(one.has_stepped for one in self._held),
            )
        )
        return way, own or copies or equal or there

    def _find_base(self, summary: JournalSummary, target: int, number: int) -> BaseCheckpoint | None:
        """Return the newest checkpoint from which a journal leads to the target; of equally new ones, its own."""
        for base in self._list_candidates(summary, target):
            if self._reaches(summary, base, target, number) and self._has_all_shards(base.ref.step, target):
                return base
        return None

    def _list_candidates(self, summary: JournalSummary, target: int) -> list[BaseCheckpoint]:
        """Return the sound checkpoints that a rank may load, the newest first, and its own before equally new ones."""
        found = [BaseCheckpoint(summary.rank, ref) for ref in summary.checkpoints]
        if self._is_replicated and (summary.is_empty or not self._damage.states_differ):
            for one in self._held:
                if one.rank != summary.rank:
                    found += [BaseCheckpoint(one.rank, ref) for ref in one.checkpoints]
        broken = self._damage.checkpoints
        found = [base for base in found if base.ref.step <= target and (base.rank, base.ref.name) not in broken]
        return sorted(found, key=lambda base: -base.ref.step)  # a stable sort

    def _are_equal(self) -> bool:
        """Return True if any rank can replace a lost one: each has the whole state, and the states are known to be equal."""
        if self._damage.states_differ or any(one.is_sharded for one in self._held):
            return False
        if self._is_replicated:
            return self._has_full_records
        return all(not one.is_replicated and one.last_equal_step >= 0 for one in self._held)

    def _reaches(self, summary: JournalSummary, base: BaseCheckpoint, target: int, number: int) -> bool:
        """Return True if the records of a journal lead from a checkpoint to the target."""
        start, ref = base.ref.step, base.ref
        is_own = base.rank == summary.rank
        if is_own and start == target and (number in (0, ref.boundary_number) or summary.count_boundaries(target) is None):
            return True
        damaged = (step for rank, step in self._damage.boundaries if rank == summary.rank)
        if any(start < step <= target or step == target for step in damaged):
            return False  # replay reads every boundary on the way
        for i, log_range in enumerate(summary.ranges):
            if target not in log_range.boundary_counts or not self._is_sound(summary.rank, log_range, start, target):
                continue
            if is_own and i == ref.range_index and (start < target or ref.boundary_number < number):
                return True
            if not is_own and start in log_range.boundary_counts and (start < target or 0 < number >= ref.boundary_number):
                return True
        return False

    def _has_all_shards(self, start: int, target: int) -> bool:
        """Return True if the gradients of the steps from one to another exist in full."""
        if start == target:
            return True
        if any(start < step <= target for _, step in self._damage.shards):
            return False
        return not self._needs_shards or all(self._has_shards(one, start, target) for one in self._summaries)

    def _has_shards(self, summary: JournalSummary, start: int, target: int) -> bool:
        """Return True if a rank's gradient shards of a range of steps exist, in its own journal or as copies."""
        holders = (summary, self._find_copy_holder(summary.rank))
        return any(
            self._is_sound(one.rank, log_range, start, target) for one in holders if one is not None for log_range in one.ranges
        )

    def _find_copy_holder(self, rank: int) -> JournalSummary | None:
        """Return the journal of the preceding rank if it has copies of this rank's shards and state, else None."""
        preceding = self._summaries[(rank - 1) % len(self._summaries)]
        return preceding if preceding.copies > 1 and preceding.rank != rank else None

    def _is_sound(self, rank: int, log_range: LogRange, start: int, target: int) -> bool:
        covers = log_range.after_step <= start and target <= log_range.last_step
        return covers and not any(one == rank and start < step <= target for one, step in self._damage.records)

    def _describe_failure(self, step: int | None) -> str:
        lost = [summary.rank for summary in self._summaries if summary.is_empty]
        what = f"step {step} is not covered on all ranks" if step is not None else "there is no step that all ranks can reach"
        oldest = min((min(one.list_steps()) for one in self._held), default=0)
        pruned = ""
        if step is not None and step < oldest:
            pruned = "; older steps were pruned or are no longer listed: `keep=` sets how many checkpoints are kept"
        gone = f"; the journals of ranks {_list_ranks(lost)} are gone{self._describe_loss()}" if lost else ""
        return f"{what}: {', '.join(_describe_coverage(self._held))}{pruned}{gone}"

    def _describe_loss(self) -> str:
        """Return what is lost with the journals of ranks, and what to do."""
        advice = "Restore these journals (from a store: `tranlogs pull`), or start another run"
        if any(one.is_sharded for one in self._held):
            return f", and with them their shards of weights and optimizer state, which exist nowhere else. {advice}"
        if self._is_replicated:
            return ""
        is_unequal = self._damage.states_differ or any(one.is_replicated for one in self._held)
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


# Generations.


@dataclass(frozen=True, slots=True)
class Generation:
    """Part of a run that one number of processes trained.

    Attributes:
        summaries: one summary for each process; an empty one where the journal is gone.
    """

    first_timeline: int
    world: int
    summaries: tuple[JournalSummary, ...]

    @property
    def held(self) -> list[JournalSummary]:
        """The summaries of the journals that exist."""
        return [summary for summary in self.summaries if not summary.is_empty]

    @property
    def is_replicated(self) -> bool:
        """True if parameters and optimizer state were the same on all ranks."""
        return all(summary.is_replicated for summary in self.held)

    @property
    def is_sharded(self) -> bool:
        """True if parameters were sharded over the ranks."""
        return any(summary.is_sharded for summary in self.summaries)

    @property
    def has_trained(self) -> bool:
        """True if any process took a step after the start of the generation."""
        return len(set().union(*(summary.list_steps() for summary in self.summaries))) > 1


@dataclass(frozen=True, slots=True)
class GroupTarget:
    """Generation and boundary at which all ranks resume.

    Attributes:
        is_newest: False if a later generation is given up.
    """

    generation: Generation
    agreement: Agreement
    is_newest: bool

    def starts_generation(self, world: int, *, is_resharded: bool) -> bool:
        """Return True if a generation starts: the number of processes or the sharding changed, or a newer one is given up."""
        return self.generation.world != world or is_resharded or not self.is_newest

    def get_way(self, rank: int, world: int, *, is_resharded: bool) -> Way:
        """Return how a process comes to the boundary, of those that continue the run."""
        if is_resharded:
            return Way.PARTS
        way = self.agreement.ways[rank] if rank < self.generation.world else Way.NEW
        return Way.NEW if way is Way.BUILT and self.starts_generation(world, is_resharded=False) else way

    def find_donor(self, rank: int, way: Way) -> int:
        """Return the rank whose journal a rank redoes."""
        if way is Way.COPIES:
            return (rank - 1) % self.generation.world
        if way is Way.OWN:
            return rank
        return next(one.rank for one in self.generation.summaries if one.rank not in self.agreement.lost)


def group_by_generation(summaries: Iterable[JournalSummary]) -> list[Generation]:
    """Return the generations of which any journal holds something, the newest first."""
    found: dict[int, dict[int, JournalSummary]] = {}
    for summary in summaries:
        if not summary.is_empty:
            found.setdefault(summary.first_timeline, {}).setdefault(summary.rank, summary)
    generations = []
    for first_timeline, members in sorted(found.items(), reverse=True):
        world = max(summary.world for summary in members.values())
        given = tuple(members.get(rank) or JournalSummary(rank, "", "") for rank in range(world))
        generations.append(Generation(first_timeline, world, given))
    return generations


def choose_target(generations: Sequence[Generation], damage: Damage, step: int | None = None) -> GroupTarget | None:
    """Choose the generation and the boundary at which all ranks resume. Return None if every journal is empty.

    A generation starts with a checkpoint of every process. If a member has no part in it and no member has trained, a crash
    interrupted its start: the one before counts if that reaches as far.

    Raises:
        RecoveryError: there is no boundary that all ranks can reach, or none at `step`.
    """
    found: GroupTarget | None = None
    error: RecoveryError | None = None
    for generation in generations:
        try:
            agreement = agree(generation.summaries, damage, step)
        except RecoveryError as caught:
            error = error or caught
            continue
        assert agreement is not None, "a generation has at least one journal that is not empty"
        if found is None:
            found = GroupTarget(generation, agreement, generation is generations[0])
        elif agreement.step >= found.agreement.step and not agreement.lost:
            return GroupTarget(generation, agreement, False)
        if found.generation.has_trained or not found.agreement.lost:
            break
    if found is None and error is not None:
        raise error
    return found


# What to report.


def describe_lost_journals(agreement: Agreement) -> list[str]:
    """Return what became of the ranks whose journals are lost or end early, one sentence each."""
    notes = []
    for rank in agreement.lost:
        fate = f"the journal of rank {rank} {_describe_fate(rank, agreement)}"
        back = f"all ranks go back to the checkpoint of step {agreement.step}"
        if agreement.ways[rank] is Way.COPIES:
            notes.append(
                f"{fate}: its gradient shards and its own state are restored from the copies of rank "
                f"{(rank - 1) % len(agreement.ways)}, so that no step is lost; its curves are those of that rank"
            )
        elif agreement.ways[rank] is Way.EQUAL:
            notes.append(f"{fate}: the other ranks logged the same, so that no step is lost")
        elif agreement.step and agreement.has_full_records:
            notes.append(f"{fate}, and the states of the other ranks differ: {back}")
        elif agreement.step:
            notes.append(f"{fate}, and with it a gradient shard of every step: {back}")
    for rank, end in agreement.short_journals:
        notes.append(
            f"the journal of rank {rank} ends at step {end}, and those of other ranks reach step {agreement.last_step}: all "
            f"ranks go back to step {agreement.step}"
        )
    return notes


def describe_substitution(step: int, rank: int, donor: int) -> str:
    """Return what differs on a rank whose journal is lost and which redoes the journal of another rank."""
    return (
        f"rank {rank} continues from step {step} with the weights, optimizer state and data position of rank {donor}: all "
        "ranks had the same ones when they were last compared. State that only this rank had is lost: it continues with the "
        f"buffers of rank {donor} and with new random numbers"
    )


def _describe_fate(rank: int, agreement: Agreement) -> str:
    if rank in agreement.damaged:
        return "is damaged, and counts as lost"
    return "ends before those of the other ranks" if rank in agreement.behind else "is gone"
