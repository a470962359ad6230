"""A list that only grows (what a trainer has logged), as state that costs little at each boundary.

State is stored as its difference to an earlier one of the same length, so the text of the list lies in a buffer that grows
by doubling: what is stored is what was appended.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

_BYTES_MIN = 1 << 10


class Appended:
    """Lines of JSON in a buffer."""

    def __init__(self) -> None:
        self._buffer = bytearray(_BYTES_MIN)
        self._end = self._count = 0

    def packed(self, entries: Sequence[Any]) -> bytes:
        """Pack the list as it is now. Items that were packed before must not have changed."""
        if len(entries) < self._count:
            self._end = self._count = 0
            self._buffer = bytearray(len(self._buffer))
        for entry in entries[self._count :]:
            line = json.dumps(entry).encode() + b"\n"
            while self._end + len(line) > len(self._buffer):
                self._buffer += bytes(len(self._buffer))
            self._buffer[self._end : self._end + len(line)] = line
            self._end += len(line)
        self._count = len(entries)
        return bytes(self._buffer)

    def unpacked(self, packed: bytes) -> list[Any]:
        """Return the list that was packed, and continue from there."""
        lines = packed.rstrip(b"\0")
        self._buffer, self._end = bytearray(packed), len(lines)
        entries = [json.loads(line) for line in lines.splitlines()]
        self._count = len(entries)
        return entries
