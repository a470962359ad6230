"""What the two comparisons of computed units with their records have in common."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection
from typing import Any

from ...journal.record_writers import RecordContent
from ...log.layout import Payload
from ...log.reader import Record
from ...log.record_body import BodyEncoder
from ...log.record_format import Position
from ...recovery.history import LastUnit
from .comparison import Difference


class UnitComparison(ABC):
    """Compares what training computes again with the log. It is a writer of records that writes nothing.

    Args:
        unit: the recorded unit. Its files stay open until `close`.
        ignored: parts of the body of a boundary, and paths in them, that are not compared, since each process has its own.
        timed: prefix of the parts of a boundary in which numbers may be times that the script has measured.

    Attributes:
        difference: the first difference; None as long as there is none.
        is_over: True once the unit was computed to its end, or something differed.
        equal: position of the newest boundary that is equal; the one where recovery has landed, as long as there is none.
        seconds: the time that the comparison took.
    """

    def __init__(self, unit: LastUnit, ignored: Collection[str] = (), timed: str | None = None) -> None:
        self._ignored = ignored if isinstance(ignored, set) else set(ignored)  # a set may grow meanwhile
        self.unit, self._timed = unit, timed
        self.difference: Difference | None = None
        self.is_over = False
        self.equal: Position = unit.start
        self.seconds = 0.0
        self._encoder = BodyEncoder()

    @property
    def is_equal(self) -> bool:
        """True if the unit was computed to its end, and equals its record."""
        return self.is_over and self.difference is None

    @property
    @abstractmethod
    def end(self) -> Record:
        """The boundary that ends the recorded unit."""

    @property
    @abstractmethod
    def compared(self) -> int:
        """The number of steps that are equal."""

    def wants(self, step: int, passes: int) -> bool:
        """Return True if the boundary that comes now is a recorded one.

        Args:
            step: the newest step.
            passes: number of boundaries between that step and this one.
        """
        return True

    def read_ahead(self) -> None:  # noqa: B027
        """Read what is compared first in another thread, while the script goes to its loop and computes."""

    def ignore(self, paths: Collection[str]) -> None:
        """Do not compare these paths in the bodies of boundaries."""
        self._ignored.update(paths)

    def read_recorded(self, part: str) -> Any:
        """Return a part of the boundary that ends the unit; None if it has no such part."""
        return self.end.part(part)

    def fail(self, name: str, text: str) -> None:
        """End the comparison where it is, and note how it differs from the record, unless something differed before."""
        self.difference = self.difference or Difference(self._expected_step(), "order", name, text)
        self.is_over = True

    @abstractmethod
    def _expected_step(self) -> int:
        """Return the step of the record that comes next."""

    @abstractmethod
    def close(self) -> None:
        """Close the files of the recorded unit."""

    # The interface of a writer of records.

    @abstractmethod
    def begin(self, payload: Payload) -> Any:
        """Take the gradients of the next step. The step may still be dropped."""

    @abstractmethod
    def commit(self, record: Any, content: RecordContent) -> None:
        """Take the rest of a step."""

    @abstractmethod
    def append(self, payload: Payload, content: RecordContent) -> None:
        """Take a whole record."""
