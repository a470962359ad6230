"""A small read-only HTTP server: the page, what its charts draw, /metrics for Prometheus, /healthz for whoever looks after it.

Nothing that a request names is looked up in the file system: journals are those of the board, static files those read here.
"""

from __future__ import annotations

import json
import logging
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib.resources import files
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

from tranlogs.errors import UsageError

from .board import Board
from .curves import curves
from .metrics import CONTENT_TYPE, Metrics
from .page import journal_page, overview

_log = logging.getLogger(__name__)

_TEXT, _HTML = "text/plain; charset=utf-8", "text/html; charset=utf-8"
_KINDS = {"js": "text/javascript; charset=utf-8", "css": "text/css; charset=utf-8", "svg": "image/svg+xml"}
_STATIC = ("icon.svg", "page.css", "page.js", "uplot.css", "uplot.js")
_HEADERS = {
    "Cache-Control": "no-store",
    "Content-Security-Policy": "default-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
}

Answer = tuple[int, str, bytes]  # code, kind, body


def address_of(text: str) -> tuple[str, int]:
    """Of ":9464" (this machine only), "9464" or "0.0.0.0:9464".

    Raises:
        UsageError: it is no address.
    """
    host, _, port = text.rpartition(":")
    if not port.isdigit() or int(port) > 65535:
        raise UsageError(f"--http {text!r}: give a port like :9464, or an address like 0.0.0.0:9464")
    return host.strip("[]") or "127.0.0.1", int(port)


class WebServer:
    """Serves in threads of its own until `close`.

    Args:
        address: host and port; port 0 takes a free one.
        metrics: for Prometheus.
        board: for people.

    Attributes:
        port: that it listens on.

    Raises:
        UsageError: the port is taken, or not allowed.
    """

    def __init__(self, address: tuple[str, int], metrics: Metrics, board: Board) -> None:
        static = {name: (files(__package__) / "static" / name).read_bytes() for name in _STATIC}
        handler = type("Handler", (_Handler,), {"metrics": metrics, "board": board, "static": static})
        try:
            self._server = _Server(address, handler)
        except OSError as error:
            raise UsageError(f"--http {address[0]}:{address[1]}: cannot listen there ({error.strerror})") from None
        self.port = int(self._server.server_address[1])
        self._thread = threading.Thread(target=self._server.serve_forever, name="tranlogs-web", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop serving."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A browser that went away is nothing to tell; whatever else it was is."""
        if isinstance(sys.exc_info()[1], (ConnectionError, TimeoutError)):
            return
        _log.error("a request of %s could not be answered", client_address[0], exc_info=True)


class _Handler(BaseHTTPRequestHandler):
    metrics: Metrics
    board: Board
    static: dict[str, bytes]
    server_version, sys_version = "TranLogs", ""
    timeout = 30.0  # seconds for a request to come

    def do_GET(self) -> None:
        code, kind, body = self._found()
        self.send_response(code)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        for name, value in _HEADERS.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    do_HEAD = do_GET

    def _found(self) -> Answer:
        url = urlsplit(self.path)
        area, _, name = url.path[1:].partition("/")
        if url.path == "/":
            return self._page("")
        if area == "journal" and name:
            return self._page(unquote(name))
        if url.path == "/data.json":
            return self._data(parse_qs(url.query).get("journal", [""])[-1])
        if area == "static" and name in self.static:
            return 200, _KINDS[name.rpartition(".")[2]], self.static[name]
        if url.path == "/metrics":
            return 200, CONTENT_TYPE, self.metrics.text()
        if url.path == "/healthz":
            return 200, _TEXT, b"ok\n"
        return 404, _TEXT, b"/, /data.json, /metrics and /healthz are here\n"

    def _page(self, name: str) -> Answer:
        journals, interval, now = self.board.journals(), self.board.settings.interval_seconds, time.time()
        shown = self.board.journal(name)
        if shown is not None:
            return 200, _HTML, journal_page(shown, now=now, interval_seconds=interval, has_others=len(journals) > 1)
        if name:
            return 404, _TEXT, b"No such journal is watched: / lists those that are\n"
        return 200, _HTML, overview(journals, now=now, interval_seconds=interval)

    def _data(self, name: str) -> Answer:
        shown = self.board.journal(name)
        if shown is None:
            return 404, _TEXT, b"No such journal is watched: give one as ?journal=\n"
        return 200, "application/json", json.dumps(curves(shown), separators=(",", ":"), allow_nan=False).encode()

    def log_message(self, format: str, *args: Any) -> None:
        _log.debug(format, *args)
