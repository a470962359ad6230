"""What a log costs a step of Keras' `fit`: an MLP of 0.5 M parameters on TensorFlow (graph and XLA), torch and JAX.

One process for each backend, since Keras chooses its backend as it is imported. There, an arm is a whole fit of the same model
on the same arrays; fits take turns. One arm is as TranLogs comes: its first epoch finds out what gradients cost. Epochs are
timed and not steps: a callback with a hook of batches may write to the model, and TranLogs looks before each batch whether it
did. The first epoch of a fit does not count: functions are traced there, and the log fills fresh files; then checkpoints let go
of log files, which it reuses. One arm is less than the floor: as many bytes as the gradients have are hashed and written behind
each step, and as many as the variables have are hashed (cost_floor.py), but they are not taken from the step.
"""

from __future__ import annotations

import argparse
import gc
import json
import math
import os
import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np
from cost_floor import FLOOR_BYTES, FloorFile
from harness import ask_child, command_line, measured_folder
from paired_timing import AUTO, FLOOR, MACHINE, PLAIN, compare, take_turns, tell

_CHOICES = {  # backend, jit_compile
    "TensorFlow graph": ("tensorflow", False),
    "TensorFlow XLA": ("tensorflow", True),
    "torch": ("torch", False),
    "JAX": ("jax", True),
}
_CHOICES_QUICK = ("JAX",)  # each costs ten seconds of imports
_LOG: dict[str, Any] = {
    "log": "gradients",
    "checkpoint_every": 30,
    "keep": 1,
    "segment_bytes": 32 << 20,
    "verbose": False,
    "on_signal": None,
}
_BATCH = 64


def environment(backend: str) -> dict[str, str]:
    """Environment of a process in which Keras runs on a backend."""
    return os.environ | {"KERAS_BACKEND": backend, "TF_CPP_MIN_LOG_LEVEL": "3", "CUDA_VISIBLE_DEVICES": ""}


def measure(*, quick: bool = False) -> dict[str, Any]:
    """Logged over plain steps, by backend."""
    found: dict[str, Any] = {"cases": []}
    for name in _CHOICES_QUICK if quick else _CHOICES:
        backend, jit = _CHOICES[name]
        told = ask_child(__file__, "--child", *["--jit"] * jit, *["--quick"] * quick, environment=environment(backend))
        case = f"Keras on {name}, MLP of 0.5 M"
        found["cases"].append({"case": case, **told})
        tell(case, told["arms"])
    return found


def _child(*, jit: bool, quick: bool) -> dict[str, Any]:
    """All arms on the backend that Keras runs on."""
    if os.environ["KERAS_BACKEND"] == "torch":
        import torch

        torch.set_num_threads(1)
    steps, epochs = (5, 2) if quick else (60, 4)
    chance = np.random.default_rng(0)
    x = chance.standard_normal((steps * _BATCH, 784), np.float32)
    y = chance.integers(0, 10, steps * _BATCH)
    with measured_folder() as folder:
        run = Path(folder) / "run"
        makers = {
            MACHINE: partial(_logged, run=run, **_LOG),
            AUTO: partial(_logged, run=run, **_LOG | {"log": "auto"}),
            FLOOR: partial(_floor, Path(folder) / "floor"),
        }
        blocks = {arm: partial(_block, x, y, jit, makers.get(arm), run, epochs) for arm in (PLAIN, MACHINE, AUTO, FLOOR)}
        blocks[PLAIN]()
        times = take_turns(blocks, 1 if quick else 6, seconds_max=45.0)
    return {"arms": {arm: compare(times, arm) for arm in times}}


def _logged(**settings: Any) -> Any:
    from tranlogs_keras import TranLogsCallback

    return TranLogsCallback(**settings)


def _floor(path: Path) -> Any:
    import keras

    class Floor(keras.callbacks.Callback):  # type: ignore[misc]
        def on_train_begin(self, logs: Any = None) -> None:
            self.file = FloorFile(path, FLOOR_BYTES)
            zeros = [np.zeros(math.prod(variable.shape) * 4, np.uint8) for variable in self.model.trainable_variables]
            self.views = [each.data for each in zeros]

        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            self.file.wait()
            self.file.finish(self.views)
            self.file.begin(self.views)

        def on_train_end(self, logs: Any = None) -> None:
            self.file.close()

    return Floor()


def _block(x: Any, y: Any, jit: bool, make_callback: Callable[[], Any] | None, run: Path, epochs: int) -> list[float]:
    """Fit a fresh model; return the seconds of a step in each epoch but the first, in the mean."""
    import keras

    gc.collect()
    keras.utils.set_random_seed(0)
    layers = keras.layers
    model = keras.Sequential(
        [layers.Input((784,)), layers.Dense(512, activation="relu"), layers.Dense(256, activation="relu"), layers.Dense(10)]
    )
    model.compile("adamw", keras.losses.SparseCategoricalCrossentropy(from_logits=True), metrics=["accuracy"], jit_compile=jit)
    marks: list[float] = []
    clock = keras.callbacks.LambdaCallback(
        on_epoch_begin=lambda epoch, logs: marks.append(perf_counter()),
        on_epoch_end=lambda epoch, logs: marks.append(perf_counter()),
    )
    callbacks = [clock] if make_callback is None else [clock, make_callback()]
    model.fit(x, y, batch_size=_BATCH, epochs=epochs, verbose=0, callbacks=callbacks)
    del model
    keras.utils.clear_session()
    shutil.rmtree(run, ignore_errors=True)
    return [(end - begin) / (len(x) // _BATCH) for begin, end in zip(marks[2::2], marks[3::2], strict=True)]


if __name__ == "__main__":
    parser = command_line(__doc__)
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--jit", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.child:
        print(json.dumps(_child(jit=arguments.jit, quick=arguments.quick)))
    else:
        measure(quick=arguments.quick)
