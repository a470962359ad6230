"""The callback, and inside `Trainer.train`: six of the trainer's methods are called through ours.

| method | what ours does |
|---|---|
| `get_train_dataloader` | keeps the loader |
| `_init_training_state` | has model, optimizer and scheduler prepared first, recovers into them, and sets the position |
| `_prepare_for_training` | gives back what was prepared |
| `get_batch_samples` | all batches of one update are asked for here: the boundary |
| `_run_epoch` | enters the epoch where the run stood; a boundary when all of the epoch, its evaluation too, is done |
| `log` | the rates (`train_..._per_second`) count what this process has trained |

Trainer reads its place from a checkpoint folder before there is an optimizer; TranLogs knows it only when model, optimizer and
reducers are there to recover into. Hence the order.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from transformers import Trainer, TrainerCallback

from tranlogs.base.errors import UsageError
from tranlogs.training import Framework, RecoveryReport, announce

from ...optimizer import LoggedOptimizer
from ..accelerate_objects import check_accelerate, plain_loader, plain_optimizer
from ..changed_attributes import CANNOT_BE_STORED
from ..logging_callback import LoggingCallback
from ..trainer_position import TrainerPosition
from . import transformers_internals
from .progress import Progress

_log = logging.getLogger("tranlogs")

check_accelerate()


class Loop:
    """One trainer whose training is logged.

    Args:
        trainer: its methods are replaced on this instance.
        run: folder of the run.
        settings: for `LoggedOptimizer`.
        verbose: whether to print where training goes on.

    Attributes:
        optimizer: while training and after it; None before.
        is_finished: whether nothing was left to train when this process began.
    """

    def __init__(self, trainer: Trainer, run: Path, settings: dict[str, Any], *, verbose: bool) -> None:
        self.trainer, self.run, self._settings, self._verbose = trainer, run, settings, verbose
        self.optimizer: LoggedOptimizer | None = None
        self._plain = {name: getattr(trainer, name) for name in transformers_internals.PATCHED}
        for name in transformers_internals.PATCHED:
            setattr(trainer, name, getattr(self, name.strip("_")))
        self._loader: Any = None  # as accelerate has prepared it
        self._prepared: Any = None
        self._position: TrainerPosition | None = None
        self._progress = Progress(trainer)
        self._turns: Iterator[int] = iter(())
        self._is_resumed = self._has_begun = self.is_finished = False
        self._began_at = 0  # the step at which this process began
        self._rest: Iterator[Any] | None = None  # of the epoch in which the run stood

    # In the order in which the trainer calls them.

    def get_train_dataloader(self) -> Any:
        self._loader = self._plain["get_train_dataloader"]()
        return self._loader

    def init_training_state(
        self,
        max_steps: int,
        num_update_steps_per_epoch: int,
        num_train_epochs: int,
        resume_from_checkpoint: str | None,
        trial: Any,
    ) -> tuple[int, int]:
        """Epochs that are finished, and batches of the next one."""
        self.end()
        self._refuse(trial)
        prepare, init = self._plain["_prepare_for_training"], self._plain["_init_training_state"]
        init(max_steps, num_update_steps_per_epoch, num_train_epochs, None, trial)
        self._prepared = prepare(max_steps, self._loader, None)
        self._open(self._prepared[0], resume_from_checkpoint)
        assert self.optimizer is not None
        progress, state = self._progress, self.trainer.state
        self._began_at = state.global_step
        self.is_finished = self._is_resumed and (progress.is_stopped or state.global_step >= max_steps)
        if self._verbose and self.trainer.is_world_process_zero():
            announce(self.run, self.optimizer.report, f"step {state.global_step}", is_finished=self.is_finished)
        if progress.is_stopped or state.global_step >= max_steps:
            self.optimizer.training_run.auxiliary.open_loop()  # the trainer opens none: code after it draws from here on
            return num_train_epochs, 0
        return progress.epoch, progress.batches

    def prepare_for_training(self, max_steps: int, train_dataloader: Any, resume_from_checkpoint: str | None) -> Any:
        prepared, self._prepared = self._prepared, None
        return prepared

    def run_epoch(self, **given: Any) -> None:
        progress = self._progress
        self._rest = None
        is_amid = self._is_resumed and given["epoch"] == progress.epoch and progress.batches > 0
        # Unless this is None, the epoch begins in its middle. Trainer looks for a file of random numbers there, and finds none.
        given["resume_from_checkpoint"] = str(self.run) if is_amid else None
        if is_amid:
            self._loader.set_epoch(given["epoch"])
            self._rest = iter(self._loader)
        else:
            progress.epoch, progress.batches = given["epoch"], 0
        try:
            self._plain["_run_epoch"](**given)
        except BaseException:  # callbacks are not informed; the run must not stay locked in a notebook
            self.end()
            raise
        control = self.trainer.control
        is_over = progress.batches >= given["steps_in_epoch"] or control.should_epoch_stop
        is_stopped = control.should_training_stop and self.trainer.state.global_step < self.trainer.state.max_steps
        if self._position is not None:
            self._pass_boundary(is_over=is_over, is_stopped=is_stopped)

    def get_batch_samples(self, epoch_iterator: Iterator[Any], num_batches: int, device: Any) -> Any:
        self._pass_boundary()
        # In the middle of an epoch the trainer would skip batches by another loader; ours is there already.
        found = self._plain["get_batch_samples"](self._rest or epoch_iterator, num_batches, device)
        self._progress.batches += len(found[0])
        return found

    def log(self, logs: dict[str, float], *args: Any, **kwargs: Any) -> None:
        trainer = self.trainer
        if self._is_resumed:
            step = trainer.state.global_step
            transformers_internals.count_rates(logs, step - self._began_at, step - trainer._initial_global_step)
        self._plain["log"](logs, *args, **kwargs)

    # What they share.

    def _open(self, model: Any, resume_from_checkpoint: str | None) -> None:
        logged = LoggedOptimizer(plain_optimizer(self.trainer.optimizer), self.run, model, **self._settings)
        logged.training_run.report.face = "callback"
        try:
            self._recover(logged, resume_from_checkpoint)
        except BaseException:
            logged.close()
            raise

    def _recover(self, logged: LoggedOptimizer, resume_from_checkpoint: str | None) -> None:
        trainer, training_run = self.trainer, logged.training_run
        if resume_from_checkpoint is not None and training_run.journal.is_fresh:
            raise UsageError(
                f"{self.run} is a new run, but train(resume_from_checkpoint={str(resume_from_checkpoint)!r}) would start in "
                "the middle of another one. Finish that run the way it was started, or give the model its weights "
                "(from_pretrained) and call train() without the argument"
            )
        position = training_run.auxiliary.loader(plain_loader(self._loader), kind=TrainerPosition)
        assert isinstance(position, TrainerPosition)
        self._position, self._progress = position, Progress(trainer)
        logged.track(trainer=self._progress, scheduler=trainer.lr_scheduler)
        if trainer.accelerator.scaler is not None:
            logged.track(scaler=trainer.accelerator.scaler)
        training_run.restarts.framework = _with_trainer(training_run.restarts.framework, trainer)
        training_run.ignore_in_recheck("tracked.trainer.logged")  # how long evaluations took
        report = logged.recover()
        self.optimizer, self._is_resumed = logged, bool(report.step)
        self._turns, self._has_begun = logged.steps(until=sys.maxsize, stateless=True), False
        if resume_from_checkpoint is not None:
            _log.warning(
                "%s: the run continues at its own step %d, not at the checkpoint %s",
                self.run,
                report.step,
                resume_from_checkpoint,
            )

    def begin(self) -> None:
        """Begin after the trainer has set its sums to zero."""
        self._progress.set_back()

    def _pass_boundary(self, *, is_over: bool = False, is_stopped: bool = False) -> None:
        """Commit the batches before. The first call after a recovery is where training continues."""
        progress, position = self._progress, self._position
        assert position is not None
        assert self.optimizer is not None
        if not self._has_begun:
            self._has_begun = True
            if self._is_resumed:
                progress.set_back()
            progress.go_on()
            next(self._turns)
            return
        position.advance(progress.batches)
        progress.is_stopped = is_stopped
        if is_stopped or self.trainer.state.global_step >= self.trainer.state.max_steps:
            self.optimizer.training_run.expect_end()
        if is_over:
            self.optimizer.training_run.restarts.note_end(of_loop=False)
            position.end_epoch()
            progress.epoch, progress.batches = progress.epoch + 1, 0
        next(self._turns)
        for name in sorted(progress.lost):
            position.doubt(f"{type(self.trainer).__name__}.{name} {CANNOT_BE_STORED}")

    def _refuse(self, trial: Any) -> None:
        trainer = self.trainer
        args = trainer.args
        reasons = {
            "a hyper-parameter search needs a run per trial": trial is not None,
            "auto_find_batch_size changes the batches during training. Give the batch size": args.auto_find_batch_size,
            "ignore_data_skip=True trains on the same batches again. Leave it out": args.ignore_data_skip,
            "DeepSpeed keeps weights and optimizer state itself": trainer.is_deepspeed_enabled,
            "FSDP under the Trainer is not supported": trainer.is_fsdp_enabled,
        }
        for reason, holds in reasons.items():
            if holds:
                raise UsageError(f"{self.run}: {reason}")

    def end(self) -> None:
        """Training is over: the run is sealed and released."""
        if self.optimizer is not None and self._position is not None:
            self._position = None
            self._turns.close()  # type: ignore[attr-defined]
            self.optimizer.close()


def _with_trainer(framework: Framework, trainer: Trainer) -> Framework:
    """Return what is known of the values of a script whose loop is the trainer's: its callbacks keep what `state()` gives."""
    callbacks = trainer.callback_handler.callbacks

    def tracked() -> Iterator[tuple[Any, Any]]:
        yield from framework.tracked()
        for one in callbacks:
            if isinstance(one, transformers_internals.ExportableState):
                yield one, lambda one=one: one.state()["attributes"]

    return replace(
        framework,
        kept=lambda: [*framework.kept(), trainer],
        tracked=tracked,
        others=lambda: [*framework.others(), *((type(one).__name__, one) for one in callbacks)],
        variable="exportable",
        thing="exportable",
    )


transformers_internals.check_transformers()


class TranLogsTrainerCallback(LoggingCallback, TrainerCallback):  # type: ignore[misc]
    """Logs every step of `Trainer.train`; run the same script again after a crash, and training goes on at the step.

        trainer = Trainer(model, args, train_dataset=dataset, callbacks=[TranLogsTrainerCallback("runs/gpt")])
        trainer.train()

    A callback is given everything but its trainer, so it looks for the one that is being created. If there is none
    (`trainer.add_callback(...)`), call `callback.attach(trainer)`.

    Args:
        run: folder of the run; made if there is none. One run for one training: the same script, the same data.
        verbose: whether to print what a new run writes, and where training goes on.
        settings: all that `LoggedOptimizer` takes besides: checkpoint_every, durability, keep, log, monitor, store, ...

    Raises:
        UsageError: a setting is wrong, or this version of transformers is not known.
    """

    def __init__(self, run: str | Path, *, verbose: bool = True, **settings: Any) -> None:
        LoggingCallback.__init__(self, run, settings)
        self._verbose = verbose
        self._loop: Loop | None = None

    @property
    def optimizer(self) -> LoggedOptimizer:
        """The logged optimizer, from the beginning of `train()` on.

        Raises:
            UsageError: nothing was trained yet.
        """
        self._logged = None if self._loop is None else self._loop.optimizer
        return super().optimizer

    @property
    def report(self) -> RecoveryReport:
        """The report of the recovery, as `LoggedOptimizer.report` has it; with a note if nothing is left to train."""
        self._is_finished = self._loop is not None and self._loop.is_finished
        return super().report

    def attach(self, trainer: Trainer) -> TranLogsTrainerCallback:
        """Log this trainer's training; the callback is added to it, if it is not there.

        Raises:
            UsageError: the callback logs another trainer, or the trainer has another such callback.
        """
        if self._loop is not None and self._loop.trainer is not trainer:
            raise UsageError(
                f"{self._run}: this callback already logs another trainer. Create one callback per trainer, each with a "
                "folder of its own"
            )
        others = [one for one in trainer.callback_handler.callbacks if isinstance(one, TranLogsTrainerCallback)]
        if any(one is not self for one in others):
            raise UsageError(f"{self._run}: this trainer has two TranLogsTrainerCallbacks; keep one")
        if self not in others:
            trainer.add_callback(self)
        if self._loop is None:
            self._loop = Loop(trainer, self._run, self._settings, verbose=self._verbose)
        return self

    def on_init_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        trainer = transformers_internals.find_trainer()
        if trainer is not None:
            self.attach(trainer)

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if self._loop is None:
            raise UsageError(
                f"{self._run}: this callback did not see its trainer being created and would log nothing. Call "
                "callback.attach(trainer) before trainer.train()"
            )
        self._loop.begin()

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if self._loop is not None:
            self._loop.end()
