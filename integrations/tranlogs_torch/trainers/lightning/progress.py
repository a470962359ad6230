"""What a Lightning trainer knows of its progress: the counters of its loops, its callbacks' state, the metrics last seen."""

from __future__ import annotations

from typing import Any

import lightning.pytorch as pl
import torch

from . import private


class Progress:
    """Tracked with the run (see the module).

    Attributes:
        is_amid: whether it was read in the middle of an epoch.
        accumulates: batches that make a step in the running epoch, as a callback may have set it when that began; None for what
            the trainer has.
        averaged: metrics that were being averaged over the epoch, and begin anew.
    """

    def __init__(self, trainer: pl.Trainer) -> None:
        self._trainer = trainer
        self.is_amid = False
        self.accumulates: int | None = None
        self.averaged: list[str] = []

    def state_dict(self) -> dict[str, Any]:
        """All of it, now."""
        trainer = self._trainer
        loops = trainer.fit_loop.state_dict()
        if not self.is_amid:
            loops = _between_epochs(loops)
        module = trainer.datamodule
        metrics = (trainer.callback_metrics, trainer.logged_metrics, trainer.progress_bar_metrics)
        return {
            "loops": loops, "is_amid": self.is_amid, "should_stop": trainer.should_stop,
            "accumulates": trainer.accumulate_grad_batches,
            "callbacks": {callback.state_key: state for callback in self._others() if (state := callback.state_dict())},
            "datamodule": {} if module is None else module.state_dict(),
            "metrics": [{name: _plain(value) for name, value in found.items()} for found in metrics],
            "averaged": private.epoch_metrics(trainer) if self.is_amid else [],
        }  # fmt: skip

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Set it."""
        trainer = self._trainer
        self.is_amid, self.averaged = state["is_amid"], state["averaged"]
        trainer.fit_loop.load_state_dict(state["loops"])
        trainer.should_stop = state["should_stop"]
        self.accumulates = state.get("accumulates") if self.is_amid else None
        for callback in self._others():
            if callback.state_key in state["callbacks"]:
                callback.load_state_dict(state["callbacks"][callback.state_key])
        if trainer.datamodule is not None:
            trainer.datamodule.load_state_dict(state["datamodule"])
        metrics = (trainer.callback_metrics, trainer.logged_metrics, trainer.progress_bar_metrics)
        for found, recorded in zip(metrics, state["metrics"], strict=True):
            found.update(recorded)

    def _others(self) -> list[Any]:
        from .callback import TranLogsLightningCallback

        return [one for one in self._trainer.callbacks if not isinstance(one, TranLogsLightningCallback)]


def _plain(value: Any) -> Any:
    return value.detach().clone() if isinstance(value, torch.Tensor) else value


def _between_epochs(loops: dict[str, Any]) -> dict[str, Any]:
    """Counters that say in full that an epoch is finished: a restart adds nothing to them, however often there is one."""
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
    """The same counters, with those of a part at 0, as Lightning sets them when an epoch begins."""
    if not isinstance(progress, dict):
        return progress
    return {key: dict.fromkeys(counts, 0) if key == part else _zeroed(counts, part) for key, counts in progress.items()}
