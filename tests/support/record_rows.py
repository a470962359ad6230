"""The rows of records in a catalog, as tests change them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from tranlogs.catalog import Catalog


def change_rows(journal: Path, change: Callable[[str, bytes], bytes | None]) -> None:
    """Replace the value of each row of records by what `change` returns, with a checksum that fits; None deletes the row."""
    catalog = Catalog.open(journal, writable=True)
    try:
        with catalog.transaction() as tables:
            for key, value in list(tables.values("record/")):
                changed = change(key, value)
                if changed is None:
                    tables.delete(key)
                else:
                    tables.put_value(key, changed)
    finally:
        catalog.close()


def forget_records(journal: Path) -> None:
    """Delete all rows of records: nothing but the segments holds a copy of their heads then."""
    change_rows(journal, lambda key, value: None)
