"""Settings of the dashboard's server."""

from __future__ import annotations

from dataclasses import dataclass

from .access.tokens import Token


@dataclass(frozen=True, slots=True)
class HttpSettings:
    """Settings of the dashboard's server.

    Attributes:
        address: the address on which the server listens, like ":9464".
        token: the token that a request must carry if one is required.
        has_auth: False if no request needs a token.
    """

    address: str
    token: Token
    has_auth: bool = True
