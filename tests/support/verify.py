"""The checker that users run, on all journals of a run."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from tranlogs.base.errors import NotARun
from tranlogs.verify import Finding, Problem, verify_journal


def verify_run(run: str | os.PathLike[str]) -> Iterator[Finding]:
    """Check all journals of a run.

    Raises:
        NotARun: the folder holds no journal, so that nothing would be checked.
    """
    folders = sorted(path for path in Path(run).glob("rank*") if path.is_dir())
    if not folders:
        raise NotARun(Path(run))
    for folder in folders:
        yield from verify_journal(folder)


def problems_of(run: str | os.PathLike[str]) -> list[Problem]:
    """Return what is wrong with a run."""
    return [finding for finding in verify_run(run) if isinstance(finding, Problem)]
