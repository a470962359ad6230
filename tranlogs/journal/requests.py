"""Changes of a journal's catalog by a process that may not own it (monitor, shipper, command line): it asks the owner."""

from __future__ import annotations

import logging
import threading
import time
from pathlib import Path

from ..base.config import REQUEST_POLL_SECONDS, REQUEST_SECONDS
from ..base.errors import LogUnavailable
from ..base.threads import start_thread
from ..catalog import REQUESTS_NAME, Catalog, Change, drop_requests, serve_requests, write_request
from .owner_lock import own_briefly

_log = logging.getLogger("tranlogs")
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
                catalog = Catalog.open(folder, writable=True)
                try:
                    return catalog.make(change)
                finally:
                    catalog.close()
        write_request(folder, name, change)
    except OSError as error:
        raise LogUnavailable(f"{request}: {error}") from error
    end = time.monotonic() + REQUEST_SECONDS
    while request.exists() and time.monotonic() < end:
        time.sleep(_POLL_SECONDS)
    catalog = Catalog.open(folder)
    try:
        return bool(catalog.read(change.is_made))
    finally:
        catalog.close()


class RequestService:
    """Serves requests from the opening of a journal to its end, whether the log is open or suspended."""

    def __init__(self, catalog: Catalog) -> None:
        drop_requests(catalog.path.parent)
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
