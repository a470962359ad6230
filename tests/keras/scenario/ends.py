"""Callbacks that end a fit: by SIGKILL, by SIGTERM, or by an exception."""

from __future__ import annotations

import os
import signal
import time
from collections import Counter
from pathlib import Path
from typing import Any

import keras

from tests.crash.signal_child import sit_in_c

_SEEN: Counter[str] = Counter()  # of this process: what a callback keeps on itself comes back


class Death(keras.callbacks.Callback):
    """SIGKILL at a place: ["batch", n], ["epoch-end", n], ["validation", n], ["train-end", 1], counted over the process."""

    def __init__(self, place: list[Any] | None) -> None:
        super().__init__()
        self._place = place

    def _reached(self, name: str) -> None:
        _SEEN[name] += 1
        if self._place == [name, _SEEN[name]]:
            os.kill(os.getpid(), signal.SIGKILL)

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self._reached("batch")

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        self._reached("epoch-end")

    def on_test_batch_begin(self, batch: int, logs: Any = None) -> None:
        self._reached("validation")

    def on_train_end(self, logs: Any = None) -> None:
        self._reached("train-end")


class Told(Death):
    """SIGTERM at a place, and then a wait where no signal handler of Python runs."""

    def _reached(self, name: str) -> None:
        _SEEN[name] += 1
        if self._place == [name, _SEEN[name]]:
            os.kill(os.getpid(), signal.SIGTERM)
            sit_in_c()


class DeathAtBeginning(Death):
    """["batch-begin", n]; apart, since nothing need be looked at before a step where no callback acts there."""

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        self._reached("batch-begin")


class DeathBehindCheckpoint(Death):
    """["batch", n], once a checkpoint behind the first one is published and the log goes that far, if it must be waited for."""

    def __init__(self, place: list[Any] | None, journal: Path) -> None:
        super().__init__(place)
        self._journal = journal

    def _reached(self, name: str) -> None:
        while self._place == [name, _SEEN[name] + 1] and not self._is_behind():
            time.sleep(0.01)
        super()._reached(name)

    def _is_behind(self) -> bool:
        from tranlogs.cli.reading.survey import survey  # the command line takes the warnings of its process for its own

        found = survey(self._journal)
        return 0 < max((row.step for row in found.checkpoints), default=0) <= found.watermarks.committed


class Stop(Exception):
    """What ends a fit that is to be taken up again in the same process."""


class InterruptAtBeginning(keras.callbacks.Callback):
    """Raises before the first batch, when all that a run left is recovered."""

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        raise Stop


class Interrupt(keras.callbacks.Callback):
    """Raises in the middle of a fit."""

    def __init__(self, after: int) -> None:
        super().__init__()
        self._left = after

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self._left -= 1
        if self._left == 0:
            raise Stop
