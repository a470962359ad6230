"""Files that outlive a crash: published so that it leaves the old state or the new one, and read with every error named.

Publish = temporary name, fsync, rename, fsync the folder. The rename is the commit point.
"""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

import lmdb

from .errors import CannotRead
from .types import Bytes

if TYPE_CHECKING:
    from typing_extensions import Self

_LOCK_FILE_BYTES = 8192  # of 126 readers, LMDB's default


class ReadFile:
    """A file that is read. Close it, or use it (or what inherits from it) as a context manager.

    Raises:
        CannotRead: file handles, memory or rights are missing.
        OSError: it cannot be opened.
    """

    fd = -1

    def __init__(self, path: Path) -> None:
        try:
            self.fd = os.open(path, os.O_RDONLY)
        except OSError as error:
            CannotRead.raise_for(path, error)
            raise
        self._path = path

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close it; an error now tells nothing of what was read."""
        fd, self.fd = self.fd, -1  # first: an interrupt in between must not close somebody else's file later
        if fd >= 0:
            with suppress(OSError):
                os.close(fd)

    def fill(self, into: Bytes, offset: int) -> str:
        """Read bytes from `offset` on until `into` is full; what is wrong if that cannot be, else nothing.

        Raises:
            CannotRead: memory or rights are missing.
        """
        done = 0
        while done < into.nbytes:
            try:
                got = os.preadv(self.fd, [into[done:].data], offset + done)
            except OSError as error:
                CannotRead.raise_for(self._path, error)
                return f"it cannot be read ({error.strerror})"
            if got == 0:
                return "the file is too short"
            done += got
        return ""


def sync_folder(folder: Path) -> None:
    """Make the names in `folder` durable."""
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def write_file(path: Path, *parts: bytes | memoryview, is_synced: bool = True) -> None:
    """Write and, unless `is_synced` is False, fsync a new file; it is not published yet."""
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
    try:
        for part in parts:
            write_all(fd, part)
        if is_synced:
            os.fsync(fd)
    finally:
        os.close(fd)


def write_all(fd: int, data: bytes | memoryview) -> None:
    """`os.write` until everything is written."""
    view = memoryview(data).cast("B")
    while view.nbytes:
        view = view[os.write(fd, view) :]


@contextmanager
def publishing(path: Path) -> Iterator[Path]:
    """A temporary name to write a file under; at the end of the block it becomes `path`, or it is gone after an error."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        yield temporary
        fd = os.open(temporary, os.O_RDONLY)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)
        os.replace(temporary, path)  # commit point
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    sync_folder(path.parent)


@contextmanager
def publishing_folder(path: Path) -> Iterator[Path]:
    """A temporary folder to write files into; at the end of the block it becomes `path`, or it is gone after an error.

    Raises:
        OSError: something is at `path` by then; it stays.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    shutil.rmtree(temporary, ignore_errors=True)
    temporary.mkdir()
    try:
        yield temporary
        for folder, _, names in os.walk(temporary):
            for name in names:
                fd = os.open(os.path.join(folder, name), os.O_RDONLY)
                try:
                    os.fsync(fd)
                finally:
                    os.close(fd)
            sync_folder(Path(folder))
        os.rename(temporary, path)  # commit point
    except BaseException:
        shutil.rmtree(temporary, ignore_errors=True)
        raise
    sync_folder(path.parent)


def allocate_lock_file(path: Path) -> None:
    """Allocate the lock file that LMDB will map beside `path`: it makes a sparse one, and a store into that on a full
    disk is a SIGBUS.

    Raises:
        OSError: the disk is full.
    """
    fd = os.open(f"{path}-lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        if os.fstat(fd).st_size == 0:
            os.posix_fallocate(fd, 0, _LOCK_FILE_BYTES)
    finally:
        os.close(fd)


def make_folder(path: Path) -> None:
    """Create a folder and its parents durably."""
    missing = []
    at = path
    while not at.exists():
        missing.append(at)
        at = at.parent
    for folder in reversed(missing):
        folder.mkdir(exist_ok=True)
        sync_folder(folder.parent)


def is_disk_full(error: BaseException | None) -> bool:
    """Whether an error, or what it came from, is a disk without space, or a quota that is used up."""
    while error is not None:
        if isinstance(error, lmdb.DiskError) or (isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT)):
            return True
        error = error.__cause__
    return False
