"""Protocols through which the core recovers a run: the framework's state, and a source of sound copies of files."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from ..checkpoints import Checkpoint
from ..log.reader import Record


@dataclass(frozen=True, slots=True)
class Divergence:
    """The first redone step after which the state differs from what the run recorded."""

    step: int
    tensor: str


class Recoverable(Protocol):
    """The state of a run, in a framework's own objects."""

    def differences(self, checkpoint: Checkpoint) -> Sequence[str]:
        """Return how the present state fails to fit a checkpoint, one sentence each. Nothing is changed."""
        ...

    def restore(self, checkpoint: Checkpoint) -> None:
        """Set all state to that of a checkpoint.

        Raises:
            CorruptCheckpoint: the checkpoint is damaged. The state may be set in part; recovery restores another checkpoint.
        """
        ...

    def redo(self, records: Sequence[Record], tick: Callable[[int], None]) -> Divergence | None:
        """Apply records that are steps or after-images in order, and call `tick(n)` whenever n of them are done.

        Raises:
            CorruptRecord: a record is damaged. Recovery restores a checkpoint again.
        """
        ...

    def set_auxiliary(self, body: dict[str, Any]) -> None:
        """Set auxiliary state from the body of the boundary at which recovery ends."""
        ...

    def decode(self, record: Record) -> Any:
        """Return the body of a step or an after-image, with the framework's own tensors in it."""
        ...

    def decode_boundary(self, record: Record) -> dict[str, Any]:
        """Return the body of a boundary, with the framework's own tensors in it."""
        ...


class ReplacementSource(Protocol):
    """Source of sound copies of a journal's files, such as a store."""

    def replace(self, name: str) -> str:
        """Replace a segment, given the name of its file, or a checkpoint, given the name of its folder, by a sound copy.

        Returns:
            Where the copy came from, in words; "" if there is none.
        """
        ...
