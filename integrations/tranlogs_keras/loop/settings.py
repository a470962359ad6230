"""The settings of a loop of one's own, validated once."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tranlogs.base.errors import UsageError
from tranlogs.training import RunOptions, RunSettings

from ..settings import EVERY_EPOCH
from ..state.state import LogKind


@dataclass(frozen=True, slots=True)
class LoopSettings:
    """Settings of a loop of one's own.

    Attributes:
        shared: the settings that all integrations have.
        log: "gradients" or "weights".
        every_epoch: whether a checkpoint is taken at the end of each epoch.
        seed: of the order of arrays; None for the script's.
    """

    shared: RunSettings
    log: LogKind
    every_epoch: bool
    seed: int | None

    @classmethod
    def checked(cls, run: Any, *, log: Any, checkpoint_every: Any, seed: Any, **shared: Any) -> LoopSettings:
        """Return the settings that a user has written; `shared` are further ones of `RunOptions`.

        Raises:
            UsageError: one of the settings is wrong; the message names it.
        """
        every_epoch = checkpoint_every == "epoch"
        common = RunSettings.of(
            RunOptions(run=run, checkpoint_every=EVERY_EPOCH if every_epoch else checkpoint_every, **shared)
        )
        if log not in ("gradients", "weights"):
            raise UsageError(f'log={log!r}: use "gradients" or "weights"')
        if seed is not None and (not isinstance(seed, int) or isinstance(seed, bool) or seed < 0):
            raise UsageError(f"seed={seed!r}: give an integer from 0 on")
        return cls(common, log, every_epoch, seed)
