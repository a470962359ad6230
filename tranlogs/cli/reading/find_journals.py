"""Search for the journals of the RUN in a command line."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import TypeVar

from ...base.errors import NotARun, TranLogsError, UsageError
from ...catalog import Catalog
from ...journal import JournalPaths, read_owner
from ...recovery.group.journals import is_of_group, is_sharded, read_environment
from ...stores import is_address

_PARTS = ("catalog.lmdb", "owner.lock", "log", "checkpoints")
_PARTS_MIN = 2  # a damaged journal may lack some of them, and another folder may contain one by chance
_READS_MAX = 3

T = TypeVar("T")


def find_journals(run: Path) -> list[JournalPaths]:
    """Return the journals of a run, by rank. The folder may also be that of a single journal.

    Raises:
        NotARun: the folder contains no journal.
        UsageError: `run` is the address of a store.
    """
    if is_journal(run):
        return [JournalPaths(run)]
    if not run.is_dir():
        if is_address(str(run)):
            raise UsageError(
                f"{run} is the address of a store: `tranlogs status URL` lists its runs, `tranlogs pull` fetches one"
            )
        raise NotARun(run, "it is not a folder" if run.exists() else "the folder does not exist")
    found = [path for path in run.glob("rank*") if path.name[4:].isdigit() and is_journal(path)]
    if not found:
        raise NotARun(run)
    return [JournalPaths(path) for path in sorted(found, key=lambda path: int(path.name[4:]))]


def find_journal(run: Path) -> JournalPaths:
    """Return the journal of a run.

    For ranks that trained one model together, this is the journal of the first rank: recovery reads the others, too.

    Raises:
        NotARun: the folder contains no journal.
        UsageError: the folder contains several journals that are independent of each other.
    """
    found = find_journals(run)
    if len(found) > 1 and is_alone(found[0]):
        names = ", ".join(str(paths.folder) for paths in found)
        raise UsageError(f"{run} contains {len(found)} independent ranks; use one of them: {names}")
    return found[0]


def is_alone(paths: JournalPaths) -> bool:
    """Return True if a journal is recovered without those of other ranks."""
    environment = read_environment(paths.folder)
    return not is_of_group(environment) and not is_sharded(environment)


def read_consistently(folder: Path, read: Callable[[], T], problems_of: Callable[[T], Sequence[object]]) -> T:
    """Call `read`, and again if the result has problems while the journal is being written.

    A writer may change the catalog and the log between two reads, which looks like damage.
    """
    with ExitStack() as stack:
        with suppress(TranLogsError):  # `read` finds it, too
            # Open throughout, so that the structure of a large catalog is checked once.
            stack.callback(Catalog.open(folder).close)
        for _ in range(_READS_MAX - 1):
            found = read()
            owner = read_owner(folder)
            if not problems_of(found) or owner is None or not owner.is_alive:
                return found
        return read()


def is_journal(folder: Path) -> bool:
    """Return True if the folder is a journal, even a damaged one."""
    return sum((folder / part).exists() for part in _PARTS) >= _PARTS_MIN
