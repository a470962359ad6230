"""Settings of the dashboard's server."""

from __future__ import annotations

from dataclasses import dataclass

from .access.tokens import Token


@dataclass(frozen=True, slots=True)
class HttpSettings:
    """Settings of the dashboard's server.

    Attributes:
        address: where it listens, like ":9464".
        token: what a request must carry where one is required.
        has_auth: False if none is required anywhere.
    """

    address: str
    token: Token
    has_auth: bool = True
