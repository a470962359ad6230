"""Progress of a Lightning trainer: the counters of its loops, its callbacks' state, and its newest metrics.

When an epoch is resumed, Lightning does not call `on_train_epoch_start` again. Plain attributes of the user's module and
callbacks that it sets are restored, too.
"""

from __future__ import annotations

from typing import Any

import lightning.pytorch as pl
import torch
from lightning.pytorch.callbacks import ModelCheckpoint

from ..changed_attributes import ChangedAttributes
from . import lightning_internals
from .lightning_internals import TranLogsCallback, names_set_by_lightning


class Progress:
    """Tracked with the run (see the module).

    Attributes:
        is_amid: whether it was read in the middle of an epoch.
        averaged: metrics that were being averaged over the epoch, and begin anew.
    """

    def __init__(self, trainer: pl.Trainer) -> None:
        self._trainer = trainer
        self.is_amid = False
        self._attributes = Attributes(trainer)
        self._epoch = -1  # the one amid which training goes on
        self._begun: dict[str, Any] = {}  # what hooks had set when the running epoch began, and since
        self.averaged: list[str] = []

    def state_dict(self) -> dict[str, Any]:
        """Return the progress as it is now."""
        trainer = self._trainer
        loops = trainer.fit_loop.state_dict()
        if not self.is_amid:
            loops = _between_epochs(loops)
        module = trainer.datamodule
        metrics = (trainer.callback_metrics, trainer.logged_metrics, trainer.progress_bar_metrics)
        return {
            "loops": loops,
            "is_amid": self.is_amid,
            "should_stop": trainer.should_stop,
            "accumulates": trainer.accumulate_grad_batches,
            "attributes": self._attributes.read(),
            "callbacks": {callback.state_key: state for callback in self._others() if (state := callback.state_dict())},
            "datamodule": {} if module is None else module.state_dict(),
            "metrics": [{name: _plain(value) for name, value in found.items()} for found in metrics],
            "averaged": lightning_internals.epoch_metrics(trainer) if self.is_amid else [],
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Set it."""
        trainer = self._trainer
        self.is_amid, self.averaged = state["is_amid"], state["averaged"]
        trainer.fit_loop.load_state_dict(state["loops"])
        trainer.should_stop = state["should_stop"]
        self._begun = {key: state[key] for key in ("accumulates", "attributes") if key in state}
        self._epoch = trainer.current_epoch if self.is_amid else -1
        self._attributes.write(self._begun.get("attributes", {}))
        for callback in self._others():
            recorded = state["callbacks"].get(callback.state_key)
            if recorded is not None and isinstance(callback, ModelCheckpoint):
                lightning_internals.load_checkpoints(trainer, callback, recorded)
            elif recorded is not None:
                callback.load_state_dict(recorded)
        if trainer.datamodule is not None:
            trainer.datamodule.load_state_dict(state["datamodule"])
        metrics = (trainer.callback_metrics, trainer.logged_metrics, trainer.progress_bar_metrics)
        for found, recorded in zip(metrics, state["metrics"], strict=True):
            found.update(recorded)

    @property
    def of_each_process(self) -> list[str]:
        """Paths of values that Lightning counts or collects anew after a restart, or that are times."""
        scores = [f"{one.state_key}.current_score" for one in self._others() if isinstance(one, ModelCheckpoint)]
        callbacks = [f"tracked.trainer.callbacks.{name}" for name in ("Timer", *scores)]
        return ["tracked.trainer.loops.epoch_loop.val_loop", "tracked.trainer.metrics", *callbacks]

    @property
    def lost(self) -> list[str]:
        """Attributes of the module and of callbacks that have changed and cannot be stored."""
        return self._attributes.lost

    def go_on(self) -> None:
        """Set attributes again before the epoch begins: hooks that begin a training may have set them otherwise."""
        if self._begun and not self.is_amid:
            self._attributes.write(self._begun["attributes"])
        self._attributes.settle()

    def go_on_amid(self) -> None:
        """Restore attributes that hooks had set before the crash: hooks that begin a training may have set others."""
        if self._begun and self._epoch == self._trainer.current_epoch:
            self._trainer.accumulate_grad_batches = self._begun["accumulates"]
            self._attributes.write(self._begun["attributes"])
        self._begun = {}

    def _others(self) -> list[Any]:
        return [one for one in self._trainer.callbacks if not isinstance(one, TranLogsCallback)]


def _plain(value: Any) -> Any:
    return value.detach().clone() if isinstance(value, torch.Tensor) else value


def _between_epochs(loops: dict[str, Any]) -> dict[str, Any]:
    """Return the counters of a finished epoch, to which any number of restarts adds nothing."""
    found = dict(loops)
    for name in ("batch_progress", "scheduler_progress", "automatic_optimization.optim_progress"):
        found[f"epoch_loop.{name}"] = _zeroed(loops[f"epoch_loop.{name}"], "current")
    found["epoch_loop.val_loop.batch_progress"] = _zeroed(loops["epoch_loop.val_loop.batch_progress"], "total")
    found["epoch_loop.batch_progress"]["is_last_batch"] = False
    epochs = loops["epoch_progress"]
    found["epoch_progress"] = {
        part: dict.fromkeys(counts, max(counts["processed"], counts["completed"])) for part, counts in epochs.items()
    }
    return found


def _zeroed(progress: Any, part: str) -> Any:
    """Return the same counters with those of a part at 0, as Lightning sets them when an epoch begins."""
    if not isinstance(progress, dict):
        return progress
    return {key: dict.fromkeys(counts, 0) if key == part else _zeroed(counts, part) for key, counts in progress.items()}


class Attributes:
    """The attributes of the module and of callbacks that have changed since this was made.

    Args:
        trainer: whose module and callbacks are looked at, except Lightning's callbacks and ours, which have `state_dict`.
    """

    def __init__(self, trainer: Any) -> None:
        self._owners: dict[str, Any] = {"module": trainer.lightning_module}
        for number, one in enumerate(trainer.callbacks):
            if not isinstance(one, TranLogsCallback) and not type(one).__module__.startswith("lightning."):
                self._owners[f"callback{number}"] = one
        self._changed = {name: _changed(one) for name, one in self._owners.items()}

    def settle(self) -> None:
        """Training begins now."""
        for one in self._changed.values():
            one.settle()

    def read(self) -> dict[str, dict[str, Any]]:
        """Return what has changed, by the name of each owner; the rest is the script's, which may have been edited since."""
        return {name: one.read() for name, one in self._changed.items()}

    def write(self, recorded: dict[str, dict[str, Any]]) -> None:
        """Set recorded attributes."""
        for name, one in self._changed.items():
            one.write(recorded.get(name, {}))

    @property
    def lost(self) -> list[str]:
        """Attributes that have changed and cannot be stored, as `Class.name`."""
        return [
            f"{type(self._owners[owner]).__name__}.{name}" for owner, one in self._changed.items() for name in sorted(one.lost)
        ]


def _changed(owner: Any) -> ChangedAttributes:
    kind: Any = type(owner)
    return ChangedAttributes(owner, names_set_by_lightning(kind))
