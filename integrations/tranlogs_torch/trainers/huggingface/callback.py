"""The callback: one more entry in `callbacks=[...]`, and `trainer.train()` comes back after a crash."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from transformers import Trainer, TrainerCallback

from tranlogs.base.errors import UsageError
from tranlogs.training import RecoveryReport

from ...optimizer import LoggedOptimizer
from ..logging_callback import LoggingCallback
from . import transformers_internals
from .loop import Loop

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
