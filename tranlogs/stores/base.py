"""What a store is to the rest of TranLogs: named objects, written whole, never changed.

* A name is used for one attempt only: whoever sends again takes a fresh name (a late writer of an earlier attempt can spoil
  nothing that counts). Which names count is written elsewhere (shipping/manifest.py).
* That `put` came back is no proof. An object counts as archived when `stat` says that it is complete and of the right
  length, as persisted when `stat` says that it is durable.
* What is read is checked by the reader against checksums of its own: a store promises nothing about content.
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
        is_complete: whether writing it was finished.
        is_durable: whether the store calls it durable: it survives the store's own processes and machines.
        copies: machines that hold it in memory, where the store knows such; None elsewhere.
        is_lost: whether the store has given it up.
        is_forgotten: whether the store is not going to make it durable, since it knows of no request for that.
    """

    nbytes: int
    is_complete: bool = True
    is_durable: bool = True
    copies: int | None = None
    is_lost: bool = False
    is_forgotten: bool = False


class Store(ABC):
    """See the module. Names are relative, with "/" between parts. Any thread may call; every call ends in bounded time.

    All methods raise StoreUnavailable if the store does not answer (try again), StoreRefused if trying again would not help.

    Attributes:
        url: its address as people may see it (no passwords).
        copies_wanted: machines that are to hold each object in memory before it counts as archived; 1 elsewhere.
    """

    url: str
    copies_wanted: int = 1

    @abstractmethod
    def put(self, name: str, content: BinaryIO, nbytes: int) -> None:
        """Write an object of `nbytes` bytes that `content` gives from its position on; nothing of it is there if that fails,
        or a part that `stat` does not call complete, or one of another length. It may be read again (tell, seek).

        Raises:
            OSError: `content` ends early, or cannot be read.
        """

    @abstractmethod
    def get(self, name: str, into: BinaryIO) -> int:
        """Write an object's bytes into a file; gives how many.

        Raises:
            CorruptObject: there is none, or it ends early.
        """

    @abstractmethod
    def stat(self, name: str) -> ObjectStatus | None:
        """What the store says of an object; None if it has none of that name."""

    @abstractmethod
    def names(self, prefix: str) -> list[str]:
        """The names of all objects below a prefix (a folder), sorted."""

    @abstractmethod
    def delete(self, name: str) -> None:
        """Delete an object; nothing happens if there is none."""

    def demand_place(self) -> None:  # noqa: B027 - most are there, or do not answer
        """Check that the place itself is there: a disk that is not mounted looks like a store that is empty.

        Raises:
            StoreUnavailable: it is not.
        """

    def hasten(self, name: str) -> None:  # noqa: B027 - most forget no request
        """Ask once more that an object become durable, where that request can have been dropped. Whatever dies meanwhile, the
        object stays where it is found by its name."""

    def advice(self, problem: str) -> str:
        """What people can do about a problem with this store, by its words; nothing if nothing is known."""
        return ""

    def close(self) -> None:  # noqa: B027 - most have none
        """Let go of connections."""

    def __enter__(self) -> Store:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()
