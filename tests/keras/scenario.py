"""What the forked processes do: train a small model on real data with `model.fit`, die where they are told, report the bits.

Everything is made anew in each process, as a user's script does.
"""

from __future__ import annotations

import os
import random
import signal
import time
from collections import Counter, deque
from pathlib import Path
from typing import Any

import keras
import numpy as np
from sklearn.datasets import load_digits

import tranlogs.base.failpoints
from tests.crash.signal_child import sit_in_c
from tranlogs_keras import TranLogsCallback
from tranlogs_keras.replay.offline import OfflineRun

SAMPLES, BATCH, EPOCHS = 78, 8, 3  # ten batches an epoch, the last one partial
layers = keras.layers


def digits() -> tuple[Any, Any]:
    """Real data: 8 x 8 images of digits."""
    images, labels = load_digits(return_X_y=True)
    return (images[:SAMPLES].reshape(-1, 8, 8, 1) / 16).astype("float32"), labels[:SAMPLES].astype("int64")


# Models.


def cnn() -> keras.Model:
    """Convolution, BatchNorm's statistics, Dropout's seeds."""
    image = keras.Input((8, 8, 1))
    h = layers.Conv2D(4, 3, use_bias=False)(image)
    h = layers.BatchNormalization()(h)
    h = layers.Activation("relu")(h)
    h = layers.Flatten()(h)
    h = layers.Dropout(0.3)(h)
    h = layers.Dense(16, activation="tanh", kernel_regularizer="l2")(h)
    return keras.Model(image, layers.Dense(10)(h))


def sparse() -> keras.Model:
    """An Embedding, whose gradients are rows on TensorFlow; and a frozen layer."""
    image = keras.Input((8, 8, 1))
    h = layers.Flatten()(image)
    h = keras.ops.cast(h * 16, "int32")
    h = layers.Embedding(20, 4)(h)
    frozen = layers.Dense(8)
    frozen.trainable = False
    h = frozen(layers.Flatten()(h))
    return keras.Model(image, layers.Dense(10)(h))


def dense() -> keras.Model:
    """Little to compile."""
    return keras.Sequential(
        [
            keras.Input((8, 8, 1)),
            layers.Flatten(),
            layers.Dense(16, activation="tanh"),
            layers.BatchNormalization(),
            layers.Dropout(0.2),
            layers.Dense(10),
        ]
    )


class Scale(layers.Layer):
    """What an XLA compiler likes to fuse with the update."""

    def build(self, shape: Any) -> None:
        self.w = self.add_weight(shape=shape[1:], initializer="ones")
        self.b = self.add_weight(shape=shape[1:], initializer="zeros")

    def call(self, x: Any) -> Any:
        return keras.ops.tanh(x) * self.w + self.b * keras.ops.sin(x)


def fusing() -> keras.Model:
    """Elementwise parameters, batches of one: gradients are products that a compiler contracts into the update."""
    return keras.Sequential(
        [
            keras.Input((8, 8, 1)),
            Scale(),
            layers.Flatten(),
            layers.Dense(12, activation="gelu", kernel_regularizer="l2"),
            Scale(),
            layers.Dropout(0.2),
            layers.Dense(10),
        ]
    )


class GlobalNoise(layers.Layer):
    """Draws from Keras's global seed generator."""

    def call(self, x: Any) -> Any:
        return x + 0.1 * keras.random.normal(keras.ops.shape(x))


def global_noise() -> keras.Model:
    """Random numbers that belong to no layer."""
    return keras.Sequential([keras.Input((8, 8, 1)), layers.Flatten(), GlobalNoise(), layers.Dense(10)])


def constrained() -> keras.Model:
    """Updates that end with a constraint."""
    return keras.Sequential(
        [
            keras.Input((8, 8, 1)),
            layers.Flatten(),
            layers.Dense(8, kernel_constraint=keras.constraints.MaxNorm(0.5)),
            layers.Dense(10, bias_constraint="non_neg"),
        ]
    )


class Late(layers.Layer):
    """Writes its own trained weights, from the tenth call on."""

    def build(self, shape: Any) -> None:
        self.w = self.add_weight(shape=shape[1:], initializer="ones")
        self.calls = 0

    def call(self, x: Any) -> Any:
        self.calls += 1
        if self.calls >= 10:
            self.w.assign(self.w * 0.9)
        return x * self.w


def late() -> keras.Model:
    """A write that the first steps do not show."""
    return keras.Sequential([keras.Input((8, 8, 1)), layers.Flatten(), Late(), layers.Dense(10)])


MODELS = {
    "global-noise": global_noise,
    "constrained": constrained,
    "late": late,
    "cnn": cnn,
    "sparse": sparse,
    "dense": dense,
    "fusing": fusing,
}


# Data.


class Numbered(keras.utils.PyDataset):
    """Batches by number."""

    def __init__(self, x: Any, y: Any, **options: Any) -> None:
        super().__init__(**options)
        self.x, self.y = x, y

    def __len__(self) -> int:
        return -(-len(self.x) // BATCH)

    def __getitem__(self, i: int) -> Any:
        at = slice(i * BATCH, (i + 1) * BATCH)
        return self.x[at], self.y[at]


class OwnOrder(Numbered):
    """Shuffles by itself at the end of an epoch, as many do."""

    def __init__(self, x: Any, y: Any, **options: Any) -> None:
        super().__init__(x, y, **options)
        self.order = np.arange(len(x))

    def on_epoch_end(self) -> None:
        np.random.shuffle(self.order)

    def __getitem__(self, i: int) -> Any:
        at = self.order[i * BATCH : (i + 1) * BATCH]
        return self.x[at], self.y[at]


class Unstorable(Numbered):
    """Comes to hold something that no log takes."""

    def __init__(self, x: Any, y: Any, **options: Any) -> None:
        super().__init__(x, y, **options)
        self.held: Any = 0

    def on_epoch_end(self) -> None:  # Keras calls it when it looks at the first batches, too
        self.held = print if self.held else 1


class Lying:
    """Cannot even be looked at."""

    def __getattribute__(self, name: str) -> Any:
        raise RuntimeError("nobody looks at this")


class Unreadable(Numbered):
    """Comes to hold something that fails when it is read."""

    begun = 0

    def on_epoch_begin(self) -> None:  # Keras calls it when it looks at the first batches, too
        self.begun += 1
        if self.begun > 2:
            self.held = Lying()


class Augmented(Numbered):
    """Batches draw random numbers."""

    def __getitem__(self, i: int) -> Any:
        x, y = super().__getitem__(i)
        return x + np.random.standard_normal(x.shape).astype("float32") * 0.1, y


def given(data: str) -> dict[str, Any]:
    """Arguments of `fit`."""
    x, y = digits()
    if data == "arrays":
        return {"x": x, "y": y, "batch_size": BATCH}
    if data == "arrays-in-order":
        return {"x": x, "y": y, "batch_size": BATCH, "shuffle": False}
    if data == "arrays-by-batch":
        return {"x": x, "y": y, "batch_size": BATCH, "shuffle": "batch"}
    if data == "arrays-steps":  # passes that go on from one epoch to the next
        return {"x": x, "y": y, "batch_size": BATCH, "steps_per_epoch": 5}
    if data == "arrays-weighted":
        return {"x": x, "y": y, "batch_size": BATCH, "class_weight": {i: 1.0 + i for i in range(10)}}
    if data == "numbered":
        return {"x": Numbered(x, y), "shuffle": True}
    if data == "numbered-workers":
        return {"x": Numbered(x, y, workers=2), "shuffle": True}
    if data == "numbered-own-order":
        return {"x": OwnOrder(x, y), "shuffle": False}
    if data == "numbered-unstorable":
        return {"x": Unstorable(x, y), "shuffle": True}
    if data == "numbered-unreadable":
        return {"x": Unreadable(x, y), "shuffle": True}
    if data == "numbered-augmented":
        return {"x": Augmented(x, y), "shuffle": True}
    if data == "generator":
        return {"x": _endless(x, y), "steps_per_epoch": 10}
    if data == "loader":
        import torch

        torch.manual_seed(3)
        tensors = torch.utils.data.TensorDataset(torch.tensor(x), torch.tensor(y))
        return {"x": torch.utils.data.DataLoader(tensors, batch_size=BATCH, shuffle=True)}
    import tensorflow as tf

    plain = tf.data.Dataset.from_tensor_slices((x, y))
    if data == "dataset":
        return {"x": plain.shuffle(32, seed=3).batch(BATCH).prefetch(2)}
    if data == "dataset-repeat":
        return {"x": plain.shuffle(32, seed=3).repeat().batch(BATCH).prefetch(2), "steps_per_epoch": 10}
    if data == "dataset-twice":
        return {"x": plain.shuffle(32, seed=3).repeat(2).batch(BATCH).prefetch(2)}
    if data == "dataset-python":  # has no checkpoint of its own
        spec = (tf.TensorSpec((8, 8, 1), tf.float32), tf.TensorSpec((), tf.int64))
        rows = tf.data.Dataset.from_generator(lambda: zip(x, y, strict=True), output_signature=spec)
        return {"x": rows.shuffle(32, seed=3).batch(BATCH)}
    raise ValueError(data)


def _endless(x: Any, y: Any) -> Any:
    while True:
        at = np.random.randint(0, len(x), BATCH)
        yield x[at], y[at]


# Callbacks.


_SEEN: Counter[str] = Counter()  # of this process: what a callback keeps on itself comes back


class Death(keras.callbacks.Callback):
    """SIGKILL at a place: ["batch", n], ["epoch-end", n], ["validation", n], counted over the run's process."""

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


class BatchRate(keras.callbacks.Callback):
    """Another learning rate at each batch."""

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        self.model.optimizer.learning_rate = 1e-2 / (1 + int(self.model.optimizer.iterations))


class Clamp(keras.callbacks.Callback):
    """Writes weights that no step writes."""

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        if batch % 4 == 1:
            kernel = self.model.layers[-1].kernel
            kernel.assign(keras.ops.clip(kernel, -0.2, 0.2))


class Thaw(keras.callbacks.Callback):
    """Writes weights of a frozen layer."""

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        for layer in self.model.layers:
            if batch % 4 == 1 and layer.variables and not layer.trainable:
                layer.kernel.assign(layer.kernel * 1.25)


class Counting(keras.callbacks.Callback):
    """Counters of its own, as other callbacks see them."""

    def __init__(self) -> None:
        super().__init__()
        self.batches: list[int] = []
        self.best = 1e9

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self.batches.append(batch)

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        self.best = min(self.best, float(logs["loss"]))


class Collecting(keras.callbacks.Callback):
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


class Cyclic(keras.callbacks.Callback):
    """State that cannot be told."""

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self.held: dict[str, Any] = {}
        self.held["self"] = self.held


def siblings(names: list[str]) -> list[Any]:
    """Callbacks by name."""
    made = {
        "stopping": lambda: keras.callbacks.EarlyStopping("loss", patience=1, min_delta=10.0, restore_best_weights=True),
        "plateau": lambda: keras.callbacks.ReduceLROnPlateau("loss", patience=0, min_delta=10.0, factor=0.5, cooldown=1),
        "schedule": lambda: keras.callbacks.LearningRateScheduler(lambda epoch, rate: rate * 0.7),
        "batch-rate": BatchRate,
        "clamp": Clamp,
        "thaw": Thaw,
        "collecting": Collecting,
        "cyclic": Cyclic,
        "counting": Counting,
    }
    return [made[name]() for name in names]


# The script.


def optimizer_of(name: str) -> Any:
    """An optimizer from the name of a configuration."""
    from tests.keras.optimizers import CONFIGURATIONS

    return CONFIGURATIONS[name]()


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


def state_of(model: keras.Model) -> dict[str, Any]:
    """Every variable's bits, random generators included."""
    found = {f"{i}/{v.path}": bits(v) for i, v in enumerate([*model.variables, *model.optimizer.variables])}
    return found | {"numpy": np.random.get_state()[1].tobytes(), "python": str(random.getstate())}


def bits(variable: Any) -> bytes:
    """A variable's bytes."""
    values = np.asarray(keras.ops.convert_to_numpy(variable))
    return str(values.dtype).encode() + values.tobytes()


def plain(history: dict[str, Any]) -> dict[str, list[float]]:
    """A history as floats."""
    return {name: [float(value) for value in values] for name, values in history.items()}


def attributes(callback: Any) -> dict[str, Any]:
    """What a callback keeps."""
    left_out = ("_model", "params", "monitor_op", "schedule")
    kept = {name: value for name, value in vars(callback).items() if name not in left_out}
    if isinstance(kept.get("average"), np.ndarray):
        kept["average"] = kept["average"].tobytes()
    kept.pop("held", None)
    if kept.get("best_weights"):
        kept["best_weights"] = [np.asarray(value).tobytes() for value in kept["best_weights"]]
    return kept


# Several in one process.


class Stop(Exception):
    """What ends a fit that is to be taken up again in the same process."""


class Interrupt(keras.callbacks.Callback):
    """Raises in the middle of a fit."""

    def __init__(self, after: int) -> None:
        super().__init__()
        self._left = after

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self._left -= 1
        if self._left == 0:
            raise Stop


def made(optimizer: str, model: str = "cnn", *, jit: bool = False, eager: bool = False, policy: str | None = None) -> Any:
    """A compiled model, made as in a fresh process."""
    keras.utils.clear_session(free_memory=False)
    keras.utils.set_random_seed(5)
    keras.config.set_dtype_policy(policy or "float32")
    found = MODELS[model]()
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    chosen = optimizer_of(optimizer.partition("+")[0])
    if optimizer.endswith("+exclude"):
        chosen.exclude_from_weight_decay(var_names=["bias"])
    found.compile(chosen, loss, metrics=["accuracy"], jit_compile=jit, run_eagerly=eager)
    return found


def logged(run: str, **options: Any) -> TranLogsCallback:
    """A callback that takes no checkpoint by itself, so that all is redone from the log."""
    settings = {"checkpoint_every": 1000, "durability": "process", "segment_bytes": 1 << 20, "verbose": False}
    return TranLogsCallback(run, **(settings | options))


def resumed(
    folder: str,
    names: list[str],
    *,
    model: str = "cnn",
    after: int = 8,
    jit: bool = False,
    eager: bool = False,
    policy: str | None = None,
    log: str = "auto",
    compares: bool = True,
) -> dict[str, Any]:
    """For each optimizer: a fit that is left in its middle and taken up by a fresh model, whose every redone step is compared.

    `compares`: the end, too, with a fit that was not left.
    """
    arguments = given("arrays") | {"verbose": 0}
    if model == "fusing":
        arguments |= {"x": arguments["x"][:12], "y": arguments["y"][:12], "batch_size": 1}
    found = {}
    for name in names:

        def fit(run: str, *others: Any, name: str = name) -> tuple[list[bytes], Any]:
            fresh = made(name, model, jit=jit, eager=eager, policy=policy)
            callback = logged(run, log=log, fingerprint="full")
            try:
                fresh.fit(**arguments, callbacks=[callback, *others])
            except Stop:
                pass
            return [bits(v) for v in [*fresh.variables, *fresh.optimizer.variables]], callback.report

        fit(f"{folder}/{name}-cut", Interrupt(after))
        state, report = fit(f"{folder}/{name}-cut")
        right = fit(f"{folder}/{name}-whole")[0] if compares else state
        different = [i for i, (a, b) in enumerate(zip(state, right, strict=True)) if a != b]
        found[name] = {"different": different, "exact": report.exact, "replayed": report.replayed, "notes": report.notes}
    return found


def many_fits(folder: str) -> dict[str, Any]:
    """fit, fit with the callback, an exception, fit without, fit with another callback: on one model."""
    arguments = given("arrays-in-order") | {"verbose": 0}
    one, other = made("adam"), made("adam")

    def fit_both(seed: int, *callbacks: Any, cut: bool = False, epochs: int = 1) -> None:
        for model, watching in ((one, callbacks), (other, ())):
            keras.utils.set_random_seed(seed)
            try:
                model.fit(**arguments, epochs=epochs, callbacks=[*watching, *([Interrupt(3)] if cut else [])])
            except Stop:
                pass

    fit_both(1)
    fit_both(2, logged(f"{folder}/first"))
    fit_both(3, logged(f"{folder}/second"), cut=True)
    fit_both(4)  # the callback of before must not log this
    fit_both(5, logged(f"{folder}/third"), epochs=2)
    same = all(bits(a) == bits(b) for a, b in zip(one.variables, other.variables, strict=True))
    clean = "train_step" not in vars(one) and "apply" not in vars(one.optimizer)
    steps = [OfflineRun(Path(folder, name, "rank0")).replay().step for name in ("first", "second", "third")]
    return {
        "iterations": int(one.optimizer.iterations),
        "iterations_plain": int(other.optimizer.iterations),
        "logged_is_plain": same,
        "is_as_keras_made_it": clean,
        "steps": steps,
    }


def left_by_an_exception(folder: str) -> dict[str, Any]:
    """The same callback and model, fitted again after an exception: that fit goes on."""
    arguments = given("arrays") | {"verbose": 0, "epochs": 2}
    whole = made("adam")
    history = whole.fit(**arguments, callbacks=[logged(f"{folder}/whole")]).history
    model, callback = made("adam"), logged(f"{folder}/left")
    try:
        model.fit(**arguments, callbacks=[callback, Interrupt(13)])
    except Stop:
        pass
    again = model.fit(**arguments, callbacks=[callback]).history
    same = [bits(a) == bits(b) for a, b in zip(whole.variables, model.variables, strict=True)]
    return {
        "same": all(same),
        "history": plain(history) == plain(again),
        "exact": callback.report.exact,
        "iterations": int(model.optimizer.iterations),
    }


def without_the_script(folder: str) -> dict[str, Any]:
    """What a run alone gives, of models and optimizers whose updates depend on more than they say."""
    from tranlogs_keras.replay.offline import OfflineRun

    found = {}
    for name, model, optimizer in (("constrained", "constrained", "adam"), ("excluded", "dense", "adamw+exclude")):
        fresh = made(optimizer, model)
        fresh.fit(**given("arrays"), verbose=0, callbacks=[logged(f"{folder}/{name}")])
        right = {v.path: bits(v) for v in fresh.trainable_variables}
        run = OfflineRun(Path(f"{folder}/{name}/rank0"))
        report = run.replay(checkpoint=min(path.name for path in Path(f"{folder}/{name}/rank0/checkpoints").iterdir()))
        mine = {slot.name.removeprefix("param/"): slot.variable for slot in run.state.variables.trained}
        found[name] = {
            "exact": report.exact,
            "replayed": report.replayed,
            "same": {k: bits(v) for k, v in mine.items()} == right,
        }
    return found


def unused_optimizer(folder: str) -> str:
    """A further optimizer, which trains nothing."""
    model = _compiled_two_updates()
    model.third_optimizer = keras.optimizers.SGD(0.1)
    try:
        model.fit(**given("arrays"), verbose=0, callbacks=[logged(folder)])
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return ""


def doubtful_datasets(folder: str) -> dict[str, Any]:
    """What is said of pipelines that cannot be brought back."""
    import tensorflow as tf

    x, y = digits()
    plain_ = tf.data.Dataset.from_tensor_slices((x, y))
    flip = layers.RandomFlip(seed=3)
    noisy = lambda a, b: (a + tf.random.normal(tf.shape(a)), b)  # noqa: E731
    sets = {
        "plain": plain_.shuffle(32, seed=3).map(lambda a, b: (a * 2, b), num_parallel_calls=2).batch(8),
        "layer": plain_.batch(8).map(lambda a, b: (flip(a, training=True), b)),
        "python": plain_.map(
            lambda a, b: (tf.ensure_shape(tf.numpy_function(lambda v: v, [a], tf.float32), (8, 8, 1)), b)
        ).batch(8),
        "parallel": plain_.map(noisy, num_parallel_calls=2).batch(8),
        "sequential": plain_.map(noisy).batch(8),
    }
    found = {}
    for name, data in sets.items():
        callback = logged(f"{folder}/{name}")
        made("adam", "dense").fit(data, verbose=0, callbacks=[callback])
        found[name] = " | ".join(callback.report.notes)
    return found


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


class TwoUpdates(keras.Model):
    """Two optimizers, and a clamp after them: nothing that gradients of one update tell."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = layers.Dense(16, activation="tanh"), layers.Dense(10)
        self.flat = layers.Flatten()

    def call(self, x: Any) -> Any:
        return self.second(self.first(self.flat(x)))

    def compile(self, **options: Any) -> None:
        super().compile(**options)
        self.other_optimizer = keras.optimizers.SGD(0.1, momentum=0.9)

    def train_step(self, data: Any) -> Any:
        x, y = data
        if keras.backend.backend() == "tensorflow":
            import tensorflow as tf

            with tf.GradientTape() as tape:
                loss = self.compute_loss(x, y, self(x, training=True))
            gradients = tape.gradient(loss, self.trainable_variables)
        else:
            self.zero_grad()
            loss = self.compute_loss(x, y, self(x, training=True))
            loss.backward()
            gradients = [v.value.grad for v in self.trainable_variables]
        variables = self.trainable_variables
        self.optimizer.apply(gradients[:2], variables[:2])
        self.other_optimizer.apply(gradients[2:], variables[2:])
        self.second.kernel.assign(keras.ops.clip(self.second.kernel, -0.3, 0.3))
        return {"loss": loss}


def _compiled_two_updates() -> Any:
    keras.utils.clear_session(free_memory=False)
    keras.utils.set_random_seed(5)
    model = TwoUpdates()
    model(np.zeros((1, 8, 8, 1), "float32"))
    model.compile(optimizer="adam", loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    model.optimizer.build(model.trainable_variables[:2])
    model.other_optimizer.build(model.trainable_variables[2:])
    return model


def _cut_and_whole(make: Any, folder: str, **options: Any) -> dict[str, Any]:
    """A fit that is left in its middle and taken up by a fresh model, against one that was not; and what was said."""
    import logging

    said: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: said.append(record.getMessage())  # type: ignore[method-assign]
    logging.getLogger("tranlogs").addHandler(handler)
    kept = []
    arguments = given("arrays") | {"verbose": 0}
    for run, is_cut in ((f"{folder}/whole", False), (f"{folder}/cut", True)):
        if is_cut:
            try:
                make().fit(**arguments, callbacks=[logged(run, **options), Interrupt(8)])
            except Stop:
                pass
        model, callback = make(), logged(run, **options)
        model.fit(**arguments, callbacks=[callback])
        kept.append([bits(v) for v in model.variables])
    different = [i for i, (a, b) in enumerate(zip(*kept, strict=True)) if a != b]
    return {"different": different, "exact": callback.report.exact, "warning": "\n".join(said)}


def own_train_step(folder: str) -> dict[str, Any]:
    """A model with a train_step of its own."""
    found = _cut_and_whole(_compiled_two_updates, folder)
    try:
        _compiled_two_updates().fit(**given("arrays"), verbose=0, callbacks=[logged(f"{folder}/refused", log="gradients")])
        found["refused"] = ""
    except Exception as error:
        found["refused"] = str(error)
    return found


class Noisy(keras.optimizers.SGD):
    """Its update draws random numbers, of which gradients tell nothing."""

    def update_step(self, gradient: Any, variable: Any, learning_rate: Any) -> None:
        noise = np.random.standard_normal(tuple(variable.shape)).astype("float32")
        super().update_step(gradient + keras.ops.convert_to_tensor(noise) * 0.01, variable, learning_rate)


def noisy_optimizer(folder: str) -> dict[str, Any]:
    """An optimizer whose steps cannot be redone from gradients."""

    def make() -> Any:
        model = made("sgd")
        model.compile(Noisy(0.05), keras.losses.SparseCategoricalCrossentropy(from_logits=True), metrics=["accuracy"])
        return model

    return _cut_and_whole(make, folder)


def refusals(folder: str) -> dict[str, str]:
    """What is said where something is wrong."""
    found: dict[str, str] = {}
    arguments = given("arrays") | {"verbose": 0}

    def said(name: str, act: Any) -> None:
        try:
            act()
            found[name] = ""
        except Exception as error:
            found[name] = str(error)

    said("log", lambda: logged(f"{folder}/a", log="all"))
    said("run", lambda: TranLogsCallback(None))
    said("checkpoint_every", lambda: logged(f"{folder}/a", checkpoint_every="often"))
    model = made("adam")
    backup = keras.callbacks.BackupAndRestore(f"{folder}/backup")
    said("backup", lambda: model.fit(**arguments, callbacks=[logged(f"{folder}/b"), backup]))
    said("two", lambda: model.fit(**arguments, callbacks=[logged(f"{folder}/c"), logged(f"{folder}/d")]))
    run = f"{folder}/run"
    model.fit(**arguments, callbacks=[logged(run)])
    said("shape", lambda: made("adam", "sparse").fit(**arguments, callbacks=[logged(run)]))
    said("optimizer", lambda: made("sgd").fit(**arguments, callbacks=[logged(run)]))
    shared = logged(f"{folder}/shared")
    model.fit(**arguments, callbacks=[shared])
    said("models", lambda: made("adam").fit(**arguments, callbacks=[shared]))
    said("after", lambda: model.fit(**arguments, callbacks=[logged(f"{folder}/e")]))
    found["after"] = "trained" if found["after"] == "" else found["after"]
    return found


def changed_scripts(folder: str) -> dict[str, Any]:
    """Runs that are left in their middle, and taken up by a script that is another one."""
    arguments = given("arrays-in-order") | {"verbose": 0}
    found = {}

    def compiled(activation: str = "tanh", loss: str = "mse", **options: Any) -> Any:
        keras.utils.clear_session(free_memory=False)
        keras.utils.set_random_seed(5)
        model = keras.Sequential(
            [keras.Input((8, 8, 1)), layers.Flatten(), layers.Dense(3, activation=activation), layers.Dense(1)]
        )
        model.compile(keras.optimizers.Adam(**options), loss)
        return model

    def taken_up(name: str, model: Any, **changes: Any) -> None:
        run, options = f"{folder}/{name}", {"accept_changes": True} | changes.pop("options", {})
        try:
            compiled().fit(**arguments, callbacks=[logged(run), Interrupt(5)])
        except Stop:
            pass
        rate = float(model.optimizer.learning_rate) if name == "rate" else None
        try:  # without the option
            model.fit(**(arguments | changes), callbacks=[logged(run, **(options | {"accept_changes": False})), Interrupt(1)])
        except Stop:
            found[f"{name} as it is"] = "trained"
        except Exception as error:
            found[f"{name} as it is"] = f"{type(error).__name__}: {error}"
        callback = logged(run, **options)
        try:
            model.fit(**(arguments | changes), callbacks=[callback])
            assert rate is None or float(model.optimizer.learning_rate) == rate
            found[name] = {"exact": callback.report.exact, "notes": " | ".join(callback.report.notes)}
        except Exception as error:
            found[name] = {"refused": f"{type(error).__name__}: {error}"}

    x, y = digits()
    taken_up("same", compiled())
    taken_up("batch_size", compiled(), batch_size=16)
    taken_up("samples", compiled(), x=x[:40], y=y[:40])
    taken_up("values", compiled(), x=x * 2)
    taken_up("order", compiled(), options={"data_order": "keras"}, shuffle=True)
    taken_up("activation", compiled(activation="relu"))
    taken_up("loss", compiled(loss="mae"))
    taken_up("rate", compiled(learning_rate=0.5))
    taken_up("beta", compiled(beta_1=0.5))
    taken_up("schedule", compiled(learning_rate=keras.optimizers.schedules.CosineDecay(0.1, 10)))
    return found


def from_weights(path: str, run: str, jit: bool = False) -> dict[str, Any]:
    """Load an exported file into the model, and compare with what recovery brings back."""

    class Compare(keras.callbacks.Callback):
        def on_train_begin(self, logs: Any = None) -> None:  # behind TranLogs, which has recovered
            self.recovered = [bits(v) for v in [*self.model.trainable_variables, *self.model.optimizer.variables]]
            raise Stop

    fresh, other = made("adam-schedule", jit=jit), made("adam-schedule", jit=jit)
    for model in (fresh, other):
        model.optimizer.build(model.trainable_variables)
    fresh.load_weights(path)
    compare = Compare()
    try:
        other.fit(**given("arrays"), epochs=EPOCHS, verbose=0, callbacks=[logged(run), compare])
    except Stop:
        pass
    loaded = [bits(v) for v in [*fresh.trainable_variables, *fresh.optimizer.variables]]
    return {"optimizer_step": int(fresh.optimizer.iterations), "same_as_resumed": loaded == compare.recovered}


def loads_model(path: str) -> list[int]:
    """Load a whole model and predict with it."""
    model = keras.models.load_model(path)
    return list(model.predict(digits()[0][:13], verbose=0).shape)


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


def shadow(run: str) -> dict[str, Any]:
    """The run's newest checkpoint beside the one that is made from its log: whether their files are equal."""
    from tests.monitor.shadows import beside_its_own
    from tranlogs_keras.replay.offline import OfflineRun

    own, made_ = beside_its_own(Path(run) / "rank0", OfflineRun)
    return {name: own[name] == made_[name] for name in own}
