"""Open a catalog's file with LMDB, which aborts the process over some damaged ones: what it never sees unchecked."""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import lmdb
import lmdb.verify

from ..base.atomic_files import allocate_lock_file, sync_folder
from ..base.config import CATALOG_BYTES_RESERVED
from ..base.errors import CannotRead, CorruptCatalog, LogUnavailable


def verify_file(path: Path) -> None:
    """Check the structure of an LMDB file without mapping it: LMDB would abort the process over a damaged one.

    Raises:
        CannotRead: file handles, memory or rights are missing.
        CorruptCatalog: it is damaged. A live catalog can look so for a moment, so it is looked at several times.
    """
    problem = ""
    for _ in range(5):
        try:
            problems = lmdb.verify.verify(str(path)) or _odd_metas(path)  # type: ignore[no-untyped-call]
            if not problems:
                return
            problem = str(problems[0])
        except MemoryError:
            raise
        except Exception as error:  # VerifyError, and whatever else the content makes of a walk over it
            if isinstance(error, OSError):
                CannotRead.raise_for(path, error)
            problem = str(error)
        if path.exists() and path.stat().st_size == 0:
            break
    raise CorruptCatalog(path, f"it is damaged ({problem})")


_META = struct.Struct("<40xIH46xH50xQ")  # LMDB's meta page: page size, flags of free list and tree, transaction number
_FLAGS_MASK = 0x7F  # what changes how keys and values are read, or where the file is mapped


def _odd_metas(path: Path) -> list[str]:
    """What the structure allows and LMDB aborts over, or silently takes an older state for: a catalog never has it."""
    with path.open("rb") as file:
        head = file.read(_META.size)
        file.seek(_META.unpack(head)[0])
        metas = [_META.unpack(meta) for meta in (head, file.read(_META.size))]
    found = []
    for _, free, main, _ in metas:
        if (free & _FLAGS_MASK, main & _FLAGS_MASK) != (0x08, 0):
            found.append(f"the flags of its trees are {free:#x} and {main:#x}")
    numbers = [number for *_, number in metas]
    if abs(numbers[0] - numbers[1]) > 1:  # they are written in turn
        found.append(f"its last transactions are {numbers}")
    return found


def reading(env: lmdb.Environment) -> Iterator[str]:
    """The processes that are reading now."""
    for line in str(env.readers()).splitlines()[1:]:
        pid, _, transaction = line.split()[:3]
        if transaction != "-":
            yield pid


_DAMAGE = (lmdb.InvalidError, lmdb.CorruptedError, lmdb.VersionMismatchError, lmdb.PageNotFoundError)


def reserve(path: Path, env: lmdb.Environment) -> None:
    """Allocate what the next transactions need, so that a full disk does not keep a monitor from giving space back.

    LMDB writes behind what the file holds, and looks for its end nowhere. A disk that has no space for it now is no error.
    """
    end = (int(env.info()["last_pgno"]) + 1) * int(env.stat()["psize"]) + CATALOG_BYTES_RESERVED
    with suppress(OSError):
        if os.stat(path).st_size < end:
            fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
            try:
                size = os.fstat(fd).st_size
                os.posix_fallocate(fd, size, max(end - size, 1))
            finally:
                os.close(fd)


def open_environment(path: Path, writable: bool, map_bytes: int) -> lmdb.Environment:
    options: dict[str, Any] = {"subdir": False, "map_size": map_bytes, "max_dbs": 0, "lib_version": 0}
    try:
        if writable:
            allocate_lock_file(path)
            env = lmdb.open(str(path), sync=True, lock=True, **options)
            try:
                env.reader_check()  # processes that were killed while they read
                sync_folder(path.parent)  # a file that was made just now, or by a process that did not come so far
            except BaseException:
                env.close()
                raise
            return env
        try:
            return lmdb.open(str(path), readonly=True, lock=True, **options)
        except (lmdb.Error, OSError):  # no permission to write the lock file: nobody can be writing beside us, then
            return lmdb.open(str(path), readonly=True, lock=False, **options)
    except _DAMAGE as error:
        raise CorruptCatalog(path, f"it cannot be opened ({error})") from error
    except (lmdb.Error, OSError) as error:
        if writable:  # a full disk, a missing right: nothing that a rebuilt catalog would cure
            raise LogUnavailable(f"{path}: it cannot be opened ({error})") from error
        raise CorruptCatalog(path, f"it cannot be opened ({error})") from error
