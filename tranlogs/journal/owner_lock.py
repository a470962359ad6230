"""The lock that allows one writer for each journal. The kernel drops it when its process dies.

The lock of a role is an open-file-description lock on the first byte of `<role>.lock`. A POSIX lock would be dropped whenever
the process closes any descriptor of the file, for example in `shutil.copytree(run, backup)`. The kernel does not name the
process that has an open-file-description lock. Therefore the second byte has a POSIX lock, too: as long as it is there, the
kernel names the process, and otherwise `<role>.json` does.

The owner also locks the journal's folder with `flock`. A cleaner of old files can delete `owner.lock` under a live writer, and
cannot delete the folder. `keep` makes the file again.

A process that changes a journal without a trainer (a monitor that prunes, `tranlogs push`) owns it *briefly*: it holds the same
lock for one transaction, with a third byte locked, and leaves the note of the last trainer as it is. A trainer that starts
meanwhile waits a moment.

Both locks belong to open descriptions that a forked child inherits, so a child closes its copies at once: a DataLoader worker
that outlives its trainer must not hold the lock. A program that is started by exec does not inherit them (O_CLOEXEC).
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import struct
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from ..base.atomic_files import identify_file
from ..base.errors import RunInUse, RunLost
from ..base.threads import WaitableLock

_SINCE_MAX = 1e11  # seconds since 1970; a larger number in the file is damage
_TOUCH_SECONDS = 3600.0  # The files are touched so often, because cleaners delete what is old.
_NAME_SECONDS, _NAME_PAUSE = 1.0, 0.02  # time that a live writer needs to make its deleted files again
_BRIEF_SECONDS = 10.0  # time that a brief owner may need
_FLOCK = struct.Struct("hhqqi4x")  # Linux: type, whence, start, length, pid
_LOCK_BYTE, _PID_BYTE, _BRIEF_BYTE = 0, 1, 2
_held: set[OwnerLock] = set()


@dataclass(frozen=True, slots=True)
class Owner:
    """The process that writes a journal, or wrote it last.

    Attributes:
        since: time of day when it took the lock.
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
        role: "owner" writes the journal, "monitor" watches it, "shipper" sends it to a store.
        is_brief: True for an owner that makes one change and does not train.

    Attributes:
        has_finished: set to True before `release`, if the script came to its end.
        is_held: True until `release`; False in a forked child.
    """

    def __init__(self, folder: Path, role: str = "owner", *, is_brief: bool = False) -> None:
        """Take the lock.

        Raises:
            RunInUse: another live process holds it.
            OSError: the folder or the file cannot be opened.
        """
        self._folder, self._role, self._name, self._is_brief = folder, role, f"{role}.lock", is_brief
        self._fd = self._folder_fd = -1
        self._loss: RunLost | None = None
        self._mutex = WaitableLock()
        start = time.monotonic()
        while not self._take():
            limit = _NAME_SECONDS if _find_brief_owner(folder, role) is None else _BRIEF_SECONDS
            if _find_holder(folder, role) or time.monotonic() > start + limit:
                raise _in_use(folder, role, read_owner(folder, role))
            time.sleep(_NAME_PAUSE)  # The holder is about to lock its name, or to make its deleted files again.
        self.is_held = True
        _held.add(self)
        self.former, self.has_finished, self.loop_end = _read_info(folder, role), False, ""
        self._since, self._named_at, self._touched_at = time.time(), 0.0, time.monotonic()
        self._write_owner()

    def _take(self) -> bool:
        """Take the lock; return False if another process, or another object of this process, holds it."""
        folder_fd = os.open(self._folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            fd = self._lock_file(folder_fd) if self._role != "owner" or _lock_folder(folder_fd, fcntl.LOCK_EX) else -1
        except BaseException:
            os.close(folder_fd)
            raise
        if fd < 0:
            os.close(folder_fd)
            return False
        self._fd, self._folder_fd = fd, folder_fd
        self._file_id, self._folder_id = identify_file(fd), identify_file(folder_fd)
        return True

    def _lock_file(self, folder_fd: int) -> int:
        """Return a descriptor of the lock file with the lock; -1 if another process holds it. Create the file if necessary."""
        while True:
            fd = os.open(self._name, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644, dir_fd=folder_fd)
            try:
                if not _lock(fd):
                    os.close(fd)
                    return -1
                if identify_file(self._name, folder_fd) == identify_file(fd):
                    if self._is_brief:
                        _lock(fd, _BRIEF_BYTE)
                    _lock_name(fd)
                    return fd
            except BaseException:
                os.close(fd)
                raise
            os.close(fd)  # The file was deleted before it was locked.

    def keep(self) -> None:
        """Check that this process still holds the lock. Make its files again if they were deleted.

        A writer calls this before it makes a group of records durable, and inside each write transaction of the catalog.

        Raises:
            RunLost: another process has taken the lock. This is final, because that process has changed the journal.
        """
        with self._mutex:
            if not self.is_held:
                return
            try:
                if self._loss is None and not self._keep_files():
                    self._loss = self._explain_loss()
            except OSError as error:
                name = self._folder / self._name
                raise RunLost(f"{name} cannot be made again ({error})", "the folder can be written again") from error
            if self._loss is not None:
                raise RunLost(str(self._loss), "")

    def _keep_files(self) -> bool:
        if (identify_file(self._fd), identify_file(self._folder_fd)) != (self._file_id, self._folder_id):
            # This process has closed a descriptor, and so dropped its lock. The numbers may be other files' by now.
            self._close_descriptors()
            if not self._take():
                return False
            if not self._is_note_own():
                self._close_descriptors()  # That process has ended, and a new one may start.
                return False
        elif identify_file(self._name, self._folder_fd) != self._file_id:
            fd = self._lock_file(self._folder_fd)
            if fd < 0:
                return False
            os.close(self._fd)
            self._fd, self._file_id = fd, identify_file(fd)
            self._write_owner()
        elif not _lock(self._fd):
            return False
        if (now := time.monotonic()) > self._named_at + _NAME_SECONDS / 2:
            self._named_at = now
            self._keep_name(now)
        return True

    def _keep_name(self, now: float) -> None:
        """Let others find the name of this process: its lock on the second byte, and its note."""
        _lock_name(self._fd)
        if identify_file(f"{self._role}.json", self._folder_fd) is None:
            self._write_owner()
        if now > self._touched_at + _TOUCH_SECONDS:
            self._touched_at = now
            os.utime(self._fd)
            os.utime(f"{self._role}.json", dir_fd=self._folder_fd)

    def _explain_loss(self) -> RunLost:
        self._close_descriptors()
        owner = read_owner(self._folder, self._role)
        who = f"process {owner.pid} on host {owner.host}" if owner is not None and owner.pid else "another process"
        verb = "writes" if owner is None or owner.is_alive else "has written"
        verb = verb if self._role == "owner" else f"is the {self._role} of"
        return RunLost(f"{who} {verb} this run now, because this process has lost its lock", "")

    def check_folder(self) -> None:
        """Check that the journal's folder has not been moved or deleted.

        Raises:
            RunLost: the path of the folder names another folder, or none.
        """
        try:
            if not self.is_held or identify_file(self._folder) == self._folder_id:
                return
            place = os.readlink(f"/proc/self/fd/{self._folder_fd}")
        except OSError:  # The folder cannot be read now. The next write raises the error.
            return
        if place.endswith(" (deleted)"):
            raise RunLost("the folder was deleted, with all that was logged", "", loss="all of it")
        target = os.path.join(os.path.dirname(place), self._folder.name)
        remedy = f"stop this process and start it with run={os.path.dirname(place)!r}"
        if place != target:
            remedy = f"stop this process, move the folder to RUN/{self._folder.name} and start it with that run"
        raise RunLost(
            f"the folder was moved to {place}, and all that was logged is there",
            f"it is moved back. To continue at the new place, {remedy}",
        )

    def find_place(self) -> Path:
        """Return a path of the journal's folder that stays its path if it is moved, and names no other folder in its place."""
        place = Path(f"/proc/self/fd/{self._folder_fd}")
        return place if os.path.isdir("/proc/self/fd") else self._folder

    def demand(self) -> None:
        """Check that this process may write the journal: `check_folder`, then `keep`.

        Raises:
            RunLost: it may not.
        """
        self.check_folder()
        self.keep()

    def find_loss(self) -> RunLost | None:
        """Return why this process may not write the journal any more; None if it may."""
        try:
            self.demand()
        except RunLost as error:
            return error
        return None

    def mark_closed(self) -> None:
        """Record that this process ends in order, and keep the lock."""
        self._write_owner(has_closed=True)

    def release(self, *, has_closed: bool = True) -> None:
        """Release the lock, and record that this process did not die, if what it holds the lock for was closed in order."""
        if not self.is_held:
            return
        has_finished = has_closed and self.has_finished
        end = self.loop_end if has_finished else ""
        self._write_owner(has_closed=has_closed, has_finished=has_finished, loop_end=end)
        self._close()

    def _close(self) -> None:
        self.is_held = False
        _held.discard(self)
        self._close_descriptors()

    def _close_descriptors(self) -> None:
        known = ((self._fd, self._file_id), (self._folder_fd, self._folder_id))
        self._fd = self._folder_fd = -1  # Never close one twice: the number may be another file's by then.
        for fd, identity in known:
            if identify_file(fd) == identity:
                with suppress(OSError):  # The lock is released even if `close` fails, and nothing was written.
                    os.close(fd)

    def _write_owner(self, *, has_closed: bool = False, has_finished: bool = False, loop_end: str = "") -> None:
        if not self.is_held or self._loss is not None or self._is_brief:
            return
        name, at = f"{self._role}.json", self._folder_fd
        ends: dict[str, Any] = {"has_closed": has_closed, "has_finished": has_finished, "loop_end": loop_end}
        owner = Owner(os.uname().nodename, os.getpid(), self._since, **ends)
        try:
            fd = os.open(f"{name}.tmp", os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o644, dir_fd=at)
            try:
                os.write(fd, json.dumps(asdict(owner)).encode())
            finally:
                os.close(fd)
            os.replace(f"{name}.tmp", name, src_dir_fd=at, dst_dir_fd=at)
        except OSError:  # The disk is full or fails. The lock is valid without the file, and a wrong owner would be worse.
            for left in (f"{name}.tmp", name):
                with suppress(OSError):
                    os.unlink(left, dir_fd=at)

    def _is_note_own(self) -> bool:
        """Return True if no other process has written its note since this one took the lock."""
        found = _read_info(self._folder, self._role)
        return found is not None and (found.host, found.pid, found.since) == (os.uname().nodename, os.getpid(), self._since)

    def is_of(self, folder: Path, role: str) -> bool:
        """Return True if this is the lock of a role in the journal in a folder."""
        is_role = self._fd >= 0 and self._role == role and not self._is_brief
        return is_role and identify_file(folder) == self._folder_id


def _close_in_child() -> None:
    for lock in list(_held):
        lock._close()


os.register_at_fork(after_in_child=_close_in_child)


@contextmanager
def own_briefly(folder: Path) -> Iterator[bool]:
    """Own a journal for one change, if no process owns it. Yield True if this process is the owner, of either kind.

    Raises:
        OSError: the folder or the lock file cannot be opened.
    """
    if owns(folder):
        yield True
        return
    try:
        lock = OwnerLock(folder, is_brief=True)
    except RunInUse:
        yield False
        return
    try:
        yield True
    finally:
        lock.release()


def owns(folder: Path) -> bool:
    """Return True if this process writes the journal."""
    return any(lock.is_of(folder, "owner") for lock in list(_held))


def read_owner(folder: Path, role: str = "owner") -> Owner | None:
    """Return the process that writes the journal or wrote it last; None if no process ever did."""
    info, pid = _read_info(folder, role), _find_holder(folder, role)
    if pid is None:
        return None if info is None else replace(info, is_alive=False)
    if info is not None and pid in (0, info.pid):
        return replace(info, is_alive=True)
    # The file is missing, damaged, or older than the lock. The kernel knows the process unless it is in another container.
    return Owner(os.uname().nodename if pid else "unknown", pid, 0.0)


def _find_holder(folder: Path, role: str) -> int | None:
    """Return the number of the process that holds a lock: 0 if the kernel does not name it, None if nobody holds the lock.

    The lock is queried and never taken: a trainer that starts at the same moment would be refused. Only if the owner's lock
    file is missing, the folder's lock is taken for a moment; a trainer that starts then tries again.
    """
    if any(lock.is_of(folder, role) for lock in _held):
        return os.getpid()
    try:
        fd = os.open(folder / f"{role}.lock", os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return 0 if role == "owner" and _is_folder_locked(folder) else None
    try:
        is_held = _query(fd, fcntl.F_OFD_GETLK, _LOCK_BYTE) is not None
        if not is_held or _query(fd, fcntl.F_OFD_GETLK, _BRIEF_BYTE) is not None:
            return None
        return _query(fd, fcntl.F_GETLK, _PID_BYTE) or 0
    finally:
        os.close(fd)


def _find_brief_owner(folder: Path, role: str) -> int | None:
    """Return the number of the process that owns the journal briefly: 0 if it is not known, None if no process does."""
    try:
        fd = os.open(folder / f"{role}.lock", os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        return None if _query(fd, fcntl.F_OFD_GETLK, _BRIEF_BYTE) is None else _query(fd, fcntl.F_GETLK, _PID_BYTE) or 0
    finally:
        os.close(fd)


def _in_use(folder: Path, role: str, owner: Owner | None) -> RunInUse:
    if any(lock.is_of(folder, role) for lock in _held):
        return RunInUse(folder, os.uname().nodename, os.getpid(), is_this_process=True)
    if owner is None or not owner.is_alive:  # It has ended a moment ago, or it owns the journal briefly and is stopped.
        pid = _find_brief_owner(folder, role) or 0
        return RunInUse(folder, os.uname().nodename if pid else "unknown", pid)
    return RunInUse(folder, owner.host, owner.pid, owner.since or None)


# The kernel's locks.


def _lock(fd: int, byte: int = _LOCK_BYTE) -> bool:
    """Lock an open lock file, or lock it again; return False if another process holds the lock."""
    try:
        fcntl.fcntl(fd, fcntl.F_OFD_SETLK, _FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, byte, 1, 0))
    except OSError as error:
        if error.errno in (errno.EAGAIN, errno.EACCES):
            return False
        raise
    return True


def _lock_name(fd: int) -> None:
    with suppress(OSError):  # It only names the process.
        fcntl.fcntl(fd, fcntl.F_SETLK, _FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, _PID_BYTE, 1, 0))


def _query(fd: int, command: int, byte: int) -> int | None:
    """Return the number of the process that has locked a byte, at least 0; None if no process has."""
    try:
        asked = _FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, byte, 1, 0)
        kind, _, _, _, pid = _FLOCK.unpack(fcntl.fcntl(fd, command, asked))
    except OSError:
        return None
    return None if kind == fcntl.F_UNLCK else max(int(pid), 0)


def _lock_folder(fd: int, how: int) -> bool:
    """Lock an open folder; return False if another process holds its lock. Not every file system can lock a folder."""
    try:
        fcntl.flock(fd, how | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        pass
    return True


def _is_folder_locked(folder: Path) -> bool:
    try:
        fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        return not _lock_folder(fd, fcntl.LOCK_SH)
    finally:
        os.close(fd)


def _read_info(folder: Path, role: str) -> Owner | None:
    try:
        content = json.loads((folder / f"{role}.json").read_text())
        ends: dict[str, Any] = {name: content.get(name) is True for name in ("has_closed", "has_finished")}
        ends["loop_end"] = str(content.get("loop_end", ""))[:100]
        owner = Owner(str(content["host"])[:255], int(content["pid"]), float(content["since"]), **ends)
        return owner if 0 <= owner.pid < 1 << 31 and 0 <= owner.since < _SINCE_MAX else None
    except (OSError, ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError):  # whatever it holds
        return None
