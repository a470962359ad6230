"""The laboratories of tests/keras, for the scripts in this folder."""

from tests.keras.conftest import backend, jax, tensorflow, torch

__all__ = ["backend", "jax", "tensorflow", "torch"]
