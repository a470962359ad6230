"""Read segments and checkpoints from a store; each byte is compared with the digest that was taken when it was sent."""

from __future__ import annotations

import os
import secrets
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, BinaryIO, cast

import xxhash

from ...base.atomic_files import make_folder, sync_folder
from ...base.errors import CorruptObject
from ...catalog import SegmentRow
from ...stores import Store
from ..inventory.manifest import Shipped


def fetch_item(store: Store, one: Shipped, journal: Path, *, is_allocated: bool = False) -> int:
    """Read of one segment or checkpoint the files that are not there as they were sent; gives the bytes read.

    Args:
        store: where from.
        one: what is read.
        journal: the journal's folder.
        is_allocated: whether a segment's file gets the size that it had, not only the bytes that it used.

    Raises:
        CorruptObject: the store has it no more, or something else; what was there before is there still.
        OSError: the disk is full or fails; the same.
        StoreUnavailable: the store does not answer; the same.
    """
    row = one.row
    folder = journal / "log" if isinstance(row, SegmentRow) else journal / "checkpoints" / one.objects.name
    size = row.size if isinstance(row, SegmentRow) and is_allocated else 0
    make_folder(folder)
    nbytes = 0
    try:
        for name, parts in one.objects.files.items():
            if not _is_there(folder / name, parts, size):
                nbytes += _fetch_file(store, folder / name, parts, size)
    except BaseException:
        if not isinstance(row, SegmentRow):
            with suppress(OSError):  # it holds something
                folder.rmdir()
        raise
    if nbytes:
        sync_folder(folder)
    return nbytes


def _is_there(path: Path, parts: Sequence[Sequence[Any]], size: int) -> bool:
    try:
        with path.open("rb") as file:
            return os.fstat(file.fileno()).st_size >= size and all(
                _digest(file, nbytes) == digest for _, nbytes, digest in parts
            )
    except OSError:  # a disk that cannot read it has it no more
        return False


def _digest(file: BinaryIO, nbytes: int) -> str:
    found, left = xxhash.xxh3_128(), nbytes
    while left:
        data = file.read(min(left, 1 << 20))
        if not data:
            break
        found.update(data)
        left -= len(data)
    return found.hexdigest()


class _Checked:
    """A file that is written and knows the digest of what was written."""

    def __init__(self, file: BinaryIO) -> None:
        self._file, self.digest, self.nbytes = file, xxhash.xxh3_128(), 0

    def write(self, data: bytes) -> int:
        self.digest.update(data)
        self.nbytes += len(data)
        return self._file.write(data)

    def tell(self) -> int:
        return self.nbytes


def _fetch_file(store: Store, path: Path, parts: Sequence[Sequence[Any]], size: int) -> int:
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}.tmp")
    try:
        with temporary.open("wb") as file:
            for name, nbytes, digest in parts:
                into = _Checked(file)
                store.get(name, cast(BinaryIO, into))
                if into.nbytes != nbytes:
                    raise CorruptObject(f"{store.url}/{name}", f"it has {into.nbytes} bytes instead of {nbytes}")
                if into.digest.hexdigest() != digest:
                    raise CorruptObject(f"{store.url}/{name}", "its checksum differs")
            nbytes = file.tell()
            file.truncate(max(size, nbytes))
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)  # commit point
        return nbytes
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
