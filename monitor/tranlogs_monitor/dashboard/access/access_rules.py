"""Access to the dashboard: the rules, decided by the address on which it is served, and the socket.

| address | token | `--no-auth` | Host header must be local | token required |
|---|---|---|---|---|
| loopback | random | either | yes | no |
| loopback | given | no | yes | yes |
| loopback | given | yes | yes | no |
| any other | either | no | no | yes |
| any other | either | yes | no | no |

Only programs on this machine reach a loopback address, but a web page in a local browser is such a program: its owner can let a
host name point to 127.0.0.1 and read the dashboard (DNS rebinding). The Host header then contains that name.
"""

from __future__ import annotations

import ipaddress
import os
import re
import socket
from dataclasses import dataclass

from tranlogs.base.errors import UsageError

from .tokens import Token

_LOCAL_HOSTS = ("localhost", "127.0.0.1", "[::1]")
_HOST = re.compile(r"(\[[0-9a-fA-F:.]+\]|[^\[\]:]+)(?::\d{0,5})?", re.ASCII)

_BACKLOG = 128


@dataclass(frozen=True, slots=True)
class Access:
    """The rules for requests.

    Attributes:
        hosts: names that a Host header may contain, apart from the port; None for any.
        token: the token that a request must carry; None if no token is required.
    """

    hosts: frozenset[str] | None
    token: Token | None

    def allows_host(self, header: str | None) -> bool:
        """Return True if a request with this Host header is answered (pure)."""
        if self.hosts is None:
            return True
        found = _HOST.fullmatch(header or "")
        return found is not None and found[1].lower() in self.hosts


def access_on(address: str, token: Token, *, has_auth: bool) -> Access:
    """Return the access rules for an address (pure).

    Args:
        address: the numeric address on which the server listens.
        token: given by the operator, or random.
        has_auth: False for `--no-auth`.
    """
    if not is_loopback(address):
        return Access(None, token if has_auth else None)
    hosts = frozenset((*_LOCAL_HOSTS, in_url(address)))
    return Access(hosts, token if has_auth and not token.is_random else None)


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
