"""Recover one rank of several that train together: all land on the same boundary, or none goes on.

Every rank reads its own journal and tells the others what it holds; from the same facts all come to the same agreement,
without a leader. Damage that one finds on the way is told to all, and they agree anew. Only a `Channel` connects the ranks, so
the same code serves processes (torch.distributed) and a reader that looks at all journals by itself.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from ..catalog import CheckpointRow
from ..checkpoint import Checkpoint
from ..codec.entry import EntryKind
from ..errors import CorruptCheckpoint, MissingShare, RecoveryError, UsageError, in_words
from ..wal.entry_writer import Position
from .agreement import Agreement, Base, Damage, agree
from .history import Link
from .holding import Holding, LocalLog, boundaries
from .plan import Plan, is_later
from .protocol import Recoverable
from .reach import Channel, Reach
from .recover import DamagedEntry, Noted, Progress, Recovered, carry_out, chunks
from .shares import Shares

_log = logging.getLogger(__name__)

_ATTEMPTS_MAX = 1000


class SharedState(Recoverable, Protocol):
    """A state whose records may be shares.

    Attributes:
        shares: where to find the others'; None outside of a recovery.
    """

    shares: Shares | None

    def adopt(self, sources: Sequence[Path], rank: int, *, is_start: bool) -> list[str]:
        """Set all state of a rank whose journal is gone from other ranks' checkpoints of the same step.

        Args:
            sources: folders of checkpoints, the first of which gives what all ranks share.
            rank: whose own part is wanted: one of the checkpoints may have it.
            is_start: whether no step was taken yet: what was built is right for the part that is nowhere.

        Returns:
            What is not as it was, in words.
        """
        ...

    def digest(self) -> str:
        """A digest of what is the same on all ranks; empty where there is no such thing."""
        ...


@dataclass(slots=True)
class Landing:
    """The outcome for one rank.

    Attributes:
        recovered: as of a recovery alone; None if the rank starts as it was built.
        timeline: the number of the timeline on which all go on.
        is_new: whether that timeline is a new one.
        is_adopted: whether the rank's own journal was gone, so that it must begin with a checkpoint.
        doubts: what is not as it was, in words.
        notes: what else should be told.
    """

    recovered: Recovered | None
    timeline: int
    is_new: bool
    is_adopted: bool
    doubts: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


@dataclass(slots=True)
class Attempt:
    """What one rank came to, as it tells the others."""

    damage: Damage = field(default_factory=Damage)
    error: BaseException | None = None
    digest: str = ""
    has_later: bool = False
    doubts: list[str] = field(default_factory=list)
    told: list[str] = field(default_factory=list)  # what was damaged, in words

    def packed(self) -> dict[str, Any]:
        """Plain values, to be sent."""
        damage = {name: sorted(getattr(self.damage, name)) for name in ("checkpoints", "records", "landings")}
        return {**damage, "error": in_words(self.error) if self.error else "", "digest": self.digest, "doubts": self.doubts,
                "told": self.told, "has_later": self.has_later}  # fmt: skip


class RankRecovery:
    """Recovers one rank.

    Args:
        folder: the rank's journal.
        rank: of the process, from 0.
        world: how many there are.
        run_id: of the journal.
        state: what is brought back.
        channel: connects the ranks.
    """

    def __init__(self, folder: Path, rank: int, world: int, run_id: str, state: SharedState, channel: Channel) -> None:
        self.folder, self.rank, self.world, self.run_id, self.state, self._channel = folder, rank, world, run_id, state, channel
        self._reach: Reach | None = None
        self._log: LocalLog | None = None
        self._holdings: list[Holding] = []
        self._damage = Damage()
        self._told: list[str] = []  # of damage that was met

    def recover(self, step: int | None = None, progress: Progress | None = None) -> Landing | None:
        """Bring the state to the newest boundary that all ranks can reach (or to `step`). None if the run is fresh.

        Raises:
            StateMismatch: the state does not fit the run.
            RecoveryError: there is no such boundary, or another rank could not recover.
            UsageError: the ranks ask for different steps, or their number has changed.
        """
        self._meet(step)
        with Reach(self.folder, self.rank, self._holdings, self._channel) as self._reach:
            assert self._log is not None
            if any(holding.is_shared for holding in self._holdings):
                self._reach.fetch_logs(segment.path.resolve() for segment in self._log.facts.segments)
            return self._land(step, progress)

    def _land(self, step: int | None, progress: Progress | None) -> Landing | None:
        assert self._reach is not None
        for _ in range(_ATTEMPTS_MAX):
            agreement = agree(self._holdings, self._damage, step)
            if agreement is None:
                return None
            self._reach.fetch_checkpoints(self._foreign(agreement))
            attempt, recovered = self._attempt(agreement, progress)
            outcomes = self._channel.gather(attempt.packed())
            if attempt.error is not None:
                raise attempt.error
            failed = [f"rank {rank}: {outcome['error']}" for rank, outcome in enumerate(outcomes) if outcome["error"]]
            if failed:
                raise RecoveryError(f"{self.folder.parent}: another rank could not recover: {'; '.join(failed)}")
            if not self._learn(outcomes):
                return self._landing(agreement, recovered, outcomes, attempt)
        raise RecoveryError(f"{self.folder.parent}: too much is damaged to recover; see `tranlogs verify`")

    def _meet(self, step: int | None) -> None:
        """Tell all what each holds."""
        error: Exception | None = None
        holding = Holding(self.rank, str(self.folder.resolve()), self.run_id)
        try:
            self._log = LocalLog.read(self.folder)
            holding = self._log.holding(self.rank, self.folder, self.run_id)
        except Exception as caught:  # the others wait
            error = caught
        said = self._channel.gather({"holding": holding.packed(), "step": step, "error": in_words(error) if error else ""})
        if error is not None:
            raise error
        failed = [f"rank {rank}: {one['error']}" for rank, one in enumerate(said) if one["error"]]
        if failed:
            raise RecoveryError(f"{self.folder.parent}: another rank cannot read its journal: {'; '.join(failed)}")
        if len({one["step"] for one in said}) > 1:
            raise UsageError(f"recover(step=...) must name the same step on all ranks, not {[one['step'] for one in said]}")
        self._holdings = [Holding.unpacked(one["holding"]) for one in said]
        self._demand_same_world()

    def _demand_same_world(self) -> None:
        for holding in self._holdings:
            if not holding.is_empty and holding.world != self.world:
                raise UsageError(
                    f"{self.folder.parent}: rank {holding.rank} recorded a run of {holding.world} processes, now there are "
                    f"{self.world}. Start as many as before: a log cannot be taken up by another number yet"
                )

    def _attempt(self, agreement: Agreement, progress: Progress | None) -> tuple[Attempt, Recovered | None]:
        attempt = Attempt()
        recovered: Recovered | None = None
        base = agreement.bases[self.rank]
        assert self._reach is not None
        try:
            self._reach.demand()
            if self.rank in agreement.lost:
                if base is not None:
                    recovered = self._adopt(agreement, base, attempt)
                attempt.has_later = True
            else:
                assert base is not None
                with Shares(self._peers()) as shares:
                    self.state.shares = shares
                    plan = self._plan(agreement, base)
                    past = self._past(plan) if plan.source is not None and plan.links else None
                    recovered = carry_out(self.folder, plan, self.state, self._notes(), progress, past)
                attempt.has_later = recovered.plan.has_later
            attempt.digest = self.state.digest()
        except CorruptCheckpoint as damage:
            _log.warning("%s", damage)
            assert base is not None
            attempt.damage.checkpoints.add((base.rank, base.anchor.name))
            attempt.told.append(str(damage))
        except DamagedEntry as damage:
            _log.warning("%s", damage.error)
            self._note_damage(damage, attempt)
            attempt.told.append(str(damage.error))
        except Exception as error:  # the others wait for a word
            attempt.error = error
        finally:
            self.state.shares = None
        return attempt, recovered

    def _note_damage(self, damage: DamagedEntry, attempt: Attempt) -> None:
        link, error = damage.link, damage.error
        if isinstance(error, MissingShare) and error.step is not None:
            attempt.damage.records.add((error.rank, error.step))
        elif link.kind == EntryKind.BOUNDARY:
            attempt.damage.landings.add((self.rank, link.step))
        elif link.kind == EntryKind.IMAGE:  # it lies between two steps
            attempt.damage.landings.add((self.rank, link.step))
            attempt.damage.records.add((self.rank, link.step + 1))
        else:
            attempt.damage.records.add((self.rank, link.step))

    def _learn(self, outcomes: Sequence[dict[str, Any]]) -> bool:
        """Whether any rank met damage that was not known."""
        before = len(self._damage)
        self._told += [text for outcome in outcomes for text in outcome["told"]]
        for outcome in outcomes:
            for name in ("checkpoints", "records", "landings"):
                getattr(self._damage, name).update(map(tuple, outcome[name]))
        if not any(outcome[name] for outcome in outcomes for name in ("checkpoints", "records", "landings")):
            return False
        if len(self._damage) == before:
            raise RecoveryError(f"{self.folder.parent}: damage that was known was met again; see `tranlogs verify`")
        return True

    def _landing(self, agreement: Agreement, recovered: Recovered | None, outcomes: Sequence[dict[str, Any]],
                 attempt: Attempt) -> Landing:  # fmt: skip
        is_new = agreement.is_forked or any(outcome["has_later"] for outcome in outcomes)
        is_adopted = self.rank in agreement.lost
        landing = Landing(recovered, agreement.timeline + is_new, is_new, is_adopted, attempt.doubts, self._told)
        if recovered is not None:
            recovered.damaged = tuple(name for rank, name in self._damage.checkpoints if rank == self.rank)
        if agreement.lost and agreement.step:
            ranks = ", ".join(map(str, agreement.lost))
            landing.notes.append(f"the journal of rank {ranks} is gone, and with it a share of every step: all ranks go back "
                                 f"to the checkpoint of step {agreement.step}")  # fmt: skip
        for rank, outcome in enumerate(outcomes):
            landing.doubts += [text for text in outcome["doubts"] if rank != self.rank]
        digests = {outcome["digest"] for outcome in outcomes if outcome["digest"]}
        if len(digests) > 1:
            raise RecoveryError(f"{self.folder.parent}: the ranks came to different states at step {agreement.step}, which "
                                "must not be: see `tranlogs verify --replay`")  # fmt: skip
        return landing

    # Plans.

    def _plan(self, agreement: Agreement, base: Base) -> Plan:
        log = self._log
        assert log is not None
        row = self._row(base)
        source = None if base.rank == self.rank else self._folder_of(base.rank)
        links = self._links(agreement, base, row)
        timeline = log.facts.timeline
        position = Position(row.sequence, row.step, int(row.chain, 16), timeline)
        if links:
            head = links[-1].location.head
            position = Position(head.sequence, head.step, head.digest, timeline)
        notes = () if source is None else (f"weights and optimizer state were taken from rank {base.rank}'s checkpoint of step "
                                           f"{row.step}",)  # fmt: skip
        return Plan(row, tuple(links), position, is_later(log.history, log.checkpoints, position), notes, source)

    def _past(self, plan: Plan) -> tuple[dict[str, Any], Noted]:
        """What the loop had noted on this rank before the plan's entries: another rank's checkpoint does not know it."""
        assert self._log is not None
        for row in reversed(self._log.checkpoints):
            links = self._log.history.after(row.sequence, int(row.chain, 16))
            end = next((i for i, link in enumerate(links) if link is plan.links[0]), None)
            if end is None:
                continue
            with suppress(CorruptCheckpoint, DamagedEntry), Checkpoint(self.folder / "checkpoints" / row.name) as checkpoint:
                body = checkpoint.meta()["boundary"]
                noted = [(entry.step, entry.scalars) for _, entries in chunks(links[:end]) for entry in entries
                         if entry.kind == EntryKind.BOUNDARY]  # fmt: skip
                return {key: body[key] for key in ("scalars",) if key in body}, noted
        return {}, []

    def _links(self, agreement: Agreement, base: Base, row: CheckpointRow) -> list[Link]:
        """This rank's own entries between the base and the landing."""
        assert self._log is not None
        runs, target, nth = self._log.history.runs, agreement.step, agreement.nth
        if base.rank == self.rank:
            if row.step == target and (nth in (0, base.anchor.nth) or self._holdings[self.rank].count(target) is None):
                return []
            links = self._log.history.after(row.sequence, int(row.chain, 16))
        else:
            links = _from_step(runs, row.step, target)
        for run in runs:
            landings = [link for _, link in boundaries(run) if link.step == target]
            if len(landings) >= max(nth, 1) and run[-1] is links[-1]:
                landing = landings[max(nth, 1) - 1]
                return links[: next(i for i, link in enumerate(links) if link is landing) + 1]
        raise AssertionError(f"the agreement on step {target} does not fit the log of rank {self.rank}")

    def _row(self, base: Base) -> CheckpointRow:
        """What the catalog of the base's owner says of it."""
        if base.rank == self.rank:
            assert self._log is not None
            rows = self._log.checkpoints
        else:
            rows = LocalLog.read(self._folder_of(base.rank)).checkpoints
        for row in rows:
            if row.name == base.anchor.name:
                return row
        raise CorruptCheckpoint(self._folder_of(base.rank) / "checkpoints" / base.anchor.name, "it is not there")

    def _adopt(self, agreement: Agreement, base: Base, attempt: Attempt) -> Recovered:
        row = self._row(base)
        others = [found for found in self._foreign(agreement) if found != (base.rank, base.anchor.name)]
        sources = [self._folder_of(rank) / "checkpoints" / name for rank, name in [(base.rank, base.anchor.name), *others]]
        attempt.doubts += self.state.adopt(sources, self.rank, is_start=not any(h.has_stepped for h in self._holdings))
        position = Position(1, row.step, int(self.run_id[:16], 16), 1)
        return Recovered(Plan(row, (), position, True, ()), position, {}, 0, 0.0, 0.0, None, [], [], 0)

    def _notes(self) -> list[str]:
        return list(self._log.facts.notes) if self._log is not None else []

    def _foreign(self, agreement: Agreement) -> list[tuple[int, str]]:
        """Checkpoints that some rank loads and another one wrote, by owner and name."""
        found = [(base.rank, base.anchor.name) for rank, base in enumerate(agreement.bases) if base and base.rank != rank]
        if agreement.lost:  # one of them has what was the lost rank's own
            found += [(holding.rank, anchor.name) for holding in self._holdings for anchor in holding.anchors
                      if anchor.step == agreement.step]  # fmt: skip
        return list(dict.fromkeys(found))

    def _peers(self) -> dict[int, Path]:
        assert self._reach is not None
        return {rank: folder for rank, folder in self._reach.folders.items() if rank != self.rank}

    def _folder_of(self, rank: int) -> Path:
        assert self._reach is not None
        return self._reach.folders[rank]


def _from_step(runs: Sequence[list[Link]], start: int, target: int) -> list[Link]:
    """The entries from the first boundary at a step on, in the run that leads to the target."""
    for run in runs:
        first = 0 if start == 0 and run[0].sequence == 1 else None
        if first is None:
            first = next((i for i, link in boundaries(run) if link.step == start), None)
        if first is not None and run[-1].step >= target:
            return run[first:]
    return []
