"""Recover one rank of several that train together: all land on the same boundary, or none goes on.

Every rank reads its own journal and tells the others what it holds; from the same facts all come to the same agreement,
without a leader. Damage that one finds on the way is told to all, and they agree anew. Only a `Channel` connects the ranks, so
the same code serves processes (torch.distributed) and a reader that looks at all journals by itself.

There may be another number of processes now than the run was recorded by. Journals without a process are then read by one
that finds them beside its own, and a process without a part in the run redoes what another rank recorded. Where parameters
are sharded and their parts lie otherwise now, all journals are redone, each by one process, and the parts dealt out anew.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from ...base.errors import CorruptCheckpoint, MissingShare, RecoveryError, UsageError, error_text
from ...log.record import EntryKind
from ..facts import mended
from ..plan import Plan
from ..protocol import Spare
from ..recover import DamagedEntry, Progress, Recovered, carry_out
from .agreement import Agreement, Base, Damage
from .change_notes import told_of_change, told_of_layout, told_of_likeness, told_of_loss
from .generations import Era, Settled, distinct, eras_of, settle
from .gradient_shards import Shares
from .journal_access import Channel, Reach, run_id_of
from .journal_summary import Holding, LocalLog, holdings_of, journals_beside, read_eras, timelines_in, unused
from .landing import Attempt, Landing, SharedState
from .misplaced_journals import misnamed, strays, told_of_names, told_of_strays
from .rank_plan import Routes
from .resharding import Resharding
from .timeline_ids import gone_on, new_id, newest_past, of_one_past

_log = logging.getLogger(__name__)

_ATTEMPTS_MAX = 1000
_DAMAGES = ("checkpoints", "records", "landings", "shares")


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
        self._parted: list[str] = []  # of journals that hold another past
        self._id = ""  # of the timeline that may be started
        self._relaid: set[int] = set()  # eras whose parts lay otherwise than they do now
        self._resharding: Resharding | None = None
        self._unused: frozenset[int] = frozenset()  # timelines that were begun, and never were

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
        is_any_lost = any(holding.is_empty for holding in self._known)
        if any(holding.is_shared or (is_any_lost and holding.equal >= 0) for holding in self._known):
            self._reach.fetch_logs(self._kept)

    def _land(self, step: int | None, progress: Progress | None) -> Landing | None:
        assert self._reach is not None
        eras = eras_of(self._known)
        for _ in range(_ATTEMPTS_MAX):
            self._settled = self._settle(eras, step)
            if self._settled is None:
                return None
            self._resharding = self._resharded() if self._is_resharded else None
            self._demand_shared()
            self._reach.fetch_checkpoints(() if self._is_resharded else self._foreign())
            attempt, recovered = self._attempt(progress)
            outcomes = self._channel.gather(attempt.packed())
            if attempt.error is not None:
                raise attempt.error
            failed = [f"rank {rank}: {outcome['error']}" for rank, outcome in enumerate(outcomes) if outcome["error"]]
            if failed:
                raise RecoveryError(f"{self.folder.parent}: another rank could not recover: {'; '.join(failed)}")
            if self._can_differ and len({outcome["digest"] for outcome in outcomes if outcome["digest"]}) > 1:
                self._damage.differ = True  # so that no rank stands for another
                where = self._agreement.step
                self._told.append(f"the ranks had other states than each other at step {where}, and each has its own")
                continue
            if not any(outcome[kind] for outcome in outcomes for kind in _DAMAGES):
                if self._resharding is not None:
                    recovered = self._resharding.join(self.state, self._routes().beginning(self._agreement.step))
                return self._landing(recovered, outcomes, attempt)
            if self._mend(outcomes):
                self._fetch_logs()  # who copied what was damaged has it still
            else:
                self._learn(outcomes)
        raise RecoveryError(f"{self.folder.parent}: too much is damaged to recover; see `tranlogs verify`")

    def _settle(self, eras: Sequence[Era], step: int | None) -> Settled | None:
        try:
            return settle(eras, self._damage, step)
        except RecoveryError as error:
            if not self._parted:
                raise
            raise RecoveryError(f"{error}. {'; '.join(self._parted)}. Put the right journals in their place (from a store: "
                                "`tranlogs pull`)") from None  # fmt: skip

    def _meet(self, step: int | None) -> None:
        """Tell all what each holds."""
        error: Exception | None = None
        names: list[list[Any]] = []
        mine = [Holding(self.rank, str(self.folder.resolve()), self.run_id)]
        self._unused = unused(self._channel.gather(self._timelines()))
        try:
            mine = self._read()
            names = misnamed([] if mine[0].is_empty else [(self.rank, self.folder)])
        except Exception as caught:  # the others wait
            error = caught
        there = [log for log in self._logs if not log.is_empty]  # a journal that was lost tells nothing
        relaid = [log.since for log in there if self.state.is_relaid(log.recorded.get("sharding", {}))]
        said = self._channel.gather({"holdings": [holding.packed() for holding in mine], "names": names, "step": step,
                                     "relaid": relaid, "id": new_id(),
                                     "error": error_text(error) if error else ""})  # fmt: skip
        if error is not None:
            raise error
        failed = [f"rank {rank}: {one['error']}" for rank, one in enumerate(said) if one["error"]]
        if failed:
            raise RecoveryError(f"{self.folder.parent}: another rank cannot read its journal: {'; '.join(failed)}")
        if len({one["step"] for one in said}) > 1:
            raise UsageError(f"recover(step=...) must name the same step on all ranks, not {[one['step'] for one in said]}")
        if swapped := told_of_names(name for one in said for name in one["names"]):
            raise RecoveryError(f"{self.folder.parent}: {swapped}")
        self._relaid, self._id = {since for one in said for since in one["relaid"]}, said[0]["id"]
        self._know(distinct([Holding.unpacked(packed) for one in said for packed in one["holdings"]]))

    def _timelines(self) -> dict[str, list[int]]:
        """Those of which this process's journals hold anything, and those that were only begun."""
        found: dict[str, list[int]] = {"used": [], "empty": []}
        with suppress(Exception):  # it is met again where they are read
            for folder in (self.folder, *(folder for _, folder in self._without_process())):
                for kind, numbers in timelines_in(folder).items():
                    found[kind] += numbers
        return found

    def _read(self) -> list[Holding]:
        """What this rank's journal holds, and those beside it that have no process."""
        self._logs = read_eras(self.folder, self._unused)
        if self._logs and (told := mended(self._spare, self._logs[0].facts.torn_paths)):
            self._told += told
            self._logs = read_eras(self.folder, self._unused)
        self._kept[self.rank] = _files_of(self._logs)
        mine = holdings_of(self._logs, self.rank, self.folder, self.run_id, self._unused)
        for rank, folder in self._without_process():
            logs = read_eras(folder, self._unused)
            theirs = holdings_of(logs, rank, folder, run_id_of(folder) or "", self._unused)
            mine += [replace(holding, keeper=self.rank) for holding in theirs]
            self._kept[rank] = _files_of(logs)
        return mine

    def _know(self, holdings: list[Holding]) -> None:
        """Take in what all hold.

        Raises:
            RecoveryError: it is of several runs, or a journal that is missing lies with the process of another rank. Nothing is
                begun anew then.
        """
        eras = eras_of(holdings)
        needed = min(self.world, eras[0].world) if eras else self.world
        missing = set(range(needed)) - {holding.rank for holding in holdings if not holding.is_empty}
        said = self._channel.gather({"strays": strays(self.folder, missing)}) if missing else ()
        if told := told_of_strays((rank, stray) for rank, one in enumerate(said) for stray in one["strays"]):
            raise RecoveryError(f"{self.folder.parent}: {told}")
        try:
            self._known, self._parted = of_one_past(holdings)
        except RecoveryError as error:
            raise RecoveryError(f"{self.folder.parent}: {error}") from None
        self._told += self._parted

    def _without_process(self) -> list[tuple[int, Path]]:
        """Journals beside this one of ranks that are none now."""
        return [(rank, folder) for rank, folder in journals_beside(self.folder) if rank >= self.world]

    def _demand_shared(self) -> None:
        era, agreement = self._era, self._agreement
        if self._is_resharded and era.world > 1 and not (era.is_sharded or era.is_shared):
            raise UsageError(f"{self.folder.parent}: {era.world} processes recorded the run, and each of them logged all its "
                             "gradients, so that their weights need not be the same; now these are sharded. "
                             f"Start {era.world}, not sharded")  # fmt: skip
        if self._is_resharded and agreement.lost:
            raise UsageError(f"{self.folder.parent}: rank {agreement.lost[0]} ended before it had written what it began with. "
                             f"Start {era.world}, as before, or begin another run")  # fmt: skip
        if not self._is_resharded and era.world != self.world and not era.is_shared:
            now = "is 1" if self.world == 1 else f"are {self.world}"
            raise UsageError(f"{self.folder.parent}: {era.world} processes recorded the run, now there {now}, and each of them "
                             "logged all of its gradients, so that their weights need not be the same. "
                             f"Start {era.world}")  # fmt: skip

    @property
    def _is_resharded(self) -> bool:
        """Whether the parts of the parameters lie otherwise than they did."""
        era = self._era
        return era.since in self._relaid or (era.is_sharded and era.world != self.world)

    def _resharded(self) -> Resharding:
        assert self._reach is not None
        return Resharding(self.rank, self.world, self._era, self._reach.folders, self._channel)

    def _routes(self) -> Routes:
        assert self._reach is not None
        assert self._settled is not None
        return Routes(self.folder, self.rank, self._logs, self._reach.folders, self._settled, self._unused)

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
        """Whether an era begins: with another number of processes, or other parts, or because a newer one is given up."""
        assert self._settled is not None
        return self._era.world != self.world or self._is_resharded or not self._settled.is_newest

    @property
    def _can_differ(self) -> bool:
        """Whether ranks may have come to differ, unnoticed so far: each has all that it needs of its own."""
        return not self._damage.differ and (self._agreement.is_whole or bool(self._agreement.alike))

    @property
    def _is_alike(self) -> bool:
        """Whether this rank's journal is gone, and what another one redoes is the same."""
        return self.rank in self._agreement.alike

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
        agreement, donor, routes = self._agreement, self._donor(), self._routes()
        base = agreement.bases[donor if self._is_newcomer else self.rank] if self._resharding is None else None
        assert self._reach is not None
        try:
            self._reach.demand()
            self.state.world = self._era.world
            if self._resharding is not None:
                for donor in self._resharding.mine:
                    base, part = agreement.bases[donor], self.state.part()
                    assert base is not None
                    part.world = self._era.world
                    self._resharding.add(donor, part, self._redo(routes, donor, base, part, progress))
            elif not (self._has_part or self._is_newcomer or self._is_beside or self._is_alike):
                if base is not None:
                    recovered = self._adopt(routes, base, attempt)
                attempt.has_later = True
            else:
                assert base is not None
                recovered = self._redo(routes, donor, base, self.state, progress)
                attempt.has_later = recovered.plan.has_later
                if donor != self.rank:
                    recovered.position = routes.beginning(recovered.position.step)
            attempt.digest = "" if self._resharding is not None else self.state.digest(anyway=bool(agreement.alike))
        except CorruptCheckpoint as damage:
            _log.warning("%s", damage)
            assert base is not None
            attempt.damage.checkpoints.add((base.rank, base.anchor.name))
            attempt.told.append(str(damage))
        except DamagedEntry as damage:
            _log.warning("%s", damage.error)
            _note_damage(damage, donor, attempt)
            attempt.told.append(str(damage.error))
        except Exception as error:  # the others wait for a word
            attempt.error = error
        return attempt, recovered

    def _redo(self, routes: Routes, donor: int, base: Base, state: SharedState, progress: Progress | None) -> Recovered:
        """Bring a state from a checkpoint to where all land, by the journal of a rank."""
        log = routes.log_of(donor)
        with Shares(self._peers(routes, donor), self._era.since, self._unused) as state.shares:
            try:
                plan = routes.plan(log, donor, base)
                past = routes.past(log, plan) if plan.source is not None and plan.links else None
                return carry_out(routes.folder_of(donor), plan, state, log.facts.notes, progress, past)
            finally:
                state.shares = None

    def _mend(self, outcomes: Sequence[dict[str, Any]]) -> bool:
        """Put sound copies in the place of what was met as damaged, each rank in its own journal; whether any rank could."""
        damaged = {kind: [item for outcome in outcomes for rank, item in outcome[kind] if rank == self.rank]
                   for kind in _DAMAGES}  # fmt: skip
        steps = {*damaged["records"], *damaged["landings"], *damaged["shares"]}
        paths = [self.folder / "checkpoints" / name for name in damaged["checkpoints"]]
        paths += [segment.path for log in self._logs[:1] for segment in log.facts.segments
                  if any(location.head.step in steps for location in segment.locations)]  # fmt: skip
        told = mended(self._spare, paths)
        if told:
            self._logs = read_eras(self.folder, self._unused)
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
        is_new |= any(holding.is_torn for holding in self._known)
        timeline = newest + is_new
        since = timeline if self._is_begun else era.since
        landing = Landing(recovered, timeline, is_new, since, self._is_begun, era.world != self.world, not self._has_part,
                          self._is_resharded, doubts=attempt.doubts, notes=self._told)  # fmt: skip
        landing.past = gone_on(newest_past(era.holdings), agreement.step, self._id if is_new else "")
        if self._is_newcomer or self._is_alike:
            first = next(holding.run_id for holding in era.holdings if not holding.is_empty)
            landing.newcomer = f"{first} {agreement.step} {self.rank}"
        if landing.is_resized:
            landing.doubts += told_of_change(agreement.step, era.world, self.world)
        elif self._is_resharded:
            landing.doubts += told_of_layout(agreement.step)
        if recovered is not None:
            recovered.damaged = tuple(name for rank, name in self._damage.checkpoints if rank == self.rank)
        if self._is_beside:
            landing.beside = self.rank
        if self._is_alike:
            landing.doubts += told_of_likeness(agreement, self.rank, self._donor())
        landing.notes += told_of_loss(agreement, era.world)
        for rank, outcome in enumerate(outcomes):
            landing.doubts += [text for text in outcome["doubts"] if rank != self.rank]
        digests = {outcome["digest"] for outcome in outcomes if outcome["digest"]}
        if len(digests) > 1 and (self._is_begun or not self._damage.differ):
            raise RecoveryError(f"{self.folder.parent}: the ranks came to different states at step {agreement.step}, which "
                                "must not be: see `tranlogs verify --replay`")  # fmt: skip
        return landing

    @property
    def _is_newcomer(self) -> bool:
        """Whether the run did not have this rank, or has nothing that was its own."""
        base = self._agreement.bases[self.rank] if self.rank < self._era.world else None
        return not self._has_part and (self.rank >= self._era.world or (base is None and self._is_begun))

    def _adopt(self, routes: Routes, base: Base, attempt: Attempt) -> Recovered:
        row = routes.row(base)
        others = [found for found in self._foreign() if found != (base.rank, base.anchor.name)]
        sources = [routes.folder_of(rank) / "checkpoints" / name for rank, name in [(base.rank, base.anchor.name), *others]]
        attempt.doubts += self.state.adopt(sources, self.rank, is_start=not any(h.has_stepped for h in self._era.holdings))
        position = routes.beginning(row.step)
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

    def _peers(self, routes: Routes, donor: int) -> dict[int, Path]:
        return {holding.rank: routes.folder_of(holding.rank) for holding in self._era.holdings
                if holding.rank != donor and holding.rank not in self._agreement.lost}  # fmt: skip


def _files_of(logs: Sequence[LocalLog]) -> list[Path]:
    """The segments of a journal."""
    return [segment.path.resolve() for segment in logs[0].facts.segments]


def _note_damage(damage: DamagedEntry, owner: int, attempt: Attempt) -> None:
    """Note what was met in the journal of a rank, or of another whose share it needs."""
    link, error = damage.link, damage.error
    if isinstance(error, MissingShare) and error.step is not None:
        attempt.damage.shares.add((error.rank, error.step))
    elif link.kind == EntryKind.BOUNDARY:
        attempt.damage.landings.add((owner, link.step))
    elif link.kind == EntryKind.IMAGE:  # it lies between two steps
        attempt.damage.landings.add((owner, link.step))
        attempt.damage.records.add((owner, link.step + 1))
    else:
        attempt.damage.records.add((owner, link.step))
