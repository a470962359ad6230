"""The token that a request must carry: from a file, from the environment, or random.

A browser sends the token once in the address, and a cookie after that. The cookie contains a digest that is keyed with the
token: browsers send cookies to all ports of a host, and servers on other ports must not learn the token.
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
    """The token that a request must carry.

    Attributes:
        value: the token as text.
        source: the setting that gave the token, like "--token-file /etc/token"; "" if the token is random.
    """

    value: str = field(repr=False)
    source: str = ""

    @property
    def is_random(self) -> bool:
        """True if the token was made at random."""
        return not self.source

    def matches(self, candidate: str) -> bool:
        """Compare with the token, in constant time."""
        return hmac.compare_digest(candidate.encode(), self.value.encode())

    @property
    def cookie_name(self) -> str:
        """The name of the cookie. It differs between tokens, because browsers share cookies between the ports of a host."""
        return f"tranlogs-{self._digest('name')[:12]}"

    @property
    def cookie_value(self) -> str:
        """The content of the cookie, from which the token cannot be derived."""
        return self._digest("value")

    def matches_cookie(self, candidate: str) -> bool:
        """Compare with `cookie_value`, in constant time."""
        return hmac.compare_digest(candidate.encode(), self.cookie_value.encode())

    def _digest(self, purpose: str) -> str:
        return hmac.new(self.value.encode(), f"tranlogs cookie {purpose}".encode(), hashlib.sha256).hexdigest()


def choose_token(file: Path | None, environment: Mapping[str, str]) -> Token:
    """Return the token in the file; without a file, the token in the environment; without either, a random token.

    Raises:
        UsageError: the file cannot be read, or the token cannot be used.
    """
    if file is not None:
        return _check_token(_read(file), f"--token-file {file}")
    if ENVIRONMENT_NAME in environment:
        return _check_token(environment[ENVIRONMENT_NAME], ENVIRONMENT_NAME)
    return Token(secrets.token_urlsafe(_RANDOM_BYTES))


def _read(file: Path) -> str:
    try:
        with open(file, "rb") as opened:
            return opened.read(_FILE_BYTES_MAX).decode("utf-8", "replace")
    except OSError as error:
        raise UsageError(f"--token-file {file}: cannot be read ({error.strerror})") from None


def _check_token(text: str, source: str) -> Token:
    value = text.strip()
    if not value:
        raise UsageError(f"{source}: expected a token, found nothing; write a token, or omit the setting for a random one")
    if not all("!" <= character <= "~" for character in value):
        raise UsageError(f"{source}: a token must be one line of ASCII letters, digits and punctuation, without spaces")
    return Token(value, source)
