"""Ids of timelines, which show whether two journals hold the same history of a run (pure).

All ranks give each timeline that they start together one id. `environment["past"]` of segments and checkpoints lists the ids
of the timelines that lead to them, the oldest first, each with the step at which the timeline started. Two journals whose ids
fork at some step hold the same run up to that step: one of them is an older copy, from before a rewind. A timeline from before
there were ids has the id "".

the ids of two journals                                  what counts
equal, or one list continues where the other one ends    everything in both journals
equal up to some id                                      of the older history, the steps before the other id started
no common id, and both known from the start of the run   refused: the journals belong to different runs
no common id otherwise                                   everything in both journals, since nothing is known
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from typing import Any

TimelineIds = tuple[tuple[str, int], ...]  # the id of each timeline and the step at which it started

UNKNOWN_IDS: TimelineIds = (("", 0),)
_IDS_MAX = 256


def new_timeline_id() -> str:
    """Return a new id for a timeline. All ranks use the id that rank 0 made."""
    return secrets.token_hex(8)


def get_timeline_ids(environment: Mapping[str, Any]) -> TimelineIds:
    """Return the ids that the environment of a segment or a checkpoint lists."""
    return tuple((str(name), int(step)) for name, step in environment.get("past", ())) or UNKNOWN_IDS


def get_first_timeline_id(environment: Mapping[str, Any]) -> str:
    """Return the id of the run's first timeline; "" for a run that one process began, or that does not know it."""
    return get_timeline_ids(environment)[0][0]


def extend_timeline_ids(ids: TimelineIds, step: int, name: str = "") -> list[list[Any]]:
    """Return the ids of a history that continues from a step, in the form in which they are recorded.

    Args:
        ids: the ids of the history so far.
        step: the step from which it continues.
        name: the id of the new timeline; "" if no timeline is started.
    """
    found = [*((known, start) for known, start in ids if start <= step), *([(name, step)] if name else [])]
    if len(found) > _IDS_MAX:
        found = [*UNKNOWN_IDS, *found[1 - _IDS_MAX :]]
    return [] if tuple(found) == UNKNOWN_IDS else [list(one) for one in found]


def find_fork_step(ids: TimelineIds, newest: TimelineIds) -> int | None:
    """Return the step at which two histories fork; None if one leads to the other's end, or if nothing is known."""
    names = [name for name, _ in newest]
    shared = [at for at, (name, _) in enumerate(ids) if name in names]
    if not shared:
        return None
    last_shared = ids[shared[-1]][0]
    starts = [start for _, start in (*ids[shared[-1] + 1 :], *newest[names.index(last_shared) + 1 :])]
    return min(starts, default=None)


def are_different_runs(ids: TimelineIds, other: TimelineIds) -> bool:
    """Return True if two histories are known from the start of their runs and have no id in common."""
    is_known = ids[0][0] != "" and other[0][0] != ""
    return is_known and not {name for name, _ in ids} & {name for name, _ in other}
