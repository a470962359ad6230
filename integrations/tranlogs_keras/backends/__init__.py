"""Keras's backends: what TranLogs needs of them (`base`), and one module each for TensorFlow, PyTorch and JAX."""

from __future__ import annotations

import os

from tranlogs.base.errors import UsageError

from .backend import Backend
from .tap import Gradients

__all__ = ["Backend", "Gradients", "choose_backend", "make_backend"]


def make_backend() -> Backend:
    """Return the backend of the Keras that is imported.

    Raises:
        UsageError: TranLogs does not support the backend.
    """
    name = _backend_name()
    if name == "tensorflow":
        from .tensorflow import TensorFlowBackend

        return TensorFlowBackend()
    if name == "torch":
        from .torch import TorchBackend

        return TorchBackend()
    if name == "jax":
        from .jax import JaxBackend

        return JaxBackend()
    raise UsageError(f"the Keras backend {name!r} is not supported: use tensorflow, torch or jax (KERAS_BACKEND)")


def choose_backend(name: str) -> None:
    """Make Keras run on a backend, before it is imported; for processes that replay a run without its script.

    Raises:
        UsageError: Keras runs on another one already.
    """
    import sys

    if "keras" not in sys.modules:
        os.environ["KERAS_BACKEND"] = name
    if _backend_name() != name:
        raise UsageError(
            f"the run was trained with Keras on {name}, and Keras runs on {_backend_name()} here: set KERAS_BACKEND={name}"
        )


def _backend_name() -> str:
    """Return the name of the backend that Keras runs on."""
    import keras

    return str(keras.backend.backend())
