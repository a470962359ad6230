"""Images of digits for the scripts of this folder, and gradients on the backends that have them."""

from __future__ import annotations

from typing import Any

import keras

from tests.keras.scenario.data import stored_digits


def digits(count: int, *, first: int = 0) -> tuple[Any, Any]:
    """Return images of digits (8 x 8 x 1, from 0 to 1) and their labels."""
    images, labels = stored_digits()
    chosen = slice(first, first + count)
    return (images[chosen].reshape(-1, 8, 8, 1) / 16).astype("float32"), labels[chosen].astype("int64")


def gradients_of(loss_of: Any, variables: list[Any]) -> tuple[Any, Any]:
    """Return a loss and its gradients, on TensorFlow and on PyTorch."""
    if keras.backend.backend() == "tensorflow":
        import tensorflow as tf

        with tf.GradientTape() as tape:
            loss = loss_of()
        return loss, tape.gradient(loss, variables)
    import torch

    loss = loss_of()
    return loss, list(torch.autograd.grad(loss, [v.value for v in variables], allow_unused=True))
