"""A change of a catalog that any process can ask the owner of the journal for.

Only the owner writes the catalog. Another process decides on a snapshot and states its decision as a `Change`: the rows to
write and to delete, and the rows on which the decision stands. The owner makes the change in one transaction, unless one of
those rows is another by then. So the effect is that of one transaction of the process that asks.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from .rows import TimelineRow, Watermarks
from .tables import Tables


@dataclass(slots=True)
class Change:
    """A change of rows, and the conditions under which it is made.

    Attributes:
        puts: the rows to write, by key. A row is a dataclass, or the content of a request.
        deletes: the keys of the rows to delete.
        expects: rows that must be as they are here, by key; None for a row that must not exist.
        timelines: the numbers of all timelines that must exist; None if they do not matter.
        marks: `archived` and `persisted`, to be set in the row of watermarks; None to leave them.
    """

    puts: dict[str, Any] = field(default_factory=dict)
    deletes: list[str] = field(default_factory=list)
    expects: dict[str, Any] = field(default_factory=dict)
    timelines: list[int] | None = None
    marks: tuple[int, int] | None = None

    def __bool__(self) -> bool:
        return bool(self.puts or self.deletes or self.marks)

    def apply(self, tables: Tables) -> bool:
        """Make the change; return False, and change nothing, if a condition does not hold.

        Raises:
            CorruptCatalog: a row is damaged.
        """
        if any(tables.content(key) != content_of(row) for key, row in self.expects.items()):
            return False
        if self.timelines is not None and self.timelines != [row.number for row in tables.rows("timeline/", TimelineRow)]:
            return False
        for key in self.deletes:
            tables.delete(key)
        for key, row in self.puts.items():
            tables.put_content(key, content_of(row) or {})
        if self.marks is not None:
            archived, persisted = self.marks
            before = tables.get("watermarks", Watermarks) or Watermarks()
            # If the trainer died, `committed` in the catalog may be too low. An archived step was committed.
            committed, synced = max(before.committed, archived), max(before.synced, persisted)
            after = replace(before, committed=committed, synced=synced, archived=archived, persisted=persisted)
            tables.put("watermarks", after)
        return True

    def is_made(self, tables: Tables) -> bool:
        """Return True if the rows are as the change makes them."""
        marks = tables.get("watermarks", Watermarks) or Watermarks()
        return (
            all(tables.content(key) == content_of(row) for key, row in self.puts.items())
            and all(tables.content(key) is None for key in self.deletes)
            and self.marks in (None, (marks.archived, marks.persisted))
        )


def content_of(row: Any) -> dict[str, Any] | None:
    """Return a row as JSON has it, so that contents can be compared."""
    if row is None:
        return None
    content: dict[str, Any] = json.loads(json.dumps(row if isinstance(row, dict) else asdict(row)))
    return content
