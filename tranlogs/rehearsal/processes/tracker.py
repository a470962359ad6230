"""The processes of a rehearsal: found wherever they have gone, and ended."""

from __future__ import annotations

import ctypes
import os
import signal
import stat
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from ...training.rehearsed_process.orders import VARIABLE

_PR_SET_CHILD_SUBREAPER = 36
_END_SECONDS_MAX = 10.0


class ProcessTracker:
    """Finds the processes of a rehearsal, and ends them.

    A process belongs to a rehearsal if its environment names a folder of it, or if it was handed to this process because its
    parent has ended (see `adopting`). Sessions, groups and parents that a process has left do not matter.

    Args:
        folder: folder of the rehearsal.
    """

    def __init__(self, folder: Path) -> None:
        self._marker = f"{VARIABLE}={folder}/".encode()
        self._others = set(_children())

    def find(self) -> list[int]:
        """Return the ids of the processes that are alive."""
        found = set(_children()) - self._others
        for pid in _all_pids():
            with suppress(OSError):
                variables = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
                if pid != os.getpid() and any(variable.startswith(self._marker) for variable in variables):
                    found.add(pid)
        return sorted(found)

    def find_written(self) -> set[str]:
        """Return the names of the files that the processes have open for writing."""
        found = set()
        for pid in self.find():
            with suppress(OSError):
                for number in os.listdir(f"/proc/{pid}/fd"):
                    with suppress(OSError, ValueError, IndexError):
                        found |= _written_file(pid, number)
        return found

    def end_all(self) -> list[int]:
        """End all processes by SIGKILL; return the ids of those that are still there after some seconds."""
        started = time.monotonic()
        while left := self.find():
            for pid in left:
                with suppress(ProcessLookupError, PermissionError):
                    os.kill(pid, signal.SIGKILL)
                with suppress(ChildProcessError):
                    os.waitpid(pid, os.WNOHANG)
            if time.monotonic() - started > _END_SECONDS_MAX:
                break
            time.sleep(0.01)
        return left


@contextmanager
def adopting() -> Iterator[None]:
    """Make orphans among the descendants of this process its children, so that daemons can be found."""
    libc = ctypes.CDLL(None, use_errno=True)
    libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    try:
        yield
    finally:
        libc.prctl(_PR_SET_CHILD_SUBREAPER, 0, 0, 0, 0)


@contextmanager
def ending_orderly() -> Iterator[None]:
    """Raise SystemExit at SIGTERM and SIGHUP, so that the processes of the rehearsal are ended and its folder is deleted."""

    def end(number: int, frame: object) -> None:
        raise SystemExit(128 + number)

    former = {number: signal.signal(number, end) for number in (signal.SIGTERM, signal.SIGHUP)}
    try:
        yield
    finally:
        for number, handler in former.items():
            signal.signal(number, handler)


def describe(pids: list[int]) -> str:
    """Return the names of processes, for a message."""
    names = []
    for pid in pids[:3]:
        with suppress(OSError):
            names.append(f"{Path(f'/proc/{pid}/comm').read_text().strip()} (pid {pid})")
    return ", ".join(names)


def _written_file(pid: int, number: str) -> set[str]:
    """Return the name of the regular file that a descriptor of a process writes to, if it does."""
    link = f"/proc/{pid}/fd/{number}"
    flags = int(Path(f"/proc/{pid}/fdinfo/{number}").read_text().split("flags:")[1].split()[0], 8)
    is_written = flags & os.O_ACCMODE != os.O_RDONLY and stat.S_ISREG(os.stat(link).st_mode)
    return {os.readlink(link)} if is_written else set()


def _all_pids() -> list[int]:
    return [int(name) for name in os.listdir("/proc") if name.isdigit()]


def _children() -> list[int]:
    """Return the ids of the children of this process, without those that have ended."""
    found = []
    for pid in _all_pids():
        with suppress(OSError, IndexError, ValueError):
            fields = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()
            if int(fields[1]) == os.getpid() and fields[0] != b"Z":
                found.append(pid)
    return found
