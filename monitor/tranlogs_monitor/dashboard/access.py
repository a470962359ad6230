"""Access to the dashboard: who may read it, decided by the address on which it is served, and the socket.

| address | TRANLOGS_HTTP_TOKEN | a request is answered if |
|---|---|---|
| loopback | not set | its Host header is local |
| loopback | set | its Host header is local, and it carries the token |
| any other | set | it carries the token |
| any other | not set | never: the monitor does not start |

Only programs on this machine reach a loopback address, but a web page in a local browser is such a program: its owner can let a
host name point to 127.0.0.1 and read the dashboard (DNS rebinding). The Host header then contains that name.
"""

from __future__ import annotations

import hmac
import ipaddress
import os
import re
import socket
from collections.abc import Mapping
from dataclasses import dataclass, field

from tranlogs.base.errors import UsageError

TOKEN_NAME = "TRANLOGS_HTTP_TOKEN"  # the environment variable

_LOCAL_HOSTS = ("localhost", "127.0.0.1", "[::1]")
_HOST = re.compile(r"(\[[0-9a-fA-F:.]+\]|[^\[\]:]+)(?::\d{0,5})?", re.ASCII)

_BACKLOG = 128


@dataclass(frozen=True, slots=True)
class Access:
    """The rules for requests.

    Attributes:
        hosts: names that a Host header may contain, apart from the port; None for any.
        token: the bearer token that a request must carry; None if no token is required.
    """

    hosts: frozenset[str] | None
    token: str | None = field(repr=False)

    def allows_host(self, header: str | None) -> bool:
        """Return True if a request with this Host header is answered (pure)."""
        if self.hosts is None:
            return True
        found = _HOST.fullmatch(header or "")
        return found is not None and found[1].lower() in self.hosts

    def allows_credentials(self, header: str) -> bool:
        """Return True if a request with this Authorization header is answered. The token is compared in constant time."""
        if self.token is None:
            return True
        scheme, _, credentials = header.partition(" ")
        return scheme.lower() == "bearer" and hmac.compare_digest(credentials.strip().encode(), self.token.encode())


def access_on(address: str, token: str | None) -> Access:
    """Return the access rules for a numeric address on which the server listens (pure).

    Raises:
        UsageError: other machines reach the address, and there is no token.
    """
    if is_loopback(address):
        return Access(frozenset((*_LOCAL_HOSTS, in_url(address))), token)
    if token is None:
        raise UsageError(
            f"--http {in_url(address)}: other machines reach this address. Set {TOKEN_NAME} to the token that requests must "
            "carry, or listen on this machine only, like --http :9464"
        )
    return Access(None, token)


def read_token(environment: Mapping[str, str]) -> str | None:
    """Return the token in the environment; None if there is none.

    Raises:
        UsageError: the variable is set, and its value cannot be used as a token.
    """
    if TOKEN_NAME not in environment:
        return None
    value = environment[TOKEN_NAME].strip()
    if not value:
        raise UsageError(f"{TOKEN_NAME}: expected a token, found nothing; set a token, or unset the variable")
    if not all("!" <= character <= "~" for character in value):
        raise UsageError(f"{TOKEN_NAME}: a token must be one line of ASCII letters, digits and punctuation, without spaces")
    return value


def is_loopback(address: str) -> bool:
    """Return True if only programs on this machine reach a numeric address."""
    parsed = _parse_address(address)
    mapped = parsed.ipv4_mapped if isinstance(parsed, ipaddress.IPv6Address) else None
    return (mapped or parsed).is_loopback


def is_unspecified(address: str) -> bool:
    """Return True for 0.0.0.0 and ::, which mean all addresses of this machine."""
    return _parse_address(address).is_unspecified


def in_url(address: str) -> str:
    """Return a numeric address in the form of URLs and Host headers."""
    return f"[{address}]" if ":" in address else address


def _parse_address(address: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address:
    return ipaddress.ip_address(address.partition("%")[0])  # without the zone of a link-local address


def address_of(text: str) -> tuple[str, int]:
    """Parse ":9464" (this machine only), "9464", "0.0.0.0:9464" or "[::1]:9464".

    Raises:
        UsageError: the text is not an address.
    """
    host, _, port = text.rpartition(":")
    if not (port.isascii() and port.isdigit()) or int(port) > 65535:
        raise UsageError(f"--http must be a port like :9464 or an address like 0.0.0.0:9464, got {text!r}")
    return host.strip("[]") or "127.0.0.1", int(port)


def listen(address: tuple[str, int]) -> socket.socket:
    """Return a socket that listens on an address. A host name is looked up, and its IPv4 address is preferred.

    Raises:
        UsageError: the address is not one of this machine, or the port is taken or not allowed.
    """
    host, port = address
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        family, _, _, _, place = min(found, key=lambda one: one[0] != socket.AF_INET)
        both = family == socket.AF_INET6 and socket.has_dualstack_ipv6()
        return socket.create_server(place, family=family, backlog=_BACKLOG, dualstack_ipv6=both)
    except (OSError, UnicodeError) as error:  # a name that cannot be encoded is a UnicodeError
        raise UsageError(f"--http {host}:{port}: cannot listen on this address ({_reason(error)})") from None


def _reason(error: OSError | UnicodeError) -> str:
    if isinstance(error, socket.gaierror) and error.strerror:
        return error.strerror
    if isinstance(error, OSError) and error.errno:  # The text of the error repeats the address.
        return os.strerror(error.errno)
    return "not an address"
