"""LoggedOptimizer: the public face. A shell around the user's optimizer that is one itself and holds nothing of its own.

It is built without `Optimizer.__init__` (that would make groups and hooks anew) and shares everything with the inner
optimizer by properties, so schedulers, GradScaler and accelerate may be given either (a GradScaler the same one throughout).
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Literal, get_args

import torch
from torch.optim import Optimizer
from torch.utils.data import DataLoader

from tranlogs.base.errors import UsageError
from tranlogs.training import (
    GRACE_SECONDS,
    Curve,
    Monitor,
    OnSignal,
    RecoveryReport,
    Remembered,
    RunSettings,
    check_epochs,
    choose_rung,
    parse_overhead,
)

from .capture.optimizer_hooks import LogKind, OptimizerHooks
from .capture.single_step import nested
from .data.epoch import Epoch
from .distributed.process_group import local_world
from .loops.training_run import TrainingRun
from .loops.write_forecast import fit_segment
from .sharding.shards import demand_known_optimizer
from .state.fingerprint import Mode
from .state.naming import Models
from .state.pending_gradients import mark_zero

_SHARED = ["param_groups", "state", "defaults", "grad_scale", "found_inf", "_step_supports_amp_scaling"]
_SHARED += [
    f"_optimizer_{name}_hooks"
    for name in ("step_pre", "step_post", "state_dict_pre", "state_dict_post", "load_state_dict_pre", "load_state_dict_post")
]
_DELEGATED = ["state_dict", "load_state_dict"]


class LoggedOptimizer(Optimizer):
    """Wrap an optimizer so that every step is in a write-ahead log, and a crash costs no finished step.

    Args:
        optimizer: any torch.optim.Optimizer.
        run: folder of the run; made if it is not there.
        model: the module (or a dict or list of modules) that is trained: its parameters' names, and its buffers.
        log: "auto": gradients as long as they cost at most `overhead` of a step, which is measured, else no tensors;
            "gradients" (redo with the optimizer), "weights" (after-image of parameters and optimizer state), or "inputs": no
            tensors, so that it costs next to nothing. After a crash the script's loop computes the steps of which the log has
            no tensors again, and each recorded boundary on the way is compared. "gradients:bf16" and "gradients:int8" change
            training: the optimizer steps with gradients that are rounded to a half or a quarter of the bytes, at random.
        overhead: what the log of gradients may cost with log="auto": "5%", or 0.05; None for no bound.
        checkpoint_every: "auto" (as soon as one saves more than it costs, at the failures that the run has seen, or when the
            log fills a sixteenth of the free disk), "mtbf=6h" (the same, at a failure in 6 hours), steps (500), a time
            ("10min"), a size of log ("256MiB"), a recovery time ("rto=30s"), or an object with `is_due(facts)`.
        durability: "machine" survives power loss (synced steps, a moment behind), "process" survives the process.
        keep: which checkpoints stay: a number, `KeepLatest(n)`, `KeepEvery(steps)`, a function, or an object with
            DLRover's `clean_up(step, delete_func)`.
        optimizer_state: with log="weights", False leaves the optimizer's state out of the log.
        fingerprint: "auto", "full" (every parameter is hashed after each step) or "sample".
        name: of this optimizer in the run; needed only if there are several.
        rank: number of this process among those that train together; torch.distributed knows it, where it is initialised.
        segment_bytes: size of a log file; by default it fits the model (1 to 128 MiB).
        worker_seeds: "batch" seeds torch, numpy and Python in DataLoader workers anew for each batch, so that augmentation and
            collating there are exact, too. The numbers are then others than without. For all loaders of the run.
        writer: "direct" writes on the training thread, "thread" hands over to a writer; by default chosen by device.
        monitor: "process" starts a monitor, one for each rank, which outlives this process and ends once the run is closed or
            settled; or a `tranlogs.Monitor`.
        budget: what the run may take on this machine's disk, like "20GiB"; kept by the monitor. Ranks share it evenly.
        store: URL where the run is shipped to, below its folder's name, by the monitor if there is one, else by this process.
            A run that is not here is brought from there before training begins.
        copies: of each share of the log of processes that train together: with 2 the rank before keeps it, too, so that a
            journal which is lost with its disk costs no step.
        on_signal: "seal": SIGTERM or SIGUSR1 that nobody else handles seals, syncs and ships the log, and ends the process,
            whatever the main thread does; where somebody handles it, the log is synced and that handler decides. None leaves
            signals alone.
        grace_seconds: seconds that this may take, from the signal to the end of the process.
        recheck: whether the script's loop computes the newest unit before a crash again, and the resume is called exact only if
            that equals the log; default: the variable TRANLOGS_RECHECK, else True.

    Raises:
        RunInUse: another live process trains on this run.
        UsageError: a setting is wrong, or the optimizer cannot be logged.
    """

    inner: Optimizer
    training_run: TrainingRun
    hooks: OptimizerHooks

    def __init__(
        self,
        optimizer: Optimizer,
        run: str | Path,
        model: Models = None,
        *,
        log: LogKind | Literal["auto"] = "auto",
        overhead: str | float | None = "5%",
        checkpoint_every: Any = "auto",
        durability: Literal["machine", "process"] = "machine",
        keep: Any = 2,
        optimizer_state: bool = True,
        fingerprint: Mode = "auto",
        name: str = "main",
        rank: int | None = None,
        segment_bytes: int | None = None,
        writer: Literal["direct", "thread"] | None = None,
        worker_seeds: Literal["batch"] | None = None,
        monitor: Literal["process"] | Monitor | None = None,
        budget: str | int | None = None,
        store: str | None = None,
        copies: int = 1,
        on_signal: OnSignal | None = "seal",
        grace_seconds: float = GRACE_SECONDS,
        recheck: bool | None = None,
    ) -> None:
        rung = choose_rung(log, parse_overhead(overhead))
        kind: LogKind = "gradients" if log == "auto" else log
        _check(optimizer, kind)
        settings = RunSettings.of(
            run=run,
            checkpoint_every=checkpoint_every,
            keep=keep,
            durability=durability,
            fingerprint=fingerprint,
            segment_bytes=segment_bytes,
            writer=writer,
            monitor=monitor,
            budget=budget,
            store=store,
            on_signal=on_signal,
            grace_seconds=grace_seconds,
            recheck=recheck,
            processes=local_world(),
        )
        if log == "inputs":
            settings.demand_without_tensors()
        if worker_seeds not in (None, "batch"):
            raise UsageError(f'worker_seeds must be "batch" or None, got {worker_seeds!r}')
        parameters = [p for group in optimizer.param_groups for p in group["params"]]
        training_run = TrainingRun(
            settings,
            model,
            rank=rank,
            on_cuda=any(p.is_cuda for p in parameters),
            segment_bytes=fit_segment(optimizer),
            worker_seeds=worker_seeds,
            copies=copies,
            rung=rung,
        )
        try:
            self._join(optimizer, training_run, name, kind, optimizer_state)
        except BaseException:
            training_run.close()
            raise

    def _join(self, optimizer: Optimizer, training_run: TrainingRun, name: str, log: LogKind, optimizer_state: bool) -> None:
        hooks = OptimizerHooks(training_run.logged, name, optimizer, log, optimizer_state=optimizer_state)
        self.__dict__.update(inner=optimizer, training_run=training_run, hooks=hooks)
        training_run.add(hooks)
        hooks.shell = self
        optimizer._tranlogs_run = str(training_run.run)  # type: ignore[attr-defined]

    def add_optimizer(
        self, optimizer: Optimizer, name: str, *, log: LogKind | None = None, optimizer_state: bool = True
    ) -> LoggedOptimizer:
        """Add another optimizer of the same loop, to be logged in the same run and recovered to the same moment.

        Without `log=` it is logged as the first one, or as gradients where that one logs weights.
        """
        first = self.hooks.setting
        log = log or ("gradients" if first == "weights" else first)
        _check(optimizer, log)
        shell = object.__new__(LoggedOptimizer)
        shell._join(optimizer, self.training_run, name, log, optimizer_state)
        return shell

    # An optimizer like any other.

    def step(self, closure: Callable[[], Any] | None = None, *args: Any, **kwargs: Any) -> Any:
        """Take a step of the inner optimizer, which is logged; it gets all of the arguments."""
        self.hooks.order_hooks()
        given = () if closure is None and not args else (closure, *args)
        return self.inner.step(*given, **kwargs)

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add a group to the inner optimizer, unless recovery has added the same group already and the code runs again."""
        added = param_group["params"]
        added = [added] if isinstance(added, torch.Tensor) else list(added)  # it may be a generator
        param_group, wanted = {**param_group, "params": added}, set(map(id, added))
        if self.training_run.runs_again and any(
            {id(p) for p in group["params"]} == wanted for group in self.inner.param_groups
        ):
            return
        self.inner.add_param_group(param_group)

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Reset the gradients, like the inner optimizer."""
        self.inner.zero_grad(set_to_none)
        if not set_to_none:
            mark_zero(self.inner)

    step.hooked = True  # type: ignore[attr-defined]  # torch must not wrap it: the inner's hooks would run twice

    def __getattr__(self, name: str) -> Any:  # train() and eval() of schedule-free optimizers, ...
        if name in ("inner", "training_run", "hooks"):
            raise AttributeError(name)
        return getattr(self.inner, name)

    def __reduce_ex__(self, protocol: Any) -> Any:  # a copy (deepcopy, pickle) is the plain optimizer, no second writer
        return _itself, (self.inner,)

    def __repr__(self) -> str:
        return f"LoggedOptimizer({self.inner!r}, run={str(self.training_run.run)!r})"

    def clip_grad_norm_(
        self, max_norm: float, norm_type: float = 2.0, error_if_nonfinite: bool = False, foreach: bool | None = None
    ) -> torch.Tensor:
        """Clip this optimizer's gradients as `torch.nn.utils.clip_grad_norm_` does, and return their norm.

        The log then holds the gradients as they were before, and the norm: under autocast they take 2 bytes a
        parameter instead of 4.
        """
        return self.hooks.clip_grad_norm_(max_norm, norm_type, error_if_nonfinite, foreach)

    # The run.

    def track(self, **things: Any) -> LoggedOptimizer:
        """Bring these back, too: schedulers, scalers, EMAs, DataLoaders, anything with state_dict / load_state_dict.

        Raises:
            UnencodableState: a state_dict holds something that cannot be stored safely; the error has its path.
        """
        self.training_run.track(**things)
        return self

    def remember(self, **values: Any) -> Remembered:
        """Return a namespace with these attributes, which come back after a crash: `state = optimizer.remember(best=0.0)`.

        Attributes are read and assigned as those of any object, also new ones. They may be numbers, strings, arrays, tensors,
        random generators, containers of these, and objects with `state_dict` or `get_state`. Call it before `recover()`.

        Raises:
            UnencodableState: a value cannot be stored, is too large, or contains itself; the error has its path.
        """
        return self.training_run.remember_values(values)

    def remember_times(self, **values: Any) -> Remembered:
        """Remember times that the script measures: attributes of the same namespace, which the proof of a resume leaves out."""
        return self.training_run.remember_times(values)

    def recover(self, step: int | None = None) -> RecoveryReport:
        """Bring model, optimizers and all that is tracked back to the newest boundary, or to `step`.

        A fresh run starts from what the script has built or loaded, and writes its first checkpoint. Training on from an older
        step starts a new timeline.

        Args:
            step: where to land.

        Raises:
            UsageError: training has begun.
            StateMismatch: what was built does not fit the run; nothing was touched.
            RecoveryError: no sound checkpoint is left, or `step` is not covered.
        """
        from tranlogs.training import progress_bar

        with progress_bar() as progress:
            return self.training_run.recover(step, progress)

    @property
    def run_id(self) -> str:
        """The id of the run: the same in every process that trains it, after every restart, and on every timeline.

        Raises:
            UsageError: several processes train together, and recover() has not been called.
        """
        return self.training_run.run_id

    @property
    def report(self) -> RecoveryReport:
        """The report of `recover()`, updated with later findings, such as data that do not repeat themselves."""
        return self.training_run.report.current or RecoveryReport()

    def batches(self, loader: DataLoader[Any], until: int | None = None, *, enumerate: bool = False) -> Iterator[Any]:
        """Yield batches over all epochs, from the exact next one on, until the loop has had `until` of them.

        Args:
            loader: the DataLoader.
            until: number of batches of the loop.
            enumerate: whether each comes with its number, `for i, batch in ...`: of the loop, from 0, also after a crash.
        """
        return self.training_run.batches(loader, until, sys._getframe(1).f_code.co_name, numbered=enumerate)

    def epochs(self, count: int, loader: DataLoader[Any] | None = None) -> Iterator[Epoch]:
        """Yield the epochs that are left of `count`: `for epoch in optimizer.epochs(10): for batch in epoch: ...`.

        An epoch is its number, from 0, and stands for the loader in functions that train for an epoch: it has `len`, `dataset`,
        `batch_size` and `sampler`.
        """
        check_epochs(count)
        return self.training_run.epochs(count, loader, sys._getframe(1).f_code.co_name)

    def steps(self, until: int, *, stateless: bool = False) -> Iterator[int]:
        """Yield the numbers of the turns that are left, for loops without a loader.

        A fresh run yields the integers from 0 to `until` - 1, a resumed one those that are left: the first is the turn that the
        crash interrupted. What the body does until it asks for the next turn belongs to the turn.

        Args:
            until: number of turns of the loop.
            stateless: the script's word that a turn depends on nothing but its number, what is tracked, and the global random
                generators (torch, numpy, Python): no batch is kept in a variable from one turn to the next, and there is no
                environment, iterator or generator that is not tracked. Where this is not declared, `report.exact` is None
                unless each turn takes batches of a tracked loader.
        """
        return self.training_run.steps(until, sys._getframe(1).f_code.co_name, stateless=stateless)

    def log_scalars(self, **scalars: float) -> None:
        """Keep small numbers (a loss) with the running batch; `tranlogs log` shows them, `scalars` has their curves."""
        self.training_run.scalars.note(**scalars)

    @property
    def scalars(self) -> dict[str, Curve]:
        """All noted scalars: name -> (steps, values); after recovery they are there again."""
        return self.training_run.scalars.curves

    @property
    def is_recomputing(self) -> bool:
        """True while the loop computes steps again that were finished before a crash; a script may then be quiet."""
        return self.training_run.journal.is_rechecking

    @property
    def watermarks(self) -> dict[str, int]:
        """Steps that are applied, committed (survive the process) and synced (survive power loss)."""
        journal = self.training_run.journal
        return {"step": journal.step, "committed": journal.committed, "synced": journal.synced}

    def checkpoint(self) -> bool:
        """Take a checkpoint at the next boundary, even if the policy does not ask for one."""
        return self.training_run.request_checkpoint()

    def close(self) -> None:
        """Seal the log and release the run. Every complete batch is safe afterwards; one without tensors is computed again."""
        self.training_run.close()

    def __enter__(self) -> LoggedOptimizer:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _itself(inner: Optimizer) -> Optimizer:
    return inner


def _check(optimizer: Any, log: str) -> None:
    if any(kind.__module__.partition(".")[0] in ("keras", "tranlogs_keras") for kind in type(optimizer).__mro__):
        raise UsageError(
            f"expected a torch.optim.Optimizer, got the Keras optimizer {type(optimizer).__name__}. Optimizers of Keras are "
            "logged by tranlogs_keras.LoggedOptimizer, and in model.fit by tranlogs_keras.TranLogsCallback"
        )
    held = nested(optimizer)
    if held is not None and not isinstance(optimizer, LoggedOptimizer):
        kind = type(optimizer).__name__
        raise UsageError(
            f"a {kind} keeps another optimizer as .{held}, whose state would not be logged. Log that optimizer and keep the "
            f"{kind}: optimizer.{held} = LoggedOptimizer(optimizer.{held}, ...)"
        )
    if not isinstance(optimizer, Optimizer):
        raise UsageError(f"expected a torch.optim.Optimizer, got a {type(optimizer).__name__}")
    if isinstance(optimizer, LoggedOptimizer):
        raise UsageError("this optimizer is already logged; wrap the plain optimizer")
    demand_known_optimizer(optimizer)
    logged = getattr(optimizer, "_tranlogs_run", None)
    if logged is not None:
        raise UsageError(f"this optimizer is already logged in run {logged}; close that LoggedOptimizer first")
    if log not in get_args(LogKind):
        raise UsageError(
            'log must be "auto", "gradients", "weights" or "inputs", or, to train with rounded gradients, "gradients:bf16" or '
            f'"gradients:int8", got {log!r}'
        )
    if ":" in log and isinstance(optimizer, torch.optim.LBFGS):
        raise UsageError(f'log="{log}": LBFGS evaluates its closure many times per step. Use log="weights"')
    if log != "inputs" and any(group.get("differentiable") for group in optimizer.param_groups):
        raise UsageError("differentiable=True: such steps cannot be redone from a log")


def _shared(name: str) -> property:
    return property(
        lambda self: getattr(self.inner, name),
        lambda self, value: setattr(self.inner, name, value),
        lambda self: delattr(self.inner, name),
    )


def _delegated(name: str) -> Callable[..., Any]:
    def call(self: LoggedOptimizer, *args: Any, **kwargs: Any) -> Any:
        return getattr(self.inner, name)(*args, **kwargs)

    call.__name__ = name
    call.__doc__ = getattr(Optimizer, name).__doc__
    return call


for _name in _SHARED:
    setattr(LoggedOptimizer, _name, _shared(_name))
for _name in _DELEGATED:
    setattr(LoggedOptimizer, _name, _delegated(_name))
