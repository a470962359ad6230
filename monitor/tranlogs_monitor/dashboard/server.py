"""The dashboard's server: uvicorn in a thread of the monitor.

The socket listens before the thread starts, so that an unusable address is an error of the caller. uvicorn handles no signals
(it would do so in the main thread only) and logs nothing; errors are logged here and in `answers`.
"""

from __future__ import annotations

import asyncio
import logging
import socket

import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from tranlogs.base.threads import start_thread

from .access import Access, access_on, in_url, is_unspecified, listen
from .metrics import Metrics
from .pages.board import Board
from .routes import make_app

_log = logging.getLogger(__name__)

_REQUEST_SECONDS_MAX = 30.0  # until the first request of a connection
_IDLE_SECONDS_MAX = 5  # between two requests of a connection
_SECONDS_TO_END = 1  # for answers in progress, before they are cut off
_SECONDS_TO_JOIN = 5.0


class WebServer:
    """Serves the dashboard from a thread until `close`.

    Args:
        address: host and port; port 0 takes a free one.
        metrics: the metrics for Prometheus.
        board: the journals that pages show.
        token: the bearer token that a request must carry; None for an address that only this machine reaches.

    Attributes:
        port: the port on which the server listens.
        access: the rules for requests.
        url: address of the front page.

    Raises:
        UsageError: the address is not one of this machine, the port is taken or not allowed, or a token is missing.
        LogUnavailable: no thread can be started.
    """

    def __init__(self, address: tuple[str, int], metrics: Metrics, board: Board, *, token: str | None = None) -> None:
        self._socket = listen(address)
        try:
            host, self.port = self._socket.getsockname()[:2]
            self.access = access_on(host, token)
            self.url = f"http://{socket.gethostname() if is_unspecified(host) else in_url(host)}:{self.port}/"
            self._server = uvicorn.Server(_config(metrics, board, self.access))
            self._server.config.load()
            self._thread = start_thread("tranlogs-web", self._run)
        except BaseException:
            self._socket.close()
            raise

    def close(self) -> None:
        """Stop serving; answers in progress get a second."""
        self._server.should_exit = True
        self._thread.join(_SECONDS_TO_JOIN)
        self._socket.close()

    def _run(self) -> None:
        try:
            self._server.run(sockets=[self._socket])
        except (Exception, SystemExit) as error:
            _log.error("the page is no longer served (%s: %s); the monitor continues", type(error).__name__, error)


def _config(metrics: Metrics, board: Board, access: Access) -> uvicorn.Config:
    return uvicorn.Config(
        make_app(metrics, board, access),
        http=_Protocol,
        loop="asyncio",
        ws="none",
        lifespan="off",
        interface="asgi3",
        log_config=None,
        log_level=logging.CRITICAL,
        access_log=False,
        proxy_headers=False,
        server_header=False,
        timeout_keep_alive=_IDLE_SECONDS_MAX,
        timeout_graceful_shutdown=_SECONDS_TO_END,
    )


class _Protocol(H11Protocol):
    """A connection that is closed if it sends no request for a while: each one occupies a file handle of the monitor."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self.loop.call_later(_REQUEST_SECONDS_MAX, self._close_if_silent)

    def _close_if_silent(self) -> None:
        if not self.cycle:
            self.transport.close()
