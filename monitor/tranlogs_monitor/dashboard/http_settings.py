"""Settings of the dashboard's server."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from .access.tokens import Token, choose_token


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

    @classmethod
    def of(cls, address: str, token_file: Path | None, has_auth: bool) -> HttpSettings:
        """Make settings from the values of the command line.

        Raises:
            UsageError: the file cannot be read, or the token cannot be used.
        """
        return cls(address, choose_token(token_file, os.environ), has_auth)
