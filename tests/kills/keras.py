"""A life of a Keras script, in a process of a server: callbacks of a fit, or a loop of its own.

Places of a fit, where a callback is asked: "begin" and "batch" around a batch and "before" an end of an epoch, in front of the
script's own callbacks; "after" their turn at the end of an epoch, "validation" behind a batch of it, "end" of the fit. Fail
points are the others.
"""

from __future__ import annotations

import contextlib
import io
import sys
from types import SimpleNamespace
from typing import Any, ClassVar

import keras
import numpy as np

from tests.kills import job
from tests.kills.job import Script
from tests.support.rungs import shorten_trials
from tranlogs.training import Remembered
from tranlogs_keras import LoggedOptimizer, TranLogsCallback

_BEFORE = {"begin": "on_train_batch_begin", "batch": "on_train_batch_end", "before": "on_epoch_end"}
_AFTER = {"validation": "on_test_batch_end", "after": "on_epoch_end", "end": "on_train_end"}


class Job(job.Job):
    """One life of a Keras script."""

    logs: ClassVar[str] = "tranlogs_keras:LoggedOptimizer"
    defaults: ClassVar[dict[str, Any]] = {"segment_bytes": 1 << 20}

    _logger: TranLogsCallback | None = None

    def callbacks(self, *others: Any, by_batch: bool = False, **options: Any) -> list[Any]:
        """Return the callbacks of a fit: TranLogs, the script's own, and one at the place where the life ends.

        Args:
            others: the script's own.
            by_batch: whether a callback looks at each batch in every life.
            options: of the TranLogsCallback, which is one for all fits.
        """
        if self.run is not None and self._logger is None:
            settings = {"overhead": None} | self.options | options
            self._logger = logger = TranLogsCallback(str(self.run), **settings)
            self.watch(lambda: logger.report)
        place = self.death.place if self.death else ""
        seen = ("batch", "before") if by_batch else ()
        first = [self._hook(name, hook) for name, hook in _BEFORE.items() if name in (*seen, place)]
        last = [self._hook(name, hook) for name, hook in _AFTER.items() if name == place]
        return [*([] if self._logger is None else [self._logger]), *first, *others, *last]

    def renew(self) -> None:
        """Let the next fit have a TranLogsCallback of its own."""
        self._logger = None

    def wrap(self, optimizer: Any, model: Any, **options: Any) -> Any:
        """Return the optimizer of a loop of one's own, logged; or as it is. "cost" is what each trial is to find."""
        if self.run is None:
            return optimizer
        settings = {"overhead": None} | options | self.options
        if (cost := settings.pop("cost", None)) is not None:
            shorten_trials(cost)
        logged = LoggedOptimizer(optimizer, str(self.run), model, **settings)
        self.watch(lambda: logged.report)
        return logged

    def say(self, what: str, *numbers: Any) -> None:
        """Print numbers of which every bit counts."""
        self.print(f"{what}:", *(repr(float(number)) for number in numbers))

    def contents(self, thing: Any) -> Any:
        """Return what is compared of a model with its optimizers, a history, or anything with variables."""
        if isinstance(thing, keras.callbacks.History):
            values = {name: [float(value) for value in values] for name, values in thing.history.items()}
            return {"history": values, "epoch": list(thing.epoch)}
        if isinstance(thing, keras.Model):
            held = [value for value in vars(thing).values() if isinstance(value, keras.optimizers.Optimizer)]
            optimizers = {id(value): value for value in [getattr(thing, "optimizer", None), *held] if value is not None}
            return _values([*thing.variables, *(v for optimizer in optimizers.values() for v in optimizer.variables)])
        if isinstance(thing, (Remembered, SimpleNamespace)):
            return {name: self.contents(value) for name, value in vars(thing).items()}
        if isinstance(thing, (list, tuple)):
            return [self.contents(item) for item in thing]
        return _values(thing.variables) if hasattr(thing, "variables") else thing

    def random_states(self) -> dict[str, Any]:
        """Return the states of the generators of the process, but for numpy's place in its vector where threads read ahead."""
        found = super().random_states()
        return found if keras.backend.backend() == "torch" else found | {"numpy": found["numpy"][:2]}

    def live(self, script: Script) -> None:
        """Run the script in this process; what Keras prints of an epoch is a line of the script's, without times."""
        with contextlib.redirect_stdout(_Epochs(self)):
            super().live(script)

    def _hook(self, place: str, name: str) -> Any:
        def hook(callback: Any, number: Any = None, logs: Any = None) -> None:
            self.at(place)

        return type("At", (keras.callbacks.Callback,), {name: hook})()  # no attribute of it holds this life


def _values(variables: list[Any]) -> dict[str, Any]:
    return {f"{i} {v.path}": np.asarray(keras.ops.convert_to_numpy(v)) for i, v in enumerate(variables)}


class _Epochs(io.StringIO):
    def __init__(self, job: Job) -> None:
        super().__init__()
        self._job, self._out, self._epoch = job, sys.stdout, ""

    def write(self, text: str) -> int:
        for line in text.splitlines():
            if line.startswith("Epoch "):
                self._epoch = line.strip()
            elif " - " in line and self._epoch:
                self._job.print(self._epoch, *(part.strip() for part in line.split(" - ") if ": " in part))
        return self._out.write(text)

    def flush(self) -> None:
        self._out.flush()
