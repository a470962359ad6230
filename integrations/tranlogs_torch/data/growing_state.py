"""State that is too large to be stored at each boundary, and that grows by a little between two: a replay buffer.

A boundary holds what was added since the boundary before, a checkpoint holds all of it. Recovery loads what the checkpoint
holds, and adds what each boundary after it holds, in order.
"""

from __future__ import annotations

from typing import Any, Protocol


class Growing(Protocol):
    """An object with such state."""

    def read_added(self) -> Any:
        """Return what was added since the last call, or since it was made or loaded."""
        ...

    def read_whole(self) -> Any:
        """Return all of it. Arrays may be views of live memory."""
        ...

    def load_whole(self, whole: Any) -> None:
        """Replace all of it."""
        ...

    def add(self, added: Any) -> None:
        """Add what a boundary holds."""
        ...


class Growth:
    """The growing state of a run.

    Attributes:
        members: by name.
    """

    def __init__(self) -> None:
        self.members: dict[str, Growing] = {}

    def read_added(self) -> dict[str, Any]:
        """Return what was added since the last boundary, by name."""
        return {name: member.read_added() for name, member in self.members.items()}

    def read_whole(self) -> dict[str, Any]:
        """Return all of it, by name."""
        return {name: member.read_whole() for name, member in self.members.items()}

    def load_whole(self, whole: dict[str, Any]) -> None:
        """Replace the state of those that a checkpoint holds."""
        for name, content in whole.items():
            if name in self.members:
                self.members[name].load_whole(content)

    def add(self, added: dict[str, Any]) -> None:
        """Add what a boundary holds."""
        for name, content in added.items():
            if name in self.members:
                self.members[name].add(content)
