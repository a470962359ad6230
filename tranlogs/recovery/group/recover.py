"""Recovery of one rank of a group that trains together: all ranks resume at the same boundary, or none continues.

Each rank reads its own journal and sends its summary to the others. From the same summaries all ranks choose the same boundary,
without a leader (decide.py). Damage that one rank finds on the way is sent to all, and they choose again. Only a `Transport`
connects the ranks; a process that continues a group alone, or reads its journals, is a group of one.

The number of processes may have changed since the run was recorded. A journal whose rank no longer exists is then read by a
process that finds it in the same folder as its own journal. A process without a part in the run redoes the journal of another
rank. If parameters are sharded in another way now, the log of each former rank is compacted into a checkpoint, and each process
reads its parts from these checkpoints (reshard.py).

If training is to compute the newest unit again, all ranks resume one unit before the boundary that they have chosen, or none
does (plan.py). Where the log has no tensors of the newest steps, training computes those again that all ranks have recorded.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from ...base.errors import CorruptCheckpoint, MissingShard, RecoveryError, UsageError, error_text
from ...log.record_format import RecordKind
from ..recover import DamagedRecord, Progress, Recovered, execute_plan, open_planned_checkpoint
from ..recovery_plan import RecoveryPlan
from .decide import (
    Agreement,
    BaseCheckpoint,
    Damage,
    Generation,
    GroupTarget,
    Way,
    choose_target,
    describe_lost_journals,
    describe_substitution,
    group_by_generation,
)
from .exchange import JournalAccess, Known, OwnJournal, Transport, gather, message
from .group_state import GroupState, ReplayedState
from .plan import CommonUnit, FindObstacle, RankPlanner
from .reshard import Resharding, describe_resharding, describe_resize
from .summary import choose_timeline_ids, extend_timeline_ids

_log = logging.getLogger(__name__)

_ATTEMPTS_MAX = 1000


@dataclass(slots=True)
class GroupRecovered:
    """The outcome of a group recovery for one rank.

    Attributes:
        recovered: the recovery of this rank; None if the rank starts with its initial state.
        starts_generation: True if that generation starts now, so that every rank must begin with a checkpoint.
        is_resized: True if it starts because the number of processes has changed.
        is_journal_lost: True if the rank's own journal was lost, so that the rank must begin with a checkpoint.
        is_resharded: True if parameters are sharded in another way. The earlier generation then counts until every rank has a
            checkpoint.
        timeline_ids: the ids of the timelines that lead to the continued run, as they are recorded (summary.py).
        seed: text from which a rank without random state of its own derives one, the same at each attempt; "" for any other
            rank.
        copied_rank: this rank, if its own state is in the boundary of the preceding rank at which it resumed; else -1.
        caveats: what could not be restored exactly, one sentence each.
        obstacle: why no unit is computed again, if that was wanted; "" if one is.
    """

    recovered: Recovered | None
    timeline: int
    is_new: bool
    first_timeline: int
    starts_generation: bool
    is_resized: bool
    is_journal_lost: bool
    is_resharded: bool = False
    timeline_ids: list[list[Any]] = field(default_factory=list)
    seed: str = ""
    copied_rank: int = -1
    caveats: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    obstacle: str = ""


@message
@dataclass(slots=True)
class Attempt:
    """The outcome of one attempt on one rank, which the ranks exchange.

    Attributes:
        error: what ended the attempt; "" if nothing did.
        digest: of the state that should be the same on all ranks; "" if it is not compared.
        has_later: True if the journal holds a boundary or a checkpoint after the target.
        caveats: what could not be restored exactly, one sentence each.
        notes: what was damaged, one sentence each.
        obstacle: why this rank cannot compute the newest unit again; "" if it can, or is not to.
    """

    damage: Damage = field(default_factory=Damage)
    error: str = ""
    digest: str = ""
    has_later: bool = False
    caveats: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    obstacle: str = ""


class GroupRecovery:
    """Recovery of one rank of the group. A process that has read all journals itself gives what is `known` of them."""

    def __init__(self, own: OwnJournal, state: GroupState, transport: Transport, known: Known | None = None) -> None:
        self.rank, self.world, self.state = own.rank, own.world, state
        self._own, self._run = own, own.folder.parent
        self._transport = transport
        self._known = known or Known()
        self._is_known = known is not None
        self._damage = Damage()
        self._unit: CommonUnit | None = None  # which training is to compute again

    def recover(
        self, step: int | None = None, progress: Progress | None = None, find_obstacle: FindObstacle | None = None
    ) -> GroupRecovered | None:
        """Bring the state to the newest boundary that all ranks can reach, or to `step`. Return None if the run is new.

        Args:
            find_obstacle: given on all ranks or on none, it makes all ranks end one unit before the newest boundary, so that
                training computes that unit again. It is called when a rank has arrived there, and returns why that is not
                possible; all ranks then end at the newest boundary. See `GroupRecovered.obstacle`.

        Raises:
            StateMismatch: the state does not fit the run.
            RecoveryError: there is no such boundary, or another rank could not recover.
            UsageError: the ranks are asked for different steps, or this number of processes cannot continue the run.
        """
        if step is None:
            self._unit = CommonUnit(self.rank, self.world, find_obstacle, self._transport)
        if not self._is_known:
            self._known = self._own.open(self._transport, self.state.is_resharded, step)
        with JournalAccess(self._own.folder, self.rank, self._known.summaries, self._transport) as access:
            self._fetch_logs(access)
            return self._recover(access, step, progress)

    def _fetch_logs(self, access: JournalAccess) -> None:
        summaries = self._known.summaries
        is_any_lost = any(summary.is_empty for summary in summaries)
        if any(one.is_replicated or (is_any_lost and one.last_equal_step >= 0) for one in summaries):
            access.fetch_logs(self._known.segments)

    def _recover(self, access: JournalAccess, step: int | None, progress: Progress | None) -> GroupRecovered | None:
        """Choose a target and make an attempt, until no rank finds new damage."""
        generations = group_by_generation(self._known.summaries)
        for _ in range(_ATTEMPTS_MAX):
            end = self._choose_target(generations, step)
            if end is None:
                return None
            work = _Work(self._own, self._known, self.state, access, end)
            self._require_continuable(work)
            access.fetch_checkpoints(() if work.is_resharded else work.list_foreign_checkpoints())
            if self._unit is not None:
                resharded = work.is_resharded
                start = self._unit.choose(generations, end, work.planner, self._damage, is_resharded=resharded)
                if start is not None:
                    work = _Work(self._own, self._known, self.state, access, start)
                    access.fetch_checkpoints(work.list_foreign_checkpoints())
            attempt, recovered, error = work.attempt(progress, self._unit)
            outcomes = gather(self._transport, attempt)
            if error is not None:
                raise error
            if failed := [f"rank {rank}: {one.error}" for rank, one in enumerate(outcomes) if one.error]:
                raise RecoveryError(f"{self._run}: another rank could not recover: {'; '.join(failed)}")
            if self._can_differ(work.agreement) and _count_states(outcomes) > 1:
                self._damage.states_differ = True  # From now on, no rank may replace another.
                self._known.notes.append(
                    f"the states of the ranks differed at step {work.agreement.step}, and each rank keeps its own"
                )
            elif not any(len(one.damage) for one in outcomes):
                if self._unit is not None and self._unit.is_refused([one.obstacle for one in outcomes]):
                    continue
                if work.resharding is not None:
                    position = work.planner.new_position(work.agreement.step)
                    recovered = work.resharding.assemble(self.state, position, self._transport)
                return self._conclude(work, end, recovered, outcomes, attempt)
            elif self._replace_damaged(outcomes):
                self._fetch_logs(access)  # the earlier copies hold the damage
            else:
                self._learn_damage(outcomes)
        raise RecoveryError(f"{self._run}: too much is damaged to recover; run `tranlogs verify` to list the damage")

    def _choose_target(self, generations: Sequence[Generation], step: int | None) -> GroupTarget | None:
        try:
            return choose_target(generations, self._damage, step)
        except RecoveryError as error:
            if not self._known.abandoned:
                raise
            advice = "Restore the right journals (from a store: `tranlogs pull`)"
            raise RecoveryError(f"{error}. {'; '.join(self._known.abandoned)}. {advice}") from None

    def _require_continuable(self, work: _Work) -> None:
        """Raise UsageError if this number of processes cannot continue the run."""
        generation, lost, run = work.generation, work.agreement.lost, self._run
        is_replicated, recorded = generation.is_replicated, f"{generation.world} processes recorded the run"
        why = "each of them logged all of its gradients, so that their weights may differ"
        if work.is_resharded and generation.world > 1 and not (generation.is_sharded or is_replicated):
            raise UsageError(
                f"{run}: {recorded}, and {why}; now the weights are sharded. Start {generation.world} processes "
                "without sharding"
            )
        if work.is_resharded and lost:
            raise UsageError(
                f"{run}: rank {lost[0]} ended before it had written its first checkpoint. Start {generation.world} processes "
                "with the same sharding as before, or start another run"
            )
        if not work.is_resharded and generation.world != self.world and not is_replicated:
            now = "is 1" if self.world == 1 else f"are {self.world}"
            raise UsageError(f"{run}: {recorded}, now there {now}, and {why}. Start {generation.world} processes")

    def _can_differ(self, agreement: Agreement) -> bool:
        """Return True if the states of the ranks may differ unnoticed: each rank redoes its own records, which are whole."""
        return not self._damage.states_differ and (agreement.has_full_records or Way.EQUAL in agreement.ways)

    def _replace_damaged(self, outcomes: Sequence[Attempt]) -> bool:
        """Replace what was damaged by sound copies, each rank in its own journal. Return True if any rank could."""
        found = _join(outcomes)
        steps = {step for rank, step in (*found.records, *found.boundaries, *found.shards) if rank == self.rank}
        paths = [self._own.folder / "checkpoints" / name for rank, name in found.checkpoints if rank == self.rank]
        segments = [segment for log in self._known.logs[:1] for segment in log.facts.segments]
        paths += [one.path for one in segments if any(location.head.step in steps for location in one.locations)]
        replaced = self._own.replace_damaged(self._known, paths)
        notes = [text for one in gather(self._transport, tuple(replaced)) for text in one]
        self._known.notes += notes
        return bool(notes)

    def _learn_damage(self, outcomes: Sequence[Attempt]) -> None:
        """Add the damage that all ranks have met."""
        before = len(self._damage)
        self._known.notes += [text for one in outcomes for text in one.notes]
        self._damage.add(_join(outcomes))
        if len(self._damage) == before:
            raise RecoveryError(
                f"{self._run}: a new plan met damage that was known before; run `tranlogs verify` to list the damage"
            )

    def _conclude(
        self, work: _Work, end: GroupTarget, recovered: Recovered | None, outcomes: Sequence[Attempt], attempt: Attempt
    ) -> GroupRecovered:
        """Return the outcome for this rank. The ranks continue to log after `end`.

        Raises:
            RecoveryError: the states of the ranks differ.
        """
        agreement, generation, summaries = end.agreement, work.generation, self._known.summaries
        computed_to = None if self._unit is None else self._unit.end_step
        end_step = agreement.step if computed_to is None else computed_to
        is_new = agreement.is_forked or work.starts_generation or any(one.has_later for one in outcomes)
        is_new |= any(summary.has_empty_timeline for summary in summaries)
        timeline = max(summary.timeline for summary in summaries) + is_new
        ids = choose_timeline_ids(generation.summaries)
        if _count_states(outcomes) > 1 and (work.starts_generation or not self._damage.states_differ):
            raise RecoveryError(
                f"{self._run}: the states of the ranks differ at step {agreement.step}, although they must be equal; run "
                "`tranlogs verify --replay` to find the first step that differs"
            )
        result = GroupRecovered(
            recovered,
            timeline,
            is_new,
            first_timeline=timeline if work.starts_generation else generation.first_timeline,
            starts_generation=work.starts_generation,
            is_resized=generation.world != self.world,
            is_journal_lost=not work.has_part,
            is_resharded=work.is_resharded,
            timeline_ids=extend_timeline_ids(ids, end_step, self._known.timeline_id if is_new else ""),
            copied_rank=self.rank if work.way is Way.COPIES else -1,
            caveats=attempt.caveats,
            notes=list(dict.fromkeys([*self._known.notes, *(text for one in outcomes for text in one.notes)])),
            obstacle="" if self._unit is None else self._unit.obstacle,
        )
        if work.way in (Way.NEW, Way.EQUAL) or self.rank >= generation.world:
            result.seed = f"{generation.held[0].run_id} {agreement.step} {self.rank}"
        if recovered is not None:
            recovered.damaged = tuple(name for rank, name in self._damage.checkpoints if rank == self.rank)
        if result.is_resized:
            result.caveats += describe_resize(agreement.step, generation.world, self.world)
        elif result.is_resharded:
            result.caveats += describe_resharding(agreement.step)
        if work.way is Way.EQUAL:
            result.caveats.append(describe_substitution(agreement.step, self.rank, work.donor))
        result.notes += describe_lost_journals(agreement)
        if len(outcomes) > 1:
            result.caveats += [text for rank, one in enumerate(outcomes) for text in one.caveats if rank != self.rank]
        return result


class _Work:
    """What one rank does in one attempt to come to a boundary.

    Attributes:
        donor: the rank whose journal it redoes.
    """

    def __init__(self, own: OwnJournal, known: Known, state: GroupState, access: JournalAccess, target: GroupTarget) -> None:
        self.generation, self.agreement = generation, agreement = target.generation, target.agreement
        self._state, self._access = state, access
        self._rank, self._world = rank, world = own.rank, own.world
        is_resized = generation.is_sharded and generation.world != world
        self.is_resharded = generation.first_timeline in known.resharded or is_resized
        self.starts_generation = target.starts_generation(world, is_resharded=self.is_resharded)
        self.way = target.get_way(rank, world, is_resharded=self.is_resharded)
        self.has_part = rank < generation.world and rank not in agreement.lost
        self.donor = target.find_donor(rank, self.way)
        self.planner = RankPlanner(own, known, access.folders, target)
        self.resharding: Resharding | None = None
        if self.is_resharded:
            self.resharding = Resharding(rank, world, generation, access.readable_by, access.scratch)

    def attempt(self, progress: Progress | None, unit: CommonUnit | None) -> tuple[Attempt, Recovered | None, Exception | None]:
        """Redo what this rank has to redo, and note what damage it meets."""
        outcome, recovered, failure = Attempt(), None, None
        donor, way = self.donor, self.way
        base = None if self.resharding is not None else self.agreement.bases[donor if way is Way.NEW else self._rank]
        try:
            self._access.raise_error()
            self._state.world = self.generation.world
            if self.resharding is not None:
                for donor in self.resharding.assigned_ranks:
                    base = self.agreement.bases[donor]
                    assert base is not None
                    self._compact(self.resharding, donor, base, progress, outcome.notes)
            elif way is Way.BUILT:
                outcome.has_later = True
            elif way is Way.CHECKPOINT:
                assert base is not None
                recovered = self._adopt(base, outcome)
                outcome.has_later = True
            else:
                assert base is not None
                recovered = self._redo(donor, base, self._state, progress, outcome.notes)
                if unit is not None:
                    outcome.obstacle = unit.leave(recovered)
                outcome.has_later = recovered.plan.has_later
                if donor != self._rank:
                    recovered.position = self.planner.new_position(recovered.position.step)
            if self.resharding is None:
                outcome.digest = self._state.digest(is_forced=Way.EQUAL in self.agreement.ways)
        except CorruptCheckpoint as error:
            _log.warning("%s", error)
            assert base is not None
            outcome.damage.checkpoints.add((base.rank, base.ref.name))
            outcome.notes.append(str(error))
        except DamagedRecord as damage:
            if str(damage.error) not in outcome.notes:
                _log.warning("%s", damage.error)
            _note_damage(damage, donor, outcome.damage)
            outcome.notes.append(str(damage.error))
        except Exception as error:  # the other ranks wait for this one's answer
            failure = error
            outcome.error = error_text(error)
        return outcome, recovered, failure

    def _compact(
        self, resharding: Resharding, donor: int, base: BaseCheckpoint, progress: Progress | None, notes: list[str]
    ) -> None:
        """Get a checkpoint of a former rank at the target. What was damaged is added to `notes`."""
        log, journal = self.planner.read_log(donor), self.planner.folders[donor]
        plan = self.planner.plan(log, donor, base)
        if not plan.links:
            resharding.use_checkpoint(donor, journal, plan, log.facts.notes)
            return
        state = self._state.former_state()
        state.world = self.generation.world
        recovered = self._redo(donor, base, state, progress, notes)
        with open_planned_checkpoint(journal, plan) as checkpoint:
            resharding.compact(donor, state, recovered, checkpoint.manifest)

    def _redo(
        self, donor: int, base: BaseCheckpoint, state: ReplayedState, progress: Progress | None, notes: list[str]
    ) -> Recovered:
        """Bring a state from a checkpoint to the target by the journal of a rank. What was damaged is added to `notes`."""
        planner = self.planner
        log = planner.read_log(donor)
        with planner.open_shards(donor) as shards:
            state.shards = shards
            try:
                plan = planner.plan(log, donor, base)
                earlier = planner.read_earlier_notes(log, plan) if plan.source is not None and plan.links else None
                return execute_plan(planner.folders[donor], plan, state, log.facts.notes, progress, earlier)
            finally:
                state.shards = None
                notes += shards.notes

    def _adopt(self, base: BaseCheckpoint, outcome: Attempt) -> Recovered:
        """Set this rank's state from other ranks' checkpoints of the step at which all ranks resume."""
        row = self.planner.read_row(base)
        first = (base.rank, base.ref.name)
        others = [found for found in self.list_foreign_checkpoints() if found != first]
        sources = [self.planner.folders[rank] / "checkpoints" / name for rank, name in [first, *others]]
        is_start = not any(summary.has_stepped for summary in self.generation.summaries)
        outcome.caveats += self._state.adopt(sources, self._rank, is_start=is_start)
        position = self.planner.new_position(row.step)
        return Recovered(RecoveryPlan(row, (), position, True, ()), position)

    def list_foreign_checkpoints(self) -> list[tuple[int, str]]:
        """Return the checkpoints that some rank loads and another rank wrote, by rank and name."""
        agreement, generation = self.agreement, self.generation
        bases = [(base.rank, base.ref.name) for base in agreement.bases if base]
        found = [(base.rank, base.ref.name) for rank, base in enumerate(agreement.bases) if base and base.rank != rank]
        if agreement.lost or self._world > generation.world:
            # One of the checkpoints at that step may hold state that only a lost rank had. A new rank loads any of them.
            held = ((summary.rank, ref) for summary in generation.summaries for ref in summary.checkpoints)
            found += [(rank, ref.name) for rank, ref in held if ref.step == agreement.step]
            found += bases
        return list(dict.fromkeys(found))


def _count_states(outcomes: Sequence[Attempt]) -> int:
    """Return the number of states that differ from each other."""
    return len({one.digest for one in outcomes if one.digest})


def _join(outcomes: Sequence[Attempt]) -> Damage:
    """Return the damage that any rank has met."""
    found = Damage()
    for one in outcomes:
        found.add(one.damage)
    return found


def _note_damage(error: DamagedRecord, owner: int, damage: Damage) -> None:
    """Note damage in the journal of a rank, or in the journal of another rank whose shard it needs."""
    link, cause = error.link, error.error
    if isinstance(cause, MissingShard) and cause.step is not None:
        damage.shards.add((cause.rank, cause.step))
    elif error.is_boundary:
        damage.boundaries.add((owner, link.step))
    elif link.kind == RecordKind.IMAGE:  # an after-image lies between two steps
        damage.boundaries.add((owner, link.step))
        damage.records.add((owner, link.step + 1))
    else:
        damage.records.add((owner, link.step))
