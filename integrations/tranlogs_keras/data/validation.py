"""Validation data whose position is not brought back."""

from __future__ import annotations

import inspect
from typing import Any

_PEEKED = 2  # Keras looks at so many batches of a generator, and each validation begins with these again

_GENERATOR = (
    "validation takes its batches from a Python generator, which begins anew after a resume: validation metrics, and callbacks "
    "that use them, may differ. Give arrays, a PyDataset or a tf.data.Dataset"
)


def doubt_about_validation(data: Any, steps: int | None) -> str | None:
    """Return why the validation of a resumed fit may see other batches; None if it sees the same.

    Keras opens all other kinds of data anew for each validation.

    Args:
        data: `validation_data` of the fit.
        steps: `validation_steps` of the fit.
    """
    return _GENERATOR if inspect.isgenerator(data) and (steps is None or steps > _PEEKED) else None
