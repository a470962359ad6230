"""The search for variables that nobody has given to a run, among all that is alive in the process."""

from __future__ import annotations

import time
import warnings
from typing import Any

import keras
import torch.distributed  # noqa: F401  # has names whose use is warned of

from tranlogs_keras.backends import make_backend
from tranlogs_keras.loop.untracked_variables import UntrackedVariables


class Asked:
    """Counts how often its class is asked for, as a lazy object would act on it."""

    count = 0

    @property
    def __class__(self) -> Any:
        Asked.count += 1
        return Asked


def search() -> dict[str, Any]:
    """Change two variables between boundaries, one of which the run knows, and one that is made late."""
    one, known = keras.Variable([1.0], name="one"), keras.Variable([1.0], name="known")
    search, alive, found = UntrackedVariables(make_backend()), [Asked(), time], []
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        found.append(search.find_changed([known]))
        one.assign([2.0])
        known.assign([2.0])
        late = keras.Variable([1.0], name="late")
        found.append(search.find_changed([known]))
        found.append(search.find_changed([known]))
        late.assign([2.0])
        found.append(search.find_changed([known]))
        one.assign([3.0])
        found.append(search.find_changed([known]))
    return {"found": found, "warned": [str(one.message) for one in caught], "asked": Asked.count, "alive": len(alive)}
