"""Everything is as TranLogs has it by default; Keras runs in the laboratories of tests/keras."""

from tests.keras.conftest import tensorflow, torch
from tests.public.conftest import rechecks

__all__ = ["rechecks", "tensorflow", "torch"]
