"""DiskSpace on the disk for a checkpoint ahead of time, where the log behind the last one takes all the space."""

from __future__ import annotations

import logging
from collections.abc import Callable

from ...base.config import MIB
from ...base.errors import TranLogsError
from ...catalog import Catalog
from ...retention import RetentionPolicy
from ...retention.keep_policy import when_full

_log = logging.getLogger(__name__)
_GROWTH_MAX = 4  # an optimizer's state appears with the first steps: of Adam with amsgrad three times the weights


class DiskSpace:
    """A fresh checkpoint frees the log behind it, but needs room itself: so the log leaves that, and asks for one in time.

    Args:
        catalog: the journal's.
        retention: which checkpoints are kept. Where that frees nothing, nothing is left and nothing is asked for.
        is_held: whether nothing may be pruned now.
    """

    def __init__(self, catalog: Catalog, retention: RetentionPolicy, is_held: Callable[[], bool]) -> None:
        self._catalog, self._retention, self._is_held = catalog, retention, is_held
        self._snapshot_bytes = 0
        self._is_asked = self._has_told = False
        self._is_made = False  # by the next checkpoint that is published

    def expect(self, nbytes: int) -> None:
        """A snapshot will be so large."""
        self._snapshot_bytes = nbytes

    def is_in_the_log(self) -> bool:
        """Whether a fresh checkpoint would free log files."""
        return self._is_any("sealed")

    def _is_any(self, *states: str) -> bool:
        """Whether there is a log file in one of these states, and it may go."""
        return (when_full(self._retention) is not None and not self._is_held()
                and any(row.state in states for row in self._catalog.segments()))  # fmt: skip

    def bytes_for_a_checkpoint(self) -> int:
        """What fresh log files leave free, the first one aside. Called in the pipeline's thread."""
        if not self._is_any("ready", "open", "sealed"):
            return 0
        known = [row.nbytes * (1 if row.step else _GROWTH_MAX) for row in self._catalog.checkpoints()]
        return max([*known, self._snapshot_bytes]) * 17 // 16 + MIB if known else 0

    def ask(self) -> None:
        """No fresh log file can be made. Called in the pipeline's thread."""
        self._is_asked = True

    def is_asked(self) -> bool:
        """Whether a checkpoint is to be taken now, because that frees log files; asked for once."""
        try:
            is_asked = self._is_asked and self.is_in_the_log()
        except TranLogsError:
            return False
        if is_asked:
            self._is_asked, self._is_made = False, True
            _log.log(logging.INFO if self._has_told else logging.WARNING,
                     "%s: the log behind the last checkpoint fills the disk: the next one comes ahead of time, and so on. Free "
                     "space, or take checkpoints more often", self._catalog.path.parent)  # fmt: skip
            self._has_told = True
        return is_asked

    def is_made_now(self) -> bool:
        """Whether the checkpoint that is published now is one that was asked for: told once."""
        is_made, self._is_made = self._is_made, False
        return is_made
