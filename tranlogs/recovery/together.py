"""Recover one rank of several that train together: all land on the same boundary, or none goes on.

Every rank reads its own journal and tells the others what it holds; from the same facts all come to the same agreement,
without a leader. Damage that one finds on the way is told to all, and they agree anew. Only a `Channel` connects the ranks, so
the same code serves processes (torch.distributed) and a reader that looks at all journals by itself.

There may be another number of processes now than the run was recorded by. Journals without a process are then read by one
that finds them beside its own, and a process without a part in the run redoes what another rank recorded.
"""

from __future__ import annotations

import logging
import secrets
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from ..catalog import CheckpointRow
from ..checkpoint import Checkpoint
from ..codec.entry import EntryKind
from ..errors import CorruptCheckpoint, MissingShare, RecoveryError, UsageError, in_words
from ..wal.entry_writer import Position
from .agreement import Agreement, Base, Damage
from .change import told_of_change, told_of_loss
from .eras import Era, Settled, distinct, eras_of, settle
from .facts import mended
from .history import Link
from .holding import Holding, LocalLog, boundaries, holdings_of, journals_beside, read_eras
from .landing import Attempt, Landing, SharedState
from .plan import Plan, is_later
from .protocol import Spare
from .reach import Channel, Reach, run_id_of
from .recover import DamagedEntry, Noted, Progress, Recovered, carry_out, chunks
from .shares import Shares

_log = logging.getLogger(__name__)

_ATTEMPTS_MAX = 1000
_DAMAGES = ("checkpoints", "records", "landings")


class RankRecovery:
    """Recovers one rank.

    Args:
        folder: the rank's journal.
        rank: of the process, from 0.
        world: how many there are.
        run_id: of the journal.
        state: what is brought back.
        channel: connects the ranks.
        spare: asked for sound copies of what is damaged in the rank's journal, which then take its place.
    """

    def __init__(self, folder: Path, rank: int, world: int, run_id: str, state: SharedState, channel: Channel,
                 spare: Spare | None = None) -> None:  # fmt: skip
        self.folder, self.rank, self.world, self.run_id, self.state, self._channel = folder, rank, world, run_id, state, channel
        self._spare = spare
        self._reach: Reach | None = None
        self._logs: list[LocalLog] = []
        self._kept: dict[int, list[Path]] = {}  # segments of the journals that this process can send to the others
        self._known: list[Holding] = []  # of all journals and eras
        self._settled: Settled | None = None
        self._damage = Damage()
        self._told: list[str] = []  # of damage that was met

    def recover(self, step: int | None = None, progress: Progress | None = None) -> Landing | None:
        """Bring the state to the newest boundary that all ranks can reach (or to `step`). None if the run is fresh.

        Raises:
            StateMismatch: the state does not fit the run.
            RecoveryError: there is no such boundary, or another rank could not recover.
            UsageError: the ranks ask for different steps, or so many processes cannot take up the run.
        """
        self._meet(step)
        with Reach(self.folder, self.rank, self._known, self._channel) as self._reach:
            self._fetch_logs()
            return self._land(step, progress)

    def _fetch_logs(self) -> None:
        assert self._reach is not None
        if any(holding.is_shared for holding in self._known):
            self._reach.fetch_logs(self._kept)

    def _land(self, step: int | None, progress: Progress | None) -> Landing | None:
        assert self._reach is not None
        eras = eras_of(self._known)
        for _ in range(_ATTEMPTS_MAX):
            self._settled = settle(eras, self._damage, step)
            if self._settled is None:
                return None
            self._demand_shared()
            self._reach.fetch_checkpoints(self._foreign())
            attempt, recovered = self._attempt(progress)
            outcomes = self._channel.gather(attempt.packed())
            if attempt.error is not None:
                raise attempt.error
            failed = [f"rank {rank}: {outcome['error']}" for rank, outcome in enumerate(outcomes) if outcome["error"]]
            if failed:
                raise RecoveryError(f"{self.folder.parent}: another rank could not recover: {'; '.join(failed)}")
            if not any(outcome[kind] for outcome in outcomes for kind in _DAMAGES):
                return self._landing(recovered, outcomes, attempt)
            if self._mend(outcomes):
                self._fetch_logs()  # who copied what was damaged has it still
            else:
                self._learn(outcomes)
        raise RecoveryError(f"{self.folder.parent}: too much is damaged to recover; see `tranlogs verify`")

    def _meet(self, step: int | None) -> None:
        """Tell all what each holds."""
        error: Exception | None = None
        mine = [Holding(self.rank, str(self.folder.resolve()), self.run_id)]
        try:
            self._logs = read_eras(self.folder)
            if self._logs and (told := mended(self._spare, self._logs[0].facts.torn_paths)):
                self._told += told
                self._logs = read_eras(self.folder)
            self._kept[self.rank] = _files_of(self._logs)
            mine = holdings_of(self._logs, self.rank, self.folder, self.run_id)
            for rank, folder in self._without_process():
                logs = read_eras(folder)
                theirs = holdings_of(logs, rank, folder, run_id_of(folder) or "")
                mine += [replace(holding, keeper=self.rank) for holding in theirs]
                self._kept[rank] = _files_of(logs)
        except Exception as caught:  # the others wait
            error = caught
        said = self._channel.gather({"holdings": [holding.packed() for holding in mine], "step": step,
                                     "error": in_words(error) if error else ""})  # fmt: skip
        if error is not None:
            raise error
        failed = [f"rank {rank}: {one['error']}" for rank, one in enumerate(said) if one["error"]]
        if failed:
            raise RecoveryError(f"{self.folder.parent}: another rank cannot read its journal: {'; '.join(failed)}")
        if len({one["step"] for one in said}) > 1:
            raise UsageError(f"recover(step=...) must name the same step on all ranks, not {[one['step'] for one in said]}")
        self._known = distinct([Holding.unpacked(packed) for one in said for packed in one["holdings"]])

    def _without_process(self) -> list[tuple[int, Path]]:
        """Journals beside this one of ranks that are none now."""
        return [(rank, folder) for rank, folder in journals_beside(self.folder) if rank >= self.world]

    def _demand_shared(self) -> None:
        era = self._era
        if era.world != self.world and not era.is_shared:
            now = "is 1" if self.world == 1 else f"are {self.world}"
            why = ("each of them has its shards of the weights" if any(holding.is_sharded for holding in era.holdings)
                   else "each of them logged all of its gradients, so that their weights need not be the same")  # fmt: skip
            raise UsageError(f"{self.folder.parent}: {era.world} processes recorded the run, now there {now}, and {why}. "
                             f"Start {era.world}")  # fmt: skip

    @property
    def _era(self) -> Era:
        assert self._settled is not None
        return self._settled.era

    @property
    def _agreement(self) -> Agreement:
        assert self._settled is not None
        return self._settled.agreement

    @property
    def _has_part(self) -> bool:
        """Whether this rank has a journal of what is recovered."""
        return self.rank < self._era.world and self.rank not in self._agreement.lost

    @property
    def _is_begun(self) -> bool:
        """Whether an era begins: with another number of processes, or because a newer one is given up."""
        assert self._settled is not None
        return self._era.world != self.world or not self._settled.is_newest

    @property
    def _is_beside(self) -> bool:
        """Whether this rank's journal is gone, and the rank before has copies of it."""
        return self.rank in self._agreement.beside

    def _donor(self) -> int:
        """Whose journal is redone: one's own, that of the rank before if it has copies of it, or the first that is there."""
        if self._is_beside:
            return (self.rank - 1) % self._era.world
        return self.rank if self._has_part else next(h.rank for h in self._era.holdings if h.rank not in self._agreement.lost)

    def _attempt(self, progress: Progress | None) -> tuple[Attempt, Recovered | None]:
        attempt = Attempt()
        recovered: Recovered | None = None
        agreement, donor = self._agreement, self._donor()
        base = agreement.bases[donor if self._is_newcomer else self.rank]
        assert self._reach is not None
        try:
            self._reach.demand()
            self.state.world = self._era.world
            if not (self._has_part or self._is_newcomer or self._is_beside):
                if base is not None:
                    recovered = self._adopt(base, attempt)
                attempt.has_later = True
            else:
                assert base is not None
                log = self._log_of(donor)
                with Shares(self._peers(donor), self._era.since) as shares:
                    self.state.shares = shares
                    plan = self._plan(log, donor, base)
                    past = self._past(log, plan) if plan.source is not None and plan.links else None
                    recovered = carry_out(self._folder_of(donor), plan, self.state, log.facts.notes, progress, past)
                attempt.has_later = recovered.plan.has_later
                if donor != self.rank:
                    recovered.position = self._beginning(recovered.position.step)
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
        link, error, owner = damage.link, damage.error, self._donor()
        if isinstance(error, MissingShare) and error.step is not None:
            attempt.damage.records.add((error.rank, error.step))
        elif link.kind == EntryKind.BOUNDARY:
            attempt.damage.landings.add((owner, link.step))
        elif link.kind == EntryKind.IMAGE:  # it lies between two steps
            attempt.damage.landings.add((owner, link.step))
            attempt.damage.records.add((owner, link.step + 1))
        else:
            attempt.damage.records.add((owner, link.step))

    def _mend(self, outcomes: Sequence[dict[str, Any]]) -> bool:
        """Put sound copies in the place of what was met as damaged, each rank in its own journal; whether any rank could."""
        damaged = {kind: [item for outcome in outcomes for rank, item in outcome[kind] if rank == self.rank]
                   for kind in _DAMAGES}  # fmt: skip
        steps = {*damaged["records"], *damaged["landings"]}
        paths = [self.folder / "checkpoints" / name for name in damaged["checkpoints"]]
        paths += [segment.path for log in self._logs[:1] for segment in log.facts.segments
                  if any(location.head.step in steps for location in segment.locations)]  # fmt: skip
        told = mended(self._spare, paths)
        if told:
            self._logs = read_eras(self.folder)
            self._kept[self.rank] = _files_of(self._logs)
        mended_anywhere = [text for outcome in self._channel.gather({"mended": told}) for text in outcome.get("mended", ())]
        self._told += mended_anywhere
        return bool(mended_anywhere)

    def _learn(self, outcomes: Sequence[dict[str, Any]]) -> None:
        """Take in what damage the ranks have met."""
        before = len(self._damage)
        self._told += [text for outcome in outcomes for text in outcome["told"]]
        for outcome in outcomes:
            for kind in _DAMAGES:
                getattr(self._damage, kind).update(map(tuple, outcome[kind]))
        if len(self._damage) == before:
            raise RecoveryError(f"{self.folder.parent}: damage that was known was met again; see `tranlogs verify`")

    def _landing(self, recovered: Recovered | None, outcomes: Sequence[dict[str, Any]], attempt: Attempt) -> Landing:
        agreement, era = self._agreement, self._era
        newest = max(holding.timeline for holding in self._known)
        is_new = agreement.is_forked or self._is_begun or any(outcome["has_later"] for outcome in outcomes)
        timeline = newest + is_new
        since = timeline if self._is_begun else era.since
        landing = Landing(recovered, timeline, is_new, since, self._is_begun, era.world != self.world, not self._has_part,
                          doubts=attempt.doubts, notes=self._told)  # fmt: skip
        if self._is_newcomer:
            first = next(holding.run_id for holding in era.holdings if not holding.is_empty)
            landing.newcomer = f"{first} {agreement.step} {self.rank}"
        if landing.is_resized:
            landing.doubts += told_of_change(agreement.step, era.world, self.world)
        if recovered is not None:
            recovered.damaged = tuple(name for rank, name in self._damage.checkpoints if rank == self.rank)
        if self._is_beside:
            landing.beside = self.rank
        landing.notes += told_of_loss(agreement, era.world)
        for rank, outcome in enumerate(outcomes):
            landing.doubts += [text for text in outcome["doubts"] if rank != self.rank]
        digests = {outcome["digest"] for outcome in outcomes if outcome["digest"]}
        if len(digests) > 1:
            raise RecoveryError(f"{self.folder.parent}: the ranks came to different states at step {agreement.step}, which "
                                "must not be: see `tranlogs verify --replay`")  # fmt: skip
        return landing

    # Plans.

    @property
    def _is_newcomer(self) -> bool:
        """Whether the run did not have this rank, or has nothing that was its own."""
        base = self._agreement.bases[self.rank] if self.rank < self._era.world else None
        return not self._has_part and (self.rank >= self._era.world or (base is None and self._is_begun))

    def _plan(self, log: LocalLog, donor: int, base: Base) -> Plan:
        """How the state comes from the journal of `donor` (`log`)."""
        row = self._row(base)
        source = None if base.rank == donor else self._folder_of(base.rank)
        links = self._links(log, donor, base, row)
        timeline = log.facts.timeline
        position = Position(row.sequence, row.step, int(row.chain, 16), timeline)
        if links:
            head = links[-1].location.head
            position = Position(head.sequence, head.step, head.digest, timeline)
        notes = () if source is None else (f"weights and optimizer state were taken from rank {base.rank}'s checkpoint of step "
                                           f"{row.step}",)  # fmt: skip
        return Plan(row, tuple(links), position, is_later(log.history, log.checkpoints, position), notes, source)

    def _beginning(self, step: int) -> Position:
        """Where a journal goes on that does not hold what was redone: behind all that it has, and chained to nothing."""
        facts = self._logs[0].facts
        last = [row.sequence for row in facts.checkpoints]
        last += [location.head.sequence for segment in facts.segments for location in segment.locations[-1:]]
        return Position(max(last, default=0) + 1, step, secrets.randbits(64), 0)

    def _past(self, log: LocalLog, plan: Plan) -> tuple[dict[str, Any], Noted]:
        """What the loop had noted on this rank before the plan's entries: another rank's checkpoint does not know it."""
        for row in reversed(log.checkpoints):
            links = log.history.after(row.sequence, int(row.chain, 16))
            end = next((i for i, link in enumerate(links) if link is plan.links[0]), None)
            if end is None:
                continue
            with suppress(CorruptCheckpoint, DamagedEntry), Checkpoint(self.folder / "checkpoints" / row.name) as checkpoint:
                body = checkpoint.meta()["boundary"]
                noted = [(entry.step, entry.scalars) for _, entries in chunks(links[:end]) for entry in entries
                         if entry.kind == EntryKind.BOUNDARY]  # fmt: skip
                return {key: body[key] for key in ("scalars",) if key in body}, noted
        return {}, []

    def _links(self, log: LocalLog, donor: int, base: Base, row: CheckpointRow) -> list[Link]:
        """The donor's own entries between the base and the landing."""
        runs, target, nth = log.history.runs, self._agreement.step, self._agreement.nth
        if base.rank == donor:
            if row.step == target and (nth in (0, base.anchor.nth) or self._era.holdings[donor].count(target) is None):
                return []
            links = log.history.after(row.sequence, int(row.chain, 16))
        else:
            links = _from_step(runs, row.step, target)
        for run in runs:
            landings = [link for _, link in boundaries(run) if link.step == target]
            if len(landings) >= max(nth, 1) and run[-1] is links[-1]:
                landing = landings[max(nth, 1) - 1]
                return links[: next(i for i, link in enumerate(links) if link is landing) + 1]
        raise AssertionError(f"the agreement on step {target} does not fit the log of rank {donor}")

    def _row(self, base: Base) -> CheckpointRow:
        """What the catalog of the base's owner says of it."""
        for row in self._log_of(base.rank).checkpoints:
            if row.name == base.anchor.name:
                return row
        raise CorruptCheckpoint(self._folder_of(base.rank) / "checkpoints" / base.anchor.name, "it is not there")

    def _adopt(self, base: Base, attempt: Attempt) -> Recovered:
        row = self._row(base)
        others = [found for found in self._foreign() if found != (base.rank, base.anchor.name)]
        sources = [self._folder_of(rank) / "checkpoints" / name for rank, name in [(base.rank, base.anchor.name), *others]]
        attempt.doubts += self.state.adopt(sources, self.rank, is_start=not any(h.has_stepped for h in self._era.holdings))
        position = self._beginning(row.step)
        return Recovered(Plan(row, (), position, True, ()), position, {}, 0, 0.0, 0.0, None, [], [], 0)

    def _foreign(self) -> list[tuple[int, str]]:
        """Checkpoints that some rank loads and another one wrote, by owner and name."""
        agreement, era = self._agreement, self._era
        found = [(base.rank, base.anchor.name) for rank, base in enumerate(agreement.bases) if base and base.rank != rank]
        if agreement.lost or self.world > era.world:  # what was a lost rank's own is in one of them; a newcomer loads any
            found += [(holding.rank, anchor.name) for holding in era.holdings for anchor in holding.anchors
                      if anchor.step == agreement.step]  # fmt: skip
            found += [(base.rank, base.anchor.name) for base in agreement.bases if base]
        return list(dict.fromkeys(found))

    def _peers(self, donor: int) -> dict[int, Path]:
        return {holding.rank: self._folder_of(holding.rank) for holding in self._era.holdings
                if holding.rank != donor and holding.rank not in self._agreement.lost}  # fmt: skip

    def _log_of(self, rank: int) -> LocalLog:
        """What a journal holds of the era; copies of others' grow while ranks recover, so they are read anew."""
        own = [log for log in self._logs if rank == self.rank and log.since == self._era.since]
        return own[0] if own else LocalLog.read(self._folder_of(rank), self._era.since)

    def _folder_of(self, rank: int) -> Path:
        assert self._reach is not None
        return self._reach.folders[rank]


def _files_of(logs: Sequence[LocalLog]) -> list[Path]:
    """The segments of a journal."""
    return [segment.path.resolve() for segment in logs[0].facts.segments]


def _from_step(runs: Sequence[list[Link]], start: int, target: int) -> list[Link]:
    """The entries from the first boundary at a step on, in the run that leads to the target."""
    for run in runs:
        first = 0 if start == 0 and run[0].sequence == 1 else None
        if first is None:
            first = next((i for i, link in boundaries(run) if link.step == start), None)
        if first is not None and run[-1].step >= target:
            return run[first:]
    return []
