"""The journal of a process that belongs to a rehearsal: it reports each unit, dies where it is ordered to, and ends the run."""

from __future__ import annotations

import gc
import io
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from ...checkpoints import Snapshot
from ...journal.journal import Journal
from .orders import Orders, Rehearsal, current, require

_WAIT_SECONDS_MAX = 120.0  # for the rehearsal to end the process
_POLL_SECONDS = 0.05


class RehearsedJournal(Journal):
    """The journal of a process that belongs to a rehearsal."""

    _units = 0
    _last_step: int | None = None
    _has_begun = _is_dying = _is_over = False

    def boundary(self, body: dict[str, Any], snapshot: Callable[[], Snapshot], **options: Any) -> None:
        """Commit the unit as the journal does. At the ordered unit, take a checkpoint and wait to be killed."""
        rehearsal, rank = require(), self.run.rank
        if not self.is_writer:
            return
        if self._recheck_writer is not None:
            super().boundary(body, snapshot, **options)
            rehearsal.send("recheck", rank, run=self.paths.folder.parent.name, step=self.step, stdout=_stdout_bytes())
            return
        if self._is_over:  # recovery has landed on the ordered unit: the process before this one died after it
            rehearsal.send_reports(rank)
            self._wait_for_the_end()
        if self.step != self._last_step:
            self._units, self._last_step = self._units + 1, self.step
        if self._is_dying:  # the kill is late: it belongs into the unit that ends here
            self._die()
        is_end = self._is_over = self._is_end(rehearsal.orders)
        if is_end:
            self.wait_checkpoint()  # one that is being written would keep the next from being taken
            options["checkpoint"] = True
        super().boundary(body, snapshot, **options)
        rehearsal.send_reports(rank)
        run, place = self.paths.folder.parent.name, find_place(body)
        rehearsal.send("unit", rank, run=run, step=self.step, stdout=_stdout_bytes(), **place)
        if is_end:
            self.wait_checkpoint()
            self.wait_synced()
            self._wait_for_the_end()
        self._die_if_ordered(rehearsal)

    def checkpoint(self, snapshot: Snapshot, *, wait: bool = False) -> bool:
        """Take a checkpoint; the first one is where the loop begins."""
        done = super().checkpoint(snapshot, wait=wait)
        self._send_begin()
        return done

    def continue_from(self, *arguments: Any, **options: Any) -> None:
        """Set the position where recovery ended: it is where the loop begins."""
        super().continue_from(*arguments, **options)
        self._send_begin()
        ordered = require().orders.step
        self._is_over = ordered is not None and self.step >= ordered

    def _close_parts(self) -> bool:
        rehearsal = require()
        rehearsal.send_reports(self.run.rank)
        has_closed = super()._close_parts()
        rehearsal.send("closed", self.run.rank, run=self.paths.folder.parent.name, step=self.step)
        return has_closed

    def _wait_for_the_end(self) -> None:
        """Report that the ordered unit is committed, and wait until the rehearsal kills this process."""
        _flush_files()
        require().send("end", self.run.rank, run=self.paths.folder.parent.name, step=self.step, is_suspended=self.is_suspended)
        _wait_to_be_killed(require().folder)

    def _send_begin(self) -> None:
        if not self._has_begun:
            self._has_begun, self._last_step = True, self.step
            run = self.paths.folder.parent.name
            require().send("begin", self.run.rank, run=run, step=self.step, stdout=_stdout_bytes())

    def _is_end(self, orders: Orders) -> bool:
        if orders.units is not None and self._units >= orders.units:
            return True
        return orders.step is not None and self.step >= orders.step

    def _die(self) -> None:
        if not self._is_over:  # else it is killed anyway
            require().send("dying", self.run.rank)
            os.kill(os.getpid(), signal.SIGKILL)

    def _die_if_ordered(self, rehearsal: Rehearsal) -> None:
        orders = rehearsal.orders
        if self._is_dying or orders.die_at is None or self.step < orders.die_at or self.run.rank != orders.die_rank:
            return
        self._is_dying = True
        timer = threading.Timer(orders.die_after, self._die)
        timer.daemon = True
        timer.start()


def open_journal(run: Path, rank: int, given: dict[str, Any]) -> Journal:
    """Open the journal of a run, as the rehearsal has it if there is one.

    Args:
        run: folder of the run.
        rank: rank of this process.
        given: further arguments of `Journal.open`.
    """
    rehearsal = current()
    if rehearsal is None:
        return Journal.open(run, rank=rank, **given)
    journal = RehearsedJournal.open(run, rank=rank, **given)
    rehearsal.send("open", rank, run=run.name)
    return journal


def find_place(body: dict[str, Any]) -> dict[str, int]:
    """Return the epoch, and the batches of one where they are known, of a boundary; nothing if its loop has no data."""
    position = body.get("position")
    if isinstance(position, dict) and position.get("total"):
        return {"epoch": position["epoch"]}
    for data in body.get("data", {}).values() if isinstance(body.get("data"), dict) else ():
        if isinstance(data, dict) and data.get("taken"):
            length = data.get("length")
            return {"epoch": data["epoch"], **({"batches": length} if length else {})}
    return {}


def _wait_to_be_killed(folder: Path) -> None:
    """Wait until the rehearsal kills this process; die by SIGKILL if it does not."""
    started = time.monotonic()
    while folder.exists() and time.monotonic() - started < _WAIT_SECONDS_MAX:
        time.sleep(_POLL_SECONDS)
    os.kill(os.getpid(), signal.SIGKILL)


def _stdout_bytes() -> int:
    """Return how much this process, or those that share its standard output, have printed."""
    with suppress(OSError, ValueError, AttributeError):
        sys.stdout.flush()
    with suppress(OSError):
        return os.fstat(1).st_size
    return 0


def _flush_files() -> None:
    """Write out what Python's files still buffer, so that files can be compared where the rehearsal ends."""
    for thing in gc.get_objects():
        if issubclass(type(thing), (io.BufferedWriter, io.TextIOWrapper)) and not thing.closed:
            with suppress(OSError, ValueError, RuntimeError):
                thing.flush()
