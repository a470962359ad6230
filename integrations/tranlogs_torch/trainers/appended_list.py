"""A list that only grows (what a trainer has logged), as state that costs little at each boundary."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from tranlogs.records import Fixed

_BLOCK_BYTES = 1 << 12


class Appended:
    """Lines of JSON in blocks: only the last one changes, and only when something is appended."""

    def __init__(self) -> None:
        self._blocks = [Fixed(b"")]
        self._count = 0

    def packed(self, entries: Sequence[Any]) -> list[Fixed]:
        """Pack the list as it is now. Items that were packed before must not have changed."""
        if len(entries) < self._count:
            self._blocks, self._count = [Fixed(b"")], 0
        lines = b"".join(json.dumps(entry).encode() + b"\n" for entry in entries[self._count :])
        self._count = len(entries)
        if lines:
            if len(self._blocks[-1].value) >= _BLOCK_BYTES:
                self._blocks.append(Fixed(b""))
            self._blocks[-1] = Fixed(self._blocks[-1].value + lines)
        return list(self._blocks)

    def unpacked(self, packed: Sequence[bytes | Fixed]) -> list[Any]:
        """Return the list that was packed, and continue from there."""
        self._blocks = [block if isinstance(block, Fixed) else Fixed(block) for block in packed]
        entries = [json.loads(line) for block in self._blocks for line in block.value.splitlines()]
        self._count = len(entries)
        return entries
