"""ASGI middleware that refuses requests by the rules of `Access`, before any other code sees them."""

from __future__ import annotations

from starlette.datastructures import MutableHeaders
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from .access_rules import Access
from .tokens import Token

_FOREIGN_HOST = "This server answers to localhost, 127.0.0.1 and [::1] only; the Host header names another host.\n"
_NO_TOKEN = "A token is required: open the address with ?token=TOKEN once, or send the header 'Authorization: Bearer TOKEN'.\n"


class Guard:
    """Passes a request on if its Host header and its token are valid, and answers 421 or 401 otherwise.

    A valid `?token=` is answered with a cookie, which replaces the token from then on.

    Args:
        app: the application that answers the requests.
        access: the rules.
    """

    def __init__(self, app: ASGIApp, access: Access) -> None:
        self._app, self._access = app, access

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        request, token = Request(scope), self._access.token
        if not self._access.allows_host(request.headers.get("host")):
            await PlainTextResponse(_FOREIGN_HOST, 421)(scope, receive, send)
        elif token is None or _carries(request, token):
            await self._app(scope, receive, send)
        elif token.matches(request.query_params.get("token", "")):
            await self._app(scope, receive, _with_cookie(send, token))
        else:
            await PlainTextResponse(_NO_TOKEN, 401, {"WWW-Authenticate": "Bearer"})(scope, receive, send)


def _carries(request: Request, token: Token) -> bool:
    """Return True if the Authorization header or the cookie is valid."""
    scheme, _, credentials = request.headers.get("authorization", "").partition(" ")
    is_bearer = scheme.lower() == "bearer" and token.matches(credentials.strip())
    return is_bearer or token.matches_cookie(request.cookies.get(token.cookie_name, ""))


def _with_cookie(send: Send, token: Token) -> Send:
    async def send_with_cookie(message: Message) -> None:
        if message["type"] == "http.response.start":
            cookie = f"{token.cookie_name}={token.cookie_value}; Path=/; HttpOnly; SameSite=Strict"
            MutableHeaders(scope=message).append("Set-Cookie", cookie)
        await send(message)

    return send_with_cookie
