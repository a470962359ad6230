"""The fits of a run that ended before the present one."""

from __future__ import annotations

import logging
from typing import Any

from tranlogs.base.errors import DataError
from tranlogs.records import Checkpoint
from tranlogs.training import Recovered

from ..run.newest_checkpoint import read_meta
from ..run.run_parts import RunParts
from ..settings import KeepEnds

_log = logging.getLogger("tranlogs")


def identity_of(entries: list[dict[str, Any]], number: int) -> dict[str, Any]:
    """Return the identity of an earlier fit. Its entry has what differs from the fit before."""
    found: dict[str, Any] = {}
    for entry in entries[: number + 1]:
        found |= entry["identity"]
    return found


class EarlierFits:
    """Record of the finished fits of a run: for each its history, its epochs, its identity, and the step at which it ended.

    Args:
        parts: of the run.
        retention: keeps the checkpoints at the ends of fits.

    Attributes:
        entries: one for each fit. The list is replaced, never changed. `epochs` is None if the fit was stopped.
        deviation: how the fit before the present one deviated from the run without a crash; None if it did not.
    """

    def __init__(self, parts: RunParts, retention: KeepEnds) -> None:
        self._parts, self._retention = parts, retention
        self.entries: list[dict[str, Any]] = []
        self.deviation: tuple[str, bool] | None = None

    def read(self, boundary: dict[str, Any], *, keeps_checkpoints: bool) -> None:
        """Take them from the body of a boundary."""
        self.entries = boundary.get("earlier", [])
        if keeps_checkpoints:
            self._keep_checkpoints()

    def begin_next(self, body: dict[str, Any], end: Recovered) -> int:
        """Begin the next fit of the run, with the model as the script has left it.

        Args:
            body: of the boundary at which the run's log ends.
            end: of the log.

        Returns:
            The batches of the run so far.
        """
        before = body.get("earlier", [])
        known = identity_of(before, len(before) - 1)
        was_stopped = body["has_stopped"] or not body["position"]["is_finished"]
        entry = {
            "history": body.get("callback.History", {}),
            "epochs": None if was_stopped else body["position"]["epoch"],
            "step": end.position.step,
            "identity": {key: value for key, value in body["identity"].items() if known.get(key, self) != value},
        }
        self.entries, self.deviation = [*before, entry], body.get("deviation")
        self._keep_checkpoints()
        return int(body["position"]["total"])

    def restore_end(self, number: int) -> tuple[bool, dict[str, Any]]:
        """Give the model the weights with which a fit of the run ended, for the script's code after the fit.

        Returns:
            False if no checkpoint has them; and the body of the boundary at which the fit ended, which then has the history
            alone.
        """
        journal, has_end = self._parts.journal, False
        entry = self.entries[number] if number < len(self.entries) else {"step": -1, "history": {}}
        body: dict[str, Any] = {"callback.History": entry["history"]}
        rows = [row for row in journal.catalog.checkpoints() if row.step == entry["step"]]
        for row in sorted(rows, key=lambda row: row.sequence):  # the last one of the fit is that of its end
            path = journal.paths.checkpoints / row.name
            try:
                meta = read_meta(path)
                if meta["boundary"]["position"]["fit"] == number:
                    with Checkpoint(path) as checkpoint:
                        has_end = self._parts.state.restore_weights(checkpoint, meta)
                    body = meta["boundary"]
            except DataError as error:
                _log.warning("%s", error)
        return has_end, body

    def _keep_checkpoints(self) -> None:
        self._retention.steps.update(fit["step"] for fit in self.entries)
