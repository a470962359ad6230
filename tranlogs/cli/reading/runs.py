"""From the RUN of the command line to the journals in it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeVar

from ...base.errors import NotARun, UsageError
from ...journal import JournalPaths, read_owner
from ...recovery.group.journal_log import read_environment
from ...recovery.group.recorded_environment import is_of_group, is_sharded
from ...stores import is_address

_PARTS = ("catalog.lmdb", "owner.lock", "log", "checkpoints")
_PARTS_MIN = 2  # a damaged journal may lack some, and another folder may happen to hold one of that name
_LOOKS_MAX = 3

T = TypeVar("T")


def journals_of(run: Path) -> list[JournalPaths]:
    """The journals of a run by rank, or the one whose own folder is given.

    Raises:
        NotARun: there is none.
    """
    if _is_journal(run):
        return [JournalPaths(run)]
    if not run.is_dir():
        if is_address(str(run)):
            raise UsageError(
                f"{run} is an address: `tranlogs store list URL` shows what a store holds, `tranlogs pull` brings it"
            )
        raise NotARun(run, "it is no folder" if run.exists() else "there is no such folder")
    found = [path for path in run.glob("rank*") if path.name[4:].isdigit() and _is_journal(path)]
    if not found:
        raise NotARun(run)
    return [JournalPaths(path) for path in sorted(found, key=lambda path: int(path.name[4:]))]


def runs_below(folder: Path) -> list[tuple[Path, list[JournalPaths]]]:
    """The runs that lie in a folder, by name, each with its journals; none if the folder is a run itself."""
    if not folder.is_dir() or _is_journal(folder):
        return []
    found = []
    for path in sorted(folder.iterdir()):
        try:
            if not _is_journal(path) and path.is_dir():
                found.append((path, journals_of(path)))
        except NotARun:
            continue
    return found


def journal_of(run: Path) -> JournalPaths:
    """The one journal that is meant; of ranks that trained one model together any of them, which has the others' to help it.

    Raises:
        NotARun: there is none.
        UsageError: there are several.
    """
    found = journals_of(run)
    environment = read_environment(found[0].folder)
    if len(found) > 1 and not is_of_group(environment) and not is_sharded(environment):
        names = ", ".join(str(paths.folder) for paths in found)
        raise UsageError(f"{run} holds {len(found)} ranks; give one of them: {names}")
    return found[0]


def settled(folder: Path, look: Callable[[], T], problems_of: Callable[[T], Sequence[object]]) -> T:
    """What a look gives; again if it shows problems and the journal is being written, as both may change between two reads."""
    for _ in range(_LOOKS_MAX - 1):
        found = look()
        owner = read_owner(folder)
        if not problems_of(found) or owner is None or not owner.is_alive:
            return found
    return look()


def _is_journal(folder: Path) -> bool:
    return sum((folder / part).exists() for part in _PARTS) >= _PARTS_MIN
