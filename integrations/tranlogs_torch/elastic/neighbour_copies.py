"""Copies of each rank's journal at its neighbour (`copies=2`), from which a journal that is lost with a disk is replaced.

Each rank also logs the next rank's share of the gradients, and at each boundary the next rank's own state: random states,
buffers, tracked objects and the position in the data. If the next rank's journal is lost, no step is lost: the rank without a
journal redoes the records of the rank before it, and takes its own state from that rank's boundary.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tranlogs.base.errors import UnencodableState, UsageError
from tranlogs.ranks import GroupRecovered
from tranlogs.records import BodyEncoder, Fixed, decode_part, tree

from ..tensors import arrays
from .lost_rank_state import seeded

if TYPE_CHECKING:
    from ..distributed.process_group import Group
    from ..state.state import TorchState

_BYTES_MAX = 1 << 20  # of one boundary: a tracked object, such as an average of the weights, may be as large as the model
_NOT_OWN = ("ddp", "beside", "scalars", "start_rng")


def check_copies(copies: int, world: int) -> int:
    """Return the number of copies if it can be kept.

    Raises:
        UsageError: the number is neither 1 nor 2, or there are fewer processes than copies.
    """
    if copies not in (1, 2):
        raise UsageError(f"copies must be 1 or 2 (with 2, the next rank's journal also holds each share), got {copies}")
    if copies > world:
        raise UsageError("copies=2 needs several processes; leave the argument out")
    return copies


class NeighbourCopies:
    """The exchange at each boundary: this rank's own state is sent to the previous rank, and the next rank's is received."""

    def __init__(self, group: Group) -> None:
        self._group = group
        self._encoder = BodyEncoder()
        self._is_large = False

    def exchange(self, body: dict[str, Any]) -> dict[str, Any]:
        """Return the next rank and its own state, for this rank's boundary. All ranks must call this."""
        theirs = self._group.pass_back(self._own({key: value for key, value in body.items() if key not in _NOT_OWN}))
        parts = tree.decode(theirs) if theirs else {}
        return {"beside": ((self._group.rank + 1) % self._group.world, {name: Fixed(part) for name, part in parts.items()})}

    def _own(self, body: dict[str, Any]) -> bytes:
        try:
            if not self._is_large:
                found = self._packed(body)
                self._is_large = len(found) > _BYTES_MAX
                if not self._is_large:
                    return found
            return self._packed({key: value for key, value in body.items() if key != "tracked"})
        except UnencodableState:  # the journal raises the same error and reports it
            return b""

    def _packed(self, body: dict[str, Any]) -> bytes:
        """Return a boundary's body as its parts, so that the other rank's boundary has only those that have changed."""
        parts = self._encoder.parts(body, arrays.adapt)
        return tree.encode({name: [part.blob, [array.data for array in part.arrays]] for name, part in parts.items()})


def settle_beside(state: TorchState, landing: GroupRecovered, body: dict[str, Any]) -> dict[str, Any]:
    """Replace the neighbour's own state by this rank's, after a recovery from the neighbour's journal.

    Args:
        state: state of this rank.
        landing: the recovery of the group.
        body: the neighbour's boundary at which the recovery ended.

    Returns:
        The boundary of this rank.
    """
    rank, parts = body.get("beside", (-1, {}))
    theirs = {key: value for key, value in body.items() if key != "beside"}
    lost = landing.copied_rank
    own = _unpacked(parts) if rank == lost and parts else {"rng": seeded(f"{landing.timeline} {lost}")}
    if "tracked" not in own or "data" not in own:
        what = "tracked objects are" if own.keys() > {"rng"} else "random states are new; buffers and tracked objects are"
        landing.caveats.append(
            f"the journal of rank {lost} is gone, and its copy lacks some of what only that rank kept (more than 1 MiB, or "
            f"values that cannot be stored): {what} those of the previous rank"
        )
    body = theirs | own
    state.set_auxiliary(body)
    return body


def _unpacked(parts: dict[str, Any]) -> dict[str, Any]:
    make = {"make_array": arrays.make_array, "make_extension": arrays.make_extension}
    return {name: decode_part(name, parts, **make) for name in parts if "/" not in name}
