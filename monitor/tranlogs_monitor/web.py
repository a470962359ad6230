"""A small read-only HTTP server: /metrics for Prometheus, /healthz for whoever looks after the daemon."""

from __future__ import annotations

import logging
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from tranlogs.errors import UsageError

from .metrics import CONTENT_TYPE, Metrics

_log = logging.getLogger(__name__)


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
        metrics: what is served.

    Attributes:
        port: that it listens on.

    Raises:
        UsageError: the port is taken, or not allowed.
    """

    def __init__(self, address: tuple[str, int], metrics: Metrics) -> None:
        handler = type("Handler", (_Handler,), {"metrics": metrics})
        try:
            self._server = ThreadingHTTPServer(address, handler)
        except OSError as error:
            raise UsageError(f"--http {address[0]}:{address[1]}: cannot listen there ({error.strerror})") from None
        self._server.daemon_threads = True
        self.port = int(self._server.server_address[1])
        self._thread = threading.Thread(target=self._server.serve_forever, name="tranlogs-web", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop serving."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


class _Handler(BaseHTTPRequestHandler):
    metrics: Metrics
    server_version, sys_version = "TranLogs", ""

    def do_GET(self) -> None:
        path = self.path.partition("?")[0]
        if path == "/metrics":
            self._answer(200, CONTENT_TYPE, self.metrics.text())
        elif path == "/healthz":
            self._answer(200, "text/plain; charset=utf-8", b"ok\n")
        else:
            self._answer(404, "text/plain; charset=utf-8", b"/metrics and /healthz are here\n")

    do_HEAD = do_GET

    def _answer(self, code: int, kind: str, body: bytes) -> None:
        self.send_response(code)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Cache-Control", "no-store")
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        _log.debug(format, *args)
