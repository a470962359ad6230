"""The coordinator of a process among several that train one run.

Under DistributedDataParallel gradients are equal on all ranks, so the log of a step is divided among the ranks. If parameters
are sharded, each rank logs its part. All ranks take checkpoints at the same boundary. They decide that together: at the
first step, and then about every tenth boundary, where all ranks are at the same step. Between these they exchange no messages.

Where no tensors are logged, these are the boundaries that are recorded; if steps are long, there are fewer between two of them.
At the end of a loop each rank records its boundary, with a checkpoint, and asks nobody.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch
import xxhash

from tranlogs.base.errors import UnencodableState, UsageError
from tranlogs.ranks import (
    FindObstacle,
    GroupRecovered,
    GroupRecovery,
    OwnJournal,
    ReplacementSource,
    extend_timeline_ids,
    new_timeline_id,
)
from tranlogs.training import CheckpointPolicy, EverySteps, FollowedRung, GroupDecision, Journal, Progress, Rung

from ..ddp.divergence_check import Likeness
from ..ddp.gradient_ranges import GradientDivision, Named, Portion, first_other
from ..ddp.reducer import Reducer, reducers_in
from ..distributed.group_messages import NoteBoard
from ..distributed.process_group import Group, is_there, warn_of_restarts
from ..elastic import lost_rank_state
from ..elastic.neighbour_copies import NeighbourCopies, check_copies
from ..elastic.shard_loading import RecoverableState
from ..elastic.world_size import demand_unused
from ..sharding import fsdp
from ..sharding.shards import describe as describe_shards
from .rank_coordinator import RankCoordinator

_log = logging.getLogger("tranlogs")

_SUM_OF_TWO = 2  # processes: whatever the order, it is the same


def make_coordinator(state: RecoverableState, policy: CheckpointPolicy, rank: int | None, copies: int) -> RankCoordinator:
    """Return the coordinator of this process: of a group if torch.distributed is initialized, else of a single process.

    Raises:
        UsageError: `rank` is not the rank of torch.distributed, or `copies` has no meaning.
    """
    if not is_there():
        check_copies(copies, 1)
        return RankCoordinator(state, rank or 0)
    found = GroupCoordinator(state, policy, copies)
    if rank not in (None, found.rank):
        raise UsageError(f"rank={rank}, but this is rank {found.rank} of torch.distributed; leave the argument out")
    return found


class GroupCoordinator(RankCoordinator):
    """The coordinator of a process among several.

    Its parts (division of gradients, copies, likeness, checkpoints) each have a class; what the boundaries of all ranks
    must agree on comes together here, so it has many attributes.

    Args:
        state: of this process; its modules are looked through for DistributedDataParallel.
        policy: when a checkpoint is due.
        copies: in how many journals each share lies.

    Attributes:
        is_single: False, also if the group has one process.
        rank: of this process, from 0.
        world: number of processes.
    """

    is_single = False

    def __init__(self, state: RecoverableState, policy: CheckpointPolicy, copies: int = 1) -> None:
        self._group = Group()
        super().__init__(state, self._group.rank)
        self.world = self._group.world
        check_copies(copies, self.world)
        self._neighbour_copies = NeighbourCopies(self._group)
        self._likeness = Likeness(self._group.board)
        state.world = self.world
        self._reducers: list[Reducer] = reducers_in(state.modules)
        self._checkpoints = GroupCheckpoints(policy)
        self._notes = CheckpointNotes(self._group.board, self.world)
        self._sharding = describe_shards(state.parameters)
        reduced = bool(self._reducers) and all(r.ddp.process_group.size() == self.world for r in self._reducers)
        self._division = GradientDivision(self._group, self._reducers, copies, self._fall_back)
        self._division.is_active = reduced and not self._sharding
        self._spans_all = reduced or self._has_world_mesh()
        self._stood_at = 0  # step of the last boundary
        self._has_stepped = False  # since that boundary
        self._is_compared = False
        self._has_left = False
        warn_of_restarts(self.rank)

    # What is recorded.

    def describe(self, environment: dict[str, Any]) -> None:
        self._division.environment = environment
        environment |= {"world": self.world, "backend": self._group.backend}
        self._sharding = describe_shards(self._state.parameters)  # those that only an optimizer knows are known by now
        if self._reducers:
            environment["reducers"] = [reducer.describe() for reducer in self._reducers]
            is_reduced = all(map(self._division.is_reduced, self._state.optimizers.items()))
            self._division.is_active &= not self._sharding and is_reduced
            environment["ddp"] = {"is_divided": self._division.is_active, "copies": self.copies}
        if self._sharding:
            environment["sharding"] = self._sharding
            if settings := fsdp.describe(self._state.modules):
                environment["fsdp"] = settings
            self._spans_all |= self._has_world_mesh()

    def _has_world_mesh(self) -> bool:
        """Return True if a parameter is sharded over all processes, which makes them step together."""
        return any(len(mesh["ranks"]) == self.world for mesh in self._sharding.get("meshes", ()))

    def find_caveats(self) -> list[str]:
        if self.copies > 1 and not self._division.is_active:
            raise UsageError(
                "copies=2: here each process logs all of its own gradients, so there are no shares to copy. Leave the "
                "argument out"
            )
        found = [text for reducer in self._reducers for text in reducer.find_hook_doubts()]
        if not self._reducers and not self._sharding:
            found.append(
                f"{self.world} processes train together, but model=... contains no DistributedDataParallel: each process "
                "logs all of its gradients, and steps after a resume may round differently. Give the wrapped model: "
                "model=ddp"
            )
        return found

    # Steps.

    @property
    def copies(self) -> int:
        return self._division.copies

    @property
    def portion(self) -> float:
        return self.copies / self.world if self._division.is_active else 1.0

    def share(self, name: str, optimizer: torch.optim.Optimizer, named: Sequence[Named]) -> list[Portion] | None:
        return self._division.share(name, optimizer, named) if self._is_lockstep() else None

    def _fall_back(self, why: str) -> None:
        """Stop dividing the log, and take a checkpoint, since recovery reads shares up to it."""
        self._division.stop()
        self._checkpoints.demand()
        if self.rank == 0:
            _log.warning("%s: from this step on, each rank logs all of its gradients instead of a share", why)

    def restore_division(self, body: dict[str, Any]) -> None:
        self._likeness.step = body.get("equal", -1)
        if not body.get("ddp", {}).get("is_divided", True):
            self._division.stop()

    def _is_lockstep(self) -> bool:
        """Return True if all ranks pass the same boundaries, so that they may wait for each other there."""
        return self._spans_all and not self._has_left

    # Boundaries.

    def share_rung(self, run: Path, rung: Rung) -> Rung:
        if self._spans_all:
            return rung if rung.overhead is None else FollowedRung(rung.overhead, is_leader=self.rank == 0)
        if not rung.logs_tensors:
            raise UsageError(
                f'{run}: log="inputs" is for processes that record the same boundaries, and {self.recheck_obstacle}. Give the '
                'model, or log="gradients"'
            )
        return Rung(logs_tensors=True)

    def align_rung(self, rung: Rung) -> None:
        if isinstance(rung, FollowedRung):
            rung.begin_as(self.all_gather(rung.propose())[0])

    def demand_question(self) -> None:
        self._checkpoints.demand()

    def decide(
        self, journal: Journal, rung: Rung, *, is_wanted: bool, is_due: bool, is_end: bool, read_digests: Callable[[], bytes]
    ) -> GroupDecision | None:
        self._has_stepped, self._stood_at = journal.step > self._stood_at, journal.step
        if self._has_left:
            return GroupDecision(is_recorded=True)
        if not self._is_lockstep():
            return None
        if self._has_stepped:  # other boundaries may be this rank's alone
            for reducer in self._reducers:
                reducer.note_order()
        checkpoints, logs_tensors = self._checkpoints, rung.logs_tensors
        checkpoints.note_boundary(journal, wanted=is_wanted or rung.wants_checkpoint)
        is_time = self._has_stepped and checkpoints.is_time(journal)
        if journal.is_rechecking:
            return GroupDecision()
        if not is_time:  # Nobody is waited for at the end of a loop: the others may have turns left, or have left it.
            is_end &= not logs_tensors
            return GroupDecision(is_recorded=is_end, takes_checkpoint=is_end and is_wanted, is_alone=is_end)
        digests = read_digests() if logs_tensors else b""
        answers = self._group.gather(
            {
                "due": checkpoints.begin_asking(journal),
                "digests": xxhash.xxh3_64_hexdigest(digests) if digests else "",
                "has": journal.checkpoints.newest_step,
                "records": is_due,
                "seconds": checkpoints.measure_step(journal),
                "rung": rung.propose() if isinstance(rung, FollowedRung) and self.rank == 0 else [],
            }
        )
        checkpoints.space(max(one["seconds"] for one in answers), logs_tensors=logs_tensors)
        journal.holds.set_common_step(min(one["has"] for one in answers), self.world)
        is_any_due = any(one["due"] for one in answers)
        is_taken = self._compare_parameters(journal.step, [one["digests"] for one in answers], is_any_due=is_any_due)
        if is_taken:
            checkpoints.note_taken(journal)
        is_recorded = is_taken or any(one["records"] for one in answers)
        return GroupDecision(is_recorded, is_taken, answers[0]["rung"])

    def _compare_parameters(self, step: int, known: list[str], *, is_any_due: bool) -> bool:
        """Stop dividing the log if ranks differ; return True if all take a checkpoint, as they do then in any case."""
        if self._division.is_active and is_any_due and not all(known):  # it is going to read all of them anyway
            known = self.all_gather(self._state.digest_of_parameters())
        if self._division.is_active and all(known) and len(set(known)) > 1:
            self._fall_back(f"the parameters of rank {first_other(known)} differ from those of rank 0 at step {step}")
            return True
        return is_any_due

    def at_boundary(
        self,
        journal: Journal,
        body: dict[str, Any],
        whole: Callable[[], dict[str, Any]],
        decision: GroupDecision | None,
        read_digests: Callable[[], bytes],
    ) -> None:
        self._state.mirror = {}
        is_lockstep = self._is_lockstep()
        for reducer in self._reducers:
            reducer.demand_no_join()
        if self._reducers:
            body["ddp"] = {
                "orders": [reducer.read_order() for reducer in self._reducers],
                "is_divided": self._division.is_active,
            }
        is_alone = decision is not None and decision.is_alone
        if is_lockstep and self._has_stepped and self.copies > 1 and self._division.is_active and not is_alone:
            body |= self._neighbour_copies.exchange(body)
        if self._has_left or is_alone:
            return
        if not (self._spans_all or self._reducers or self._sharding):
            digests = read_digests()
            body["equal"] = self._likeness.look(journal.step, xxhash.xxh3_64_hexdigest(digests) if digests else "")
        if not self._spans_all:
            self._notes.exchange(journal)
        if decision is not None and decision.takes_checkpoint:
            self.exchange_backups(whole())

    def prepare_checkpoint(self, journal: Journal, whole: dict[str, Any]) -> None:
        if self._is_lockstep():
            self._checkpoints.note_taken(journal)
            self.exchange_backups(whole)

    def exchange_backups(self, whole: dict[str, Any]) -> None:
        """Keep the next rank's auxiliary state in this rank's checkpoint, in case that rank loses its disk. All must call it.

        With copies=2 the auxiliary state is also part of each boundary, so it is added to `whole`. If parameters are sharded, a
        backup would not help: the rank's part of the parameters is stored nowhere else.
        """
        if self._sharding:
            return
        following = (self.rank + 1) % self.world
        try:
            own = lost_rank_state.packed({key: value for key, value in whole.items() if key != "beside"})
        except UnencodableState:  # the journal will meet the same error, and report it
            own = b""
        self._state.mirror = {following: self._group.gather(own)[following]}
        if self.copies > 1 and self._division.is_active:
            whole |= self._neighbour_copies.exchange(whole)

    # Recovery.

    def require_same_settings(self, settings: dict[str, str]) -> None:
        """Refuse settings that differ between ranks, which wait for each other at the same steps. Later calls do nothing.

        Args:
            settings: further settings that must be equal, by name.

        Raises:
            UsageError: they differ; the message names the ranks and their values.
        """
        if self._is_compared:
            return
        self._is_compared = True
        kinds = ["DistributedDataParallel"] * bool(self._reducers) + ["sharded"] * bool(self._sharding)
        mine = {
            "model": " and ".join(kinds) or "neither DistributedDataParallel nor sharded",
            "copies": str(self.copies),
            "checkpoint_every": f"{every} steps" if (every := self._checkpoints.every) else "no number of steps",
            **settings,
        }
        answers = self.all_gather({"settings": mine, "is_lockstep": self._spans_all})
        if not any(one["is_lockstep"] for one in answers):
            return
        names = dict.fromkeys(name for one in answers for name in one["settings"])
        found = {name: [one["settings"].get(name, "none") for one in answers] for name in names}
        apart = [
            f"{name}: rank 0 has {values[0]}, rank {other} has {values[other]}"
            for name, values in found.items()
            if len(set(values)) > 1
            for other in [first_other(values)]
        ]
        if apart:
            raise UsageError(
                f"LoggedOptimizer's settings differ between ranks ({'; '.join(apart)}). Ranks log and take checkpoints "
                "together: give all of them the same settings"
            )

    def recover(
        self,
        journal: Journal,
        read_built: Callable[[], dict[str, Any]],
        step: int | None,
        progress: Progress | None,
        spare: ReplacementSource,
        find_obstacle: FindObstacle | None = None,
    ) -> GroupRecovered | None:
        self.find_caveats()  # refuse what cannot be recovered before anything is changed
        self._state.built = read_built()
        folder, run_id = journal.paths.folder, journal.run.run_id
        demand_unused(folder, self.world)
        try:
            own = OwnJournal(folder, self.rank, self.world, run_id, spare)
            recovery = GroupRecovery(own, self._state, self._group)
            with self._group.waiting_long():
                landing = recovery.recover(step, progress, find_obstacle)
        finally:
            self._state.built = None
        if landing is not None:
            base = 0 if landing.recovered is None else landing.recovered.plan.checkpoint.step
            journal.holds.set_common_step(min(self._group.gather(base)), self.world)
        return landing

    @property
    def recheck_obstacle(self) -> str:
        if self._spans_all:
            return ""
        return (
            "the processes do not wait for each other at each step: model=... holds neither a DistributedDataParallel nor "
            "sharded parameters over all of them"
        )

    def find_unit_obstacle(self, read: Callable[[str], Any]) -> str:
        if read("is_implicit") and (self._sharding or describe_shards(self._state.parameters)):
            return (
                "the loop is one of the script's own, which the run sees only in the forward pass, "
                "where sharded parameters cannot be set back (take the batches from optimizer.batches(...))"
            )
        return ""

    def stand_at(self, step: int) -> None:
        self._stood_at = step

    def restore_reducers(self, body: dict[str, Any], step: int, checkpoint_step: int) -> list[str]:
        self._stood_at = step
        oldest = min(self._group.gather(checkpoint_step))  # a rank that died while it wrote may have an older one
        self._checkpoints.restart(step, oldest)
        mine = body.get("ddp", {}).get("orders", []) if step else []
        found = self._group.gather(mine)
        recorded = max(found, key=lambda orders: len(orders) - orders.count(None) / (len(orders) + 1))
        primed = [reducer.prime(order) for reducer, order in zip(self._reducers, recorded, strict=False)]
        doubts = []
        if any(reducer.had_views for reducer in self._reducers) and self.world & (self.world - 1):
            doubts.append(
                "gradients stayed in views of their buckets (gradient_as_bucket_view=True, without zero_grad() or with "
                "zero_grad(set_to_none=False)), so the first step may divide them differently. Set them to None"
            )
        if all(primed) or self.world == _SUM_OF_TWO:
            return doubts
        return [
            *doubts,
            "the order of the buckets in which gradients are summed was not recorded, so the next steps may round differently",
        ]

    def first_timeline_ids(self) -> dict[str, Any]:
        return {"past": extend_timeline_ids((), 0, self.all_gather(new_timeline_id())[0])}

    def all_gather(self, value: Any) -> list[Any]:
        return list(self._group.gather(value))

    def leave(self) -> None:
        self._has_left = True

    def gather_caveats(self, doubts: list[str]) -> list[str]:
        """Return the caveats of all ranks: the run is exact on all ranks or on none. The last call before training begins."""
        answers = enumerate(self._group.gather(doubts))
        self._group.begin()
        return doubts + [f"rank {rank}: {text}" for rank, texts in answers for text in texts if text not in doubts]


_ASK_STEPS = 10  # how often ranks ask each other whether a checkpoint is due, and whether they are still equal
_ASK_SECONDS = 0.5  # the same where no tensors are logged and steps are long

_NAME = "checkpoint"


class GroupCheckpoints:
    """The schedule of one rank. All ranks ask at the same steps, since the schedule depends only on what all of them know.

    Attributes:
        every: number of steps between two checkpoints; None if the policy is of another kind.
    """

    def __init__(self, policy: CheckpointPolicy) -> None:
        self.every = policy.steps if isinstance(policy, EverySteps) else None
        self._asked_at = self._taken_at = 0  # steps
        self._companions_at = 0  # companion steps when the last checkpoint was taken
        self._is_wanted = self._is_hurried = self._was_suspended = False
        self._steps_apart = _ASK_STEPS
        self._measured = 0, time.perf_counter()  # the step at which all asked last, and when

    def demand(self) -> None:
        """Ask at the next boundary, and take a checkpoint there."""
        self._is_wanted = self._is_hurried = True

    def note_boundary(self, journal: Journal, *, wanted: bool) -> None:
        """Note whether this rank wants a checkpoint, and whether it logs."""
        self._is_wanted |= wanted
        self._was_suspended |= journal.is_suspended

    def is_time(self, journal: Journal) -> bool:
        """Return True if all ranks ask each other at this step."""
        companions = journal.checkpoints.schedule.companion_steps - self._companions_at
        is_over = self.every is not None and journal.step - self._taken_at - companions >= self.every
        is_time = journal.step // self._steps_apart > self._asked_at // self._steps_apart or is_over
        return is_time or self._is_hurried

    def measure_step(self, journal: Journal) -> float:
        """Return how long a step has taken since all asked each other last; 0.0 if there was none."""
        (step, began), now = self._measured, time.perf_counter()
        self._measured = journal.step, now
        return (now - began) / (journal.step - step) if journal.step > step else 0.0

    def space(self, seconds: float, *, logs_tensors: bool) -> None:
        """Choose after how many steps all ask each other again.

        Args:
            seconds: of a step on the slowest rank.
        """
        self._steps_apart = _ASK_STEPS if logs_tensors else max(1, min(_ASK_STEPS, int(_ASK_SECONDS / max(seconds, 1e-9))))

    def begin_asking(self, journal: Journal) -> bool:
        """Return True if this rank needs a checkpoint now."""
        self._asked_at, self._is_hurried = journal.step, False
        has_gap = self._was_suspended and not journal.is_suspended  # what others hold of these steps is of no use without it
        return self._is_wanted or has_gap or journal.is_checkpoint_due()

    def note_taken(self, journal: Journal) -> None:
        """Note that all ranks take a checkpoint at this step."""
        self._taken_at, self._is_wanted, self._was_suspended = journal.step, False, journal.is_suspended
        self._companions_at = journal.checkpoints.schedule.companion_steps

    def restart(self, step: int, checkpoint_step: int) -> None:
        """Go on from a recovery: at `step`, with the newest checkpoint that all ranks have."""
        self._asked_at, self._taken_at = step, checkpoint_step
        self._measured = step, time.perf_counter()


class CheckpointNotes:
    """Exchanges the steps of the ranks' newest checkpoints, and holds what recovery from the oldest one needs.

    A rank may be many steps ahead of another one that dies. All go back to a step that each of them can reach.

    Args:
        board: where the ranks leave notes for each other.
        world: number of ranks.
    """

    def __init__(self, board: NoteBoard, world: int) -> None:
        self._board, self._world = board, world
        self._written_step = -1

    def exchange(self, journal: Journal) -> None:
        """Write and read notes at a boundary, if this rank has a newer checkpoint than at its last note."""
        newest = journal.checkpoints.newest_step
        if newest == self._written_step or not self._board.is_there:
            return
        self._written_step = newest
        with suppress(RuntimeError):  # the process that holds the notes is gone; what is held stays so
            self._board.write(_NAME, str(newest))
            steps = [int(text) for text in self._board.read(_NAME).values()]
            # Nothing is pruned until all ranks have left a note: others may still be at the start.
            journal.holds.set_common_step(min(steps) if len(steps) == self._world else 0, self._world)
