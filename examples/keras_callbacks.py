"""Keras' `fit` with callbacks. Run it, kill it (Ctrl-C, kill -9), run it again: it goes on at the batch where it stopped.

    python examples/keras_callbacks.py

One more callback is all that it takes. The others (a rate that is reduced, the table of losses, the best weights in a file,
early stopping) go on with what they had counted.
"""

from pathlib import Path

import keras
from sklearn.datasets import load_digits

from tranlogs_keras import TranLogsCallback

EPOCHS = 25

keras.utils.set_random_seed(5)
images, labels = load_digits(return_X_y=True)
images = (images / 16).astype("float32")

model = keras.Sequential(
    [
        keras.Input((64,)),
        keras.layers.Dense(128, activation="relu"),
        keras.layers.BatchNormalization(),
        keras.layers.Dropout(0.4),
        keras.layers.Dense(10),
    ]
)
loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
model.compile(keras.optimizers.Adam(3e-3), loss, metrics=["accuracy"])


class Told(keras.callbacks.Callback):
    """Prints a line an epoch."""

    def on_epoch_end(self, epoch: int, logs: dict[str, float]) -> None:
        told = ", ".join(f"{name} {value:.4f}" for name, value in logs.items())
        print(f"epoch {epoch}: {told}", flush=True)


Path("runs").mkdir(exist_ok=True)
callbacks = [
    keras.callbacks.ReduceLROnPlateau("val_loss", factor=0.5, patience=2),
    keras.callbacks.EarlyStopping("val_loss", patience=8, restore_best_weights=True),
    keras.callbacks.ModelCheckpoint("runs/keras-callbacks-best.weights.h5", save_best_only=True, save_weights_only=True),
    keras.callbacks.CSVLogger("runs/keras-callbacks.csv"),
    Told(),
    TranLogsCallback("runs/keras-callbacks"),
]
history = model.fit(
    images[:1500],
    labels[:1500],
    validation_data=(images[1500:], labels[1500:]),
    batch_size=32,
    epochs=EPOCHS,
    verbose=0,
    callbacks=callbacks,
)
losses = history.history["val_loss"]
print(f"done: {len(losses)} epochs, best loss {min(losses):.4f}, however often it was killed")
