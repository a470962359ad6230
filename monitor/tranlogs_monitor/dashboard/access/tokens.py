"""The token that a request must carry: from a file, from the environment, or made at random.

A browser sends the token once in the address, and a cookie after that. The cookie holds a digest that is keyed with the token:
browsers send it to all ports of the host, and the servers there do not learn the token from it.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from tranlogs.base.errors import UsageError

ENVIRONMENT_NAME = "TRANLOGS_HTTP_TOKEN"

_FILE_BYTES_MAX = 4096
_RANDOM_BYTES = 32


@dataclass(frozen=True, slots=True)
class Token:
    """A secret.

    Attributes:
        value: the secret itself.
        source: where it was read, like "--token-file /etc/token"; "" if it was made at random.
    """

    value: str = field(repr=False)
    source: str = ""

    @property
    def is_random(self) -> bool:
        """True if it was made at random."""
        return not self.source

    def matches(self, candidate: str) -> bool:
        """Compare in constant time."""
        return hmac.compare_digest(candidate.encode(), self.value.encode())

    @property
    def cookie_name(self) -> str:
        """Name of the cookie; it differs between tokens, because browsers share cookies between the ports of a host."""
        return f"tranlogs-{self._digest('name')[:12]}"

    @property
    def cookie_value(self) -> str:
        """What the cookie holds instead of the token."""
        return self._digest("value")

    def matches_cookie(self, candidate: str) -> bool:
        """Compare with `cookie_value` in constant time."""
        return hmac.compare_digest(candidate.encode(), self.cookie_value.encode())

    def _digest(self, purpose: str) -> str:
        return hmac.new(self.value.encode(), f"tranlogs cookie {purpose}".encode(), hashlib.sha256).hexdigest()


def choose_token(file: Path | None, environment: Mapping[str, str]) -> Token:
    """Return the token of the file, else the one of the environment, else a random one.

    Raises:
        UsageError: the file cannot be read, or its token or that of the environment cannot be used.
    """
    if file is not None:
        return _checked(_read(file), f"--token-file {file}")
    if ENVIRONMENT_NAME in environment:
        return _checked(environment[ENVIRONMENT_NAME], ENVIRONMENT_NAME)
    return Token(secrets.token_urlsafe(_RANDOM_BYTES))


def _read(file: Path) -> str:
    try:
        with open(file, "rb") as opened:
            return opened.read(_FILE_BYTES_MAX).decode("utf-8", "replace")
    except OSError as error:
        raise UsageError(f"--token-file {file}: cannot be read ({error.strerror})") from None


def _checked(text: str, source: str) -> Token:
    value = text.strip()
    if not value:
        raise UsageError(f"{source}: it is empty; give a token, or leave it out to have one made")
    if not all("!" <= character <= "~" for character in value):
        raise UsageError(f"{source}: a token must be one line of ASCII letters, digits and punctuation, without spaces")
    return Token(value, source)
