"""What an integration implements, so that the core can bring its state back."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from ..checkpoints import Checkpoint
from ..log.entry import Entry


@dataclass(frozen=True, slots=True)
class Divergence:
    """The first step after whose redo the state differed from what the run had recorded."""

    step: int
    tensor: str


class Recoverable(Protocol):
    """The state of a run, in a framework's own objects."""

    def differences(self, checkpoint: Checkpoint) -> Sequence[str]:
        """How the state built now fails to fit the checkpoint, one sentence each; nothing is touched."""
        ...

    def restore(self, checkpoint: Checkpoint) -> None:
        """Set all state to the checkpoint's.

        Raises:
            CorruptCheckpoint: bytes are damaged; the state may be half set, and is set again from another checkpoint.
        """
        ...

    def redo(self, entries: Sequence[Entry], tick: Callable[[int], None]) -> Divergence | None:
        """Apply STEP and IMAGE entries in order, calling `tick(n)` as n of them are done.

        Raises:
            CorruptRecord: bytes are damaged; the state is then set again from a checkpoint.
        """
        ...

    def set_auxiliary(self, body: dict[str, Any]) -> None:
        """Set auxiliary state from the body of the boundary that was landed on."""
        ...

    def decode(self, entry: Entry) -> Any:
        """An entry's body with the framework's own tensors in it."""
        ...


class Spare(Protocol):
    """Copies of a journal's files that lie elsewhere."""

    def replace(self, name: str) -> str:
        """Put a sound copy of a segment (named by its file) or a checkpoint (by its folder) in its place.

        Returns:
            Where it came from, in words; "" if there is none.
        """
        ...
