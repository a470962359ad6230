"""Optimizer configurations: all of keras.optimizers, and everything that an update can be told to do besides."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras

o = keras.optimizers


def _decay() -> Any:
    return o.schedules.CosineDecay(1e-2, 40)


CONFIGURATIONS: dict[str, Callable[[], Any]] = {
    "adam-schedule": lambda: o.Adam(_decay()),
    "adam": lambda: o.Adam(1e-2),
    "sgd": lambda: o.SGD(0.05),
    "sgd-nesterov-decay": lambda: o.SGD(0.05, momentum=0.9, nesterov=True, weight_decay=0.01),
    "adam-amsgrad": lambda: o.Adam(1e-2, amsgrad=True),
    "adam-clipnorm": lambda: o.Adam(1e-2, clipnorm=0.1),
    "adam-global-clipnorm": lambda: o.Adam(1e-2, global_clipnorm=0.1),
    "adam-clipvalue": lambda: o.Adam(1e-2, clipvalue=0.01),
    "adam-accumulate": lambda: o.Adam(1e-2, gradient_accumulation_steps=3),
    "adam-ema": lambda: o.Adam(1e-2, use_ema=True, ema_momentum=0.9, ema_overwrite_frequency=4),
    "adam-ema-end": lambda: o.Adam(1e-2, use_ema=True, ema_momentum=0.9),
    "adam-loss-scale": lambda: o.LossScaleOptimizer(o.Adam(1e-2), initial_scale=2.0**120, dynamic_growth_steps=3),
    "adam-scale-factor": lambda: o.Adam(1e-2, loss_scale_factor=8.0),
    "adamw": lambda: o.AdamW(_decay(), weight_decay=0.02),
    "adamax": lambda: o.Adamax(1e-2),
    "nadam": lambda: o.Nadam(1e-2),
    "rmsprop-centered": lambda: o.RMSprop(1e-2, momentum=0.9, centered=True),
    "adagrad": lambda: o.Adagrad(1e-2),
    "adadelta": lambda: o.Adadelta(1.0),
    "adafactor": lambda: o.Adafactor(1e-2),
    "ftrl": lambda: o.Ftrl(1e-2, l1_regularization_strength=1e-4),
    "lion": lambda: o.Lion(1e-3),
    "lamb": lambda: o.Lamb(1e-2),
    "muon": lambda: o.Muon(1e-2),
}
