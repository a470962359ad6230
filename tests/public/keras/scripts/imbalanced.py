"""Imbalanced classes: class weights in one fit, sample weights in another model's loss, many metrics."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
from keras import layers
from sklearn.datasets import load_breast_cancer

from tests.kills.keras import Job


def train(job: Job, weights: str) -> None:
    keras.utils.set_random_seed(51)
    x, y = load_breast_cancer(return_X_y=True)
    x, y = x.astype("float32"), y[:, None].astype("uint8")
    kept = np.sort(np.random.default_rng(0).permutation(len(x))[:120])
    x, y = x[kept], y[kept]
    x -= x[:96].mean(axis=0)
    x /= x[:96].std(axis=0)
    counts = np.bincount(y[:96, 0])
    by_class = {0: 1.0 / counts[0], 1: 1.0 / counts[1]}
    model = keras.Sequential(
        [
            keras.Input((x.shape[-1],)),
            layers.Dense(12, activation="relu"),
            layers.Dropout(0.3),
            layers.Dense(1, activation="sigmoid"),
        ]
    )
    metrics = [
        keras.metrics.FalseNegatives(name="fn"),
        keras.metrics.TruePositives(name="tp"),
        keras.metrics.Precision(name="precision"),
        keras.metrics.AUC(name="auc", num_thresholds=20),
    ]
    model.compile(keras.optimizers.Adam(1e-2), "binary_crossentropy", metrics=metrics, weighted_metrics=["accuracy"])
    options: dict[str, Any] = {"batch_size": 16, "epochs": 3, "validation_data": (x[96:], y[96:])}
    if weights == "classes":
        options["class_weight"] = by_class
    else:
        options["sample_weight"] = np.array([by_class[int(label)] for label in y[:96, 0]], "float32")
    history = model.fit(x[:96], y[:96], verbose=2, callbacks=job.callbacks(), **options)
    job.say("held out", *model.evaluate(x[96:], y[96:], verbose=0))
    job.keep(model=model, history=history)
