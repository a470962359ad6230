"""The thread of a journal's owner that serves the requests of other processes."""

from __future__ import annotations

import logging
import threading

from ...base.config import REQUEST_POLL_SECONDS
from ...base.errors import LogUnavailable
from ...base.threads import start_thread
from ...catalog import Catalog, drop_requests, serve_requests

_log = logging.getLogger("tranlogs")


class RequestService:
    """Serves requests from the opening of a journal to its end, whether the log is open or suspended.

    Args:
        catalog: the journal's, open for writing.
    """

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
