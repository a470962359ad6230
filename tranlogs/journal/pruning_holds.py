"""Holds keep a journal from being pruned: requests in its catalog, which monitors read, and a flag for this process."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from ..base.errors import SUSPENDING_ERRORS, RecoveryError
from ..catalog import Catalog, CommonRow, PrunedRow, Tables

_log = logging.getLogger("tranlogs")
_KEY = "request/hold"


class PruningHolds:
    """The holds of one journal that this process writes.

    A hold that cannot be written because the disk is full or fails is no danger: a monitor cannot change the catalog then.

    Attributes:
        keeps_all: True while this process, too, must prune nothing.
    """

    def __init__(self, catalog: Catalog, folder: Path, pid: int) -> None:
        self._catalog, self._folder, self._pid = catalog, folder, pid
        self._pruned_before: PrunedRow | None = catalog.read(lambda tables: tables.get("pruned", PrunedRow))
        self._common: CommonRow | None = None
        self._is_common_written = False
        self.keeps_all = False

    def hold(self) -> None:
        """Ask monitors to prune nothing until this process begins to write."""
        with suppress(*SUSPENDING_ERRORS), self._catalog.transaction() as tables:
            self._pruned_before = tables.get("pruned", PrunedRow)
            self._put(tables)

    def hold_start_point(self) -> None:
        """Ask monitors to prune nothing where recovery has landed: only this process knows that it continues there.

        Raises:
            RecoveryError: a monitor has pruned since the journal was opened or held. What it removed may be what this process
                continues from.
        """
        try:
            with self._catalog.transaction() as tables:
                has_pruned = tables.get("pruned", PrunedRow) != self._pruned_before
                self._put(tables)
        except SUSPENDING_ERRORS as error:
            _log.debug("%s: could not write the hold to the catalog: %s", self._folder, error)
            return
        if has_pruned:
            raise RecoveryError(f"{self._folder}: a monitor pruned this journal while it was being recovered. Start again")

    def _put(self, tables: Tables) -> None:
        if not (tables.request("hold") or {}).get("outlives"):  # A hold that outlives its process must not be weakened.
            tables.put_request("hold", {"pid": self._pid})

    @contextmanager
    def hold_during(self) -> Iterator[None]:
        """Let nothing be pruned inside the block. If the block fails, the hold lasts until a process continues the run."""
        self.keeps_all = True
        with self._catalog.transaction() as tables:
            tables.put_request("hold", {"pid": self._pid, "outlives": True})
        yield
        self.keeps_all = False
        with suppress(*SUSPENDING_ERRORS), self._catalog.transaction() as tables:
            tables.delete(_KEY)

    def release(self, tables: Tables) -> None:
        """Delete this process's hold: from this transaction on, the catalog records where the process continues."""
        if not self.keeps_all:
            tables.delete(_KEY)

    def release_stale(self) -> None:
        """Delete a hold that was left by a process that died."""
        if self._catalog.read(lambda tables: tables.request("hold")) is not None:
            with self._catalog.transaction() as tables:
                tables.delete(_KEY)

    def set_common_step(self, step: int, world: int) -> None:
        """Protect what recovery from the newest checkpoint up to `step` needs.

        Args:
            step: all ranks have a checkpoint of this step or a newer one, and may go back there.
        """
        common = CommonRow(step, world)
        if common != self._common or not self._is_common_written:
            self._common, self._is_common_written = common, False
            with suppress(*SUSPENDING_ERRORS):  # a full disk: the next call tries again
                with self._catalog.transaction() as tables:
                    tables.put("common", common)
                self._is_common_written = True

    def forget_former_group(self) -> None:
        """Delete the common step of a group that this process is not part of."""
        if self._common is None and self._catalog.read(lambda tables: tables.get("common", CommonRow)) is not None:
            with self._catalog.transaction() as tables:
                tables.delete("common")
