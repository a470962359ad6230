"""Recovery of one rank of a group that trains together: all ranks resume at the same boundary, or none continues.

Each rank reads its own journal and sends its summary to the others. From the same summaries all ranks choose the same boundary,
without a leader. Damage that one rank finds on the way is sent to all, and they choose again. Only a `Transport` connects the
ranks, so the same code serves processes (torch.distributed) and a single reader of all journals.

The number of processes may have changed since the run was recorded. A journal whose rank no longer exists is then read by a
process that finds it in the same folder as its own journal. A process without a part in the run redoes the journal of another
rank. If parameters are sharded in another way now, the log of each former rank is compacted into a checkpoint, and each process
reads its parts from these checkpoints (resharding.py).

If training is to compute the newest unit again, all ranks resume one unit before the boundary that they have chosen, or none
does (decision/common_unit.py).
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ...base.errors import CorruptCheckpoint, MissingShard, RecoveryError, UsageError
from ...log.record_format import EntryKind
from ..decoding import DamagedEntry
from ..recover import Progress, Recovered, execute_plan, open_planned_checkpoint
from ..recovery_plan import RecoveryPlan
from ..state_protocol import ReplacementSource
from .common_unit import CommonUnit, FindObstacle
from .decision.agreement import Agreement, BaseCheckpoint, Damage
from .decision.change_notes import describe_lost_journals, describe_resharding, describe_resize, describe_substitution
from .decision.generations import Generation, GroupTarget, choose_target, group_by_generation
from .gradient_shards import GradientShards
from .group_state import GroupState, ReplayedState
from .journal_access import JournalAccess, Transport
from .outcome import DAMAGE_KINDS, GroupRecovered, RankAttempt
from .rank_plan import RankPlanner
from .rank_role import RankRole
from .resharding import Resharding
from .summary.common_history import choose_timeline_ids
from .summary.timeline_ids import extend_timeline_ids
from .summary_exchange import SummaryExchange

_log = logging.getLogger(__name__)

_ATTEMPTS_MAX = 1000


class GroupRecovery:
    """Recovery of one rank of the group.

    Args:
        folder: the rank's journal.
        rank: the rank of this process, from 0.
        world: the number of processes.
        run_id: the id of the journal.
        state: the state to recover.
        transport: connects the ranks.
        spare: source of sound copies that replace damaged files of the rank's journal.
    """

    def __init__(
        self,
        folder: Path,
        rank: int,
        world: int,
        run_id: str,
        state: GroupState,
        transport: Transport,
        spare: ReplacementSource | None = None,
    ) -> None:
        self.folder, self.rank, self.world, self.state = folder, rank, world, state
        self._transport = transport
        self._exchange = SummaryExchange(folder, rank, world, run_id, transport, spare)
        self._access: JournalAccess | None = None
        self._current_role: RankRole | None = None
        self._damage = Damage()
        self._resharding: Resharding | None = None
        self._end: GroupTarget | None = None  # the boundary after which the ranks continue to log
        self._unit: CommonUnit | None = None  # before it, which training is to compute again

    def recover(
        self, step: int | None = None, progress: Progress | None = None, find_obstacle: FindObstacle | None = None
    ) -> GroupRecovered | None:
        """Bring the state to the newest boundary that all ranks can reach, or to `step`. Return None if the run is new.

        Args:
            step: the step to end at; None for the newest boundary.
            progress: called with what is done.
            find_obstacle: given on all ranks or on none, it makes all ranks end one unit before the newest boundary, so that
                training computes that unit again. It is called when a rank has arrived there, and returns why that is not
                possible; all ranks then end at the newest boundary. See `GroupRecovered.obstacle`.

        Raises:
            StateMismatch: the state does not fit the run.
            RecoveryError: there is no such boundary, or another rank could not recover.
            UsageError: the ranks are asked for different steps, or this number of processes cannot continue the run.
        """
        if find_obstacle is not None and step is None:
            self._unit = CommonUnit(self.rank, self.world, find_obstacle, self._transport)
        self._exchange.run(self.state, step)
        with JournalAccess(self.folder, self.rank, self._exchange.summaries, self._transport) as self._access:
            self._fetch_logs()
            return self._recover(step, progress)

    def _fetch_logs(self) -> None:
        assert self._access is not None
        summaries = self._exchange.summaries
        is_any_lost = any(summary.is_empty for summary in summaries)
        if any(one.is_replicated or (is_any_lost and one.last_equal_step >= 0) for one in summaries):
            self._access.fetch_logs(self._exchange.segments)

    def _recover(self, step: int | None, progress: Progress | None) -> GroupRecovered | None:
        """Choose a target and make an attempt, until no rank finds new damage."""
        assert self._access is not None
        generations = group_by_generation(self._exchange.summaries)
        for _ in range(_ATTEMPTS_MAX):
            target = self._choose_target(generations, step)
            if target is None:
                return None
            self._current_role = RankRole(self.rank, self.world, target, frozenset(self._exchange.resharded))
            self._resharding = self._begin_resharding() if self._role.is_resharded else None
            self._check_world()
            self._access.fetch_checkpoints(() if self._role.is_resharded else self._list_foreign_checkpoints())
            self._end = target
            self._aim_before_unit(generations)
            attempt, recovered = self._attempt(progress)
            outcomes = self._transport.gather(attempt.pack())
            self._raise_failures(attempt, outcomes)
            if self._can_differ and len({outcome["digest"] for outcome in outcomes if outcome["digest"]}) > 1:
                self._damage.states_differ = True  # From now on, no rank may replace another.
                self._exchange.notes.append(
                    f"the states of the ranks differed at step {self._agreement.step}, and each rank keeps its own"
                )
            elif not any(outcome[kind] for outcome in outcomes for kind in DAMAGE_KINDS):
                if self._unit is not None and self._unit.is_refused(outcomes):
                    continue
                if self._resharding is not None:
                    position = self._make_planner().new_position(self._agreement.step)
                    recovered = self._resharding.assemble(self.state, position)
                return self._conclude(recovered, outcomes, attempt)
            elif self._replace_damaged(outcomes):
                self._fetch_logs()  # the earlier copies hold the damage
            else:
                self._learn_damage(outcomes)
        raise RecoveryError(f"{self.folder.parent}: too much is damaged to recover; run `tranlogs verify` to list the damage")

    def _aim_before_unit(self, generations: Sequence[Generation]) -> None:
        """Let this attempt end one unit before the boundary that was chosen, if all ranks can compute that unit again."""
        if self._unit is None:
            return
        role = self._unit.choose(generations, self._role, self._make_planner(), self._damage)
        if role is not None:
            assert self._access is not None
            self._current_role = role
            self._access.fetch_checkpoints(self._list_foreign_checkpoints())

    def _choose_target(self, generations: Sequence[Generation], step: int | None) -> GroupTarget | None:
        try:
            return choose_target(generations, self._damage, step)
        except RecoveryError as error:
            abandoned = self._exchange.abandoned
            if not abandoned:
                raise
            advice = "Restore the right journals (from a store: `tranlogs pull`)"
            raise RecoveryError(f"{error}. {'; '.join(abandoned)}. {advice}") from None

    def _raise_failures(self, attempt: RankAttempt, outcomes: Sequence[dict[str, Any]]) -> None:
        if attempt.error is not None:
            raise attempt.error
        failed = [f"rank {rank}: {outcome['error']}" for rank, outcome in enumerate(outcomes) if outcome["error"]]
        if failed:
            raise RecoveryError(f"{self.folder.parent}: another rank could not recover: {'; '.join(failed)}")

    def _check_world(self) -> None:
        """Raise UsageError if this number of processes cannot continue the run."""
        generation, lost = self._generation, self._agreement.lost
        is_replicated, recorded = generation.is_replicated, f"{generation.world} processes recorded the run"
        why = "each of them logged all of its gradients, so that their weights may differ"
        if self._role.is_resharded and generation.world > 1 and not (generation.is_sharded or is_replicated):
            raise UsageError(
                f"{self.folder.parent}: {recorded}, and {why}; now the weights are sharded. Start {generation.world} processes "
                "without sharding"
            )
        if self._role.is_resharded and lost:
            raise UsageError(
                f"{self.folder.parent}: rank {lost[0]} ended before it had written its first checkpoint. Start "
                f"{generation.world} processes with the same sharding as before, or start another run"
            )
        if not self._role.is_resharded and generation.world != self.world and not is_replicated:
            now = "is 1" if self.world == 1 else f"are {self.world}"
            raise UsageError(
                f"{self.folder.parent}: {recorded}, now there {now}, and {why}. Start {generation.world} processes"
            )

    def _begin_resharding(self) -> Resharding:
        assert self._access is not None
        access = self._access
        return Resharding(self.rank, self.world, self._generation, access.folders, access.scratch, self._transport)

    def _make_planner(self) -> RankPlanner:
        assert self._access is not None
        exchange, folders = self._exchange, self._access.folders
        return RankPlanner(self.folder, self.rank, exchange.logs, folders, self._role.target, exchange.unused_timelines)

    @property
    def _role(self) -> RankRole:
        """The part of this rank in the present attempt."""
        assert self._current_role is not None
        return self._current_role

    @property
    def _generation(self) -> Generation:
        return self._role.target.generation

    @property
    def _agreement(self) -> Agreement:
        return self._role.target.agreement

    @property
    def _can_differ(self) -> bool:
        """True if the states of the ranks may differ unnoticed: each rank redoes its own records, which are whole."""
        return not self._damage.states_differ and (self._agreement.has_full_records or bool(self._agreement.lost_with_equals))

    def _attempt(self, progress: Progress | None) -> tuple[RankAttempt, Recovered | None]:
        """Redo what this rank has to redo, and note what damage it meets."""
        attempt = RankAttempt()
        recovered: Recovered | None = None
        agreement, donor, planner = self._agreement, self._role.find_donor(), self._make_planner()
        base = agreement.bases[donor if self._role.is_newcomer else self.rank] if self._resharding is None else None
        assert self._access is not None
        try:
            self._access.raise_error()
            self.state.world = self._generation.world
            if self._resharding is not None:
                for donor in self._resharding.assigned_ranks:
                    base = agreement.bases[donor]
                    assert base is not None
                    self._compact(self._resharding, planner, donor, base, progress, attempt.notes)
            elif self._role.has_part or self._role.is_newcomer or self._role.redoes_copies or self._role.redoes_equal:
                assert base is not None
                recovered = self._redo(planner, donor, base, self.state, progress, attempt.notes)
                if self._unit is not None:
                    attempt.obstacle = self._unit.leave(recovered)
                attempt.has_later = recovered.plan.has_later
                if donor != self.rank:
                    recovered.position = planner.new_position(recovered.position.step)
            else:
                if base is not None:
                    recovered = self._adopt(planner, base, attempt)
                attempt.has_later = True
            is_forced = bool(agreement.lost_with_equals)
            attempt.digest = "" if self._resharding is not None else self.state.digest(is_forced=is_forced)
        except CorruptCheckpoint as error:
            _log.warning("%s", error)
            assert base is not None
            attempt.damage.checkpoints.add((base.rank, base.ref.name))
            attempt.notes.append(str(error))
        except DamagedEntry as damage:
            if str(damage.error) not in attempt.notes:
                _log.warning("%s", damage.error)
            _note_damage(damage, donor, attempt)
            attempt.notes.append(str(damage.error))
        except Exception as error:  # the other ranks wait for this one's answer
            attempt.error = error
        return attempt, recovered

    def _compact(
        self,
        resharding: Resharding,
        planner: RankPlanner,
        donor: int,
        base: BaseCheckpoint,
        progress: Progress | None,
        notes: list[str],
    ) -> None:
        """Get a checkpoint of a former rank at the target. What was damaged is added to `notes`."""
        log, journal = planner.read_log(donor), planner.folders[donor]
        plan = planner.plan(log, donor, base)
        if not plan.links:
            resharding.use_checkpoint(donor, journal, plan, log.facts.notes)
            return
        state = self.state.former_state()
        state.world = self._generation.world
        recovered = self._redo(planner, donor, base, state, progress, notes)
        with open_planned_checkpoint(journal, plan) as checkpoint:
            resharding.compact(donor, state, recovered, checkpoint.manifest)

    def _redo(
        self,
        planner: RankPlanner,
        donor: int,
        base: BaseCheckpoint,
        state: ReplayedState,
        progress: Progress | None,
        notes: list[str],
    ) -> Recovered:
        """Bring a state from a checkpoint to the target by the journal of a rank. What was damaged is added to `notes`."""
        log = planner.read_log(donor)
        first_timeline, unused = self._generation.first_timeline, self._exchange.unused_timelines
        with GradientShards(self._list_peers(planner, donor), first_timeline, unused) as shards:
            state.shards = shards
            try:
                plan = planner.plan(log, donor, base)
                earlier = planner.read_earlier_notes(log, plan) if plan.source is not None and plan.links else None
                return execute_plan(planner.folders[donor], plan, state, log.facts.notes, progress, earlier)
            finally:
                state.shards = None
                notes += shards.notes

    def _adopt(self, planner: RankPlanner, base: BaseCheckpoint, attempt: RankAttempt) -> Recovered:
        """Set this rank's state from other ranks' checkpoints of the step at which all ranks resume."""
        row = planner.read_row(base)
        first = (base.rank, base.ref.name)
        others = [found for found in self._list_foreign_checkpoints() if found != first]
        sources = [planner.folders[rank] / "checkpoints" / name for rank, name in [first, *others]]
        is_start = not any(summary.has_stepped for summary in self._generation.summaries)
        attempt.caveats += self.state.adopt(sources, self.rank, is_start=is_start)
        position = planner.new_position(row.step)
        return Recovered(RecoveryPlan(row, (), position, True, ()), position, {}, 0, 0.0, 0.0, None, [], [], 0)

    def _list_foreign_checkpoints(self) -> list[tuple[int, str]]:
        """Return the checkpoints that some rank loads and another rank wrote, by rank and name."""
        agreement, generation = self._agreement, self._generation
        bases = [(base.rank, base.ref.name) for base in agreement.bases if base]
        found = [(base.rank, base.ref.name) for rank, base in enumerate(agreement.bases) if base and base.rank != rank]
        if agreement.lost or self.world > generation.world:
            # One of the checkpoints at that step may hold state that only a lost rank had. A new rank loads any of them.
            found += [
                (summary.rank, ref.name)
                for summary in generation.summaries
                for ref in summary.checkpoints
                if ref.step == agreement.step
            ]
            found += bases
        return list(dict.fromkeys(found))

    def _list_peers(self, planner: RankPlanner, donor: int) -> dict[int, Path]:
        """Return where to read the journals of the ranks other than the donor."""
        ranks = [one.rank for one in self._generation.summaries if one.rank != donor and one.rank not in self._agreement.lost]
        return {rank: planner.folders[rank] for rank in ranks}

    def _replace_damaged(self, outcomes: Sequence[dict[str, Any]]) -> bool:
        """Replace what was damaged by sound copies, each rank in its own journal. Return True if any rank could."""
        found = {
            kind: [item for outcome in outcomes for rank, item in outcome[kind] if rank == self.rank] for kind in DAMAGE_KINDS
        }
        steps = {*found["records"], *found["boundaries"], *found["shards"]}
        paths = [self.folder / "checkpoints" / name for name in found["checkpoints"]]
        segments = [segment for log in self._exchange.logs[:1] for segment in log.facts.segments]
        paths += [one.path for one in segments if any(location.head.step in steps for location in one.locations)]
        replaced = self._exchange.replace_damaged(paths)
        answers = self._transport.gather({"replaced": replaced})
        notes = [text for answer in answers for text in answer.get("replaced", ())]
        self._exchange.notes += notes
        return bool(notes)

    def _learn_damage(self, outcomes: Sequence[dict[str, Any]]) -> None:
        """Add the damage that all ranks have met."""
        before = len(self._damage)
        self._exchange.notes += [text for outcome in outcomes for text in outcome["notes"]]
        for outcome in outcomes:
            for kind in DAMAGE_KINDS:
                getattr(self._damage, kind).update(map(tuple, outcome[kind]))
        if len(self._damage) == before:
            raise RecoveryError(
                f"{self.folder.parent}: a new plan met damage that was known before; run `tranlogs verify` to list the damage"
            )

    def _conclude(
        self, recovered: Recovered | None, outcomes: Sequence[dict[str, Any]], attempt: RankAttempt
    ) -> GroupRecovered:
        """Return the outcome for this rank.

        Raises:
            RecoveryError: the states of the ranks differ.
        """
        assert self._end is not None
        agreement, generation, summaries = self._end.agreement, self._generation, self._exchange.summaries
        is_new = agreement.is_forked or self._role.starts_generation or any(outcome["has_later"] for outcome in outcomes)
        is_new |= any(summary.has_empty_timeline for summary in summaries)
        timeline = max(summary.timeline for summary in summaries) + is_new
        ids = choose_timeline_ids(generation.summaries)
        result = GroupRecovered(
            recovered,
            timeline,
            is_new,
            first_timeline=timeline if self._role.starts_generation else generation.first_timeline,
            starts_generation=self._role.starts_generation,
            is_resized=generation.world != self.world,
            is_journal_lost=not self._role.has_part,
            is_resharded=self._role.is_resharded,
            timeline_ids=extend_timeline_ids(ids, agreement.step, self._exchange.timeline_id if is_new else ""),
            copied_rank=self.rank if self._role.redoes_copies else -1,
            caveats=attempt.caveats,
            notes=list(dict.fromkeys([*self._exchange.notes, *(text for outcome in outcomes for text in outcome["notes"])])),
            obstacle="" if self._unit is None else self._unit.obstacle,
        )
        if self._role.is_newcomer or self._role.redoes_equal:
            run_id = next(summary.run_id for summary in generation.summaries if not summary.is_empty)
            result.seed = f"{run_id} {agreement.step} {self.rank}"
        if recovered is not None:
            recovered.damaged = tuple(name for rank, name in self._damage.checkpoints if rank == self.rank)
        self._describe_changes(result, outcomes)
        digests = {outcome["digest"] for outcome in outcomes if outcome["digest"]}
        if len(digests) > 1 and (self._role.starts_generation or not self._damage.states_differ):
            raise RecoveryError(
                f"{self.folder.parent}: the states of the ranks differ at step {agreement.step}, although they must be "
                "equal; run `tranlogs verify --replay` to find the first step that differs"
            )
        return result

    def _describe_changes(self, result: GroupRecovered, outcomes: Sequence[dict[str, Any]]) -> None:
        """Add what could not be restored exactly to the outcome, for all ranks."""
        assert self._end is not None
        agreement, generation = self._end.agreement, self._generation
        if result.is_resized:
            result.caveats += describe_resize(agreement.step, generation.world, self.world)
        elif result.is_resharded:
            result.caveats += describe_resharding(agreement.step)
        if self._role.redoes_equal:
            result.caveats += describe_substitution(agreement, self.rank, self._role.find_donor())
        result.notes += describe_lost_journals(agreement, generation.world)
        for rank, outcome in enumerate(outcomes):
            result.caveats += [text for text in outcome["caveats"] if rank != self.rank]


def _note_damage(damage: DamagedEntry, owner: int, attempt: RankAttempt) -> None:
    """Note damage in the journal of a rank, or in the journal of another rank whose shard it needs."""
    link, error = damage.link, damage.error
    if isinstance(error, MissingShard) and error.step is not None:
        attempt.damage.shards.add((error.rank, error.step))
    elif link.kind == EntryKind.BOUNDARY:
        attempt.damage.boundaries.add((owner, link.step))
    elif link.kind == EntryKind.IMAGE:  # an after-image lies between two steps
        attempt.damage.boundaries.add((owner, link.step))
        attempt.damage.records.add((owner, link.step + 1))
    else:
        attempt.damage.records.add((owner, link.step))
