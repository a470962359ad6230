"""ASGI middleware around all others: headers of every answer, and the answer to a request that fails."""

from __future__ import annotations

import logging

from starlette.datastructures import MutableHeaders
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

_log = logging.getLogger(__name__)

_HEADERS = {
    "Cache-Control": "no-store",
    "Content-Security-Policy": "default-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}


class SafeAnswers:
    """Adds headers to every answer, logs errors, and answers 500 to a request that fails.

    Args:
        app: the application that answers the requests.
    """

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
