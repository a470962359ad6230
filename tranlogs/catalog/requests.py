"""Requests: files by which a process asks the owner of a journal for a change of its catalog.

A request is the file `requests/<name>.json`: a checksum in hex, a line feed, and the change as JSON. It is published by a
rename. The owner deletes it when it is done, and the process that asked finds the answer in the rows. A newer request with the
same name replaces an older one.
"""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import xxhash

from ..base.atomic_files import publishing
from ..base.config import REQUEST_BYTES_MAX
from ..base.errors import CorruptCatalog, LogUnavailable
from .catalog import Catalog
from .rows import KINDS
from .tables import Change, content_of

_log = logging.getLogger(__name__)

REQUESTS_NAME = "requests"


def write_request(folder: Path, name: str, change: Change) -> Path:
    """Publish a request in a journal's folder. Return its file.

    Raises:
        OSError: the file cannot be written.
    """
    puts, expects = ({key: content_of(row) for key, row in rows.items()} for rows in (change.puts, change.expects))
    body = json.dumps([puts, change.deletes, expects, change.timelines, change.marks]).encode()
    path = folder / REQUESTS_NAME / f"{name}.json"
    path.parent.mkdir(exist_ok=True)
    with publishing(path) as temporary:
        temporary.write_bytes(xxhash.xxh3_64_hexdigest(body).encode() + b"\n" + body)
    return path


def serve_requests(catalog: Catalog) -> None:
    """Make the changes that other processes ask for. Called by the owner of the journal, in the background.

    A change that cannot be made now stays, and is tried again at the next call.
    """
    folder = catalog.path.parent / REQUESTS_NAME
    try:
        names = sorted(name for name in os.listdir(folder) if name.endswith(".json"))
    except OSError:
        return
    for name in names:
        try:
            inode, change = _read_request(folder / name)
            if change is not None and not catalog.make(change):
                _log.debug("%s: the request was refused, because the rows that it stands on have changed", folder / name)
            if os.stat(folder / name).st_ino == inode:  # else a newer request has replaced it
                (folder / name).unlink(missing_ok=True)
        except (CorruptCatalog, LogUnavailable, OSError) as error:
            _log.debug("%s: the request could not be served: %s", folder / name, error)


def drop_requests(folder: Path) -> None:
    """Delete the requests that a former owner did not serve. Whoever asked asks again. One that is being written stays."""
    for path in (folder / REQUESTS_NAME).glob("[!.]*"):
        path.unlink(missing_ok=True)


def _read_request(path: Path) -> tuple[int, Change | None]:
    """Return the inode of a request, and the change that it asks for; None if the file is damaged."""
    with path.open("rb") as file:
        return os.fstat(file.fileno()).st_ino, _parse(file.read(REQUEST_BYTES_MAX + 1))


def _parse(data: bytes) -> Change | None:
    try:
        checksum, _, body = data.partition(b"\n")
        if len(data) > REQUEST_BYTES_MAX or checksum != xxhash.xxh3_64_hexdigest(body).encode():
            return None
        puts, deletes, expects, timelines, marks = json.loads(body)
        if not (isinstance(puts, dict) and isinstance(expects, dict) and isinstance(deletes, list)):
            return None
        if not all(isinstance(key, str) for key in deletes) or not all(_is_row(key, row) for key, row in puts.items()):
            return None
        return Change(puts, deletes, expects, timelines, None if marks is None else (int(marks[0]), int(marks[1])))
    except (ValueError, TypeError, KeyError, IndexError, RecursionError):
        return None


def _is_row(key: str, row: Any) -> bool:
    """Return True if a row that was read from a file is of a known kind."""
    if not isinstance(row, Mapping):
        return False
    if key.startswith("request/"):
        return True
    kind = next(
        (kind for prefix, kind in KINDS.items() if key == prefix or (prefix[-1] == "/" and key.startswith(prefix))), None
    )
    try:
        return kind is not None and kind(**row) is not None
    except TypeError:
        return False
