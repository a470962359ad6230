"""LoggedOptimizer: the public face for training loops of one's own."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

import keras

from tranlogs.base.errors import UsageError
from tranlogs.training import GRACE_SECONDS, Curve, Mode, Monitor, OnSignal, RecoveryReport, Remembered, check_epochs

from . import keras_internals
from .loop.data_place import LoopData
from .loop.loop_members import Members
from .loop.loop_run import LoopRun
from .loop.loops import Epoch, Loops
from .settings import Settings
from .state.state import LogKind

keras_internals.check_keras()


class LoggedOptimizer:
    """Wrap a Keras optimizer so that every `apply` of a training loop of one's own is in a write-ahead log.

        optimizer = LoggedOptimizer(keras.optimizers.Adam(), "runs/mnist", model)
        for epoch in optimizer.epochs(3, dataset):
            for x, y in epoch:
                train_step(x, y)  # calls optimizer.apply(gradients, model.trainable_variables)

    Args:
        optimizer: any optimizer of keras.optimizers; it may be built or not.
        run: folder of the run; made if it is not there.
        model: the model that the optimizer trains, or a list of models.
        log: as for `TranLogsCallback`, like the settings behind it.

    Raises:
        RunInUse: another live process trains on this run.
        UsageError: a setting is wrong, or the optimizer cannot be logged.
    """

    def __init__(
        self,
        optimizer: Any,
        run: str | Path,
        model: Any,
        *,
        log: LogKind | Literal["auto"] = "auto",
        overhead: str | float | None = "5%",
        checkpoint_every: Any = "auto",
        durability: Literal["machine", "process"] = "machine",
        keep: Any = 2,
        seed: int | None = None,
        fingerprint: Mode = "auto",
        segment_bytes: int | None = None,
        writer: Literal["direct", "thread"] | None = None,
        monitor: Literal["process"] | Monitor | None = None,
        budget: str | int | None = None,
        store: str | None = None,
        on_signal: OnSignal | None = "seal",
        grace_seconds: float = GRACE_SECONDS,
        recheck: bool | None = None,
    ) -> None:
        given = locals()
        names = [name for name in inspect.signature(LoggedOptimizer).parameters if name not in ("optimizer", "run", "model")]
        settings = Settings.of(run, **{name: given[name] for name in names})
        _check(optimizer)
        members = Members()
        members.add_optimizer("optimizer", optimizer, _models_of(model))
        self._join(optimizer, LoopRun(settings, members))
        self._loops = Loops(self._run)

    def _join(self, optimizer: Any, run: LoopRun) -> None:
        self.inner, self._run = optimizer, run
        optimizer._tranlogs_run = str(run.settings.shared.run)

    def add_optimizer(self, optimizer: Any, name: str, model: Any) -> LoggedOptimizer:
        """Add another optimizer of the same loop: logged in the same run, recovered to the same moment."""
        if self._run.has_begun:
            raise UsageError(f"optimizer {name!r}: add it before recover() and before the loop")
        _check(optimizer)
        self._run.members.add_optimizer(name, optimizer, _models_of(model))
        shell = object.__new__(LoggedOptimizer)
        shell._join(optimizer, self._run)
        shell._loops = self._loops
        return shell

    # An optimizer like any other.

    @keras_internals.not_converted
    def apply(self, grads: Any, trainable_variables: Any = None) -> None:
        """Apply gradients as the inner optimizer does it, and log them."""
        self._demand_open()
        self.inner.apply(grads, trainable_variables)

    @keras_internals.not_converted
    def apply_gradients(self, grads_and_vars: Any) -> Any:
        """Apply pairs of gradient and variable as the inner optimizer does it, and log them."""
        self._demand_open()
        return self.inner.apply_gradients(grads_and_vars)

    def _demand_open(self) -> None:
        if not self._run.has_begun:
            self._run.demand_recovered()
            with keras_internals.outside_of_functions():
                self._run.begin()

    @property
    def learning_rate(self) -> Any:
        """The learning rate of the inner optimizer."""
        return self.inner.learning_rate

    @learning_rate.setter
    def learning_rate(self, value: Any) -> None:
        self.inner.learning_rate = value

    def __getattr__(self, name: str) -> Any:
        if name in ("inner", "_run", "_loops"):
            raise AttributeError(name)
        return getattr(self.inner, name)

    def __repr__(self) -> str:
        return f"LoggedOptimizer({self.inner!r}, run={str(self._run.settings.shared.run)!r})"

    # The run.

    def track(self, **things: Any) -> LoggedOptimizer:
        """Bring these back, too: metrics, seed generators, variables, models that the loop writes, random generators.

        Raises:
            UsageError: something has no state, or a name is given twice.
            UnencodableState: a state holds something that cannot be stored; the message has its path.
        """
        if self._run.has_begun:
            raise UsageError("track() must come before recover() and before the loop")
        for name, thing in things.items():
            self._run.members.track(name, thing)
        return self

    def remember(self, **values: Any) -> Remembered:
        """Return a namespace with these attributes, which come back after a crash: `state = optimizer.remember(best=0.0)`.

        Attributes are read and assigned as those of any object, also new ones. They may be numbers, strings, arrays, tensors,
        random generators, containers of these, and objects with `state_dict` or `get_state`. What Keras has variables for
        (metrics, layers, seed generators) belongs to `track`.

        Raises:
            UsageError: training has begun.
            UnencodableState: a value cannot be stored, is too large, or contains itself; the error has its path.
        """
        if self._run.has_begun:
            raise UsageError("remember() must come before recover() and before the loop")
        return self._run.remember(values)

    def remember_times(self, **values: Any) -> Remembered:
        """Remember times that the script measures: attributes of the same namespace, which the proof of a resume leaves out."""
        if self._run.has_begun:
            raise UsageError("remember_times() must come before recover() and before the loop")
        self._run.members.times += values
        return self._run.remember(values)

    def recover(self) -> RecoveryReport:
        """Bring models, optimizers and all that is tracked back to the newest boundary; begin a run that is new.

        The first loop does it if the script does not.

        Raises:
            StateMismatch: what was built does not fit the run; nothing was touched.
            RecoveryError: no sound checkpoint is left.
        """
        return self._run.recover()

    @property
    def run_id(self) -> str:
        """The id of the run: the same after every restart."""
        return self._run.resources.journal.run.run_id

    @property
    def report(self) -> RecoveryReport:
        """The report of the recovery, updated while training continues."""
        return self._run.report.current or RecoveryReport()

    def epochs(
        self, count: int, data: Any = None, *, batch_size: int | None = None, shuffle: bool = True, stateless: bool = False
    ) -> Iterator[Epoch]:
        """Yield the epochs that are left of `count`: `for epoch in optimizer.epochs(3, dataset): for batch in epoch: ...`.

        Without `data`, each epoch's batches come from `optimizer.batches(data)`. `batch_size` and `shuffle` are for arrays,
        `stateless` for iterables of the script's own; see `batches`.
        """
        check_epochs(count)
        given = None if data is None else LoopData(data, batch_size, shuffle, is_stateless=stateless)
        return self._loops.epochs(count, given, sys._getframe(1).f_code.co_name)

    def batches(
        self,
        data: Any,
        until: int | None = None,
        *,
        batch_size: int | None = None,
        shuffle: bool = True,
        stateless: bool = False,
        enumerate: bool = False,
    ) -> Iterator[Any]:
        """Yield the batches of the running epoch that are left; outside of `epochs`, those of all epochs up to `until`.

        Args:
            data: a tf.data.Dataset, a DataLoader, a PyDataset, arrays, an iterable, or a function that returns a generator.
            until: number of batches of the loop.
            batch_size: of arrays.
            shuffle: whether arrays are shuffled.
            stateless: the script's word that a pass over an iterable of its own depends on nothing but the global random
                generators. Where this is not declared, `report.exact` is None.
            enumerate: whether each batch comes with its number, `for i, batch in ...`: in the epoch, or outside of `epochs` in
                the loop; from 0, also after a crash.
        """
        given = LoopData(data, batch_size, shuffle, is_stateless=stateless)
        return self._loops.batches(given, until, sys._getframe(1).f_code.co_name, numbered=enumerate)

    def steps(self, until: int, *, stateless: bool = False) -> Iterator[int]:
        """Yield the numbers of the turns that are left, for loops without data.

        A fresh run yields the integers from 0 to `until` - 1, a resumed one those that are left: the first is the turn that the
        crash interrupted. What the body does until it asks for the next turn belongs to the turn.

        Args:
            until: number of turns of the loop.
            stateless: the script's word that a turn depends on nothing but its number, what is tracked, and the global random
                generators (numpy, Python, Keras' and the backend's): no batch is kept in a variable from one turn to the next,
                and there is no environment, iterator or generator that is not tracked. Where this is not
                declared, `report.exact` is None.
        """
        return self._loops.steps(until, sys._getframe(1).f_code.co_name, stateless=stateless)

    def log_scalars(self, **scalars: float) -> None:
        """Keep small numbers (a loss) with the running batch; `tranlogs log` shows them, `scalars` has their curves."""
        self._run.scalars.note(**scalars)

    @property
    def scalars(self) -> dict[str, Curve]:
        """All noted scalars: name -> (steps, values); after recovery they are there again."""
        return self._run.scalars.curves

    @property
    def is_recomputing(self) -> bool:
        """True while the loop computes steps again that were finished before a crash; a script may then be quiet."""
        return self._run.resources.journal.is_rechecking

    def close(self) -> None:
        """Seal the log and release the run. Every complete batch is safe afterwards."""
        self._run.close(is_orderly=sys.exc_info()[0] is None)
        for optimizer in self._run.members.optimizers.values():
            vars(optimizer).pop("_tranlogs_run", None)

    def __enter__(self) -> LoggedOptimizer:
        return self

    def __exit__(self, kind: Any, *_: object) -> None:
        self.close()


def _models_of(model: Any) -> list[Any]:
    models = list(model) if isinstance(model, (list, tuple)) else [model]
    if not models or not all(isinstance(item, keras.Layer) for item in models):
        raise UsageError(f"model= must be a Keras model or a list of models, got {model!r:.60}")
    return models


def _check(optimizer: Any) -> None:
    if isinstance(optimizer, LoggedOptimizer):
        raise UsageError("this optimizer is logged already; wrap the plain one")
    if not isinstance(optimizer, keras_internals.BaseOptimizer):
        hint = ""
        if type(optimizer).__module__.partition(".")[0] in ("torch", "tranlogs_torch"):
            hint = ". Optimizers of torch.optim are logged by tranlogs_torch.LoggedOptimizer"
        raise UsageError(f"expected an optimizer of keras.optimizers, not a {type(optimizer).__name__}{hint}")
    logged = getattr(optimizer, "_tranlogs_run", None)
    if logged is not None:
        raise UsageError(f"this optimizer is logged in run {logged} already; close that LoggedOptimizer first")
    if keras.backend.backend() == "jax":
        raise UsageError(
            "loops of one's own are not supported on the Keras backend 'jax', whose optimizers are applied without state "
            "(optimizer.stateless_apply). Train with model.fit and TranLogsCallback, or set KERAS_BACKEND to tensorflow or "
            "torch"
        )
