"""The settings of a run that all integrations share, validated once."""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from numbers import Real
from pathlib import Path
from typing import Any, get_args

from ..base.errors import UsageError
from ..base.quantities import format_bytes
from ..journal.monitor_launch import parse_monitor
from ..journal.shutdown import OnSignal, check_shutdown_settings
from ..retention import CheckpointPolicy, EveryBytes, Monitor, RetentionPolicy, as_policy, as_retention
from ..retention.keep_policy import KeepAll
from .fingerprint import Mode
from .rehearsed_process import current

RECHECK_VARIABLE = "TRANLOGS_RECHECK"


@dataclass(frozen=True, slots=True)
class RunSettings:
    """The settings of a run: the options of a user, validated. They are the same for all frameworks.

    Attributes:
        run: folder of the run.
        policy: when a checkpoint is taken.
        retention: which checkpoints are kept.
        durability: "machine" or "process".
        fingerprint: "auto", "full" or "sample".
        segment_bytes: size of a log file; None for one that fits the model.
        writer: "direct" or "thread"; None for the integration's choice.
        monitor: the monitor to start; None for no monitor.
        store: URL of the store to which the run is shipped; None for no store.
        on_signal: what SIGTERM does: "seal", or None for nothing.
        grace_seconds: time from the signal to the end of the process.
        rechecks: True to compute the newest unit again after a crash, and to compare it with its record.
    """

    run: Path
    policy: CheckpointPolicy
    retention: RetentionPolicy
    durability: str
    fingerprint: Mode
    segment_bytes: int | None
    writer: str | None
    monitor: Monitor | None
    store: str | None
    on_signal: OnSignal | None
    grace_seconds: float
    rechecks: bool

    @classmethod
    def of(
        cls,
        *,
        run: Any,
        checkpoint_every: Any,
        keep: Any,
        durability: Any,
        fingerprint: Any,
        segment_bytes: int | None,
        writer: Any,
        monitor: Any,
        budget: Any,
        store: Any,
        on_signal: Any,
        grace_seconds: Any,
        recheck: bool | None = None,
        processes: int = 1,
    ) -> RunSettings:
        """Validate the options as a user has written them, and return the settings. Each integration's page describes them.

        Args:
            processes: number of the run's processes on this machine, which share the budget.

        Raises:
            UsageError: an option is wrong; the message names it.
        """
        if not isinstance(run, (str, os.PathLike)) or not os.fspath(run):
            raise UsageError(f"run must be the folder of the run, got {run!r}")
        _check_choice("durability", durability, ("machine", "process"))
        _check_choice("fingerprint", fingerprint, get_args(Mode))
        _check_choice("writer", writer, ("direct", "thread", None))
        settings = cls(
            run=Path(run),
            policy=as_policy(checkpoint_every),
            retention=as_retention(keep),
            durability=durability,
            fingerprint=fingerprint,
            segment_bytes=segment_bytes,
            writer=writer,
            monitor=parse_monitor(monitor, budget, store, budget_sharers=processes),
            store=store,
            on_signal=on_signal,
            grace_seconds=check_shutdown_settings(on_signal, grace_seconds),
            rechecks=_is_recheck_wanted(recheck),
        )
        return settings._rehearsed()

    def demand_without_tensors(self) -> None:
        """Check that the settings fit a run that logs no tensors.

        Raises:
            UsageError: one does not; the message says what to write.
        """
        if isinstance(self.policy, EveryBytes):
            raise UsageError(
                f'{self.run}: checkpoint_every={format_bytes(self.policy.nbytes)!r} counts bytes of log, and log="inputs" '
                'writes hardly any. Give "auto", steps (500) or a time ("10min")'
            )

    def _rehearsed(self) -> RunSettings:
        """Return these settings; in a rehearsal, those of a run in its folder that keeps its whole log and is not shipped."""
        rehearsal = current()
        if rehearsal is None:
            return self
        run = rehearsal.redirect(self.run)
        return replace(self, run=run, retention=KeepAll(), monitor=None, store=None)


def check_epochs(count: object) -> None:
    """Refuse anything but a number of epochs, such as the `range` of a plain loop.

    Raises:
        UsageError: it is no number; the message shows what to write instead.
    """
    if isinstance(count, Real):
        return
    what = "optimizer.epochs(10, data) yields the numbers of ten epochs, from 0 on, and leaves finished ones out"
    if isinstance(count, range) and count.step == 1 and len(count):
        what = f"optimizer.epochs({len(count)}, ...) yields the numbers from 0 on, and leaves finished epochs out"
        what += f". The numbers of the range are epoch + {count.start}" if count.start else ""
    raise UsageError(f"epochs({count!s:.60}): give the number of epochs of the whole run: {what}")


def _is_recheck_wanted(recheck: bool | None) -> bool:
    """Return the setting, or the environment variable if the setting is None.

    Raises:
        UsageError: one of them is wrong.
    """
    if recheck is None:
        value = os.environ.get(RECHECK_VARIABLE, "").strip().lower()
        if value not in ("", "0", "1", "no", "yes", "false", "true"):
            raise UsageError(f"{RECHECK_VARIABLE} must be 1 or 0, got {value!r}")
        return value in ("", "1", "yes", "true")
    _check_choice("recheck", recheck, (True, False, None))
    return recheck


def _check_choice(name: str, value: Any, choices: tuple[Any, ...]) -> None:
    if value not in choices:
        *first, last = (f'"{choice}"' if choice is not None else "None" for choice in choices)
        raise UsageError(f"{name} must be {', '.join(first)} or {last}, got {value!r}")
