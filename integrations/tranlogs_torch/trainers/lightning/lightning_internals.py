"""Every name of Lightning's inside that TranLogs needs, and nothing else: what a new version can break is here.

Lightning's loops can be restarted from their counters, but a restart in the middle of an epoch skips what comes after a
validation and at the epoch's end (schedulers that look at a metric), counts some batches twice, and has made the iterator over
the data before any callback is asked. What is used instead was read in the sources of Lightning 2.6, and is checked at import.
"""

from __future__ import annotations

import ast
import functools
import inspect
import textwrap
import warnings
from collections.abc import Callable
from typing import Any

import lightning.pytorch as pl
from lightning.pytorch import callbacks as known
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.loops import _TrainingEpochLoop
from lightning.pytorch.loops.fit_loop import _FitLoop
from lightning.pytorch.loops.loop import _Loop

from tranlogs.base.errors import UsageError

__all__ = [
    "before_iterating",
    "before_training",
    "check_lightning",
    "check_trainer",
    "end_restart",
    "epoch_metrics",
    "loaders",
    "names_set_by_lightning",
]

_NOT_RESUMABLE = "your dataloader is"  # not resumable: a part of Lightning's warning
_RESOLVE = "_ModelCheckpoint__resolve_ckpt_dir"
_EXPECTED: dict[Any, dict[str, str]] = {
    _FitLoop: {
        "setup_data": "self._load_combined_loader_states()",
        "_load_combined_loader_states": "",
        "state_dict": "",
        "load_state_dict": "",
        "__init__": "self._combined_loader:",
    },
    _TrainingEpochLoop: {
        "on_run_start": "data_fetcher",
        "reset_restart_stage": "",
        "reset": _NOT_RESUMABLE,
        "run": "self.reset()",
        "__init__": "self._results =",
    },
    ModelCheckpoint: {_RESOLVE: "self.dirpath is not None", "load_state_dict": "self.dirpath == dirpath_from_ckpt"},
    _Loop: {"__init__": "self._restarting ="},
}
_KEYS = (
    "epoch_progress",
    "epoch_loop.batch_progress",
    "epoch_loop.scheduler_progress",
    "epoch_loop.automatic_optimization.optim_progress",
    "epoch_loop.val_loop.batch_progress",
)

_BASES = (pl.LightningModule, pl.LightningDataModule, pl.Callback)
_SHOWS = (known.ProgressBar, known.LearningRateMonitor, known.DeviceStatsMonitor, known.ModelSummary, known.ThroughputMonitor)
_TRACKED = (known.GradientAccumulationScheduler, known.ModelCheckpoint, known.EarlyStopping)  # what they set comes back


def check_lightning() -> None:
    """Check that TranLogs supports this version of Lightning.

    Raises:
        UsageError: it does not; the message names what is missing.
    """
    missing = []
    for owner, names in _EXPECTED.items():
        for name, part in names.items():
            method = getattr(owner, name, None)
            if method is None or part not in inspect.getsource(method):
                missing.append(f"{owner.__name__}.{name}{f' ({part})' if part else ''}")
    _demand(missing)


def check_trainer(trainer: pl.Trainer) -> None:
    """Check that the loops of a trainer have the counters that TranLogs sets.

    Raises:
        UsageError: they do not; the message names what is missing.
    """
    state = trainer.fit_loop.state_dict()
    _demand([f"fit_loop.state_dict()[{key!r}]" for key in _KEYS if key not in state])


def _demand(missing: list[str]) -> None:
    if missing:
        raise UsageError(
            f"lightning {pl.__version__} lacks what TranLogs needs to resume inside Trainer.fit: {', '.join(missing)}. "
            "Supported is 2.6: pip install 'lightning>=2.6,<2.7'"
        )


@functools.cache
def names_set_by_lightning(kind: type) -> frozenset[str]:
    """Return the names of attributes that Lightning's and torch's bases of a class set on its instances."""
    found = set(vars(pl.LightningModule())) if issubclass(kind, pl.LightningModule) else set()
    for base in kind.__mro__:
        if base.__module__.partition(".")[0] in ("lightning", "torch"):
            found |= _names_set_by(base)
    return frozenset(found)


def _names_set_by(kind: type) -> set[str]:
    nodes = ast.walk(ast.parse(textwrap.dedent(inspect.getsource(kind))))
    return {
        node.attr
        for node in nodes
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store) and getattr(node.value, "id", "") == "self"
    }


def before_iterating(trainer: pl.Trainer, call: Callable[[], None]) -> None:
    """Call it whenever training loaders are there, and no iterator over them yet."""
    loop: Any = trainer.fit_loop
    plain = loop._load_combined_loader_states

    def load() -> None:
        plain()
        call()

    loop._load_combined_loader_states = load


def silence_restart(trainer: pl.Trainer) -> None:
    """Keep Lightning from saying that the loader cannot be resumed: it is, and Lightning does not see how."""
    loop: Any = trainer.fit_loop.epoch_loop
    plain = loop.reset

    def reset() -> None:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message=f".*{_NOT_RESUMABLE}")
            plain()

    loop.reset = reset


def before_training(trainer: pl.Trainer, call: Callable[[], None]) -> None:
    """Call it in each epoch when its counters are set, before the first batch."""
    loop: Any = trainer.fit_loop.epoch_loop
    plain = loop.on_run_start

    def on_run_start(data_fetcher: Any) -> None:
        plain(data_fetcher)
        call()

    loop.on_run_start = on_run_start


def is_finished(trainer: pl.Trainer) -> bool:
    """Return True if the training has ended, by its counters or by a callback."""
    loop: Any = trainer.fit_loop
    epochs, steps = loop.max_epochs, loop.max_steps
    return bool(
        (steps not in (None, -1) and trainer.global_step >= steps)
        or (epochs not in (None, -1) and loop.epoch_progress.current.processed >= epochs)
        or (trainer.should_stop and loop._can_stop_early)
    )


def load_checkpoints(trainer: pl.Trainer, callback: ModelCheckpoint, state: dict[str, Any]) -> None:
    """Give a ModelCheckpoint its state: the best models, and the folder if Lightning has chosen that.

    Lightning chooses another folder at each start, and a ModelCheckpoint forgets its best models where its folder is another.
    """
    current, callback.dirpath = callback.dirpath, None
    is_chosen = current == getattr(callback, _RESOLVE)(trainer)
    callback.dirpath = state["dirpath"] if is_chosen and state["dirpath"] else current
    callback.load_state_dict({**state, "dirpath": callback.dirpath})


def release(trainer: pl.Trainer) -> None:
    """Take all off again."""
    vars(trainer.fit_loop.epoch_loop).pop("reset", None)
    vars(trainer.fit_loop).pop("_load_combined_loader_states", None)
    vars(trainer.fit_loop.epoch_loop).pop("on_run_start", None)


def loaders(trainer: pl.Trainer) -> list[Any]:
    """Return the training loaders, as Lightning has prepared them."""
    combined = trainer.fit_loop._combined_loader
    return [] if combined is None else list(combined.flattened)


def end_restart(trainer: pl.Trainer) -> None:
    """End the restart, after the counters were set: Lightning continues as if nothing was restarted."""
    loop: Any = trainer.fit_loop
    _Loop.restarting.fset(loop, False)  # its own setter keeps it for runs that count steps
    loop.epoch_loop.reset_restart_stage()
    loop.epoch_loop.val_loop.reset_restart_stage()


def epoch_metrics(trainer: pl.Trainer) -> list[str]:
    """Return the names of logged metrics that are being averaged over the running epoch."""
    return sorted(metric.meta.name for metric in trainer.fit_loop.epoch_loop._results.values() if metric.meta.on_epoch)


def doubts(trainer: Any) -> list[str]:
    """Return what may differ after a restart, one sentence each.

    Args:
        trainer: whose module, data module and callbacks are looked at.
    """
    found = []
    for one in (trainer.lightning_module, trainer.datamodule, *trainer.callbacks):
        if one is None or isinstance(one, (TranLogsCallback, *_SHOWS, *_TRACKED)):
            continue
        name = type(one).__name__
        if _has_own(one, "on_save_checkpoint"):
            found.append(
                f"{name}.on_save_checkpoint is not called, and what only it stores starts over. Store it in state_dict() of "
                "a callback, or in a buffer of the module"
            )
    return found


def _has_own(one: object, name: str) -> bool:
    """Return True if the class of an object, or a base class, overrides a hook."""
    base = next(base for base in _BASES if isinstance(one, base))
    return getattr(type(one), name, None) is not getattr(base, name, None)


class TranLogsCallback(pl.Callback):  # type: ignore[misc]
    """The callback of TranLogs; see `callback.TranLogsLightningCallback`."""
