"""One training run in this process: its parts put together, steps, and the boundaries between units.

A boundary is the moment when the loop asks for its next batch. All since the last one (none, one or many steps, of one
or several optimizers) commits as one unit, with the auxiliary state read there. A batch after which gradients are still
being accumulated commits nothing: recovery goes back to the boundary before, since a loop cannot be re-entered there.
"""

from __future__ import annotations

import atexit
import logging
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import DataLoader

from tranlogs.base.errors import LogUnavailable, UsageError
from tranlogs.records import Payload, Tensor
from tranlogs.training import LiveReport, Place, Progress, RecoveryReport, RunResources, RunSettings, ScalarHistory

from ..capture.foreign_writes import ForeignWriteDetector
from ..capture.forward_hook import ForwardHook
from ..capture.optimizer_hooks import OptimizerHooks
from ..capture.staging import Staging
from ..data.position import Epoch
from ..distributed.process_group import demand_group
from ..interop import StartFrom
from ..offline.live_state import LiveState
from ..sharding import fsdp
from ..sharding.shards import array_of
from ..state import naming
from ..state.auxiliary import Auxiliary
from ..state.fingerprint import Digests
from ..tensors import arrays
from ..tensors.placement import local
from .loops import Loops
from .parts import RunParts
from .ranks.factory import make_coordinator
from .recovery import Recovery
from .user_loop import UserLoops

_log = logging.getLogger("tranlogs")


class TrainingRun:
    """A run, its optimizers and its loops in this process. `LoggedOptimizer` makes one; `add_optimizer` shares it.

    It has more attributes than other classes, since hooks, loops and tests reach the parts of the run through it.

    Args:
        settings: of the run.
        models: the modules that are trained.
        rank: of this process; None for what torch.distributed says.
        on_cuda: whether gradients lie on a GPU.
        segment_bytes: size of a log file where the settings have none.
        worker_seeds: see `LoggedOptimizer`.
        copies: in how many journals each gradient is logged.
    """

    def __init__(
        self,
        settings: RunSettings,
        models: naming.Models,
        *,
        rank: int | None,
        on_cuda: bool,
        segment_bytes: int | None = None,
        worker_seeds: str | None = None,
        copies: int = 1,
    ) -> None:
        self.run, self._settings = settings.run, settings
        demand_group(self.run)  # before a journal is opened: all would open that of rank 0, and be told to take it over
        self.modules = naming.as_modules(models)
        fsdp.tell_places(self.modules)
        self.hooks: dict[str, OptimizerHooks] = {}
        self.report = LiveReport(self.run)
        self.state = LiveState(
            self.modules, {}, lambda body: self._recovery.set_auxiliary(body), fingerprint=settings.fingerprint
        )
        self._recovery: Recovery
        self._loops: Loops
        self._user_loops = UserLoops(self)
        self.auxiliary = Auxiliary(
            self.state,
            self.boundary,
            lambda position: self._loops.opening(position),
            self.report.warn,
            self._user_loops.adopt,
            worker_seeds,
        )
        self.writes = ForeignWriteDetector(self.state, self.hooks, self._found_late)
        self.environment: dict[str, Any] = {}  # filled with the optimizers, before anything is written
        self.coordinator = make_coordinator(self.state, settings.policy, rank, copies)
        self.coordinator.watch_join(self._leave_join)
        self._resources = RunResources(
            settings,
            framework="torch",
            environment=self.environment,
            adapt=arrays.adapt,
            rank=self.coordinator.rank,
            world=self.coordinator.world,
            writer="thread" if on_cuda else "direct",
            segment_bytes=segment_bytes,
        )
        self.journal = self._resources.journal
        self.staging = Staging() if self._resources.config.writer == "thread" else None
        if self.staging is not None:
            self.state.convert = self.staging.to_array
        self.scalars = ScalarHistory()
        self._parts = RunParts(
            settings,
            self._resources,
            self.modules,
            self.state,
            self.hooks,
            self.writes,
            self.auxiliary,
            self.coordinator,
            self.environment,
            self.scalars,
            self.report,
        )
        self._recovery = Recovery(self._parts, self._landed)
        self._loops = Loops(self._parts, self, self._user_loops)
        self.steps_since_boundary = 0  # steps and after-images
        self._taken_at_boundary: dict[str, int] = {}
        self._has_reserved = self._has_said_unlogged = self._has_said_nested = self._wants_checkpoint = False
        self._implicit: dict[str, Any] | None = None  # after a step in a loop of the user's own: random state, and buffers
        self._is_forward_seen = True
        self._boundary_at = time.perf_counter()
        self._forward_hooks = [ForwardHook(module, self._before_forward) for module in self.modules.values()]
        atexit.register(self._at_exit)

    # Putting the run together.

    def add(self, hooks: OptimizerHooks) -> None:
        """Add an optimizer under its name."""
        if self._recovery.has_begun:
            raise UsageError(f"optimizer {hooks.name!r}: add it before recover() and before the first step")
        if hooks.name in self.hooks:
            raise UsageError(f"the run has an optimizer {hooks.name!r} already; give another name")
        mine = {id(p) for p in naming.named_parameters(self.modules).values()}
        if mine and not any(id(p) in mine for group in hooks.outer.param_groups for p in group["params"]):
            raise UsageError(f"optimizer {hooks.name!r} trains no parameter of model=...: give the module that it trains")
        self.hooks[hooks.name] = hooks
        self.state.optimizers[hooks.name] = hooks.inner
        if hooks.outer is not hooks.inner:
            self.state.outers[hooks.name] = hooks.outer
        self.state.refresh()
        self._parts.describe_environment()

    def track(self, **things: Any) -> None:
        """Track loaders and anything with state_dict / load_state_dict; refuse what cannot be stored."""
        for name, thing in things.items():
            self.auxiliary.track(name, thing)
        self._recovery.refresh_report()

    # Recovery.

    def recover(
        self,
        step: int | None = None,
        progress: Progress | None = None,
        start_from: StartFrom | str | Path | None = None,
    ) -> RecoveryReport:
        """Bring everything back to the newest boundary, or to `step`; a fresh run starts from what is given or was imported.

        Raises:
            UsageError: training has begun.
        """
        if self._recovery.has_begun:
            report = self.report.current
            if report is not None and self.steps_since_boundary == 0 and self.journal.step == report.step:
                return report  # a notebook cell run twice
            raise UsageError("recover() must come before the first step")
        return self._recovery.recover(step, progress, start_from)

    def _landed(self) -> None:
        self._taken_at_boundary = self.auxiliary.taken()

    def begin(self) -> None:
        """Begin a fresh run with a checkpoint of what was built, unless training has begun."""
        self._recovery.begin()

    # Steps (called by the hooks of optimizers).

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
        return self._recovery.has_begun and self.is_active

    def before_step(self) -> None:
        """Something may have written to the state since the last look: log it before the step builds on it."""
        if not self._recovery.has_begun:
            self.begin()
            self._user_loops.began_in_a_loop()
        if self._user_loops.is_skipping and self._user_loops.has_skipped:
            self.report.warn(
                "a step was taken by code that ran again for epochs finished before the crash: it is taken twice. Take the "
                "epochs from optimizer.epochs(...), which leaves finished ones out",
                True,
            )
        if self.auxiliary.is_waiting and not self._loops.running:  # no loop was opened, which would have compared them
            self._loops.note_early_writes()
        self.auxiliary.go_on()
        self._commit_implicit(is_before_forward=False)
        self.note_writes("before a step")

    def saw_scaler(self, scaler: object) -> None:
        """A GradScaler calls a step; its scale decides over the steps to come."""
        if not any(thing is scaler for thing in self.auxiliary.tracked.values()):
            self.report.warn(
                "a GradScaler steps an optimizer and is not tracked: without track(scaler=...) its scale starts anew after a "
                "crash, so other steps may be skipped",
                False,
            )

    def has_changed(self) -> bool:
        """Whether something wrote to the state since the last look."""
        return bool(self.writes.parameters(self.journal.step) or self.writes.optimizers() or self._grown())

    def request_checkpoint(self) -> bool:
        """Ask for a checkpoint at the next boundary; False if logging is suspended."""
        self._wants_checkpoint = True
        return not self.journal.is_suspended

    def after_step(self) -> None:
        """A step was logged."""
        self.steps_since_boundary += 1
        if not self._has_reserved:  # optimizer state is there from the first step on
            self._has_reserved = True
            self.journal.checkpoints.expect_snapshot(self.state.nbytes())
        if not self._loops.running and not self._user_loops.is_in_body:
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
            raise UsageError(
                f"optimizer {grown[0]!r}: a parameter group was added to a ZeroRedundancyOptimizer while it was "
                "training, which is not logged: add it before recover()"
            )
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
        return [which for which in self.hooks if self.state.group_members(which) != self.state.logged_members.get(which)]

    # Boundaries.

    def boundary(self, asking: object = None) -> None:
        """The loop `asking` (None: whichever runs) wants its next batch.

        Only the outermost loop's asking is a boundary: an inner one stands in the middle of the outer one's body.
        """
        if not self._recovery.has_begun or not self.is_active:
            return
        leader = self._user_loops.leader
        outermost = self._loops.running[0] if self._loops.running else leader.position if leader is not None else asking
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
            _log.warning(
                "%s: one of these loops runs inside the body of another: only the outer one's batches are places to "
                "come back to",
                self.run,
            )

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
        self.writes.looks.count_unit()
        noted = self.scalars.commit(self.journal.step)
        wanted: bool | None = self._wants_checkpoint or None
        self._wants_checkpoint = False

        def whole() -> dict[str, Any]:
            return {**body, "scalars": self.scalars.pack()}

        writes = self.writes
        wanted = self.coordinator.at_boundary(self.journal, body, whole, wanted=wanted, read_digests=lambda: writes.known)
        self.journal.boundary(body, lambda: self.state.snapshot(whole()), scalars=noted, checkpoint=wanted)
        if self.journal.is_suspended:
            self.auxiliary.drop_unstorable()

    def _before_forward(self, module: torch.nn.Module) -> None:
        if module.training and torch.is_grad_enabled():
            self._user_loops.saw_forward()
            if self._implicit is not None:
                self._commit_implicit(is_before_forward=True)

    def _commit_implicit(self, *, is_before_forward: bool) -> None:
        """In a loop of the user's own, the unit of the last step ends at the next training forward.

        Where that is not seen (a compiled model), it ends at the next step, with the buffers as they were after the last.
        """
        implicit, self._implicit = self._implicit, None
        if implicit is None or self._loops.running or not self.is_active:
            return
        if not is_before_forward and not implicit["buffers"] and naming.named_buffers(self.modules):
            self._is_forward_seen = False  # this unit merges with the next, of which the buffers will be kept
            return
        self.note_writes("at a boundary")
        body = self.auxiliary.read() | {"rng": implicit["rng"], "is_implicit": True}
        self._commit(body if is_before_forward else body | {"buffers": implicit["buffers"]})

    def _leave_join(self) -> None:
        """This rank has no data left: recovery lands it here, wherever the others have come to."""
        if not self._recovery.has_begun or not self.is_active:
            return
        self._commit_implicit(is_before_forward=True)
        if not self.steps_since_boundary:  # else the loop was left amid a batch, which is taken again
            self._commit(self.auxiliary.read() | {"left": True})

    def say_unlogged(self) -> None:
        """A step is taken on a closed run: said once."""
        if not self._has_said_unlogged:
            self._has_said_unlogged = True
            _log.warning("%s: the run is closed: this step and those after it are not logged", self.run)

    # Loops.

    @property
    def loops(self) -> list[object]:
        """The loops of `LoggedOptimizer` that are running, the outermost first."""
        return self._loops.running

    def steps(self, until: int) -> Iterator[int]:
        """Yield the number of each turn of a loop without a loader."""
        return self._loops.steps(until)

    def batches(self, loader: DataLoader[Any], until: int | None) -> Iterator[Any]:
        """Yield the batches of a loader over all epochs."""
        return self._loops.batches(loader, until)

    def epochs(self, count: int, loader: DataLoader[Any] | None) -> Iterator[Epoch]:
        """Yield the epochs that are left."""
        return self._loops.epochs(count, loader)

    def note_early_writes(self) -> None:
        """Report what was written between the recovery and the first batch."""
        self._loops.note_early_writes()

    def remember(self) -> None:
        """Keep the state aside: code per epoch is about to run again."""
        self._loops.remember()

    def go_live(self) -> None:
        """Set the state back: the loop in which the run stood is about to be opened."""
        self._loops.go_live()

    @property
    def runs_again(self) -> bool:
        """True while the script's code before the loop in which the run stood runs once more."""
        return self._loops.runs_again

    def is_as_recovered(self) -> bool:
        """Return True if the run was recovered, and nothing was logged since."""
        report = self.report.current
        if report is None or report.checkpoint_step is None or not self.is_active:
            return False
        return not self.steps_since_boundary and self.journal.step == report.step

    def find_other_writes(self) -> list[str]:
        """Return the names of optimizers whose state or groups something other than a step has written."""
        return self.writes.optimizers() or self._grown()

    # The end.

    def close(self) -> None:
        """Commit what is complete, seal the log, release the run."""
        self._close(is_orderly=sys.exc_info()[0] is None)

    def _at_exit(self) -> None:
        self._close(is_orderly=getattr(sys, "last_value", None) is None)

    def _close(self, *, is_orderly: bool) -> None:
        atexit.unregister(self._at_exit)
        self.coordinator.leave()
        if self.is_active and self._recovery.has_begun:
            if is_orderly:
                self._commit_implicit(is_before_forward=True)
                self._user_loops.note_unreached()
            if self.steps_since_boundary:
                _log.warning(
                    "%s: the loop was left in the middle of a batch (break, or an exception): the log ends at step "
                    "%d, and that batch is computed again when the run goes on",
                    self.run,
                    self.journal.committed,
                )
        for hooks in self.hooks.values():
            hooks.release()
        for hook in self._forward_hooks:
            hook.release()
        self._user_loops.release()
        self._resources.close(None if is_orderly else self._settings.grace_seconds)
