"""Download of segments and checkpoints. Every byte is compared with the digest that was taken when it was uploaded."""

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
from ..manifest import ShippedItem


def fetch_item(store: Store, item: ShippedItem, journal: Path, *, is_preallocated: bool = False) -> int:
    """Download the files of one segment or checkpoint that are missing locally or differ; return the number of bytes read.

    Args:
        store: where to read from.
        item: the segment or checkpoint.
        journal: the journal's folder.
        is_preallocated: True to make a segment's file as large as it was preallocated, and not only as large as it was used.

    Raises:
        CorruptObject: the store has lost an object, or the object differs. The local file is unchanged.
        OSError: the disk is full or fails. The local file is unchanged.
        StoreUnavailable: the store does not answer. The local file is unchanged.
    """
    row = item.row
    folder = journal / "log" if isinstance(row, SegmentRow) else journal / "checkpoints" / item.objects.name
    size = row.size if isinstance(row, SegmentRow) and is_preallocated else 0
    make_folder(folder)
    nbytes = 0
    try:
        for name, parts in item.objects.files.items():
            if not _is_intact(folder / name, parts, size):
                nbytes += _fetch_file(store, folder / name, parts, size)
    except BaseException:
        if not isinstance(row, SegmentRow):
            with suppress(OSError):  # the folder is not empty
                folder.rmdir()
        raise
    if nbytes:
        sync_folder(folder)
    return nbytes


def _is_intact(path: Path, parts: Sequence[Sequence[Any]], size: int) -> bool:
    """Return True if a file has the size and the content that were uploaded."""
    try:
        with path.open("rb") as file:
            return os.fstat(file.fileno()).st_size >= size and all(
                _digest(file, nbytes) == digest for _, nbytes, digest in parts
            )
    except OSError:  # what the disk cannot read is as good as missing
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


class _DigestWriter:
    """A file for writing that computes the digest of what is written."""

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
                into = _DigestWriter(file)
                store.get(name, cast(BinaryIO, into))
                if into.nbytes != nbytes:
                    raise CorruptObject(f"{store.url}/{name}", f"expected {nbytes} bytes, found {into.nbytes}")
                if into.digest.hexdigest() != digest:
                    raise CorruptObject(f"{store.url}/{name}", "the checksum of its content differs")
            nbytes = file.tell()
            file.truncate(max(size, nbytes))
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)  # commit point
        return nbytes
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
