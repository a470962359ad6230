"""The address on which the dashboard listens, from the command line."""

from __future__ import annotations

import os
import socket

from tranlogs.base.errors import UsageError

_BACKLOG = 128


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
