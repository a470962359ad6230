"""The callback: one more entry in `callbacks=[...]`, and `trainer.fit(...)` comes back after a crash."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import lightning.pytorch as pl

from tranlogs.base.errors import UsageError
from tranlogs.base.notes import coded
from tranlogs.training import Framework, announce

from ...optimizer import LoggedOptimizer
from ..changed_attributes import CANNOT_BE_STORED
from ..logging_callback import LoggingCallback
from ..trainer_position import TrainerPosition
from . import lightning_internals
from .lightning_internals import TranLogsCallback
from .progress import Progress

lightning_internals.check_lightning()


class TranLogsLightningCallback(LoggingCallback, TranLogsCallback):
    """Logs every step of `Trainer.fit`; run the same script again after a crash, and training goes on at the batch.

        trainer = pl.Trainer(max_epochs=20, callbacks=[TranLogsLightningCallback("runs/digits")])
        trainer.fit(model, loader)

    A boundary is where the loop asks its loader for a batch, and where an epoch begins: validation, schedulers and all hooks of
    the batch before are done.

    Args:
        run: folder of the run; made if there is none. One run for one training: the same script, the same data.
        verbose: whether to print what a new run writes, and where training goes on.
        settings: all that `LoggedOptimizer` takes besides: checkpoint_every, durability, keep, log, monitor, store, ...

    Raises:
        UsageError: a setting is wrong, or this version of Lightning is not known.
    """

    def __init__(self, run: str | Path, *, verbose: bool = True, **settings: Any) -> None:
        LoggingCallback.__init__(self, run, settings)
        self._verbose, self._is_resumed = verbose, False
        self._trainer: pl.Trainer | None = None
        self._position: _Position | None = None
        self._progress: Progress | None = None

    # Hooks of Lightning

    def setup(self, trainer: pl.Trainer, pl_module: pl.LightningModule, stage: str) -> None:
        """Move this callback to the front, so that the boundary comes before what other callbacks do when an epoch begins."""
        callbacks: list[Any] = trainer.callbacks
        if any(isinstance(one, TranLogsLightningCallback) and one is not self for one in callbacks):
            raise UsageError(f"{self._run}: this trainer has two TranLogsLightningCallbacks; keep one")
        callbacks.remove(self)
        callbacks.insert(0, self)

    def on_fit_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Optimizers and the wrapped model are there, the loops have not begun: recover."""
        self._close()
        if trainer.ckpt_path:
            raise UsageError(
                f"{self._run}: fit(ckpt_path=...) would set weights and counters back to that checkpoint. Leave it out: "
                "TranLogs resumes at the batch"
            )
        lightning_internals.check_trainer(trainer)
        if not trainer.optimizers:
            raise UsageError(f"{self._run}: configure_optimizers returns no optimizer, so there are no steps to log")
        model: Any = trainer.strategy.model
        first, *others = trainer.optimizers
        logged = LoggedOptimizer(first, self._run, model, **self._settings)
        logged.training_run.report.face = "callback"
        try:
            for number, other in enumerate(others, start=1):
                logged.add_optimizer(other, name=f"optimizer{number}")
            self._recover(trainer, logged)
        except BaseException:
            logged.close()
            raise

    def _recover(self, trainer: pl.Trainer, logged: LoggedOptimizer) -> None:
        progress = Progress(trainer)
        logged.track(trainer=progress)
        for path in ("count", *progress.of_each_process):
            logged.training_run.ignore_in_recheck(path)
        for number, config in enumerate(trainer.lr_scheduler_configs):
            logged.track(**{f"scheduler{number or ''}": config.scheduler})
        scaler = getattr(trainer.precision_plugin, "scaler", None)
        if scaler is not None:
            logged.track(scaler=scaler)
        restarts = logged.training_run.restarts
        restarts.framework = _with_trainer(restarts.framework, trainer)
        report = logged.recover()
        self._logged, self._trainer, self._progress, self._position = logged, trainer, progress, None
        self._turns, self._has_begun, self._is_open = logged.steps(until=sys.maxsize, stateless=True), False, True
        self._is_resumed = bool(report.step)
        lightning_internals.silence_restart(trainer)
        lightning_internals.before_iterating(trainer, self._look_at_loaders)
        lightning_internals.before_training(trainer, self._counters_are_set)

    def _caveats(self) -> list[str]:
        """Return what may differ after a restart of Lightning, one sentence each."""
        assert self._trainer is not None
        assert self._progress is not None
        averaged = self._progress.averaged
        found = lightning_internals.doubts(self._trainer)
        if averaged:
            found.append(
                f"metrics averaged over an epoch start over in its middle ({', '.join(averaged)}); what depends on them at "
                "the end of this epoch (a checkpoint, a scheduler) may differ"
            )
        return found

    def _look_at_loaders(self) -> None:
        """Training loaders are there, before anything iterates over them."""
        assert self._trainer is not None
        found = lightning_internals.loaders(self._trainer)
        if len(found) != 1:
            raise UsageError(
                f"{self._run}: one training loader can be resumed, and there are {len(found)}. Combine the data sets behind "
                "one DataLoader"
            )
        position = self.optimizer.training_run.auxiliary.loader(found[0], kind=_Position)
        assert isinstance(position, _Position)
        if self._position not in (None, position):
            raise UsageError(
                f"{self._run}: reload_dataloaders_every_n_epochs creates a new loader, whose position cannot be recovered"
            )
        is_new, self._position, position.on_ask = self._position is None, position, self._asked
        if is_new:
            self._report(self._trainer)

    def _report(self, trainer: pl.Trainer) -> None:
        """Print, once, where training begins or continues, and report what is not known to be exact."""
        run = self.optimizer.training_run
        for caveat in coded("not-recovered", self._caveats() if self._is_resumed else ()):
            if self._verbose:  # the report that is printed has it
                run.report.suspect(caveat)
            else:
                run.report.warn(caveat, False)
        run.refresh_report()  # with what is known not to come back of the loader
        self._is_finished = lightning_internals.is_finished(trainer)
        if self._verbose and trainer.is_global_zero:
            announce(self._run, self.report, f"step {trainer.global_step}", is_finished=self._is_finished)

    def _counters_are_set(self) -> None:
        assert self._trainer is not None
        if not self._is_underway:
            lightning_internals.end_restart(self._trainer)
            if self._progress is not None:
                self._progress.go_on_amid()

    @property
    def _is_underway(self) -> bool:
        """True if a batch was requested since the recovery."""
        return self._position is not None and self._position.is_underway

    def on_train_epoch_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Commit the epoch before, with its validation and its schedulers."""
        self._pass_boundary(is_amid=False)

    def on_train_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        if self._is_open:
            self.optimizer.training_run.expect_end()
        self._pass_boundary(is_amid=False)

    def on_fit_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        self._close()

    def on_exception(self, trainer: pl.Trainer, pl_module: pl.LightningModule, exception: BaseException) -> None:
        self._close()

    # Boundaries

    def _asked(self) -> None:
        """Commit the batch before, since the loop asks for the next one."""
        assert self._trainer is not None
        done = self._trainer.fit_loop.epoch_loop.batch_progress.current.completed
        if done and self._is_open:
            self._pass_boundary(is_amid=True, trained=done)

    def _pass_boundary(self, *, is_amid: bool, trained: int = 0) -> None:
        if not self._is_open or self._progress is None:
            return
        if not self._has_begun:  # where training goes on, or begins
            self._has_begun = True
            self._progress.go_on()
            next(self._turns)
            return
        self._progress.is_amid = is_amid
        if self._position is not None:
            if is_amid:
                self._position.advance(trained)
            elif self._position.batch:
                self._position.end_epoch()
        next(self._turns)
        if self._position is not None:
            for name in self._progress.lost:
                self._position.doubt(f"{name} {CANNOT_BE_STORED}")

    def _close(self) -> None:
        """Seal the run and release it."""
        if not self._is_open or self._trainer is None:
            return
        self._is_open = False
        self._turns.close()  # type: ignore[attr-defined]
        self.optimizer.close()
        lightning_internals.release(self._trainer)


class _Position(TrainerPosition):
    """Says when it is asked.

    Attributes:
        on_ask: set by the callback.
        is_underway: whether it was asked.
    """

    on_ask: Callable[[], None]
    is_underway = False

    def ask(self) -> None:
        self.on_ask()
        self.is_underway = True


def _with_trainer(framework: Framework, trainer: pl.Trainer) -> Framework:
    """Return what is known of the values of a script whose loop is Lightning's: module and callbacks are kept."""
    callbacks: list[Any] = trainer.callbacks
    return replace(
        framework,
        kept=lambda: [*framework.kept(), trainer, trainer.lightning_module, *callbacks],
        variable="lightning",
        thing="lightning",
    )
