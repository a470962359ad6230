"""The settings of a run, checked as they are given, and the choice of what to log."""

from __future__ import annotations

import secrets
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

from tranlogs.base.errors import UsageError
from tranlogs.training import (
    Automatic,
    RetentionPolicy,
    Rung,
    RunSettings,
    as_retention,
    choose_rung,
    parse_overhead,
    when_full,
)

from . import keras_internals
from .backends import Backend
from .data.source import DataOrder
from .state.state import LogKind

EVERY_EPOCH = Automatic()  # in the middle of an epoch; the fit asks for the checkpoint at its end itself


class KeepEnds:
    """Retention policy: the checkpoints of another policy, and those at the end of the run's fits.

    Attributes:
        inner: the other policy.
        steps: at which fits have ended.
    """

    def __init__(self, inner: RetentionPolicy) -> None:
        self.inner = inner
        self.steps: set[int] = set()

    def kept(self, steps: Sequence[int]) -> Collection[int]:
        ends = [step for step in steps if step in self.steps]  # of the two at such a step, both
        return [*(step for step in self.inner.kept(steps) if step not in self.steps), *ends]

    def when_full(self) -> KeepEnds | None:
        fewest = when_full(self.inner)
        if fewest is None:
            return None
        made = KeepEnds(fewest)
        made.steps = self.steps
        return made


@dataclass(frozen=True, slots=True)
class Settings:
    """Settings of a run.

    Attributes:
        shared: what all integrations have.
        overhead: what logged tensors may cost with "auto", as a share of a step; None for no bound.
        every_epoch: whether a checkpoint is taken at the end of each epoch.
        seed: of TranLogs's own order of samples; None for the script's.
        retention: keeps the checkpoints at the ends of fits, besides those that were asked for.
        accepts_changes: whether a run continues with a model, settings or data that have changed.
    """

    shared: RunSettings
    log: LogKind | Literal["auto"]
    overhead: float | None
    every_epoch: bool
    seed: int | None
    retention: KeepEnds
    data_order: DataOrder
    verbose: bool
    accepts_changes: bool

    @classmethod
    def of(
        cls,
        run: Any,
        *,
        log: Any,
        overhead: Any,
        checkpoint_every: Any,
        seed: Any,
        keep: Any,
        data_order: Any = "tranlogs",
        verbose: bool = True,
        accept_changes: bool = False,
        **shared: Any,
    ) -> Settings:
        """Return the settings that a user has written; `shared` are further ones of `RunSettings.of`.

        Raises:
            UsageError: one of the settings is wrong; the message names it.
        """
        every_epoch = checkpoint_every == "epoch"
        policy = EVERY_EPOCH if every_epoch else checkpoint_every
        retention = KeepEnds(as_retention(keep))
        common = RunSettings.of(run=run, checkpoint_every=policy, keep=retention, **shared)
        share = parse_overhead(overhead)
        if log not in ("auto", *get_args(LogKind)):
            raise UsageError(f'log={log!r}: use "auto", "gradients", "weights" or "inputs"')
        if log == "inputs":
            common.demand_without_tensors()
        if seed is not None and (not isinstance(seed, int) or isinstance(seed, bool) or seed < 0):
            raise UsageError(f"seed={seed!r}: give an integer from 0 on")
        if data_order not in get_args(DataOrder):
            raise UsageError(f'data_order={data_order!r}: use "tranlogs" or "keras"')
        return cls(common, log, share, every_epoch, seed, retention, data_order, verbose, bool(accept_changes))

    @property
    def run(self) -> Path:
        """Folder of the run."""
        return self.shared.run

    def seed_or_fresh(self) -> int:
        """Return the seed of the order of samples: the given one, that of keras.utils.set_random_seed, or one that is drawn."""
        if self.seed is not None:
            return self.seed
        known = keras_internals.get_random_seed()
        return int(known) if known is not None else secrets.randbits(62)

    def choose_rung(self) -> Rung:
        """Return what decides whether steps are logged with their tensors."""
        return choose_rung(self.log, self.overhead)

    def choose_log(self, model: Any, backend: Backend) -> tuple[LogKind, str]:
        """Choose what to log; return the choice, and the reason if gradients are not enough.

        Raises:
            UsageError: gradients were asked for, and cannot be right.
        """
        if self.log in ("weights", "inputs"):
            return self.log, ""
        why = why_not_gradients(model, backend, is_asked_for=self.log == "gradients")
        if self.log == "gradients" and why:
            raise UsageError(f'{self.run}: log="gradients" cannot be right here: {why}. Use log="weights" (or "auto")')
        return ("weights", why) if why else ("gradients", "")


def why_not_gradients(model: Any, backend: Backend, *, is_asked_for: bool = False) -> str:
    """Return why gradients are not enough, in words; "" if gradients are all that a step consumes."""
    optimizer = model.optimizer
    if optimizer is None:
        return "the model was compiled without an optimizer"
    inner = getattr(optimizer, "inner_optimizer", optimizer)
    if not isinstance(inner, keras_internals.BaseOptimizer) or "Multi" in type(inner).__name__:
        return f"{type(inner).__name__} is no single Keras optimizer"
    if backend.replicas_of(model) > 1:
        return f"the model is trained on {backend.replicas_of(model)} replicas, and each has its own gradients"
    if keras_internals.has_own_train_step(model) and not is_asked_for:
        return f"{type(model).__name__} has a train_step of its own, which may update in other ways than one optimizer.apply"
    rate = keras_internals.learning_rate_of(optimizer)
    if callable(rate) and not hasattr(rate, "path") and not hasattr(rate, "get_config"):
        return "the learning rate is a function, of which it is not known what it depends on"
    if not model.trainable_variables:
        return "the model has no trainable variables"
    return ""
