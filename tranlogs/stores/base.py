"""The interface of a store: named objects that are written whole and never changed.

* A name is used for one attempt only. Whoever sends again takes a new name, so that a late write of an earlier attempt spoils
  nothing that counts. The manifest says which names count (shipping/inventory/manifest.py).
* That `put` returns proves nothing. An object counts as archived when `stat` says that it is complete and of the right length,
  and as persisted when `stat` says that it is durable.
* The reader checks what it reads against checksums of its own: a store promises nothing about content.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from types import TracebackType
from typing import BinaryIO


@dataclass(frozen=True, slots=True)
class ObjectStatus:
    """What a store says of an object.

    Attributes:
        nbytes: its length.
        is_complete: True if writing it was finished.
        is_durable: True if it survives the store's own processes and machines, as the store says.
        copies: number of machines that hold it in memory; None if the store has no such machines.
        is_lost: True if the store has given it up.
        is_forgotten: True if the store will not make it durable, because it knows of no request for that.
    """

    nbytes: int
    is_complete: bool = True
    is_durable: bool = True
    copies: int | None = None
    is_lost: bool = False
    is_forgotten: bool = False


class Store(ABC):
    """A store. Names are relative, with "/" between their parts. Any thread may call; every call ends in bounded time.

    All methods raise StoreUnavailable if the store does not answer (try again), StoreRefused if trying again would not help.

    Attributes:
        url: its address as people may see it (without passwords).
        copies_wanted: number of machines that should hold an object in memory before it counts as archived; 1 where that does
            not apply.
    """

    url: str
    copies_wanted: int = 1

    @abstractmethod
    def put(self, name: str, content: BinaryIO, nbytes: int) -> None:
        """Write an object of `nbytes` bytes, read from the current position of `content`.

        If that fails, the store holds nothing of the object, or a part that `stat` does not call complete, or one of another
        length. `content` may be read more than once (tell, seek).

        Raises:
            OSError: `content` ends early, or cannot be read.
        """

    @abstractmethod
    def get(self, name: str, into: BinaryIO) -> int:
        """Write an object's bytes to a file; return their number.

        Raises:
            CorruptObject: there is no such object, or it ends early.
        """

    @abstractmethod
    def stat(self, name: str) -> ObjectStatus | None:
        """Return what the store says of an object; None if there is no object of that name."""

    @abstractmethod
    def names(self, prefix: str) -> list[str]:
        """Return the names of all objects below a prefix (a folder), sorted."""

    @abstractmethod
    def delete(self, name: str) -> None:
        """Delete an object; do nothing if there is none."""

    def check_root(self) -> None:  # noqa: B027 - most stores exist, or do not answer
        """Check that the place of the store exists: a disk that is not mounted looks like an empty store.

        Raises:
            StoreUnavailable: it does not exist.
        """

    def request_durability(self, name: str) -> None:  # noqa: B027 - most stores drop no request
        """Request once more that an object become durable, for stores that can drop such a request.

        Whatever dies meanwhile, the object is still found by its name.
        """

    def advise(self, problem: str) -> str:
        """Return what people can do about a problem with this store, by its text; "" if nothing is known."""
        return ""

    def close(self) -> None:  # noqa: B027 - most stores have none
        """Close the connections."""

    def __enter__(self) -> Store:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()
