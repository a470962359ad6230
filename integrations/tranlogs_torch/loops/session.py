"""One training run in this process: its journal, its optimizers, what is tracked, and the boundary protocol.

A boundary is the moment when the loop asks for its next batch. All since the last one (none, one or many steps, of one
or several optimizers) commits as one unit, with the auxiliary state read there. A batch after which gradients are still
being accumulated commits nothing: recovery goes back to the boundary before, since a loop cannot be re-entered there.
"""

from __future__ import annotations

import atexit
import logging
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import DataLoader

from tranlogs.base.config import JournalConfig
from tranlogs.base.errors import LogUnavailable, NotRecovered, RecoveryError, UsageError
from tranlogs.journal import Journal, JournalPaths
from tranlogs.journal.embedded_monitor import start_beside, store_of
from tranlogs.journal.process.shutdown import GRACE_SECONDS, OnSignal, Parting, checked
from tranlogs.journal.process.takeover import end_beyond, is_wanted
from tranlogs.log.layout import Payload
from tranlogs.log.writer import Tensor
from tranlogs.recovery import RecoveryReport
from tranlogs.recovery.group.landing import Landing
from tranlogs.recovery.group.timeline_ids import gone_on, new_id
from tranlogs.recovery.progress import progress_bar
from tranlogs.recovery.recover import Progress, Recovered, recover
from tranlogs.recovery.verdict import report_of
from tranlogs.retention import Monitor, as_policy, as_retention
from tranlogs.shipping import ReplacementSource, fetch_missing_journal, start_shipping
from tranlogs.training.looks import Place

from ..capture.foreign_writes import ForeignWrites
from ..capture.optimizer_hooks import Member
from ..capture.staging import Staging
from ..data.position import Epoch, LoaderPosition
from ..data.rng import get_rng
from ..distributed import Together, is_of_many, recover_alone, settle_in
from ..distributed.process_group import demand_group
from ..interop import Built, Start, StartFrom, find_start
from ..sharding import fsdp
from ..sharding.shards import array_of, local
from ..sharding.zero_optimizer import bring_in
from ..state import environment, naming
from ..state.auxiliary import Auxiliary
from ..state.backup import Remembered
from ..state.caveats import caveats, verdict
from ..state.fingerprint import Digests, Mode
from ..state.scalars import ScalarHistory
from ..state.state import TorchState
from ..tensors import arrays
from .user_loop import PlainLoops

_log = logging.getLogger("tranlogs")


class Session:
    """See the module. `LoggedOptimizer` makes one and shares it with `also`."""

    def __init__(self, run: str | Path, models: naming.Models, *, checkpoint_every: Any, keep: Any, durability: str,
                 fingerprint: Mode, rank: int | None, segment_bytes: int | None, handover: str | None,
                 on_cuda: bool, worker_seeds: str | None = None, monitor: Monitor | None = None,
                 store: str | None = None, copies: int = 1, on_signal: OnSignal | None = "seal", grace: float = GRACE_SECONDS,
                 take_over: bool | None = None) -> None:  # fmt: skip
        self.run, self._grace = Path(run), checked(on_signal, grace)
        demand_group(self.run)  # before a journal is opened: all would open that of rank 0, and be told to take it over
        settings: dict[str, Any] = {"durability": durability, "handover": handover or ("thread" if on_cuda else "direct")}
        if segment_bytes is not None:
            settings["segment_bytes"] = segment_bytes
        config, policy, retention = JournalConfig(**settings), as_policy(checkpoint_every), as_retention(keep)
        self._durability = durability
        self.modules = naming.as_modules(models)
        fsdp.tell_places(self.modules)
        self.members: dict[str, Member] = {}
        self.state = TorchState(self.modules, {}, self._set_auxiliary, fingerprint=fingerprint)
        self.plain = PlainLoops(self)
        self.auxiliary = Auxiliary(self.state, self.boundary, self._opening, self._doubt, self.plain.adopt, worker_seeds)
        self.writes = ForeignWrites(self.state, self.members, self._found_late)
        self.environment: dict[str, Any] = {}  # filled with the optimizers, before anything is written
        self.together = Together.of(self.state, policy, rank, copies)
        rank = (rank or 0) if self.together is None else self.together.rank
        if self.together is not None:
            self.together.watch_join(self._leave_join)
        with progress_bar() as progress:
            url, is_own = store_of(monitor, store)
            has_come = fetch_missing_journal(url, JournalPaths.of(run, rank), progress) is not None
            left = 1 if self.together is None else self.together.world
            while rank == 0 and has_come:  # those of ranks that are none now hold their shares
                has_come = fetch_missing_journal(url, JournalPaths.of(run, left), progress) is not None
                left += 1
        self.journal = Journal.open(run, rank=rank, framework="torch", environment=self.environment, config=config,
                                    policy=policy, retention=retention,
                                    take_over=self._grace if is_wanted(take_over) else None)  # fmt: skip
        if rank == 0 and is_wanted(take_over):
            end_beyond(self.run, 1 if self.together is None else self.together.world, self._grace)
        self.journal.adapt = arrays.adapt
        self.monitor = start_beside(monitor, self.journal.paths)
        self.shipping = start_shipping(url if is_own else None, self.journal.paths)
        self.spare = ReplacementSource(self.journal.paths, url)
        self._parting = Parting(self.journal, self.shipping.wait, on_signal, grace)
        self.staging = Staging() if config.handover == "thread" else None
        if self.staging is not None:
            self.state.convert = self.staging.to_array
        self.shells: dict[str, Any] = {}
        self.scalars = ScalarHistory()
        self.steps_since_boundary = 0  # steps and after-images
        self._taken_at_boundary: dict[str, int] = {}
        self._has_begun = self._has_reserved = self._has_said_unlogged = False
        self.loops: list[object] = []  # loops of ours that are running, the outermost first
        self._remembered: Remembered | None = None  # the state, while code per epoch runs again for finished epochs
        self._has_said_nested = False
        self._wants_checkpoint = False
        self._implicit: dict[str, Any] | None = None  # after a step in a loop of the user's own: random state, and buffers
        self._is_forward_seen = True
        self._boundary_at = time.perf_counter()
        self._landed: dict[str, Any] = {}  # the boundary that recovery landed on
        self._report: RecoveryReport | None = None
        self._recovered: tuple[Recovered, float] | None = None  # and the seconds that it took
        self._origin_told: list[str] | None = None  # of what a fresh run started from
        self._doubts: list[tuple[str, bool]] = []  # what of the data cannot be brought back, and whether it is wrong
        self._handles = [m.register_forward_pre_hook(_ForwardHook(self._before_forward)) for m in self.modules.values()]
        atexit.register(self._at_exit)

    # Putting the run together.

    def add(self, member: Member) -> None:
        """Add an optimizer under its name."""
        if self._has_begun:
            raise UsageError(f"optimizer {member.name!r}: add it before recover() and before the first step")
        if member.name in self.members:
            raise UsageError(f"the run has an optimizer {member.name!r} already; give another name")
        mine = {id(p) for p in naming.named_parameters(self.modules).values()}
        if mine and not any(id(p) in mine for group in member.outer.param_groups for p in group["params"]):
            raise UsageError(f"optimizer {member.name!r} trains no parameter of model=...: give the module that it trains")
        self.members[member.name] = member
        self.state.optimizers[member.name] = member.inner
        if member.outer is not member.inner:
            self.state.outers[member.name] = member.outer
        self.state.refresh()
        self._describe()

    def _describe(self) -> None:
        """What the rounding depends on, as it is now: a script may set its threads after it made the optimizer."""
        self.environment.update(environment.describe(self.state.optimizers))
        if self.together is not None:
            self.together.describe(self.environment)

    def _demand_alike(self) -> None:
        """Refuse settings that differ between processes which train together."""
        if self.together is not None:
            logs = {f"log of optimizer {name!r}": member.log for name, member in self.members.items()}
            self.together.demand_alike({"durability": self._durability, **logs})

    def track(self, **things: Any) -> None:
        """Track loaders and anything with state_dict / load_state_dict; refuse what cannot be stored."""
        for name, thing in things.items():
            self.auxiliary.track(name, thing)
        if self._recovered is not None and self.auxiliary.has_landed:  # what was told to be missing may be there now
            self._report = self._told(*self._recovered)

    # Recovery.

    def recover(self, step: int | None = None, progress: Progress | None = None,
                start_from: StartFrom | str | Path | None = None) -> RecoveryReport:  # fmt: skip
        """Bring everything back to the newest boundary, or to `step`; a fresh run starts from what is given or was imported."""
        if self._has_begun:
            if self._report is not None and self.steps_since_boundary == 0 and self.journal.step == self._report.step:
                return self._report  # a notebook cell run twice
            raise UsageError("recover() must come before the first step")
        demand_group(self.run, was_alone=self.together is None)
        start = time.monotonic()
        fsdp.reshard(self.modules)  # what was gathered from the shards before is not what they are going to be
        self.state.refresh()  # a group may have been added since
        landing: Landing | None = None
        origin = find_start(self.run, start_from)
        self._demand_alike()
        if step is not None:
            self.journal.hold()
        if self.together is not None:
            self.together.demand_same_start(origin.identity if origin else "", is_fresh=self.journal.is_fresh)
        if origin is not None and self.journal.is_fresh and origin.identity:
            self._load(origin, progress)  # what others have of a journal that was lost comes over it
        if self.together is None:
            if is_of_many(self.journal.paths.folder):
                landing = recover_alone(self.journal, self.state, step, progress, self.spare)
        else:
            self.together.doubts()  # refuses what cannot be, before anything is touched
            landing = self.together.recover(self.journal, self.auxiliary.read(), step, progress, self.spare)
        if landing is None and self.together is None:
            found = recover(self.journal.paths.folder, self.state, step=step, progress=progress, spare=self.spare)
        else:
            found = None if landing is None else landing.recovered
        if landing is not None:
            self.environment |= {"since": landing.since, "past": landing.past}
        if found is None:
            if step not in (None, 0):
                raise UsageError(f"{self.run}: step {step} cannot be recovered: the run holds nothing yet")
            if origin is not None and self._origin_told is None:
                self._load(origin, progress)
            self._report = RecoveryReport(notes=tuple(self._origin_told or ()))
            self.begin(is_first=landing is None)
            return self._report
        self._describe()
        if landing is not None:
            self._landed = settle_in(self.state, landing, self._landed)
            if self.together is not None:
                self.together.take_over(self._landed)
        is_new, number = (found.plan.has_later, None) if landing is None else (landing.is_new, landing.timeline)
        self.journal.go_on_from(found.position, new_timeline=is_new, number=number, damaged=found.damaged,
                                checkpoint=found.plan.checkpoint, log_bytes=found.log_bytes)  # fmt: skip
        if found.replayed:
            self.journal.observe_replay(found.seconds_replay / found.replayed)
        self.journal.load_seconds = found.seconds_load
        self.scalars.extend(found.scalars)
        self._has_begun = True
        self.state.refresh()
        self.writes.remember(self.journal.step)
        self._taken_at_boundary = self.auxiliary.taken()
        for member in self.members.values() if found.position.step else ():
            self.mark_called(member)
        if found.position.sequence:  # not the checkpoint before the first step, where the script is at the same place again
            self.auxiliary.reopen()
        if landing is not None:
            self._land_together(landing, found)
        self._recovered = found, time.monotonic() - start
        self._report = self._told(*self._recovered)
        return self._report

    def _load(self, origin: Start, progress: Progress | None) -> None:
        """Load what a fresh run starts from into what was built."""
        self.state.given = {which: self.state.given_now(which) for which in self.members}
        optimizers = {name: member.inner for name, member in self.members.items()}
        names = {name: self.state.group_names(name) for name in self.members}
        self._origin_told = origin.load(Built(self.modules, optimizers, names, self.auxiliary.tracked), progress)

    def _land_together(self, landing: Landing, found: Recovered) -> None:
        """What all ranks do before any of them goes on."""
        together, doubts = self.together, landing.doubts
        bring_in(self.state.outers.values())
        body = {**self._landed, "scalars": self.scalars.pack()}
        is_any_lost = landing.is_adopted if together is None else any(together.told_by_all(landing.is_adopted))
        begins = landing.is_begun or is_any_lost  # a disk that is lost next costs nothing more
        if landing.is_new and not landing.is_resharded:  # in all journals, before the first record: else a crash could leave
            self.journal.start()  # steps of two histories
            if together is not None:  # nothing is in any of them before it is begun in all: else it never was
                together.told_by_all(True)
        if begins and together is not None:
            together.mirror(body)
        if landing.is_resharded:
            self._begin_resharded(body)
        elif begins:
            self.journal.checkpoint(self.state.snapshot(body), wait=True)
        if together is not None:
            step = found.position.step
            doubts += [
                *together.doubts(),
                *together.prime(body, step, step if begins else found.plan.checkpoint.step),
            ]
            doubts = together.joined(doubts)
        self._doubts += [(text, False) for text in doubts]
        found.notes += landing.notes
        self._landed = {}  # it may be large

    def _begin_resharded(self, body: dict[str, Any]) -> None:
        """Begin with a checkpoint. Until all have theirs only the journals of before, all of them, hold the whole state.

        Raises:
            RecoveryError: one could not be written; the run is as it was.
        """
        with self.journal.unpruned():
            self.journal.start()
            is_written = self.journal.checkpoint(self.state.snapshot(body), wait=True)
            written = [is_written] if self.together is None else self.together.told_by_all(is_written)
            if not all(written):
                raise RecoveryError(f"{self.run}: rank {written.index(False)} could not write the checkpoint that it begins "
                                    "with, and without it what follows would be lost. The run is as it was: start again when "
                                    "its disk can be written")  # fmt: skip

    @property
    def report(self) -> RecoveryReport:
        """What `recover()` told, and what became known since."""
        return self._report or RecoveryReport()

    def _doubt(self, text: str, is_wrong: bool) -> None:
        """Data that a resume cannot bring back: say it, and keep it in the report."""
        _log.warning("%s: %s", self.run, text)
        self._doubts.append((text, is_wrong))
        report = self.report
        exact = False if is_wrong else None if report.exact else report.exact
        self._report = replace(report, exact=exact, notes=tuple(dict.fromkeys([*report.notes, text])))

    def _told(self, found: Recovered, seconds: float) -> RecoveryReport:
        exact, told = verdict(self.state, found)
        compared = environment.compare(self.state.recorded_environment, self.environment)
        doubts = [*(text for text, _ in self._doubts), *self.auxiliary.caveats(), *caveats(self.state, found.body)]
        if any(is_wrong for _, is_wrong in self._doubts):
            exact = False
        elif doubts and exact:
            exact = None
        notes = [*self.journal.notes, *found.notes, *self.state.notes, *compared, *told, *doubts]
        where = next(iter(self.auxiliary.read_data().values()), {"taken": self.auxiliary.count, "epoch": 0})
        return report_of(found, exact=exact, notes=notes, batch=where["taken"], epoch=where["epoch"], seconds=seconds,
                         timeline=self.journal.timeline)  # fmt: skip

    def begin(self, *, is_first: bool = True) -> None:
        """Before the first step of a fresh run: a checkpoint of what was built. `is_first`: all ranks begin."""
        if self._has_begun or not self.is_active:
            return
        if not self.journal.is_fresh:
            raise NotRecovered(self.run, self.journal.catalog.watermarks().committed)
        demand_group(self.run, was_alone=self.together is None)
        if self._origin_told is None and find_start(self.run, None) is not None:
            raise UsageError(f"{self.run}: weights were imported for this run, which recover() loads: call it before the loop")
        self._demand_alike()
        self._has_begun = True
        self._describe()
        self.state.refresh()
        self.state.given = self.state.given or {which: self.state.given_now(which) for which in self.members}
        self.writes.remember(self.journal.step)
        if self.together is not None and is_first:
            self.environment["past"] = gone_on((), 0, self.together.told_by_all(new_id())[0])
        self.journal.start()
        body = self.auxiliary.read()
        if self.together is not None:
            for doubt in self.together.doubts():
                _log.warning("%s: %s", self.run, doubt)
            body["scalars"] = self.scalars.pack()
            if not is_first:  # the others go on from what they have, and say this as they land, and that they have begun
                bring_in(self.state.outers.values())
                self.together.told_by_all(True)
                self.together.told_by_all(True)
            self.together.mirror(body)
        self.journal.checkpoint(self.state.snapshot(body), wait=True)
        if self.together is not None:
            if not is_first:
                self.together.prime({}, 0, 0)
            self.together.joined([])

    # Steps (called by members).

    @property
    def is_closed(self) -> bool:
        """Whether `close` was called (in this process)."""
        return self.journal.is_closed

    @property
    def is_active(self) -> bool:
        """Whether steps of this process are to be logged."""
        return self.journal.is_writer

    @property
    def is_logging(self) -> bool:
        """Whether training has begun, in this process, and the run is open."""
        return self._has_begun and self.is_active

    def before_step(self) -> None:
        """Something may have written to the state since the last look: log it before the step builds on it."""
        if not self._has_begun:
            self.begin()
            self.plain.began_in_a_loop()
        if self.plain.is_skipping and self.plain.has_skipped:
            self._doubt("a step was taken by code that ran again for epochs finished before the crash: it is taken twice. Take "
                        "the epochs from optimizer.epochs(...), which leaves finished ones out", True)  # fmt: skip
        self.auxiliary.go_on()
        self._commit_implicit(is_before_forward=False)
        self.note_writes("before a step")

    def saw_scaler(self, scaler: object) -> None:
        """A GradScaler calls a step; its scale decides over the steps to come."""
        if not any(thing is scaler for thing in self.auxiliary.tracked.values()):
            self._doubt("a GradScaler steps an optimizer and is not tracked: without track(scaler=...) its scale starts anew "
                        "after a crash, so other steps may be skipped", False)  # fmt: skip

    def has_changed(self) -> bool:
        """Whether something wrote to the state since the last look."""
        return bool(self.writes.parameters(self.journal.step) or self.writes.optimizers() or self._grown())

    def mark_called(self, member: Member) -> None:
        """Tell schedulers that hold the shell that it stepped, even if the inner was stepped directly."""
        self.shells[member.name]._opt_called = True
        member.inner._opt_called = member.outer._opt_called = True  # type: ignore[attr-defined]

    def request_checkpoint(self) -> bool:
        """Ask for a checkpoint at the next boundary; False if logging is suspended."""
        self._wants_checkpoint = True
        return not self.journal.is_suspended

    def after_step(self) -> None:
        """A step was logged."""
        self.steps_since_boundary += 1
        if not self._has_reserved:  # optimizer state is there from the first step on
            self._has_reserved = True
            self.journal.reserve(self.state.nbytes())
        if not self.loops and not self.plain.is_in_body:
            buffers = {} if self._is_forward_seen else naming.named_buffers(self.modules)
            kept = {name: local(b).detach().clone() for name, b in buffers.items()}
            self._implicit = {"rng": self.auxiliary.rng_now(), "buffers": kept}

    def digests(self) -> Digests:
        """Fingerprint of the parameters after the step that is being logged."""
        return self.writes.digests(self.journal.step + 1)

    def _found_late(self, name: str) -> None:
        """A write that leaves no trace was found some units after it may have been made."""
        self._wants_checkpoint = True
        _log.warning(
            "%s: %s was written between two steps in a way that leaves no trace (.data, or an alias), for the first time after "
            "many units. It is logged from here on, and looked for at each unit; fingerprints of the units before show it",
            self.run,
            name,
        )

    def note_writes(self, place: Place | None = None) -> None:
        """Log an after-image of whatever changed since the last look and not by a step; parameter groups, too."""
        state, step = self.state, self.journal.step
        grown = self._grown()
        if self.journal.is_suspended:  # a checkpoint will hold it all
            state.refresh()
            self.writes.remember(step)
            return
        names, touched = self.writes.parameters(step, place), self.writes.optimizers(place)
        if not names and not touched and not grown:
            return
        body: dict[str, Any] = {"state": {}, "groups": {}}
        if any(which in state.outers for which in grown):
            raise UsageError(f"optimizer {grown[0]!r}: a parameter group was added to a ZeroRedundancyOptimizer while it was "
                             "training, which is not logged: add it before recover()")  # fmt: skip
        if grown:
            covered = set(state.parameters)
            state.refresh()
            names += [name for name in state.parameters if name not in covered]
            body["groups"] = {which: state.groups(which) for which in grown}
        written = [(name, state.parameters[name]) for name in names]
        tensors: list[Tensor] = [(f"param/{name}", array_of(p, p, state.convert)) for name, p in written]
        for which in touched:
            found, body["state"][which] = state.state_tensors(which, state.convert)
            tensors += found
        if (payload := self.after_image(tensors, every_step=False)) is not None:
            self.journal.append_image(payload, body)
        self.steps_since_boundary += 1
        self.writes.remember(step)

    def after_image(self, tensors: list[Tensor], *, every_step: bool) -> Payload | None:
        """Return the payload of an after-image; None where it cannot be brought from a device: logging is suspended then."""
        if self.staging is None:
            return Payload.of(tensors)
        try:
            return self.staging.after_image(tensors, every_step=every_step)
        except LogUnavailable as error:
            self.journal.suspend(error)
            return None

    def _grown(self) -> list[str]:
        """Optimizers whose parameter groups are not those that the log knows."""
        return [which for which in self.members if self.state.group_members(which) != self.state.logged_members.get(which)]

    # Boundaries.

    def boundary(self, asking: object = None) -> None:
        """The loop `asking` (None: whichever runs) wants its next batch.

        Only the outermost loop's asking is a boundary: an inner one stands in the middle of the outer one's body.
        """
        if not self._has_begun or not self.is_active:
            return
        leader = self.plain.leader
        outermost = self.loops[0] if self.loops else leader.position if leader is not None else asking
        if asking is not None and outermost is not asking:
            self._say_nested()
            return
        self._implicit = None
        self.note_writes("at a boundary")
        taken = self.auxiliary.taken()
        if self.steps_since_boundary == 0 and taken != self._taken_at_boundary and self._is_amid(taken, asking):
            return
        self._commit(self.auxiliary.read())
        self._taken_at_boundary = taken

    def _say_nested(self) -> None:
        if self.steps_since_boundary and not self._has_said_nested:
            self._has_said_nested = True
            _log.warning("%s: one of these loops runs inside the body of another: only the outer one's batches are places to "
                         "come back to", self.run)  # fmt: skip

    def _is_amid(self, taken: dict[str, int], asking: object) -> bool:
        """Whether the batches since the last boundary are not done with: another loader's half of the same turn (`zip`),
        or gradients that wait for a step. A tracked GradScaler that moved has skipped its step: nothing waits."""
        for name, position in self.auxiliary.loaders.items():
            if position is asking and taken[name] == self._taken_at_boundary.get(name):
                return True
        return self.auxiliary.gradients.are_waiting() and not self.auxiliary.has_skipped_step()

    def _commit(self, body: dict[str, Any]) -> None:
        now = time.perf_counter()
        if self.steps_since_boundary:
            self.state.fingerprint.fit_budget((now - self._boundary_at) / self.steps_since_boundary)
            if not self.state.fingerprint.is_whole:
                self.writes.remember(self.journal.step)
        self._boundary_at = now
        self.steps_since_boundary = 0
        self.writes.looks.unit()
        noted = self.scalars.commit(self.journal.step)
        wanted: bool | None = self._wants_checkpoint or None
        self._wants_checkpoint = False

        def whole() -> dict[str, Any]:
            return {**body, "scalars": self.scalars.pack()}

        if self.together is not None:
            wanted = self.together.at_boundary(self.journal, body, whole, wanted=wanted, digests=self.writes.known)
        self.journal.boundary(body, lambda: self.state.snapshot(whole()), scalars=noted, checkpoint=wanted)
        if self.journal.is_suspended:
            self.auxiliary.drop_unstorable()

    def _before_forward(self, module: torch.nn.Module) -> None:
        if module.training and torch.is_grad_enabled():
            self.plain.saw_forward()
            if self._implicit is not None:
                self._commit_implicit(is_before_forward=True)

    def _commit_implicit(self, *, is_before_forward: bool) -> None:
        """In a loop of the user's own, the unit of the last step ends at the next training forward.

        Where that is not seen (a compiled model), it ends at the next step, with the buffers as they were after the last.
        """
        implicit, self._implicit = self._implicit, None
        if implicit is None or self.loops or not self.is_active:
            return
        if not is_before_forward and not implicit["buffers"] and naming.named_buffers(self.modules):
            self._is_forward_seen = False  # this unit merges with the next, of which the buffers will be kept
            return
        self.note_writes("at a boundary")
        body = self.auxiliary.read() | {"rng": implicit["rng"], "is_implicit": True}
        self._commit(body if is_before_forward else body | {"buffers": implicit["buffers"]})

    def _leave_join(self) -> None:
        """This rank has no data left: recovery lands it here, wherever the others have come to."""
        if not self._has_begun or not self.is_active:
            return
        self._commit_implicit(is_before_forward=True)
        if not self.steps_since_boundary:  # else the loop was left amid a batch, which is taken again
            self._commit(self.auxiliary.read() | {"left": True})

    def say_unlogged(self) -> None:
        """A step is taken on a closed run: said once."""
        if not self._has_said_unlogged:
            self._has_said_unlogged = True
            _log.warning("%s: the run is closed: this step and those after it are not logged", self.run)

    def _set_auxiliary(self, body: dict[str, Any]) -> None:
        self._landed = body
        self.state.is_shared = bool(body.get("ddp", {}).get("is_divided"))
        self.auxiliary.write(body)
        if "scalars" in body:
            self.scalars.unpack(body["scalars"])

    # Loops.

    @contextmanager
    def _looping(self, loop: object) -> Iterator[None]:
        if self.is_closed:
            raise UsageError(f"{self.run}: the run is closed, nothing would be logged. Make a new LoggedOptimizer to go on")
        self.begin()
        self.note_early_writes()
        if not self.loops:
            self.plain.leave()
        self.loops.append(loop)
        try:
            yield
        finally:
            self.loops.remove(loop)

    def note_early_writes(self) -> None:
        """Before the first batch after a recovery: the run that was not interrupted wrote nothing here."""
        if self.report.checkpoint_step is None or self.steps_since_boundary or self.journal.step != self.report.step:
            return
        if not self.is_active or self.loops or self.journal.is_suspended:
            return
        names = self.writes.parameters(self.journal.step) + self.writes.optimizers()
        if names and self.report.step:
            self._doubt(f"{names[0]} was written between recover() and the first batch: training goes on from what was written "
                        "there, not from what was recovered", False)  # fmt: skip
        for what in self.auxiliary.changed_hyper():
            self._doubt(f"{what} was changed between recover() and the first batch, and training goes on with what it is now",
                        False)  # fmt: skip

    def steps(self, until: int) -> Iterator[int]:
        """Turns of a loop without a loader: the number of each, from 0, with a boundary after each."""
        turns = object()
        with self._looping(turns):
            if self.auxiliary.count < until or not self.plain.is_led:
                self.auxiliary.open_loop()
            while self.auxiliary.count < until:
                self.auxiliary.count += 1
                yield self.auxiliary.count - 1
                self.boundary(turns)

    def batches(self, loader: DataLoader[Any], until: int | None) -> Iterator[Any]:
        """Batches of a loader over all epochs."""
        position = self.auxiliary.loader(loader)
        with self._looping(position):
            yield from position.batches(until)

    def epochs(self, count: int, loader: DataLoader[Any] | None) -> Iterator[Epoch]:
        """The epochs that are left, each to be iterated over for its batches."""
        if loader is None and not self.auxiliary.loaders:
            raise UsageError("epochs(...) needs a loader: track(loader=...) first, or epochs(count, loader)")
        position = next(iter(self.auxiliary.loaders.values())) if loader is None else self.auxiliary.loader(loader)
        with self._looping(position):
            position.enter()
            if position.batch == 0 and (
                position.epoch < count or not self.plain.has_skipped
            ):  # else what comes before the batches runs again, and its random numbers do not count
                self.auxiliary.open_loop()
            while position.epoch < count:
                number = position.epoch
                self._enter_epoch(position)
                yield Epoch.of(position)
                if position.epoch == number:
                    raise UsageError(
                        f"epoch {number} was not iterated to its end: `for batch in epoch:` must run without break"
                    )
                self.boundary()  # the epoch's own code ran

    def _enter_epoch(self, position: LoaderPosition) -> None:
        """The script's code before the epoch's loop is about to run; in the middle of an epoch it runs again."""
        if position.batch == 0:
            position.entered = get_rng()
        elif position.is_pending:
            self.auxiliary.open_loop()
            self.remember()
            self.auxiliary.set_entered(position)

    def remember(self) -> None:
        """Code per epoch is about to run again: what it does to the state is to be undone."""
        if self._remembered is None:
            self.note_writes()
            self._remembered = Remembered(self.state, self.auxiliary)

    def _opening(self, position: LoaderPosition) -> None:
        """A loop over a loader is about to be opened."""
        if self._remembered is not None and (not self.loops or self.loops[0] is position):
            self.go_live()
        self.auxiliary.open_loop()

    @property
    def runs_again(self) -> bool:
        """Whether the script's code before the loop in which the run stood is running, once more."""
        return self._remembered is not None or self.auxiliary.is_waiting

    def go_live(self) -> None:
        """The loop in which the run stood is about to be opened."""
        remembered, self._remembered = self._remembered, None
        if remembered is not None:
            if self.writes.optimizers() or self._grown():
                self._doubt("code that runs once an epoch, before its loop, changes an optimizer's state or its groups, and it "
                            "ran again: take the epochs from optimizer.epochs(...), which leaves finished ones out, and make "
                            "the change depend on epoch.batch == 0", True)  # fmt: skip
            remembered.set_back()
            self.auxiliary.set_positions_back()
            self.writes.remember(self.journal.step)
        self.auxiliary.open_loop()

    # The end.

    def close(self) -> None:
        """Commit what is complete, seal the log, release the run."""
        self._close(is_orderly=sys.exc_info()[0] is None)

    def _at_exit(self) -> None:
        self._close(is_orderly=getattr(sys, "last_value", None) is None)

    def _close(self, *, is_orderly: bool) -> None:
        atexit.unregister(self._at_exit)
        if self.together is not None:
            self.together.leave()
        if self.is_active and self._has_begun:
            if is_orderly:
                self._commit_implicit(is_before_forward=True)
            if self.steps_since_boundary:
                _log.warning(
                    "%s: the loop was left in the middle of a batch (break, or an exception): the log ends at step "
                    "%d, and that batch is computed again when the run goes on",
                    self.run,
                    self.journal.committed,
                )
        for member in self.members.values():
            member.release()
        for handle in self._handles:
            handle.remove()
        self.plain.release()
        self.monitor.close()
        self.journal.close()
        self.shipping.close(self.journal.committed, None if is_orderly else self._grace)
        self._parting.close()


class _ForwardHook:
    """A hook on the user's module that copies of the module do not carry along."""

    def __init__(self, call: Callable[[torch.nn.Module], None]) -> None:
        self._call = call

    def __call__(self, module: torch.nn.Module, _: Any) -> None:
        if not torch.compiler.is_compiling():
            self._call(module)

    def __reduce__(self) -> Any:
        return getattr, ({}, "get")  # {}.get(module, args) gives the args back; unpickling needs nothing of ours
