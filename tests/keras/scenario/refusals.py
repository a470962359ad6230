"""What is said where something is wrong, doubtful or changed."""

from __future__ import annotations

import contextlib
from typing import Any

import keras
from keras import layers

from tests.keras.scenario.data import digits, given
from tests.keras.scenario.ends import Interrupt, InterruptAtBeginning, Stop
from tests.keras.scenario.fits import logged, made
from tranlogs_keras import TranLogsCallback


def doubtful_datasets(folder: str) -> dict[str, Any]:
    """What is said of pipelines that cannot be brought back, before their first batch is trained on."""
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
        with contextlib.suppress(Stop):
            made("adam", "line").fit(data, verbose=0, callbacks=[callback, InterruptAtBeginning()])
        found[name] = " | ".join(callback.report.notes)
    return found


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
