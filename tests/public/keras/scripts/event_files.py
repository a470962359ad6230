"""TensorBoard's event files, by epoch and by batch, and a table of numbers."""

from __future__ import annotations

import sys
from pathlib import Path

import keras
from keras import layers

from tests.keras.data import digits
from tests.kills.keras import Job


def scalars_in(folder: Path) -> dict[str, list[tuple[int, float]]]:
    """Return the steps and values of each scalar in a folder of event files, also of those that were written twice."""
    from tensorboard.backend.event_processing.event_file_loader import EventFileLoader
    from tensorboard.util import tensor_util

    found: dict[str, list[tuple[int, float]]] = {}
    for path in sorted(folder.rglob("events.out.tfevents.*")):
        for event in EventFileLoader(str(path)).Load():
            for value in event.summary.value:
                if value.metadata.plugin_data.plugin_name == "scalars":
                    number = float(tensor_util.make_ndarray(value.tensor))
                    found.setdefault(f"{path.parent.name}/{value.tag}", []).append((event.step, number))
    return {name: sorted(points) for name, points in found.items()}


def train(job: Job) -> None:
    sys.path.append(str(Path(sys.prefix) / "tensorboard"))  # `make test` puts it there
    keras.utils.set_random_seed(73)
    x, y = digits(80)
    model = keras.Sequential([keras.Input((8, 8, 1)), layers.Flatten(), layers.Dense(12, activation="relu"), layers.Dense(10)])
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.Adam(0.01), loss, metrics=["accuracy"])
    logs = job.folder / "logs"
    callbacks = [
        keras.callbacks.TensorBoard(str(logs / "epochs")),
        keras.callbacks.TensorBoard(str(logs / "batches"), update_freq=2),
        keras.callbacks.CSVLogger(str(job.files / "table.csv"), separator=";"),
        keras.callbacks.CSVLogger(str(job.files / "appended.csv"), append=True),
    ]
    history = model.fit(
        x, y, batch_size=16, epochs=4, verbose=2, validation_data=(x[:16], y[:16]), callbacks=job.callbacks(*callbacks)
    )
    job.keep(model=model, history=history, scalars=scalars_in(logs))
