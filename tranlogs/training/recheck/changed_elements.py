"""Find the elements of an array that a script has set, from the bytes before and now."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from ...base.types import Bytes

Mask = npt.NDArray[Any]  # of bool, an entry for each element


def find_changed_elements(before: Bytes, now: Bytes, itemsize: int) -> Mask:
    """Return which elements differ bit for bit.

    Args:
        before: the bytes of an array, in one dimension.
        now: those of another array of the same dtype and size.
        itemsize: bytes of an element.
    """
    changed: Mask = (before.reshape(-1, itemsize) != now.reshape(-1, itemsize)).any(1)
    return changed


def is_set_as_a_whole(now: Bytes, changed: Mask, itemsize: int) -> bool:
    """Return True if a script has set all of an array, though some elements had that value before.

    Most have another one now, or all have the same (`zero_()`).

    Args:
        now: the bytes of the array, in one dimension.
        changed: which elements differ from those before.
        itemsize: bytes of an element.
    """
    elements = now.reshape(-1, itemsize)
    return 2 * int(np.count_nonzero(changed)) >= changed.size or bool((elements == elements[:1]).all())
