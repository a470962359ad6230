"""The check of what a script tracks: its state can be stored, and has a size that can be written at each boundary."""

from __future__ import annotations

from typing import Any

from ...base.config import GIB, TRACKED_BYTES_MAX
from ...base.errors import UnencodableState
from ...base.types import AnyArray
from ...encoding import tree


def demand_storable(content: Any, path: str, adapt: tree.Adapt, model_bytes: int) -> None:
    """Refuse a state that cannot be stored.

    Args:
        content: the state.
        path: of it in messages.
        adapt: turns a framework's values into arrays and extensions.
        model_bytes: size of the model. An average of its weights is accepted whatever its size.

    Raises:
        UnencodableState: it holds something that cannot be stored, contains itself, or is huge; the error has its path.
    """
    arrays = list[AnyArray]()
    tree.encode(content, path=path, adapt=adapt, out_of_line=arrays)
    size, most = sum(array.nbytes for array in arrays), max(TRACKED_BYTES_MAX, 4 * model_bytes)
    if size > most:
        where, largest = max(tree.find_arrays(content, path, adapt), key=lambda item: item[1].nbytes)
        raise UnencodableState(
            path,
            content,
            f"holds {size / GIB:.1f} GiB (of them {largest.nbytes / GIB:.1f} GiB in {where}), which would be written at each "
            f"boundary; {most / GIB:.1f} GiB are accepted. Leave out data that the script can read again, and track their "
            "position",
        )
