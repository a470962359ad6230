"""The choice of a process's coordinator."""

from __future__ import annotations

from tranlogs.base.errors import UsageError
from tranlogs.training import CheckpointPolicy

from ...distributed.process_group import is_there
from ...elastic.neighbour_copies import check_copies
from ...elastic.recoverable_state import RecoverableState
from .group_coordinator import GroupCoordinator
from .rank_coordinator import RankCoordinator
from .single_process import SingleProcess


def make_coordinator(state: RecoverableState, policy: CheckpointPolicy, rank: int | None, copies: int) -> RankCoordinator:
    """Return the coordinator of this process: of a group if torch.distributed is initialized, else of a single process.

    Raises:
        UsageError: `rank` is not the rank of torch.distributed, or `copies` has no meaning.
    """
    if not is_there():
        check_copies(copies, 1)
        return SingleProcess(state, rank or 0)
    found = GroupCoordinator(state, policy, copies)
    if rank not in (None, found.rank):
        raise UsageError(f"rank={rank}, but this is rank {found.rank} of torch.distributed; leave the argument out")
    return found
