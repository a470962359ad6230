"""Wait until all processes have reached their first exchange, and name those that are missing.

A process that loads data for minutes is slow, which is a warning. A process that never comes (it only evaluates, or belongs to
a group that does not train) looks the same. So after as long as torch itself waits for a process, it is an error.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection

from tranlogs.base.config import MISSING_SECONDS_MAX, MISSING_SECONDS_WARNED
from tranlogs.base.errors import UsageError

from .group_messages import NoteBoard

_log = logging.getLogger("tranlogs")

MADE, HERE = "made", "here"  # names of notes: a LoggedOptimizer was made; the process has come
_POLL_SECONDS_MAX = 1.0


def wait_for_all(
    board: NoteBoard, world: int, *, now: Callable[[], float] = time.monotonic, sleep: Callable[[float], None] = time.sleep
) -> None:
    """Return when all processes have come.

    Raises:
        UsageError: some did not come; the message names them.
    """
    if not board.is_there:
        return
    board.write(HERE, "")
    began, poll, is_due = now(), 0.001, MISSING_SECONDS_WARNED
    while not board.is_full(HERE):
        waited = now() - began
        missing = set(range(world)) - board.read(HERE).keys() if waited >= is_due else set()
        if missing:
            text = _describe_missing(missing, board.read(MADE), waited)
            if waited >= max(MISSING_SECONDS_MAX, board.seconds_max):
                raise UsageError(text)
            _log.warning("%s", text)
            is_due = min(2 * is_due, max(MISSING_SECONDS_MAX, board.seconds_max))
        sleep(poll)
        poll = min(2 * poll, _POLL_SECONDS_MAX)


def _describe_missing(missing: Collection[int], made: Collection[int], seconds: float) -> str:
    without = [rank for rank in sorted(missing) if rank not in made]
    behind = [rank for rank in sorted(missing) if rank in made]
    found = [f"{_named(without)} created no LoggedOptimizer"] if without else []
    found += [f"{_named(behind)} created one but not reached recover() or a first step"] if behind else []
    return (
        f"waiting for other processes for {seconds:.0f} s: {'; '.join(found)}. All processes of torch.distributed agree on "
        "the step to resume from, so each of them must create a LoggedOptimizer and call recover(), even if only one saves. "
        "Leave a process that does not train with the others (it evaluates, or belongs to another group) out of "
        "init_process_group()"
    )


def _named(ranks: list[int]) -> str:
    return f"rank {ranks[0]} has" if len(ranks) == 1 else f"ranks {', '.join(map(str, ranks))} have"
