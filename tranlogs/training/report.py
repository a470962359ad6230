"""The report of a recovery, kept up to date while training goes on."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

from ..recovery import RecoveryReport

_log = logging.getLogger("tranlogs")


class LiveReport:
    """What `recover()` found, and the caveats that became known since.

    A caveat is something that keeps a resume from being known as exact; if it is wrong for certain, the resume is not exact.

    Args:
        run: folder of the run.

    Attributes:
        current: the report as it is now; None before the recovery.
        caveats: texts, each with True if what it says makes the resume wrong.
    """

    def __init__(self, run: Path) -> None:
        self._run = run
        self.current: RecoveryReport | None = None
        self.caveats: list[tuple[str, bool]] = []

    @property
    def texts(self) -> list[str]:
        """The caveats' texts."""
        return [text for text, _ in self.caveats]

    def warn(self, text: str, is_wrong: bool) -> None:
        """Log a caveat, and add it to the report."""
        _log.warning("%s: %s", self._run, text)
        self.caveats.append((text, is_wrong))
        report = self.current or RecoveryReport()
        exact = False if is_wrong else None if report.exact else report.exact
        self.current = replace(report, exact=exact, notes=tuple(dict.fromkeys([*report.notes, text])))

    def verdict(self, exact: bool | None, others: Iterable[str]) -> bool | None:
        """Return whether the recovery is exact, in view of the caveats.

        Args:
            exact: what comparing the replayed steps has found.
            others: further reasons for which it cannot be told.
        """
        if any(is_wrong for _, is_wrong in self.caveats):
            return False
        return None if exact and (self.caveats or any(True for _ in others)) else exact
