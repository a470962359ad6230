"""A slice of a file, in the form that clients send."""

from __future__ import annotations

from collections.abc import Iterator
from errno import EIO
from typing import BinaryIO

_BLOCK_BYTES = 1 << 20


class FileSlice:
    """The next `nbytes` bytes of a file. The length is known ahead, so that the slice is sent as one body.

    Attributes:
        nbytes: the length.
        error: the error of reading the file, if there was one: a client may report it as a network error.
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
        """Return the next bytes; none at the end.

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
            self.error = OSError(EIO, f"the file ends {self._left} of {self.nbytes} bytes early", self._name)
            raise self.error
        self._left -= len(block)
        return block
