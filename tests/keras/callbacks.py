"""Other callbacks of a fit, by name: they write learning rates and weights, keep state of many kinds, or end the fit."""

from __future__ import annotations

import itertools
import logging
import os
import random
import signal
import time
from collections import Counter, deque
from collections.abc import Callable
from typing import Any

import keras
import numpy as np

from tests.crash.signal_child import sit_in_c
from tests.keras.models import variable_called

Callback = keras.callbacks.Callback


class BatchRate(Callback):
    """Another learning rate at each batch."""

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        self.model.optimizer.learning_rate = 1e-2 / (1 + int(self.model.optimizer.iterations))


_turns = itertools.count()  # begins anew in each process


class GlobalRate(Callback):
    """Another learning rate at each batch, by a counter that no run brings back."""

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        self.model.optimizer.learning_rate = 1e-2 / (1 + next(_turns))


class Timing(Callback):
    """The time of each batch."""

    def __init__(self) -> None:
        super().__init__()
        self.times: list[float] = []

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self.times.append(time.perf_counter())


class Clamp(Callback):
    """Writes weights that no step writes."""

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        if batch % 4 == 1:
            kernel = self.model.layers[-1].kernel
            kernel.assign(keras.ops.clip(kernel, -0.2, 0.2))


class Counting(Callback):
    """Counters of its own, as other callbacks see them."""

    def __init__(self) -> None:
        super().__init__()
        self.batches: list[int] = []
        self.best = 1e9

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self.batches.append(batch)

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        self.best = min(self.best, float(logs["loss"]))


class Sharing(Counting):
    """State of several fits, also of their beginnings and ends."""

    def __init__(self) -> None:
        super().__init__()
        self.begun = self.ended = self.batches_of_fit = 0

    def on_train_begin(self, logs: Any = None) -> None:
        self.begun += 1
        self.batches_of_fit = 0

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        super().on_train_batch_end(batch, logs)
        self.batches_of_fit += 1

    def on_train_end(self, logs: Any = None) -> None:
        self.ended += 1


class Collecting(Callback):
    """State of kinds that are no plain numbers, written at each batch, on which the learning rate depends."""

    def __init__(self) -> None:
        super().__init__()
        self.last: deque[float] = deque([0.0], maxlen=5)
        self.seen: set[int] = set()
        self.average = np.zeros(20_000)

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self.last.append(float(logs["loss"]))
        self.seen.add(batch)
        self.average *= 0.5
        self.average += float(logs["loss"]) * np.arange(20_000)
        self.model.optimizer.learning_rate = 1e-3 * (1 + sum(self.last) + len(self.seen) + float(self.average[-1]) / 1e6)


class Losses(Callback):
    """Collects the loss of each batch: a list that becomes long, one in a dict, and one that is written to."""

    def __init__(self) -> None:
        super().__init__()
        self.losses = [0.5] * 1020
        self.of = {"loss": [0.5] * 1020, "batch": [1] * 1500}

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self.losses.append(float(logs["loss"]))
        self.of["loss"].append(float(logs["loss"]))
        self.of["batch"][len(self.losses) % 1000] += batch


class Noise(Callback):
    """Adds noise of four generators to a weight behind each epoch, less each time."""

    def __init__(self) -> None:
        super().__init__()
        self.rng = np.random.default_rng(3)
        self.legacy = np.random.RandomState(3)
        self.python = random.Random(3)
        self.seeds = keras.random.SeedGenerator(3)
        self.scale = keras.Variable(0.1)
        self.drawn: list[float] = []

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        kernel = self.model.layers[-1].kernel
        noise = self.rng.normal(size=kernel.shape) + self.legacy.normal() + self.python.random()
        noise = noise + keras.ops.convert_to_numpy(keras.random.normal((1,), seed=self.seeds))
        kernel.assign_add(self.scale * noise.astype("float32"))
        self.scale.assign(self.scale / 2)
        self.drawn.append(float(noise.sum()))


class Meter:
    """Counts; an iterator in it keeps anybody from storing it."""

    def __init__(self) -> None:
        self.count, self.lock = 0, iter(())
        self.log = logging.getLogger("meter")


class Metering(Callback):
    """Has an object that nothing can store, and changes it or not."""

    def __init__(self, *, counts: bool) -> None:
        super().__init__()
        self.meter, self._counts = Meter(), counts
        self.log = logging.getLogger("counting")

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        self.meter.count += self._counts
        self.log.debug("a logger remembers which levels it was asked for")


class Cyclic(Callback):
    """State that cannot be told."""

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self.held: dict[str, Any] = {}
        self.held["self"] = self.held


losses: list[float] = []


class Curve(Callback):
    """Collects losses in a list of the module."""

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        losses.append(logs["loss"])


class Told(Callback):
    """Sends itself SIGTERM at a batch of the process, and then waits where no signal handler of Python runs."""

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        if int(self.model.optimizer.iterations) == 13:
            os.kill(os.getpid(), signal.SIGTERM)
            sit_in_c()


class Writing(Callback):
    """Writes a variable in one of its hooks."""

    def __init__(self, place: str, what: str) -> None:
        super().__init__()
        self._what = what
        setattr(self, place, self._write)  # as LambdaCallback does

    def _write(self, *_: Any, **__: Any) -> None:
        if self._what == "gradient":  # the last one, on torch: no step uses it again
            for variable in self.model.trainable_variables:
                if variable.value.grad is not None:
                    variable.value.grad.mul_(0.5)
            return
        variable = variable_called(self.model, self._what)
        variable.assign(variable * 0.875)


class Stop(Exception):
    """What ends a fit that is to be taken up again in the same process."""


class Interrupt(keras.callbacks.TerminateOnNaN):
    """Raises at a batch of the fit, or before its first one; it is taken for a callback that writes nothing."""

    def __init__(self, after: int) -> None:
        super().__init__()
        self._left = after

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        if self._left == 0:
            raise Stop

    def on_batch_end(self, batch: int, logs: Any = None) -> None:
        self._left -= 1
        if self._left == 0:
            raise Stop


class Trainings(Callback):
    """Counts the batches of each training of the process, and kills the process at batch `die[1]` of training `die[0]`."""

    batches: Counter[int] = Counter()
    number = -1
    die: list[int] | None = None

    def on_train_begin(self, logs: Any = None) -> None:
        Trainings.number += 1
        Trainings.batches[Trainings.number] = 0

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        Trainings.batches[Trainings.number] += 1
        if Trainings.die == [Trainings.number, Trainings.batches[Trainings.number]]:
            os.kill(os.getpid(), signal.SIGKILL)


k = keras.callbacks
_MADE: dict[str, Callable[[], Any]] = {
    "stopping": lambda: k.EarlyStopping("loss", patience=1, min_delta=10.0, restore_best_weights=True),
    "plateau": lambda: k.ReduceLROnPlateau("loss", patience=0, min_delta=10.0, factor=0.5, cooldown=1),
    "schedule": lambda: k.LearningRateScheduler(lambda epoch, rate: rate * 0.7),
    "ema": lambda: k.SwapEMAWeights(swap_on_epoch=True),
    "batch-rate": BatchRate,
    "global-rate": GlobalRate,
    "timing": Timing,
    "clamp": Clamp,
    "collecting": Collecting,
    "cyclic": Cyclic,
    "counting": Counting,
    "losses": Losses,
    "noise": Noise,
    "meter": lambda: Metering(counts=True),
    "meter that stands still": lambda: Metering(counts=False),
    "curve": Curve,
    "told": Told,
}


def others(names: Any) -> list[Any]:
    """Return callbacks by name."""
    return [_MADE[name]() for name in names]


def attributes(callback: Any) -> dict[str, Any]:
    """Return what a callback keeps that can be compared."""
    kinds = (int, float, str, list, dict, set, deque, np.ndarray, type(None))
    left_out = ("_model", "params", "held", "monitor_op")
    return {name: value for name, value in vars(callback).items() if isinstance(value, kinds) and name not in left_out}
