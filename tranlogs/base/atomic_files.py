"""Atomic publishing of files, and reading of files with checked errors.

To publish a file: write it under a temporary name, fsync it, rename it, fsync the folder. The rename is the commit point, so
a crash leaves either the old state or the new state.
"""

from __future__ import annotations

import errno
import os
import shutil
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

import lmdb

from .errors import CannotRead
from .types import Bytes

if TYPE_CHECKING:
    from typing_extensions import Self

_LOCK_FILE_BYTES = 8192  # size with 126 readers, LMDB's default


class ReadFile:
    """A file that is open for reading; also a context manager that closes it.

    Raises:
        CannotRead: the process lacks file handles, memory or permissions.
        OSError: the file cannot be opened.
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
        """Close the file. Errors are ignored, because they do not affect what was read."""
        fd, self.fd = self.fd, -1  # Before the close, so that an interrupt cannot lead to a second close of a reused number.
        if fd >= 0:
            with suppress(OSError):
                os.close(fd)

    def fill(self, into: Bytes, offset: int) -> str:
        """Read bytes from `offset` on until `into` is full. Return a description of the problem; "" if there was none.

        Raises:
            CannotRead: the process lacks memory or permissions.
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


def identify_file(file: str | Path | int, dir_fd: int | None = None) -> tuple[int, int] | None:
    """Return device and inode of a file, which tell it from a file that took its name later; None if it does not exist.

    `file` is a path, relative to the folder `dir_fd` if that is given, or a file descriptor.
    """
    try:
        found = os.fstat(file) if isinstance(file, int) else os.stat(file, dir_fd=dir_fd)
    except OSError as error:
        if error.errno not in (errno.ENOENT, errno.ENOTDIR, errno.EBADF, errno.ESTALE):
            raise
        return None
    return found.st_dev, found.st_ino


def sync_folder(folder: Path) -> None:
    """Make the names in a folder durable."""
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def write_file(path: Path, *parts: bytes | memoryview, is_synced: bool = True) -> None:
    """Write a new file, and fsync it unless `is_synced` is False. The file's name is not durable before `sync_folder`."""
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
    try:
        for part in parts:
            write_all(fd, part)
        if is_synced:
            os.fsync(fd)
    finally:
        os.close(fd)


def write_all(fd: int, data: bytes | memoryview) -> None:
    """Write all data to a file descriptor."""
    view = memoryview(data).cast("B")
    while view.nbytes:
        view = view[os.write(fd, view) :]


@contextmanager
def publishing(path: Path) -> Iterator[Path]:
    """Yield a temporary path for a file. At the end of the block, rename the file to `path`; after an error, delete it.

    The file gets the mode of new files, whatever writes it.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        mode = _create(temporary)
        yield temporary
        fd = os.open(temporary, os.O_RDONLY)
        try:
            os.fchmod(fd, mode)  # libraries that write a file of their own and rename it make it private
            os.fsync(fd)
        finally:
            os.close(fd)
        os.replace(temporary, path)  # commit point
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    sync_folder(path.parent)


def _create(path: Path) -> int:
    """Create an empty file; return the mode that the umask or the folder gives to new files."""
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o666)
    try:
        return stat.S_IMODE(os.fstat(fd).st_mode)
    finally:
        os.close(fd)


@contextmanager
def publishing_folder(path: Path) -> Iterator[Path]:
    """Yield a temporary folder. At the end of the block, rename it to `path`; after an error, delete it.

    Raises:
        OSError: `path` exists at the end of the block. It is not replaced.
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
    """Allocate the lock file that LMDB maps for the environment at `path`.

    LMDB would make a sparse file. On a full disk, writing to the map of a sparse file ends the process with SIGBUS.

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
    """Create a folder and its parents, and make their names durable."""
    missing = []
    at = path
    while not at.exists():
        missing.append(at)
        at = at.parent
    for folder in reversed(missing):
        folder.mkdir(exist_ok=True)
        sync_folder(folder.parent)


def free_bytes(folder: Path) -> int:
    """Return the free space of a folder's disk; a very large number where the file system does not report it."""
    try:
        return shutil.disk_usage(folder).free
    except OSError:
        return 1 << 62


def is_disk_full(error: BaseException | None) -> bool:
    """Return True if an error, or one of its causes, is a full disk or an exhausted quota."""
    while error is not None:
        if isinstance(error, lmdb.DiskError) or (isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT)):
            return True
        error = error.__cause__
    return False
