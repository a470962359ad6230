"""Two processes that count in one catalog at the same time: `python catalog_child.py JOURNAL nothing|copied|deleted`.

The first one begins a transaction and starts the second; each adds one to `committed`. Before that, something happens to LMDB's
lock file. Prints the sum, which is 12 if the second one has waited for the first.
"""

from __future__ import annotations

import select
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

from tranlogs.catalog import Catalog, Tables, Watermarks

_SECONDS = 0.5  # for the second process to go in beside the first one, if nothing stops it


def _count(tables: Tables) -> None:
    found = tables.get("watermarks", Watermarks) or Watermarks()
    tables.put("watermarks", replace(found, committed=found.committed + 1))


def first(journal: Path, what: str) -> None:
    journal.mkdir()
    catalog = Catalog.open(journal, writable=True)
    with catalog.transaction() as tables:
        tables.put("watermarks", Watermarks(committed=10))
    if what == "copied":
        shutil.copytree(journal, journal.with_name("copy"))
    elif what == "deleted":
        (journal / "catalog.lmdb-lock").unlink()
    with catalog.transaction() as tables:
        found = tables.get("watermarks", Watermarks)
        assert found is not None
        command = [sys.executable, __file__, str(journal)]
        with_second = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert with_second.stdout is not None
        assert with_second.stdout.readline() == "opened\n"
        select.select([with_second.stdout], [], [], _SECONDS)
        tables.put("watermarks", replace(found, committed=found.committed + 1))
    with_second.communicate()
    print(catalog.watermarks().committed)


def second(journal: Path) -> None:
    catalog = Catalog.open(journal, writable=True)
    print("opened", flush=True)
    with catalog.transaction() as tables:
        _count(tables)
    print("done", flush=True)


if __name__ == "__main__":
    if len(sys.argv) > 2:
        first(Path(sys.argv[1]), sys.argv[2])
    else:
        second(Path(sys.argv[1]))
