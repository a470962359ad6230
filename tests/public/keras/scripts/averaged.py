"""Averaged weights: AdamW with use_ema, accumulated gradients and a cosine schedule, evaluated with the averages."""

from __future__ import annotations

from typing import Any

import keras
from keras import layers

from tests.kills.keras import Job
from tests.public.keras.data import digits


class StochasticAverage(keras.callbacks.Callback):
    """Averages the weights of the last epochs (SWA), and gives them to the model at the end."""

    def __init__(self, first: int) -> None:
        super().__init__()
        self.first, self.count = first, 0
        self.weights: list[Any] = []

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        if epoch < self.first:
            return
        now = self.model.get_weights()
        self.count += 1
        self.weights = [a + (b - a) / self.count for a, b in zip(self.weights, now)] if self.weights else now

    def on_train_end(self, logs: Any = None) -> None:
        self.model.set_weights(self.weights)


def train(job: Job, style: str) -> None:
    keras.utils.set_random_seed(91)
    x, y = digits(96)
    model = keras.Sequential(
        [
            keras.Input((8, 8, 1)),
            layers.Flatten(),
            layers.Dense(16, activation="gelu"),
            layers.LayerNormalization(),
            layers.Dense(10),
        ]
    )
    rate = keras.optimizers.schedules.CosineDecay(1e-3, decay_steps=20, warmup_target=1e-2, warmup_steps=5)
    accumulates = {"gradient_accumulation_steps": 2, "global_clipnorm": 1.0} if style == "swa" else {}
    averages = {"use_ema": True, "ema_momentum": 0.9, "ema_overwrite_frequency": 4} if style == "overwritten" else {}
    averages = {"use_ema": True, "ema_momentum": 0.9} if style == "swapped" else averages
    model.compile(
        keras.optimizers.AdamW(rate, weight_decay=0.01, **accumulates, **averages),
        keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
    )
    others = {"swa": [StochasticAverage(1)], "swapped": [keras.callbacks.SwapEMAWeights(swap_on_epoch=True)], "overwritten": []}
    history = model.fit(
        x, y, batch_size=16, epochs=3, validation_data=(x[:16], y[:16]), verbose=2, callbacks=job.callbacks(*others[style])
    )
    job.say("end", *model.evaluate(x, y, verbose=0))
    job.keep(model=model, history=history)
