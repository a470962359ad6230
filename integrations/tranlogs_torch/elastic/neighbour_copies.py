"""`copies=2`: each rank keeps the next one's share of the log, too, and at each boundary what is that rank's own.

So a journal that is lost with a disk costs no step: the rank redoes what the one before it has, and takes its own random
numbers, buffers and position in the data from that one's boundary.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tranlogs.base.errors import UnencodableState, UsageError
from tranlogs.ranks import GroupRecovered

from ..ddp.comm_hooks import without_errors
from .adoption import packed, seeded, unpacked

if TYPE_CHECKING:
    from ..distributed.process_group import Group
    from ..state.state import TorchState

_BYTES_MAX = 1 << 20  # of a boundary; what is tracked (an average of the weights) may be as large as the model
_NOT_OWN = ("ddp", "beside", "scalars", "start_rng")


def check_copies(copies: int, world: int) -> int:
    """Refuse what has no meaning.

    Raises:
        UsageError: that is so.
    """
    if copies not in (1, 2):
        raise UsageError(f"copies={copies}: use 1, or 2 (each share lies in the next rank's journal, too)")
    if copies > world:
        raise UsageError("copies=2: one process has no other to keep a copy for. Leave the argument out")
    return copies


class NeighbourCopies:
    """Sends what is this rank's own to the rank before, at each boundary, and keeps that of the next."""

    def __init__(self, group: Group) -> None:
        self._group = group
        self._is_large = False

    def exchange(self, body: dict[str, Any]) -> dict[str, Any]:
        """What goes into this rank's boundary: the next one's body by its rank. All must call it."""
        theirs = self._group.pass_back(self._own({key: value for key, value in body.items() if key not in _NOT_OWN}))
        return {"beside": ((self._group.rank + 1) % self._group.world, theirs)}

    def _own(self, body: dict[str, Any]) -> bytes:
        try:
            if not self._is_large:
                found = packed(body)
                self._is_large = len(found) > _BYTES_MAX
                if not self._is_large:
                    return found
            return packed({key: value for key, value in body.items() if key != "tracked"})
        except UnencodableState:  # the journal is going to meet it, too, and says so
            return b""


def settle_beside(state: TorchState, landing: GroupRecovered, body: dict[str, Any]) -> dict[str, Any]:
    """Make the neighbour's boundary that was landed on this rank's own; gives it back as it is then."""
    rank, blob = body.get("beside", (-1, b""))
    theirs = {key: value for key, value in without_errors(body).items() if key != "beside"}
    lost = landing.copied_rank
    own = unpacked(blob) if rank == lost and blob else {"rng": seeded(f"{landing.timeline} {lost}")}
    if "tracked" not in own or "data" not in own:
        what = "what is tracked is" if own.keys() > {"rng"} else "random numbers are new, buffers and what is tracked are"
        landing.caveats.append(
            f"the journal of rank {lost} is gone, and not all that was its own is in a copy (more "
            f"than 1 MiB, or not to be stored): {what} that of the rank before"
        )
    body = theirs | own
    state.set_auxiliary(body)
    return body
