"""Changes of a journal's catalog by a process that may not own it (monitor, shipper, command line): it asks the owner.

A request is the file `requests/<name>.json`: a checksum in hex, a line feed, and the change as JSON. It is published by a
rename. The owner deletes it when it is done, and the process that asked finds the answer in the rows. A newer request with the
same name replaces an older one.
"""

from __future__ import annotations

import json
import logging
import os
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import xxhash

from ..base.atomic_files import publishing
from ..base.config import REQUEST_BYTES_MAX, REQUEST_POLL_SECONDS, REQUEST_SECONDS
from ..base.errors import CorruptCatalog, LogUnavailable
from ..base.threads import start_thread
from ..catalog import Catalog, Change
from ..catalog.rows import KINDS
from ..catalog.tables import content_of
from .owner_lock import own_briefly

_log = logging.getLogger("tranlogs")
REQUESTS_NAME = "requests"
_POLL_SECONDS = 0.01


def change_catalog(folder: Path, name: str, change: Change) -> bool:
    """Make a change of a journal's catalog, or ask the process that owns the journal to make it.

    Args:
        name: of the request. A request replaces an older one of the same name that was not served.

    Returns:
        True if the change was made. False if it was refused, because a row that it stands on has changed, or if the owner has
        not made it in REQUEST_SECONDS, because it is busy or stopped; it may make it later.

    Raises:
        LogUnavailable: the catalog or the request cannot be written.
        CorruptCatalog: the catalog is damaged.
    """
    request = folder / REQUESTS_NAME / f"{name}.json"
    try:
        with own_briefly(folder) as is_owner:
            if is_owner:
                request.unlink(missing_ok=True)
                with Catalog.open(folder, writable=True) as catalog:
                    return catalog.make(change)
        write_request(folder, name, change)
    except OSError as error:
        raise LogUnavailable(f"{request}: {error}") from error
    end = time.monotonic() + REQUEST_SECONDS
    while request.exists() and time.monotonic() < end:
        time.sleep(_POLL_SECONDS)
    with Catalog.open(folder) as catalog:
        return bool(catalog.read(change.is_made))


class RequestService:
    """Serves requests from the opening of a journal to its end, whether the log is open or suspended."""

    def __init__(self, catalog: Catalog) -> None:
        # Requests that a former owner did not serve: whoever asked asks again. One that is being written stays.
        for path in (catalog.path.parent / REQUESTS_NAME).glob("[!.]*"):
            path.unlink(missing_ok=True)
        self._catalog, self._is_ending = catalog, threading.Event()
        self._thread: threading.Thread | None = None
        try:
            self._thread = start_thread("tranlogs-requests", self._work)
        except LogUnavailable as error:
            _log.warning("%s: requests of monitors and shippers are not served: %s", catalog.path.parent, error)

    def _work(self) -> None:
        while not self._is_ending.wait(REQUEST_POLL_SECONDS):
            serve_requests(self._catalog)

    def close(self) -> None:
        """End the thread."""
        self._is_ending.set()
        if self._thread is not None:
            self._thread.join()


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
