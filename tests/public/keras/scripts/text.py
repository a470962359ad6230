"""Text from strings: vectorized, cached, shuffled and batched by tf.data, then an embedding and a convolution."""

from __future__ import annotations

import keras
import tensorflow as tf
from keras import layers
from sklearn import datasets

from tests.kills.keras import Job

_LENGTH = 12


def lines() -> tuple[list[str], list[int]]:
    """Return lines of the descriptions of two data sets, and of which."""
    texts: list[str] = []
    labels: list[int] = []
    for label, load in enumerate((datasets.load_iris, datasets.load_wine)):
        found = [line for line in load().DESCR.splitlines() if sum(word.isalpha() for word in line.split()) > 3][:40]
        texts += found
        labels += [label] * len(found)
    return texts, labels


def train(job: Job) -> None:
    keras.utils.set_random_seed(1337)
    texts, labels = lines()
    vectorize = layers.TextVectorization(max_tokens=120, output_sequence_length=_LENGTH)
    vectorize.adapt(texts)
    raw = tf.data.Dataset.from_tensor_slices((texts, labels))
    rows = raw.map(lambda text, label: (vectorize(text), label)).cache()
    train_rows = rows.shuffle(64, seed=7).batch(16).prefetch(tf.data.AUTOTUNE)
    model = keras.Sequential(
        [
            keras.Input((_LENGTH,), dtype="int64"),
            layers.Embedding(120, 8),
            layers.Dropout(0.5),
            layers.Conv1D(8, 3, activation="relu"),
            layers.GlobalMaxPooling1D(),
            layers.Dense(1, activation="sigmoid"),
        ]
    )
    model.compile(loss="binary_crossentropy", optimizer="adam", metrics=["accuracy"])
    history = model.fit(train_rows, validation_data=rows.batch(32), epochs=3, verbose=2, callbacks=job.callbacks())
    job.say("all", *model.evaluate(rows.batch(16), verbose=0))
    job.keep(model=model, history=history)
