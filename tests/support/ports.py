"""Free TCP ports for servers that are killed and started again.

The kernel gives ports of one range to whoever connects or binds to port 0. A server whose port is in that range may not come
back after a kill: while it is down, any process that connects somewhere, such as a client that retries, can be given its port.
"""

from __future__ import annotations

import random
import socket
from contextlib import ExitStack
from pathlib import Path

_FIRST, _LAST = 10_000, 65_535
_KERNEL_RANGE = Path("/proc/sys/net/ipv4/ip_local_port_range")


def kernel_range() -> range:
    """Return the ports that the kernel gives to whoever names none."""
    first, last = map(int, _KERNEL_RANGE.read_text().split())
    return range(first, last + 1)


def free_ports(count: int) -> list[int]:
    """Return ports outside the kernel's range that nobody uses now, on any address.

    Processes that ask at the same moment draw different ports with high probability, so the draw has no fixed seed.
    """
    taken_by_kernel = kernel_range()
    candidates = [port for port in range(_FIRST, _LAST + 1) if port not in taken_by_kernel]
    random.SystemRandom().shuffle(candidates)
    found: list[int] = []
    with ExitStack() as held:
        for port in candidates:
            if len(found) == count:
                return found
            listening = held.enter_context(socket.socket())
            try:
                listening.bind(("", port))
            except OSError:
                continue
            found.append(port)
    raise AssertionError(f"expected {count} free ports outside {taken_by_kernel}, found {len(found)}")
