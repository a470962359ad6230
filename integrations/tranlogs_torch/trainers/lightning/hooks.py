"""Hooks of a user's own that a restart of Lightning does not call, and what that leaves out."""

from __future__ import annotations

from typing import Any

import lightning.pytorch as pl
from lightning.pytorch import callbacks as known

from .own_callback import TranLogsCallback

_BASES = (pl.LightningModule, pl.LightningDataModule, pl.Callback)
_SHOWS = (known.ProgressBar, known.LearningRateMonitor, known.DeviceStatsMonitor, known.ModelSummary, known.ThroughputMonitor)
_TRACKED = (known.GradientAccumulationScheduler, known.ModelCheckpoint, known.EarlyStopping)  # what they set comes back


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
