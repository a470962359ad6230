"""The turn to write a catalog. A process takes it before LMDB's write lock, which cannot be waited for with a timeout.

A process that is stopped inside a write transaction keeps its turn, and the others see that and wait for LMDB no longer. The
turn is a POSIX lock on a byte of the catalog's file far beyond its end; the kernel gives it back when its process dies. A
process that writes without taking the turn, such as a tool of LMDB, is found in LMDB's lock file, which is mapped here.
"""

from __future__ import annotations

import ctypes
import fcntl
import os
import platform
import struct
from contextlib import suppress
from pathlib import Path

from ..base.errors import CatalogBusy

_OFFSET = 1 << 62
_FLOCK = struct.Struct("hhqqi4x")  # Linux: type, whence, start, length, pid
_MAGIC = 0xBEEFC0DE
_MUTEX_OFFSETS = {"x86_64": 64, "aarch64": 128}  # of the write lock in LMDB's lock file; its first word names the owner
_THREAD_MASK = 0x3FFFFFFF


class WriteTurn:
    """The turn of one process to write one catalog.

    Args:
        path: the file of the catalog, which LMDB has open in this process.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        self._mutex = _find_mutex(path)

    def take(self) -> None:
        """Take the turn without waiting. One thread at a time may call this.

        Raises:
            CatalogBusy: another process has the turn, or LMDB's write lock.
        """
        try:
            fcntl.lockf(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, _OFFSET)
        except (BlockingIOError, PermissionError):
            raise CatalogBusy(self._path, self._find_holder()) from None
        owner = 0 if self._mutex is None else self._mutex.value & _THREAD_MASK
        if owner:
            self.give_back()
            raise CatalogBusy(self._path, _process_of(owner))

    def give_back(self) -> None:
        """Give the turn to others."""
        with suppress(OSError):  # If the script has closed the descriptor, the kernel has given the turn back.
            fcntl.lockf(self._fd, fcntl.LOCK_UN, 1, _OFFSET)

    def close(self) -> None:
        """Close the file. LMDB must not have the catalog open any more."""
        fd, self._fd, self._mutex = self._fd, -1, None
        with suppress(OSError):
            os.close(fd)

    def _find_holder(self) -> int:
        """Return the number of the process that has the turn; 0 if it is not known."""
        with suppress(OSError):
            query = _FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, _OFFSET, 1, 0)
            return max(int(_FLOCK.unpack(fcntl.fcntl(self._fd, fcntl.F_GETLK, query))[-1]), 0)
        return 0


def _find_mutex(path: Path) -> ctypes.c_uint32 | None:
    """Return the first word of LMDB's write lock, in the map of the lock file; None if the layout of the lock is not known."""
    offset = _MUTEX_OFFSETS.get(platform.machine())
    if offset is None or platform.libc_ver()[0] != "glibc":
        return None
    name = f"{os.path.realpath(path)}-lock"
    with suppress(OSError), open("/proc/self/maps") as maps:
        for line in maps:
            if line.rstrip("\n").endswith(f" {name}"):
                start = int(line.partition("-")[0], 16)
                if ctypes.c_uint32.from_address(start).value == _MAGIC:
                    return ctypes.c_uint32.from_address(start + offset)
    return None


def _process_of(thread: int) -> int:
    """Return the number of the process that a thread belongs to; 0 if it cannot be seen from here."""
    with suppress(OSError), open(f"/proc/{thread}/status") as status:
        for line in status:
            if line.startswith("Tgid:"):
                return int(line.split()[1])
    return 0
