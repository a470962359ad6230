"""The lock that allows one writer for each journal: a POSIX lock, which the kernel drops when its process dies.

The lock is taken with `fcntl.lockf` and not with `flock`: forked children (DataLoader workers) must not hold it for a dead
trainer. Any close of the lock file in the owning process would drop the lock, so that process opens the file once and never
again.
"""

from __future__ import annotations

import fcntl
import json
import os
import socket
import struct
import time
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from ...base.errors import RunInUse

_SINCE_MAX = 1e11  # seconds since 1970; a larger number in the file is damage
_FLOCK = struct.Struct("hhqqi4x")  # Linux: type, whence, start, length, pid
_owned_here: set[str] = set()
os.register_at_fork(after_in_child=_owned_here.clear)  # the lock stays with the parent


@dataclass(frozen=True, slots=True)
class Owner:
    """The process that writes a journal, or wrote it last.

    Attributes:
        host: name of its machine.
        pid: its number there.
        since: time of day when it took the lock.
        is_alive: True while it holds the lock.
        has_closed: True if it released the lock in order, and did not die.
        has_finished: True if its script came to its end, so that it stopped in the middle of no loop.
        loop_end: where that script left its loop; see `Journal.note_finished`.
    """

    host: str
    pid: int
    since: float
    is_alive: bool = True
    has_closed: bool = False
    has_finished: bool = False
    loop_end: str = ""


class OwnerLock:
    """The lock of one role in one journal, held by this process.

    Args:
        folder: the journal's.
        role: "owner" writes the journal, "monitor" watches it, "shipper" sends it to a store.

    Attributes:
        former: the process that held the lock before; None if no process did.
        has_finished: set to True before `release`, if the script came to its end.
        loop_end: set before `release`: where the script left its loop.
    """

    def __init__(self, folder: Path, role: str = "owner") -> None:
        """Take the lock.

        Raises:
            RunInUse: another live process holds it.
        """
        self._folder, self._role = folder, role
        self._path = os.path.realpath(folder / f"{role}.lock")
        if self._path in _owned_here:
            raise RunInUse(folder, socket.gethostname(), os.getpid())
        self._fd = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            fcntl.lockf(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            pid = _holder(self._fd)
            os.close(self._fd)
            found = _read_info(folder, role)
            if pid and (found is None or found.pid != pid):  # The lock was taken just now, and the JSON file is older.
                raise RunInUse(folder, socket.gethostname(), pid) from None
            who = (found.host, found.pid, found.since) if found else ("unknown", 0)
            raise RunInUse(folder, *who) from None
        _owned_here.add(self._path)
        self.former, self.has_finished, self.loop_end = _read_info(folder, role), False, ""
        _write_owner(folder, role)

    def mark_closed(self) -> None:
        """Record that this process ends in order, and keep the lock."""
        _write_owner(self._folder, self._role, has_closed=True)

    @property
    def is_held(self) -> bool:
        """True until `release`."""
        return self._fd >= 0

    def release(self, *, has_closed: bool = True) -> None:
        """Release the lock, and record that this process did not die, if what it holds the lock for was closed in order."""
        if self._fd >= 0:
            has_finished = has_closed and self.has_finished
            end = self.loop_end if has_finished else ""
            _write_owner(self._folder, self._role, has_closed=has_closed, has_finished=has_finished, loop_end=end)
            _owned_here.discard(self._path)
            fd, self._fd = self._fd, -1  # Never close it twice: the number may be another file's by then.
            with suppress(OSError):  # The lock is released even if `close` fails, and nothing was written.
                os.close(fd)


def _write_owner(folder: Path, role: str, *, has_closed: bool = False, has_finished: bool = False, loop_end: str = "") -> None:
    info = folder / f"{role}.json"
    temporary = info.with_suffix(".json.tmp")
    try:
        ends: dict[str, Any] = {"has_closed": has_closed, "has_finished": has_finished, "loop_end": loop_end}
        owner = Owner(socket.gethostname(), os.getpid(), time.time(), **ends)
        temporary.write_text(json.dumps(asdict(owner)))
        os.replace(temporary, info)
    except OSError:  # The disk is full or fails. The lock is valid without the file; a wrong owner would be worse than none.
        for path in (temporary, info):
            with suppress(OSError):
                path.unlink(missing_ok=True)


def read_owner(folder: Path, role: str = "owner") -> Owner | None:
    """Return the process that writes the journal or wrote it last; None if no process ever did."""
    info = _read_info(folder, role)
    if info is None:
        return None
    return replace(info, is_alive=_is_locked(folder, role))


def _is_locked(folder: Path, role: str) -> bool:
    return lock_holder(folder, role) is not None


def lock_holder(folder: Path, role: str = "owner") -> int | None:
    """Return the number of the process that holds the lock: 0 if it cannot be seen from here, None if nobody holds it."""
    path = os.path.realpath(folder / f"{role}.lock")
    if path in _owned_here:
        return os.getpid()
    try:
        fd = os.open(path, os.O_RDONLY)
    except OSError:
        return None
    try:  # Query the lock and never take it: a trainer that starts at the same moment would be refused.
        return _holder(fd)
    finally:
        os.close(fd)


def _holder(fd: int) -> int | None:
    """Return the number of the process that holds the lock on an open file, as `lock_holder` does."""
    try:
        kind, _, _, _, pid = _FLOCK.unpack(fcntl.fcntl(fd, fcntl.F_GETLK, _FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0)))
    except OSError:
        return None
    return None if kind == fcntl.F_UNLCK else max(int(pid), 0)


def _read_info(folder: Path, role: str) -> Owner | None:
    try:
        content = json.loads((folder / f"{role}.json").read_text())
        ends: dict[str, Any] = {name: content.get(name) is True for name in ("has_closed", "has_finished")}
        ends["loop_end"] = str(content.get("loop_end", ""))[:100]
        owner = Owner(str(content["host"])[:255], int(content["pid"]), float(content["since"]), **ends)
        return owner if 0 <= owner.pid < 1 << 31 and 0 <= owner.since < _SINCE_MAX else None
    except (OSError, ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError):  # whatever it holds
        return None
