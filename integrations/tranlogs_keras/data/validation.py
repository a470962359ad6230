"""Validation data whose position is not brought back."""

from __future__ import annotations

import inspect
import logging
from typing import Any

from .random_states import global_states, random_states_of

_log = logging.getLogger("tranlogs")

_PEEKED = 2  # Keras looks at so many batches of a generator, and each validation begins with these again

_GENERATOR = (
    "validation takes its batches from a Python generator, which begins anew after a resume: validation metrics, and callbacks "
    "that use them, may differ. Give arrays, a PyDataset or a tf.data.Dataset"
)
_GLOBAL = (
    "the generator of the validation data draws from the global random numbers of {names}, and Keras draws its first batches "
    "when it validates for the first time in a process: a resume sees other ones. Let the generator draw from a random "
    "generator of its own"
)
_SHARED = (
    "training and validation data draw from one random generator ({names}), and after a resume the batches of training are "
    "drawn again without those of validation in between: give each of them a random generator of its own"
)


def doubts_about_validation(training: Any, data: Any, steps: int | None) -> list[str]:
    """Return why the fit may see other batches after a resume; nothing if it sees the same.

    Keras opens all kinds of validation data but generators anew for each validation.

    Args:
        training: `x` of the fit.
        data: `validation_data` of the fit.
        steps: `validation_steps` of the fit.
    """
    found = [_GENERATOR] if inspect.isgenerator(data) and (steps is None or steps > _PEEKED) else []
    try:
        return found + _doubts_about_random_numbers(training, data)
    except Exception as error:  # whatever the code of a generator looks like
        _log.debug("the generators could not be looked into: %s", error)
        return found


def _doubts_about_random_numbers(training: Any, data: Any) -> list[str]:
    validation, shared = random_states_of(data), {}
    if inspect.isgenerator(training):
        states = random_states_of(training)
        shared = {state: name for state, name in states.items() if state in validation and state not in global_states()}
    drawn = {state: name for state, name in validation.items() if state in global_states()} if inspect.isgenerator(data) else {}
    doubts = ((_GLOBAL, drawn), (_SHARED, shared))
    return [text.format(names=" and ".join(sorted(set(held.values())))) for text, held in doubts if held]
