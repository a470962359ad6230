"""A loop over GradientTape. Run it, kill it (Ctrl-C, kill -9), run it again: it goes on at the batch where it stopped.

    python examples/keras_tape.py

`track` takes what has Keras variables (the metric), `remember` what the loop itself keeps: a mean of losses and the best
accuracy. `epoch.enumerate()` has the true number of a batch where plain `enumerate` would begin at 0 after a crash.
"""

import os

os.environ.setdefault("KERAS_BACKEND", "tensorflow")

import keras
import tensorflow as tf
from sklearn.datasets import load_digits

from tranlogs_keras import LoggedOptimizer

EPOCHS = 12
LOGGED_EVERY = 20

keras.utils.set_random_seed(6)
images, labels = load_digits(return_X_y=True)
images = (images / 16).astype("float32")
dataset = tf.data.Dataset.from_tensor_slices((images[:1500], labels[:1500])).shuffle(1500, seed=1).batch(32)

model = keras.Sequential(
    [keras.Input((64,)), keras.layers.Dense(96, activation="relu"), keras.layers.Dropout(0.3), keras.layers.Dense(10)]
)
loss_of = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
accuracy = keras.metrics.SparseCategoricalAccuracy()

optimizer = LoggedOptimizer(keras.optimizers.Adam(2e-3), "runs/keras-tape", model)
optimizer.track(accuracy=accuracy)
state = optimizer.remember(mean_loss=0.0, best=0.0)
print(optimizer.recover(), flush=True)


@tf.function
def train_step(x: tf.Tensor, y: tf.Tensor) -> tf.Tensor:
    with tf.GradientTape() as tape:
        logits = model(x, training=True)
        loss = loss_of(y, logits)
    optimizer.apply(tape.gradient(loss, model.trainable_weights), model.trainable_weights)
    accuracy.update_state(y, logits)
    return loss


for epoch in optimizer.epochs(EPOCHS, dataset):
    for i, (x, y) in epoch.enumerate():
        state.mean_loss = 0.95 * state.mean_loss + 0.05 * float(train_step(x, y))
        if i % LOGGED_EVERY == 0:
            print(f"epoch {epoch} [{i}]: loss {state.mean_loss:.4f}", flush=True)
    right = model(images[1500:], training=False).numpy().argmax(1) == labels[1500:]
    state.best = max(state.best, float(right.mean()))
    print(f"epoch {epoch}: accuracy {float(accuracy.result()):.4f}, of others {right.mean():.4f}", flush=True)
    accuracy.reset_state()
optimizer.close()
print(f"done: best accuracy {state.best:.4f}, however often it was killed")
