"""The next so many bytes of a file, as something that can be sent."""

from __future__ import annotations

from collections.abc import Iterator
from errno import EIO
from typing import BinaryIO

_BLOCK_BYTES = 1 << 20


class Part:
    """`nbytes` of a file from its position on; its length is known ahead, so it is sent as one body.

    Attributes:
        nbytes: how many.
        error: what reading the file failed with; whoever sends may have made an error of the network of it.
    """

    def __init__(self, name: str, file: BinaryIO, nbytes: int) -> None:
        self.nbytes = nbytes
        self.error: OSError | None = None
        self._name = name
        self._file = file
        self._left = nbytes

    def __len__(self) -> int:
        return self.nbytes

    def __iter__(self) -> Iterator[bytes]:
        return iter(lambda: self.read(_BLOCK_BYTES), b"")

    def read(self, size: int = -1) -> bytes:
        """The next bytes, none at the end.

        Raises:
            OSError: the file ends early, or cannot be read.
        """
        wanted = self._left if size < 0 else min(size, self._left)
        try:
            block = self._file.read(wanted)
        except OSError as error:
            self.error = error
            raise
        if wanted and not block:
            self.error = OSError(EIO, f"what is to be sent ends {self._left} of {self.nbytes} bytes early", self._name)
            raise self.error
        self._left -= len(block)
        return block
