"""Survey of the journals of ranks that train together."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from ...base.errors import RecoveryError
from ...recovery.group.journals import get_world, is_of_group, read_environment
from ...recovery.group.reader import SingleReader
from .find_journals import read_consistently


@dataclass(frozen=True, slots=True)
class GroupSurvey:
    """Survey of the journals of ranks that train together.

    Attributes:
        world: number of ranks.
        step: the step to which a crash now would go back on all ranks; None if they cannot recover.
        lost: ranks whose journals are missing.
        stopped: ranks whose journals exist and which do not train any more.
        problems: what is wrong, one sentence each.
    """

    world: int
    step: int | None
    lost: list[int]
    stopped: list[int]
    problems: list[str]


def survey_group(folder: Path) -> GroupSurvey | None:
    """Read a journal together with those of the other ranks; return None if one process trained alone."""
    environment = read_environment(folder)
    if get_world(environment) == 1 and not is_of_group(environment):
        return None
    return read_consistently(folder, lambda: _survey_ranks(folder), lambda found: found.problems)


def _survey_ranks(folder: Path) -> GroupSurvey:
    try:
        reader = SingleReader(folder)
    except RecoveryError as error:
        return GroupSurvey(get_world(read_environment(folder)), None, [], [], [str(error)])
    lost = [summary.rank for summary in reader.generation.summaries if summary.is_empty]
    problems = [f"the journal of rank {rank} is gone" for rank in lost]
    try:
        return GroupSurvey(reader.world, reader.find_newest_step(), lost, reader.stopped_ranks, problems)
    except RecoveryError as error:
        return GroupSurvey(reader.world, None, lost, reader.stopped_ranks, [*problems, str(error)])
