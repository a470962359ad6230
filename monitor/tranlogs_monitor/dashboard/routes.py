"""The routes: pages, the numbers that their charts draw, /metrics for Prometheus, and /healthz for health checks.

All routes are read-only. No name in a request is looked up in the file system: journals are those of the board, and static
files are read when the application is made. Handlers answer from memory within milliseconds, so they run in the event loop.
"""

from __future__ import annotations

import json
import logging
import time
from importlib.resources import files

from starlette.applications import Starlette
from starlette.datastructures import MutableHeaders
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import HTMLResponse, PlainTextResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from .access import Access
from .metrics import CONTENT_TYPE, Metrics
from .pages.board import Board
from .pages.curves import curves
from .pages.page import STANDINGS, journal_page, overview

_log = logging.getLogger(__name__)

_HEADERS = {
    "Cache-Control": "no-store",
    "Content-Security-Policy": "default-src 'self'; base-uri 'none'; form-action 'self'; frame-ancestors 'none'",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}


class SafeAnswers:
    """Adds headers to every answer, logs errors, and answers 500 to a request that fails."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        has_begun = False

        async def send_safely(message: Message) -> None:
            nonlocal has_begun
            if message["type"] == "http.response.start":
                has_begun = True
                headers = MutableHeaders(scope=message)
                for name, value in _HEADERS.items():
                    headers[name] = value
            await send(message)

        try:
            await self._app(scope, receive, send_safely)
        except Exception:
            _log.exception("could not answer the request for %s", scope["path"])
            if not has_begun:
                await PlainTextResponse("The monitor could not answer: see its log.\n", 500)(scope, receive, send_safely)


_FOREIGN_HOST = "This server answers to localhost, 127.0.0.1 and [::1] only; the Host header names another host.\n"
_NO_TOKEN = "A token is required: send the header 'Authorization: Bearer TOKEN'.\n"


class Guard:
    """Passes a request on if `Access` allows it, and answers 421 or 401 otherwise, before any other code sees the request."""

    def __init__(self, app: ASGIApp, access: Access) -> None:
        self._app, self._access = app, access

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = Request(scope)
        if not self._access.allows_host(request.headers.get("host")):
            await PlainTextResponse(_FOREIGN_HOST, 421)(scope, receive, send)
        elif not self._access.allows_credentials(request.headers.get("authorization", "")):
            await PlainTextResponse(_NO_TOKEN, 401, {"WWW-Authenticate": "Bearer"})(scope, receive, send)
        else:
            await self._app(scope, receive, send)


_KINDS = {"js": "text/javascript", "css": "text/css", "svg": "image/svg+xml"}
_STATIC = ("icon.svg", "page.css", "page.js", "uplot.css", "uplot.js")


def make_app(metrics: Metrics, board: Board, access: Access) -> Starlette:
    """Return the ASGI application of the dashboard: pages of the board, metrics for Prometheus, rules for requests."""
    routes = _Routes(metrics, board)
    app = Starlette(
        routes=[
            Route("/", routes.front_page),
            Route("/journal/{name:path}", routes.journal),
            Route("/data.json", routes.data),
            Route("/static/{name}", routes.static),
            Route("/metrics", routes.prometheus),
            Route("/healthz", routes.health),
        ],
        middleware=[Middleware(SafeAnswers), Middleware(Guard, access=access)],
        exception_handlers={404: _not_found},
    )
    app.router.redirect_slashes = False
    return app


class _Routes:
    """The handlers of all routes."""

    def __init__(self, metrics: Metrics, board: Board) -> None:
        self._metrics, self._board = metrics, board
        self._static = {name: (files(__package__) / "static" / name).read_bytes() for name in _STATIC}

    async def front_page(self, request: Request) -> Response:
        """Answer with the page of the only journal, or with the list of all journals, narrowed by `?words=` and `?show=`."""
        if self._board.journal("") is not None:
            return self._journal_page("")
        asked = request.query_params
        standing = asked.get("show", "")
        page = overview(
            self._board.journals(),
            now=time.time(),
            interval_seconds=self._board.settings.interval_seconds,
            words=asked.get("words", ""),
            standing=standing if standing in STANDINGS.values() else "",
        )
        return HTMLResponse(page)

    async def journal(self, request: Request) -> Response:
        """Answer with the page of one journal."""
        name = request.path_params["name"]
        return self._journal_page(name) if name else await _not_found(request)

    async def data(self, request: Request) -> Response:
        """Answer with the numbers that the charts draw."""
        view = self._board.journal(request.query_params.get("journal", ""))
        if view is None:
            return PlainTextResponse("No such journal is watched: give one as ?journal=\n", 404)
        return Response(json.dumps(curves(view), separators=(",", ":"), allow_nan=False), media_type="application/json")

    async def static(self, request: Request) -> Response:
        """Answer with a style sheet, a script or an icon."""
        name = request.path_params["name"]
        if name not in self._static:
            return await _not_found(request)
        return Response(self._static[name], media_type=_KINDS[name.rpartition(".")[2]])

    async def prometheus(self, request: Request) -> Response:
        """Answer with the metrics."""
        return Response(self._metrics.text(), media_type=CONTENT_TYPE)

    async def health(self, request: Request) -> Response:
        """Answer that the monitor is running."""
        return PlainTextResponse("ok\n")

    def _journal_page(self, name: str) -> Response:
        view = self._board.journal(name)
        if view is None:
            return PlainTextResponse("No such journal is watched: / lists those that are\n", 404)
        has_others = len(self._board.journals()) > 1
        interval = self._board.settings.interval_seconds
        return HTMLResponse(journal_page(view, now=time.time(), interval_seconds=interval, has_others=has_others))


async def _not_found(request: Request, error: Exception | None = None) -> Response:
    """Answer 404, with the routes that exist."""
    return PlainTextResponse("Not found. Try /, /data.json, /metrics or /healthz.\n", 404)
