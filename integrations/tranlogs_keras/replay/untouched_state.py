"""A state that recovery leaves as it is."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from tranlogs.records import Checkpoint, Entry
from tranlogs.training import Divergence

from ..backends import arrays


class UntouchedState:
    """Recovery of a run's place and of its last boundary only (`tranlogs.recovery.Recoverable`).

    Attributes:
        body: the body of the boundary that recovery has landed on.
    """

    def __init__(self) -> None:
        self.body: dict[str, Any] = {}

    def differences(self, checkpoint: Checkpoint) -> Sequence[str]:
        return []

    def restore(self, checkpoint: Checkpoint) -> None:
        self.set_auxiliary(checkpoint.meta(make_array=arrays.from_array)["boundary"])

    def redo(self, entries: Sequence[Entry], tick: Callable[[int], None]) -> Divergence | None:
        return None

    def set_auxiliary(self, body: dict[str, Any]) -> None:
        self.body = body

    def decode(self, entry: Entry) -> Any:
        return entry.body(make_array=arrays.from_array)

    def decode_boundary(self, entry: Entry) -> dict[str, Any]:
        return entry.boundary(make_array=arrays.from_array)
