"""The Keras callback: one more entry in `callbacks=[...]`, and `model.fit` comes back after a crash."""

from __future__ import annotations

import inspect
import os
from pathlib import Path
from typing import Any, Literal

import keras

from tranlogs.base.errors import UsageError
from tranlogs.training import GRACE_SECONDS, Mode, Monitor, OnSignal, RecoveryReport, announce, prepare_run_id

from . import keras_internals
from .data.source import DataOrder
from .fit.fit_run import FitRun
from .fit.identity import claim_folder, digest_identity, process_fits
from .settings import Settings
from .state.state import LogKind

keras_internals.check_keras()


class TranLogsCallback(keras.callbacks.Callback):  # type: ignore[misc]
    """Logs every step of `model.fit`; run the same script again after a crash, and training goes on at the batch.

        model.fit(x, y, epochs=20, callbacks=[TranLogsCallback("runs/mnist")])

    Args:
        run: folder of the run; made if there is none. One run for one training: the same script, the same data.
        log: "auto": gradients (weights where gradients are not enough, with a line that gives the reason) as long as they cost
            at most `overhead` of a step, which is measured, else no tensors; "gradients" (what enters the optimizer, redone
            by the very function that applied it), "weights" (what each step has changed), or "inputs": no tensors. After a
            crash `fit` computes the steps of which the log has no tensors again, and each recorded boundary on the way is
            compared.
        overhead: what logged tensors may cost with log="auto": "5%", or 0.05; None for no bound.
        checkpoint_every: "epoch" (at the end of each epoch, and in long ones as "auto"), "auto" (as soon as one saves
            more than it costs, at the failures that the run has seen, or when the log fills a sixteenth of the free disk),
            "mtbf=6h" (the same, at a failure in 6 hours), steps (500), a time ("10min"), bytes of log ("256MiB"), a recovery
            time ("rto=30s"), or a policy object.
        keep: how many checkpoints are kept, or a retention policy.
        durability: "machine" (log synced behind training: a power cut loses what `tranlogs status` shows), or "process".
        data_order: of arrays and PyDatasets: "tranlogs" draws each epoch's order from the seed, so that any batch is found
            at once; "keras" leaves Keras's own order, and draws batches again up to the crash.
        seed: of that order; default: what keras.utils.set_random_seed was given, else drawn once a run.
        fingerprint: "full" (every byte after each step), "sample", or "auto": full while it costs little of a step.
        segment_bytes: size of a log file; by default it fits the model (1 to 128 MiB).
        writer: "direct" (records are written on the training thread) or "thread".
        verbose: whether to print where training goes on.
        monitor: "process" starts a monitor, which outlives this process and ends once the run is closed or settled; or a
            `tranlogs.Monitor`.
        budget: what the run may take on disk, like "20GiB"; kept by the monitor.
        store: URL where the run is shipped to, below its folder's name, by the monitor if there is one, else by this process.
            A run that is not here is brought from there before training begins.
        on_signal: "seal": SIGTERM or SIGUSR1 that nobody else handles seals, syncs and ships the log, and ends the process,
            whatever the main thread does; where somebody handles it, the log is synced and that handler decides. None leaves
            signals alone.
        grace_seconds: seconds that this may take, from the signal to the end of the process.
        recheck: whether the fit computes the newest batch before a crash again, and the resume is called exact only if that
            equals the log; default: the variable TRANLOGS_RECHECK, else True.
        accept_changes: whether the run continues although the model, the settings of `compile`, the optimizer or the data are
            not those that it has recorded. By default such a fit is refused. The learning rate is then the script's; other
            settings of the optimizer stay those of the run. More epochs are no change.

    A copy of the callback (`copy.deepcopy`, `sklearn.base.clone`, pickle), as searches and cross-validations make them, logs
    to a folder of its own below `run`, which the same fit finds again.

    Attributes:
        report: findings of the recovery, with later ones (`RecoveryReport`), also in the later fits of the process.

    Raises:
        UsageError: a setting is wrong.
    """

    def __init__(
        self,
        run: str | os.PathLike[str],
        *,
        log: LogKind | Literal["auto"] = "auto",
        overhead: str | float | None = "5%",
        checkpoint_every: Any = "epoch",
        keep: Any = 2,
        durability: str = "machine",
        data_order: DataOrder = "tranlogs",
        seed: int | None = None,
        fingerprint: Mode = "auto",
        segment_bytes: int | None = None,
        writer: str | None = None,
        verbose: bool = True,
        monitor: Literal["process"] | Monitor | None = None,
        budget: str | int | None = None,
        store: str | None = None,
        on_signal: OnSignal | None = "seal",
        grace_seconds: float = GRACE_SECONDS,
        accept_changes: bool = False,
        recheck: bool | None = None,
    ) -> None:
        super().__init__()
        given = locals()
        self._options = {name: given[name] for name in inspect.signature(TranLogsCallback).parameters if name != "run"}
        self._settings = Settings.of(run, **self._options)
        self._rung = self._settings.choose_rung()
        self._given = self._settings.run
        self._is_unplaced_copy = False
        self._fit_run: FitRun | None = None
        self._fits = 0
        self._fitted: Any = None  # the model of the first fit
        self._report = RecoveryReport()  # of the last fit
        self._forecast = ""  # that was printed last

    @property
    def report(self) -> RecoveryReport:
        """The report of the recovery, updated while training continues."""
        return self._report if self._fit_run is None else self._fit_run.report

    @property
    def run(self) -> Path:
        """The run's folder."""
        return self._settings.run

    @property
    def run_id(self) -> str:
        """The id of the run: the same after every restart. Reading it before the first fit creates the run's folder.

        Raises:
            UsageError: this is a copy, whose folder is chosen as its fit begins.
        """
        if self._is_unplaced_copy:
            raise UsageError(f"{self._given}: run_id of a copy of the callback is known once its fit has begun")
        return prepare_run_id(self._settings.shared, framework="keras")

    def on_train_begin(self, logs: Any = None) -> None:
        """Recover, and put the log between Keras and the model."""
        self._release_left_over()
        _, callbacks, _ = keras_internals.find_fit(self.model)
        if self._fitted is not None and self._fitted is not self.model:
            raise UsageError(
                f"{self.run}: this callback has logged another model's fit: make one for each model, in a folder of its own"
            )
        others = [callback for callback in callbacks.callbacks if callback is not self]
        _refuse(others, self.run)
        self._rung.begin_fit()
        fit_run = FitRun(self.model, self._place, self._fits, others, self._rung)
        self._fitted, self._fits = self.model, fit_run.number
        self._fit_run, self._report = fit_run, fit_run.report
        if not fit_run.is_skipped:
            fit_run.install()
            process_fits.open[self.run.resolve()] = fit_run
        self.model._initial_epoch = fit_run.starts_at
        callbacks.callbacks.append(_Last(self))
        self._announce(fit_run)

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        """Note the epoch that the loop over batches is about to begin."""
        self.model._initial_epoch = None  # else the next fit would begin there, too
        assert self._fit_run is not None
        self._fit_run.cursor.start_epoch(epoch)

    def __reduce__(self) -> tuple[Any, ...]:
        return _make_copy, (type(self), self._given, self._options)

    def _place(self, identity: dict[str, Any]) -> Settings:
        """Return the settings for a fit; a copy gets the fit's folder with its first one."""
        if self._is_unplaced_copy:
            folder = claim_folder(self._given, digest_identity(identity))
            store = self._options["store"]
            options = self._options | ({} if store is None else {"store": f"{store.rstrip('/')}/{self._given.name}"})
            self._settings, self._is_unplaced_copy = Settings.of(folder, **options), False
        return self._settings

    def _release_left_over(self) -> None:
        """Close the run of a fit that ended with an exception, of which Keras does not inform callbacks."""
        self._fit_run = None
        run = self.run.resolve()
        for folder, fit_run in list(process_fits.open.items()):
            if folder == run or fit_run.model is self.model:
                process_fits.open.pop(folder, None)
                fit_run.release()

    def _end(self) -> None:
        fit_run, self._fit_run = self._fit_run, None
        self.model._initial_epoch = None
        if fit_run is None:
            return
        process_fits.open.pop(self.run.resolve(), None)
        self._fits += 1  # one that an exception ended is begun again, where it stopped
        try:
            fit_run.finish()
            self._report = fit_run.report
        finally:
            fit_run.release()

    def _announce(self, fit_run: FitRun) -> None:
        if not self._settings.verbose:
            return
        if fit_run.is_skipped:
            print(
                f"TranLogs: {self.run}: this fit was finished before, and trains nothing; the run goes on in a later one. "
                + (
                    "The model has the weights with which it ended"
                    if fit_run.has_end
                    else "Until then model and callbacks have the weights and attributes that the script has given them, not "
                    "those of the end of the fit"
                )
            )
            return
        report = fit_run.report
        if fit_run.number and fit_run.is_new:
            if report.forecast != self._forecast:
                print(f"TranLogs: {self.run}: fit {fit_run.number + 1}: {report.forecast}")
        elif fit_run.is_complete:
            print(
                f"TranLogs: {self.run}: this fit was finished before, at step {report.step}, and trains nothing; more "
                "epochs and later fits are trained"
            )
        else:
            announce(self.run, report, fit_run.cursor.place)
        self._forecast = report.forecast


class _Last(keras.callbacks.Callback):  # type: ignore[misc]
    """Behind all other callbacks: they reset themselves as training begins, and may write weights as it ends."""

    def __init__(self, owner: TranLogsCallback) -> None:
        super().__init__()
        self._owner = owner

    def on_train_begin(self, logs: Any = None) -> None:
        if self._owner._fit_run is not None:
            self._owner._fit_run.restore_siblings()

    def on_train_end(self, logs: Any = None) -> None:
        self._owner._end()


def _make_copy(kind: type[TranLogsCallback], run: Path, options: dict[str, Any]) -> TranLogsCallback:
    """Make a copy, which gets a folder below that of the original."""
    made = kind.__new__(kind)
    TranLogsCallback.__init__(made, run, **options)
    made._is_unplaced_copy = True
    return made


def _refuse(callbacks: list[Any], run: Path) -> None:
    """Callbacks that would undo ours."""
    for callback in callbacks:
        if isinstance(callback, keras.callbacks.BackupAndRestore):
            raise UsageError(
                f"{run}: BackupAndRestore sets weights and epoch back to its own backup: take it out, TranLogs brings "
                "training back to the batch"
            )
        if isinstance(callback, TranLogsCallback):
            raise UsageError(
                f"{run}: there are two TranLogsCallbacks in this fit (the other logs to {callback.run}): one is enough"
            )
