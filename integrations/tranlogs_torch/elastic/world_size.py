"""A run that goes on with another number of processes than recorded it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tranlogs.base.errors import RunInUse, UsageError
from tranlogs.ranks import (
    FindObstacle,
    GroupRecovered,
    GroupRecovery,
    OwnJournal,
    ReplacementSource,
    Solo,
    is_of_group,
    is_sharded,
    list_journals,
    read_environment,
    read_generations,
    read_owner,
)
from tranlogs.training import Journal, Progress

from .lost_rank_state import seeded
from .neighbour_copies import settle_beside
from .shard_loading import RecoverableState


def is_of_many(folder: Path) -> bool:
    """Return True if a run, given by the folder of one journal, was trained or begun by several processes."""
    beside = list_journals(folder)
    if any(is_of_group(one) or is_sharded(one) for one in map(read_environment, (path for _, path in beside))):
        return True
    logs = read_generations(folder) if len(beside) > 1 else []  # a change that was cut short leaves an era without anything
    return len(logs) > 1 and logs[0].is_empty


def recover_alone(
    journal: Journal,
    state: RecoverableState,
    step: int | None,
    progress: Progress | None,
    spare: ReplacementSource,
    find_obstacle: FindObstacle | None = None,
) -> GroupRecovered | None:
    """Bring one process to where the several that recorded the run would land; None if the run is fresh."""
    demand_unused(journal.paths.folder, 1)
    own = OwnJournal(journal.paths.folder, 0, 1, journal.run.run_id, spare)
    return GroupRecovery(own, state, Solo()).recover(step, progress, find_obstacle)


def demand_unused(folder: Path, world: int) -> None:
    """Refuse to go on with fewer processes while one of those before still writes its journal.

    Raises:
        RunInUse: that is so.
    """
    for rank, path in list_journals(folder):
        owner = read_owner(path) if rank >= world else None
        if owner is not None and owner.is_alive:
            raise RunInUse(path, owner.host, owner.pid, owner.since)


def settle_in(state: RecoverableState, landing: GroupRecovered, body: dict[str, Any]) -> dict[str, Any]:
    """Make the boundary that was landed on (`body`) this process's own; gives it back as it is then.

    Raises:
        UsageError: the ranks were not equal there, so that another number of them cannot go on from it.
    """
    about = body.get("ddp")
    if landing.is_resized and about is not None and not about["is_divided"]:
        raise UsageError(
            "the weights of the processes that recorded the run had diverged, so only the same number of processes can "
            "continue it"
        )
    if landing.copied_rank >= 0:
        return settle_beside(state, landing, body)
    if landing.seed:
        rng = seeded(landing.seed)
        body = {**body, "rng": rng, "start_rng": rng}
        state.set_auxiliary(body)
    return body
