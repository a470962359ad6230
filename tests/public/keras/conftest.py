"""The labs of tests/keras, for scripts as the public writes them."""

from tests.keras.conftest import tensorflow, torch

__all__ = ["tensorflow", "torch"]
