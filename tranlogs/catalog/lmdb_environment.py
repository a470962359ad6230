"""LMDB environments, checked before LMDB reads them: it aborts the process over some damaged files.

LMDB reads only the two meta pages when it opens a file. They are checked first. The trees are then checked by plain reads
inside a read transaction, so that a writer that commits a hundred times a second does not use their pages again meanwhile.
"""

from __future__ import annotations

import fcntl
import os
import platform
import struct
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import lmdb
import lmdb.verify

from ..base.atomic_files import allocate_lock_file, identify_file, sync_folder
from ..base.config import CATALOG_BYTES_RESERVED
from ..base.errors import CannotRead, CatalogUnavailable, CorruptCatalog


def verify_file(path: Path, *, metas_only: bool = False) -> None:
    """Check the structure of an LMDB file, or its meta pages only, without mapping it.

    A file that is being written can look damaged for a moment, so the check is repeated before it fails.

    Raises:
        CannotRead: file handles, memory or rights are missing.
        CorruptCatalog: the file is damaged.
    """
    problem = ""
    for _ in range(5):
        try:
            problems = _check_meta_pages(path)
            if not (problems or metas_only):
                problems = lmdb.verify.verify(str(path))  # type: ignore[no-untyped-call]
            if not problems:
                return
            problem = str(problems[0])
        except MemoryError:
            raise
        except Exception as error:  # VerifyError, and whatever else damaged content raises in a walk over it
            if isinstance(error, OSError):
                CannotRead.raise_for(path, error)
            problem = str(error)
        if path.exists() and path.stat().st_size == 0:
            break
    raise CorruptCatalog(path, f"the structure of the file is damaged ({problem})")


_META = struct.Struct("<40xIH46xH42xQQ")  # LMDB's meta page: page size, flags of free list and tree, last page, transaction
_PAGE_SIZES = tuple(1 << bits for bits in range(9, 17))
_FLAGS_MASK = 0x7F  # flags that change how keys and values are read, or where the file is mapped


def _check_meta_pages(path: Path) -> list[str]:
    """Return problems of the meta pages that a check of the structure passes, one sentence each.

    LMDB aborts the process over them, or silently falls back to an older state. A sound catalog never has them.
    """
    with path.open("rb") as file:
        head = file.read(_META.size)
        size = _META.unpack(head)[0]
        if size not in _PAGE_SIZES:
            return [f"its page size is {size}"]
        file.seek(size)
        metas = [_META.unpack(meta) for meta in (head, file.read(_META.size))]
        pages = os.fstat(file.fileno()).st_size // size
    found = []
    for own_size, free, main, last, _ in metas:
        if own_size != size or last >= max(pages, 2):
            found.append(f"a meta page names {last} pages of {own_size} bytes, and the file has {pages} of {size}")
        if (free & _FLAGS_MASK, main & _FLAGS_MASK) != (0x08, 0):
            found.append(f"the flags of its trees are {free:#x} and {main:#x}")
    numbers = [number for *_, number in metas]
    if abs(numbers[0] - numbers[1]) > 1:  # LMDB writes the two pages in turn
        found.append(f"the transaction numbers of its two meta pages are {numbers}")
    return found


def open_verified(path: Path, writable: bool, map_bytes: int) -> lmdb.Environment:
    """Open an LMDB file after a check of its structure. With `writable`, create it if it does not exist.

    Raises:
        CannotRead, CorruptCatalog, CatalogUnavailable: as `verify_file` and `open_environment` do.
    """
    if not path.exists():
        return open_environment(path, writable, map_bytes)
    verify_file(path, metas_only=True)
    env = open_environment(path, writable, map_bytes)
    try:
        with env.begin():
            verify_file(path)
    except lmdb.Error as error:
        close_environment(env)
        raise CatalogUnavailable(path, f"it cannot be read now, and is not damaged: {advise(error)}") from error
    except BaseException:
        close_environment(env)
        raise
    return env


def list_readers(env: lmdb.Environment) -> Iterator[str]:
    """Yield the ids of the processes that have a read transaction open."""
    for line in str(env.readers()).splitlines()[1:]:
        pid, _, transaction = line.split()[:3]
        if transaction != "-":
            yield pid


# What LMDB raises over damaged files. All other errors are of locks, readers, rights, memory or the disk.
DAMAGE = (
    lmdb.InvalidError,
    lmdb.CorruptedError,
    lmdb.VersionMismatchError,
    lmdb.PageNotFoundError,
    lmdb.CursorFullError,
    lmdb.PageFullError,
    lmdb.IncompatibleError,
)

_ADVICE: dict[type[lmdb.Error], str] = {
    lmdb.ReadersFullError: "126 processes and threads read it at once; end some of them, and try again",
    lmdb.MapResizedError: "another process enlarged it; try again",
    lmdb.LockError: "its lock file is in use; try again",
    lmdb.ReadonlyError: "give this process permission to read the file and to write its lock file",
}


def advise(error: lmdb.Error | OSError) -> str:
    """Return the text of an error that is no damage, and what to do."""
    advice = next((text for kind, text in _ADVICE.items() if isinstance(error, kind)), "try again")
    return f"{error}; {advice}"


def reserve_space(path: Path, env: lmdb.Environment, reserved: int = 0) -> int:
    """Allocate the space that the next transactions need, so that space can be freed even on a full disk.

    LMDB writes after its last page, wherever the file ends. It is no error if the disk has no space to reserve now.

    Args:
        reserved: bytes of the file that are known to be allocated.

    Returns:
        The bytes that are allocated now.
    """
    used = (int(env.info()["last_pgno"]) + 1) * int(env.stat()["psize"])
    if used + CATALOG_BYTES_RESERVED // 2 <= reserved:
        return reserved
    end = used + CATALOG_BYTES_RESERVED
    with suppress(OSError):
        if os.stat(path).st_size < end:
            fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
            try:
                size = os.fstat(fd).st_size
                os.posix_fallocate(fd, size, max(end - size, 1))
            finally:
                os.close(fd)
        return end
    return 0


class _LockFile(NamedTuple):
    identity: tuple[int, int] | None
    data_identity: tuple[int, int] | None
    guard: int  # descriptor with a lock of its own; -1 for a reader


_lock_files: dict[lmdb.Environment, _LockFile] = {}  # of the environments that are open
_GUARD = struct.pack("hhqqi4x", fcntl.F_RDLCK, os.SEEK_SET, 0, 1, 0)  # the byte that LMDB locks, too


def _close_guards() -> None:
    for found in _lock_files.values():
        if found.guard >= 0:
            os.close(found.guard)
    _lock_files.clear()


os.register_at_fork(after_in_child=_close_guards)


def _guard_lock_file(env: lmdb.Environment, path: Path, *, writable: bool) -> None:
    """Remember the lock file of an environment, and for a writer lock it once more.

    LMDB holds a POSIX lock on its lock file, which the kernel drops when the process closes any descriptor of the file, for
    example in a copy of the run. The next process to open the environment would then find itself the only one, initialise
    mutex and readers again, and write beside the writer. An open-file-description lock on the same byte prevents that.
    """
    guard = os.open(f"{path}-lock", os.O_RDWR | os.O_CLOEXEC) if writable else -1
    _lock_files[env] = _LockFile(identify_file(f"{path}-lock"), identify_file(path), guard)
    if writable:
        fcntl.fcntl(guard, fcntl.F_OFD_SETLK, _GUARD)


def close_environment(env: lmdb.Environment) -> None:
    """Close an environment. Its lock file is closed last: that drops LMDB's own lock."""
    env.close()
    found = _lock_files.pop(env, None)
    if found is not None and found.guard >= 0:
        with suppress(OSError):  # Nothing was written through it, and the lock is gone in any case.
            os.close(found.guard)


def has_lost_lock_file(env: lmdb.Environment, path: Path) -> bool:
    """Return True if the lock file of an environment was deleted or replaced: other processes share no lock with this one.

    The environment must be opened again. A writer asks before each transaction.
    """
    found = _lock_files.get(env)
    if found is None or identify_file(f"{path}-lock") == found.identity:
        return False
    return identify_file(path) == found.data_identity  # Otherwise the whole folder was moved or deleted.


class StaleLockFile(lmdb.Error):
    """The lock file of an environment does not know the last commit. The environment must be opened again."""


def begin_writing(env: lmdb.Environment, path: Path) -> lmdb.Transaction:
    """Begin a write transaction on the last commit.

    LMDB takes the number of the last commit from the lock file. If the lock file is deleted during a transaction, that
    transaction and those by the next lock file are counted apart, and one would overwrite the other.

    Raises:
        StaleLockFile: another process has committed by another lock file.
    """
    txn = env.begin(write=True)
    if txn.id() == int(env.info()["last_txnid"]) + 1:
        return txn
    txn.abort()
    with suppress(FileNotFoundError):  # The next opening makes it again with the right number, and other processes follow.
        os.unlink(f"{path}-lock")
    raise StaleLockFile("another process has committed by another lock file")


_MAGIC = 0xBEEFC0DE
_MUTEX_OFFSETS = {"x86_64": 64, "aarch64": 128}  # of the write lock in LMDB's lock file; its first word names the owner
_THREAD_MASK = 0x3FFFFFFF


def find_writer(env: lmdb.Environment) -> int | None:
    """Return the number of the process that holds LMDB's write lock: 0 if it cannot be seen, None if nobody holds the lock.

    Only the owner of a journal writes its catalog. A process that opens the file with a tool of LMDB can hold the lock, too,
    and LMDB waits for it without a timeout. The answer is None, too, where the layout of the lock is not known.
    """
    found, offset = _lock_files.get(env), _MUTEX_OFFSETS.get(platform.machine())
    if found is None or found.guard < 0 or offset is None or platform.libc_ver()[0] != "glibc":
        return None
    with suppress(OSError, struct.error):
        (magic,) = struct.unpack("<I", os.pread(found.guard, 4, 0))
        (owner,) = struct.unpack("<I", os.pread(found.guard, 4, offset))
        if magic == _MAGIC and owner & _THREAD_MASK:
            return _process_of(owner & _THREAD_MASK)
    return None


def _process_of(thread: int) -> int:
    """Return the number of the process that a thread belongs to; 0 if it cannot be seen from here."""
    with suppress(OSError), open(f"/proc/{thread}/status") as status:
        for line in status:
            if line.startswith("Tgid:"):
                return int(line.split()[1])
    return 0


def open_environment(path: Path, writable: bool, map_bytes: int) -> lmdb.Environment:
    """Open an LMDB file. With `writable`, create it if it does not exist.

    Raises:
        CorruptCatalog: the file is damaged.
        CatalogUnavailable: the file cannot be opened now (full disk, missing rights, no free reader).
    """
    options: dict[str, Any] = {"subdir": False, "map_size": map_bytes, "max_dbs": 0, "lib_version": 0}
    try:
        if writable:
            allocate_lock_file(path)
            env = lmdb.open(str(path), sync=True, lock=True, **options)
            try:
                _guard_lock_file(env, path, writable=True)
                env.reader_check()  # frees the slots of readers that were killed
                sync_folder(path.parent)  # the file may be new, or from a process that was killed before this line
            except BaseException:
                close_environment(env)
                raise
            return env
        # If this process cannot write the lock file, it reads without a lock. A lock that fails otherwise is an error: reading
        # without one beside a writer can end the process.
        has_lock = _can_lock(path)
        env = lmdb.open(str(path), readonly=True, lock=has_lock, **options)
        if has_lock:
            _guard_lock_file(env, path, writable=False)
        return env
    except DAMAGE as error:
        raise CorruptCatalog(path, f"it cannot be opened ({error})") from error
    except (lmdb.Error, OSError) as error:
        # A full disk, a missing right or no free reader, which a rebuilt catalog would not cure.
        raise CatalogUnavailable(path, f"it cannot be opened now, and is not damaged: {advise(error)}") from error


def _can_lock(path: Path) -> bool:
    """Return True if this process can write the lock file of an environment."""
    lock = path.with_name(f"{path.name}-lock")
    return os.access(lock, os.R_OK | os.W_OK) if lock.exists() else os.access(path.parent, os.W_OK)
