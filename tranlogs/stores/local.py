"""A folder as a store: on another disk of this machine, or on a network file system."""

from __future__ import annotations

import errno
import os
import secrets
import shutil
from pathlib import Path
from stat import S_ISREG
from typing import BinaryIO

from ..base.atomic_files import make_folder, sync_folder
from ..base.errors import CorruptObject, StoreRefused, StoreUnavailable
from .store import BLOCK_BYTES, Content, ObjectStatus, Store, split_name

_TEMPORARY = ".tmp-"
_WRONG = (errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOTDIR, errno.ENAMETOOLONG)


class LocalStore(Store):
    """Objects are files, published by a rename after an fsync: an object that exists is complete and durable."""

    def __init__(self, root: Path) -> None:
        self._root = Path(os.path.abspath(root))
        self.url = self._root.as_uri()
        self._was_there = self._was_mounted = False

    def put(self, name: str, content: Content) -> None:
        path = self._path(name)
        temporary = path.with_name(f"{_TEMPORARY}{path.name}-{secrets.token_hex(4)}")
        try:
            self._check_root()
            make_folder(path.parent)
            try:
                with temporary.open("wb") as file:
                    shutil.copyfileobj(content, file, BLOCK_BYTES)
                    file.flush()
                    os.fsync(file.fileno())
                os.replace(temporary, path)  # commit point
            except BaseException:
                temporary.unlink(missing_ok=True)
                raise
            sync_folder(path.parent)
        except OSError as error:
            if error is content.error:
                raise
            raise self._translate(error) from error

    def check_root(self) -> None:
        if not self._root.is_dir():
            raise StoreUnavailable(self.url, "the folder does not exist: mount its disk, or create the folder for a new store")

    def _check_root(self) -> None:
        """Check that the store's disk is mounted. Otherwise the folder is missing, or is a mount point that must stay empty."""
        was_there, was_mounted = self._was_there, self._was_mounted  # read first: another thread may create the folder now
        if not self._root.is_dir() and was_there:
            raise StoreUnavailable(self.url, "the folder has vanished: check that its disk is mounted")
        make_folder(self._root)
        is_mounted = os.path.ismount(self._root)
        if was_mounted and not is_mounted:
            raise StoreUnavailable(self.url, "its disk is not mounted any more: mount it again")
        self._was_there, self._was_mounted = True, is_mounted

    def get(self, name: str, into: BinaryIO) -> int:
        before = into.tell()
        try:
            with self._path(name).open("rb") as file:
                shutil.copyfileobj(file, into, BLOCK_BYTES)
        except (FileNotFoundError, IsADirectoryError):
            raise CorruptObject(f"{self.url}/{name}", "it is missing") from None
        except OSError as error:
            raise self._translate(error) from error
        return into.tell() - before

    def stat(self, name: str) -> ObjectStatus | None:
        try:
            about = self._path(name).stat()
        except FileNotFoundError:
            return None
        except OSError as error:
            raise self._translate(error) from error
        return ObjectStatus(about.st_size) if S_ISREG(about.st_mode) else None

    def names(self, prefix: str) -> list[str]:
        folder = self._path(prefix) if prefix else self._root
        try:
            if not folder.is_dir():
                return []
            found = [path for path in folder.rglob("*") if path.is_file() and not path.name.startswith(_TEMPORARY)]
        except OSError as error:
            raise self._translate(error) from error
        return sorted(path.relative_to(self._root).as_posix() for path in found)

    def delete(self, name: str) -> None:
        try:
            self._path(name).unlink(missing_ok=True)
        except OSError as error:
            raise self._translate(error) from error

    def _path(self, name: str) -> Path:
        return self._root.joinpath(*split_name(name))

    def _translate(self, error: OSError) -> StoreRefused | StoreUnavailable:
        kind = StoreRefused if error.errno in _WRONG else StoreUnavailable
        return kind(self.url, f"{error.filename or ''}: {error.strerror or error}".lstrip(": "))
