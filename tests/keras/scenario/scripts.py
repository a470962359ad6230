"""Scripts that are killed and started again: everything is made anew in each process."""

from __future__ import annotations

import copy
import os
import signal
from pathlib import Path
from typing import Any

import keras

import tranlogs
import tranlogs.base.failpoints
from tests.keras.scenario.data import EPOCHS, digits, given
from tests.keras.scenario.ends import Death, DeathAtBeginning, DeathBehindCheckpoint, Told
from tests.keras.scenario.fits import logged, made, optimizer_of
from tests.keras.scenario.models import MODELS, dense
from tests.keras.scenario.outcome import attributes, bits, plain, state_of
from tests.keras.scenario.siblings import Counting, siblings
from tranlogs_keras import TranLogsCallback


def fit(
    run: str | None,
    *,
    data: str = "arrays",
    model: str = "cnn",
    optimizer: str = "adam-schedule",
    jit: bool = False,
    eager: bool = False,
    executions: int = 1,
    epochs: int = EPOCHS,
    validation: bool = False,
    others: Any = (),
    die: list[Any] | None = None,
    failpoint: str = "",
    policy: str | None = None,
    seed: int = 11,
    behind_checkpoint: bool = False,
    is_told: bool = False,
    is_identified: bool = False,
    options: dict[str, Any] | None = None,
    backup: str | None = None,
) -> dict[str, Any]:
    """Train, under TranLogs if a run is given, under BackupAndRestore if a folder for it is; the bits at the end."""
    tranlogs.base.failpoints._rules = tranlogs.base.failpoints._parse(failpoint)
    keras.utils.set_random_seed(seed)
    if policy is not None:
        keras.config.set_dtype_policy(policy)
    made = MODELS[model]()
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    made.compile(
        optimizer_of(optimizer), loss, metrics=["accuracy"], jit_compile=jit, run_eagerly=eager, steps_per_execution=executions
    )
    callbacks: list[Any] = []
    if run is not None:
        settings: dict[str, Any] = {"checkpoint_every": 7, "durability": "process", "segment_bytes": 1 << 20, "verbose": False}
        settings |= options or {}
        if isinstance(settings.get("monitor"), list):
            settings["monitor"] = tranlogs.Monitor(*settings["monitor"])
        callbacks.append(TranLogsCallback(run, **settings))
        if is_identified:
            with open(f"{run}.ids", "a") as file:
                file.write(f"{callbacks[0].run_id}\n")
    if backup is not None:
        callbacks.append(keras.callbacks.BackupAndRestore(backup, save_freq=7))
    beside = siblings(list(others))
    arguments = given(data)
    if model == "fusing":
        arguments["batch_size"] = 1
    if validation:
        x, y = digits()
        arguments["validation_data"] = (x[:20], y[:20])
    death = DeathAtBeginning(die) if die and die[0] == "batch-begin" else Death(die)
    if is_told:
        death = Told(die)
    if behind_checkpoint:
        death = DeathBehindCheckpoint(die, Path(str(run)) / "rank0")
    history = made.fit(**arguments, epochs=epochs, verbose=0, callbacks=[*callbacks, *beside, death])
    report = callbacks[0].report if run is not None else None
    return {
        "state": state_of(made),
        "history": plain(history.history),
        "epochs": list(history.epoch),
        "beside": [attributes(callback) for callback in beside],
        "report": report and report.as_dict(),
    }


def two_fits(run: str, die: list[Any] | None = None) -> dict[str, Any]:
    """A script that freezes a part, compiles anew, and fits a second time: two fits of one run."""
    model = made("adam")
    callback = logged(run, checkpoint_every=7)
    histories = []
    arguments = given("arrays") | {"verbose": 0}
    first = model.fit(**arguments, epochs=1, callbacks=[callback, Death(die)])
    model.layers[-1].trainable = False
    model.compile(optimizer_of("sgd"), keras.losses.SparseCategoricalCrossentropy(from_logits=True), metrics=["accuracy"])
    histories.append(plain(first.history))
    between = [bits(v) for v in model.variables]
    history = model.fit(**arguments, epochs=2, callbacks=[callback, Death(die)])
    histories.append(plain(history.history))
    return {
        "state": {f"{i}": bits(v) for i, v in enumerate([*model.variables, *model.optimizer.variables])},
        "history": histories,
        "between": between,
    }


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


def shared_callbacks(run: str, die: list[Any] | None = None) -> dict[str, Any]:
    """Three fits of one epoch that share callbacks; the second one diverges, and lacks one of them."""
    model, callback, sharing = made("adam", "line"), logged(run, checkpoint_every="epoch"), Sharing()
    file = f"{run}-best.weights.h5"
    best = keras.callbacks.ModelCheckpoint(file, "loss", save_best_only=True, save_weights_only=True)
    arguments = given("arrays") | {"verbose": 0}
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    between = []
    for number, own in enumerate(([sharing], [Counting()], [sharing])):
        model.fit(**arguments, epochs=1, callbacks=[best, callback, *own, DeathAtBeginning(die)])
        between.append([best.best, copy.deepcopy(attributes(sharing))])
        if die == ["between", number]:
            os.kill(os.getpid(), signal.SIGKILL)
        model.compile(keras.optimizers.SGD(1e3), loss, metrics=["accuracy"])
    state = [bits(v) for v in model.variables]
    model.load_weights(file)
    return {
        "state": state,
        "between": between,
        "counted": attributes(own[0]),
        "best": [bits(v) for v in model.variables],
        "report": callback.report.as_dict(),
    }


def mirrored(run: str, die: list[Any] | None = None) -> dict[str, Any]:
    """Two replicas on two logical CPUs."""
    import tensorflow as tf

    two = [tf.config.LogicalDeviceConfiguration()] * 2
    tf.config.set_logical_device_configuration(tf.config.list_physical_devices("CPU")[0], two)
    keras.utils.set_random_seed(3)
    with tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"]).scope():
        model = dense()
        model.compile("adam", keras.losses.SparseCategoricalCrossentropy(from_logits=True), metrics=["accuracy"])
    callback = logged(run, checkpoint_every=7)
    history = model.fit(**given("arrays"), epochs=2, verbose=0, callbacks=[callback, Death(die)])
    variables = [v.value for v in [*model.variables, *model.optimizer.variables]]
    parts = [part for v in variables for part in getattr(v, "values", [v])]  # one a replica
    return {
        "state": [part.numpy().tobytes() for part in parts],
        "history": plain(history.history),
        "exact": callback.report.exact,
        "step": callback.report.step,
    }
