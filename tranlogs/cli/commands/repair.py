"""`tranlogs repair`: a damaged catalog is rebuilt, and damaged files are replaced by the store's copies."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from ...base.errors import CorruptCatalog
from ...catalog import Catalog, Tables
from ...journal import JournalPaths
from ...journal.ownership.writer_lock import OwnerLock
from ...rebuild_catalog import rebuild_catalog
from ...recovery.progress_bar import progress_bar
from ...recovery.recover import Progress
from ...shipping import StoreCopies
from ...verify import Problem
from ..options import FINE, PROBLEM, Json, Run, command
from ..output.json_values import print_json
from ..reading.find_journals import find_journals
from .verify import check_journal

Url = Annotated[
    str | None,
    typer.Option("--store", metavar="URL", help="Store with intact copies (default: the one to which the run is shipped)."),
]
_NOTHING = "the catalog and all files that it lists are intact; nothing was done (--force rebuilds the catalog anyway)"


@command
def repair(
    run: Run,
    force: Annotated[bool, typer.Option("--force", help="Rebuild the catalog even if it is intact.")] = False,
    store: Url = None,
    as_json: Json = False,
) -> int:
    """Repair damaged files from intact ones or from a store.

    A damaged catalog is rebuilt from segments and checkpoints, and kept under another name. A damaged segment or checkpoint is
    replaced by the store's copy. No process may be training on the run.
    """
    with progress_bar() as progress:
        done = [_repair(paths, force, store, progress) for paths in find_journals(run)]
    if as_json:
        print_json({"run": run, "ranks": done})
    else:
        for about in done:
            for line in [*about["done"], *about["remaining"]] or [_NOTHING]:
                typer.echo(f"{about['folder']}: {line}")
    return PROBLEM if any(about["remaining"] for about in done) else FINE


def _repair(paths: JournalPaths, force: bool, url: str | None, progress: Progress | None) -> dict[str, Any]:
    lock = OwnerLock(paths.folder)
    try:
        problem = _find_problem(paths.folder)
        done = rebuild_catalog(paths.folder) if force or problem is not None else []
        found = check_journal(paths, progress).problems
        if replaced := _replace(paths, found, url):
            found = check_journal(paths, progress).problems
        return {"folder": paths.folder, "problem": problem, "done": done + replaced, "remaining": [str(one) for one in found]}
    finally:
        lock.release()


def _replace(paths: JournalPaths, problems: Sequence[Problem], url: str | None) -> list[str]:
    """Replace damaged segments and checkpoints by the store's copies; return one sentence for each."""
    spare, done = StoreCopies(paths, url), []
    for path in dict.fromkeys(one.path for one in problems):
        parts = path.relative_to(paths.folder).parts  # log/FILE, checkpoints/NAME/FILE
        if len(parts) > 1 and (source := spare.replace(parts[1])):
            done.append(f"{parts[1]} was damaged, and was replaced by the copy in {source}")
    return done


def _find_problem(folder: Path) -> str | None:
    """Read every row of a catalog; return what is wrong with it."""
    try:
        catalog = Catalog.open(folder)
        try:
            catalog.read(Tables.check)
            return "the run's row is missing" if catalog.run() is None else None
        finally:
            catalog.close()
    except CorruptCatalog as error:
        return str(error)
