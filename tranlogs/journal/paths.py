"""The folders of a journal, and the file system under them: a network file system is refused, one in memory is reported."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from ..base.errors import NotARun, UsageError

_NETWORK = ("nfs", "nfs4", "cifs", "smb3", "lustre", "9p", "ceph", "gpfs", "beegfs", "glusterfs", "afs")


@dataclass(frozen=True, slots=True)
class JournalPaths:
    """The folders of one journal.

    Attributes:
        folder: `RUN/rank<R>`.
    """

    folder: Path

    @classmethod
    def of(cls, run: str | os.PathLike[str], rank: int = 0) -> JournalPaths:
        """Return the folders of a rank's journal in a run."""
        return cls(Path(run) / f"rank{rank}")

    @property
    def log(self) -> Path:
        """The folder of the log's segments and its index."""
        return self.folder / "log"

    @property
    def checkpoints(self) -> Path:
        """The folder of the checkpoints."""
        return self.folder / "checkpoints"

    def require(self) -> JournalPaths:
        """Return these paths if a journal is there.

        Raises:
            NotARun: there is no journal.
        """
        if not self.log.is_dir() or not self.checkpoints.is_dir():
            raise NotARun(self.folder.parent)
        return self


def refuse_network_file_system(folder: Path) -> list[str]:
    """Check that a folder does not lie on a network file system, where LMDB's memory map is not durable.

    Returns:
        A list with a note if the folder lies in memory.

    Raises:
        UsageError: the folder lies on a network file system.
    """
    kind = file_system_of(folder)
    if kind in _NETWORK or kind.startswith("fuse"):
        raise UsageError(
            f"{folder} lies on a network file system ({kind}), where a memory-mapped log can lose steps. "
            "Put the run on a local disk and ship it to a store"
        )
    if kind == "tmpfs":
        return ["the run lies in memory (tmpfs): it survives the process, not the machine"]
    return []


def is_in_memory(folder: Path) -> bool:
    """Return True if the folder lies on a tmpfs, which does not survive the machine."""
    return file_system_of(folder) == "tmpfs"


def file_system_of(folder: Path) -> str:
    """Return the type of the file system that a folder lies on; "" if it cannot be found."""
    best, found = "", ""
    path = os.path.realpath(folder)
    try:
        with open("/proc/self/mountinfo") as mounts:
            for line in mounts:
                left, _, right = line.partition(" - ")
                point = left.split()[4].replace("\\040", " ")
                inside = path == point or path.startswith(point.rstrip("/") + "/")
                if inside and len(point) >= len(best):
                    best, found = point, right.split()[0]
    except OSError:
        return ""
    return found
