"""Disk space for the next checkpoint, if the log after the last checkpoint fills the disk.

A checkpoint makes the log before it unnecessary and frees its space, but a checkpoint needs space itself. The log therefore
leaves room for a checkpoint. If no new segment can be created, the log requests a checkpoint before one is due.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from ...base.config import MIB
from ...base.errors import TranLogsError
from ...catalog import Catalog
from ...retention import RetentionPolicy
from ...retention.keep_policy import when_full

_log = logging.getLogger(__name__)
_GROWTH_MAX = 4  # The first steps create the optimizer's state: Adam with amsgrad adds three times the weights.


class DiskSpace:
    """The space that a journal leaves free for a checkpoint, and the request for a checkpoint that frees space.

    Args:
        catalog: the journal's.
        retention: which checkpoints are kept. If that frees no log, no space is left and no checkpoint is requested.
        keeps_all: returns True while nothing may be pruned.

    Attributes:
        has_warned: True once the warning about a full disk was logged.
    """

    def __init__(self, catalog: Catalog, retention: RetentionPolicy, keeps_all: Callable[[], bool]) -> None:
        self._catalog, self._retention, self._keeps_all = catalog, retention, keeps_all
        self._snapshot_bytes = 0
        self._is_requested = False
        self._is_taking = False  # the next checkpoint to be published was requested
        self.has_warned = False

    def expect_snapshot(self, nbytes: int) -> None:
        """Note how large a snapshot will be."""
        self._snapshot_bytes = nbytes

    def has_sealed_segments(self) -> bool:
        """Return True if a checkpoint would free sealed segments."""
        return self._may_free("sealed")

    def _may_free(self, *states: str) -> bool:
        """Return True if there is a segment in one of these states, and it may be pruned."""
        if when_full(self._retention) is None or self._keeps_all():
            return False
        return any(row.state in states for row in self._catalog.segments())

    def bytes_for_checkpoint(self) -> int:
        """Return how much space new segments, except the first one, must leave free. Called in the preallocator's thread."""
        if not self._may_free("ready", "open", "sealed"):
            return 0
        known = [row.nbytes * (1 if row.step else _GROWTH_MAX) for row in self._catalog.checkpoints()]
        return max([*known, self._snapshot_bytes]) * 17 // 16 + MIB if known else 0

    def request_checkpoint(self) -> None:
        """Request a checkpoint, because no new segment can be created. Called in the preallocator's thread."""
        self._is_requested = True

    def take_request(self) -> bool:
        """Return True, once for each request, if a checkpoint must be taken now to free segments."""
        try:
            is_requested = self._is_requested and self.has_sealed_segments()
        except TranLogsError:
            return False
        if is_requested:
            self._is_requested, self._is_taking = False, True
            _log.log(
                logging.INFO if self.has_warned else logging.WARNING,
                "%s: the log after the last checkpoint fills the disk: checkpoints are taken before they are due. Free "
                "disk space, or take checkpoints more often",
                self._catalog.path.parent,
            )
            self.has_warned = True
        return is_requested

    def take_published(self) -> bool:
        """Return True, once, if the checkpoint that was just published had been requested."""
        is_taking, self._is_taking = self._is_taking, False
        return is_taking
