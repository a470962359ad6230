"""`tranlogs repair`: a new catalog from what segments and checkpoints say of themselves."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from .command import FINE, Json, Run, command, show_json


@command
def repair(
    run: Run,
    force: Annotated[bool, typer.Option("--force", help="Rebuild the catalog even if it is sound.")] = False,
    as_json: Json = False,
) -> int:
    """Rebuild a damaged or missing catalog. The damaged file is kept; nobody may be training on the run."""
    from .runs import journals_of

    done = [_repair(paths.folder, force=force) for paths in journals_of(run)]
    if as_json:
        show_json({"run": run, "ranks": done})
        return FINE
    for about in done:
        for line in about["done"] or ["the catalog is sound; nothing was done (--force rebuilds it anyway)"]:
            typer.echo(f"{about['folder']}: {line}")
    return FINE


def _repair(folder: Path, *, force: bool) -> dict[str, Any]:
    from ..journal.owner import OwnerLock
    from ..rebuild import rebuild_catalog

    lock = OwnerLock(folder)
    try:
        problem = _problem_of(folder)
        done = rebuild_catalog(folder) if force or problem is not None else []
        return {"folder": folder, "problem": problem, "done": done}
    finally:
        lock.release()


def _problem_of(folder: Path) -> str | None:
    """What is wrong with a catalog: every row is read."""
    from ..catalog import Catalog, Tables
    from ..errors import CorruptCatalog

    try:
        catalog = Catalog.open(folder)
        try:
            catalog.read(Tables.check)
            return "the run's row is missing" if catalog.run() is None else None
        finally:
            catalog.close()
    except CorruptCatalog as error:
        return str(error)
