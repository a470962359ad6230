"""A process that `tranlogs rehearse` started: what it is ordered to do, and how it reports.

The variable TRANLOGS_REHEARSAL names a folder with two files. `orders.json` is written before the process starts. To
`events.jsonl` the process appends one JSON object a line, each by one system call:

    open    a run was opened: {"run": name of its folder, "given": the folder that the script gives, "rank"}
    begin   recovery has ended: {"step"}
    recheck a unit was computed again, and compared with its record: {"step", "stdout"}
    unit    a boundary is committed: {"step", "stdout": size of the standard output}, and where the loop has data {"epoch",
            "batches" of an epoch if they are known}
    report  the report of a recovery is new, or has changed: {"report"}
    closed  the script has closed the run: {"step"}
    dying   the process kills itself now
    end     the ordered unit is committed; the process waits to be killed: {"step"}

Each event also has "rank" and "time". Runs lie in a folder of the rehearsal, keep their whole log, and are neither shipped nor
watched. The script cannot see the difference, and cannot catch its end: the process waits inside a boundary.
"""

from __future__ import annotations

import gc
import io
import json
import os
import re
import signal
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import Any, Protocol

import xxhash

from ..checkpoints import Snapshot
from ..journal.journal import Journal

VARIABLE = "TRANLOGS_REHEARSAL"
ORDERS, EVENTS = "orders.json", "events.jsonl"


@dataclass(frozen=True, slots=True)
class Orders:
    """Orders to one process of a rehearsal.

    Attributes:
        runs: folder for the runs of the script.
        units: number of units after which the process ends; None for no limit.
        step: the step at whose boundary the process ends; None for no limit.
        die_at: the process dies by SIGKILL after the first boundary at this step or a later one; None: it does not.
        die_after: seconds from that boundary to the kill, which comes before the next boundary commits in any case.
        die_rank: rank of the process that dies.
    """

    runs: str
    units: int | None = None
    step: int | None = None
    die_at: int | None = None
    die_after: float = 0.0
    die_rank: int = 0

    def write(self, folder: Path) -> None:
        """Write the orders into the folder that the variable is going to name."""
        (folder / ORDERS).write_text(json.dumps(asdict(self)))

    @classmethod
    def read(cls, folder: Path) -> Orders:
        """Read the orders."""
        return cls(**json.loads((folder / ORDERS).read_text()))


class WatchedReport(Protocol):
    """The report of a recovery, which changes while training continues."""

    @property
    def current(self) -> Any:
        """Return the report as it is now; None before the recovery."""
        ...


class Rehearsal:
    """The rehearsal that this process belongs to.

    Args:
        folder: the folder that TRANLOGS_REHEARSAL names.
    """

    def __init__(self, folder: Path) -> None:
        self.folder, self.orders = folder, Orders.read(folder)
        self._reports: list[WatchedReport] = []
        self._sent: dict[int, Any] = {}

    def redirect(self, given_run: Path) -> Path:
        """Return the folder of the rehearsal that stands for the run's."""
        given = os.path.relpath(given_run)
        name = re.sub(r"[^\w.-]+", "-", given).strip("-.")[-60:]
        return Path(self.orders.runs, f"{name}-{xxhash.xxh3_64_hexdigest(given.encode())[:6]}")

    def watch(self, report: WatchedReport) -> None:
        """Send the report of a recovery at each boundary where it has changed."""
        self._reports.append(report)

    def send(self, event: str, rank: int, **about: Any) -> None:
        """Append an event."""
        line = json.dumps({"event": event, "rank": rank, "pid": os.getpid(), "time": time.time(), **about}) + "\n"
        file = os.open(self.folder / EVENTS, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        try:
            os.write(file, line.encode())
        finally:
            os.close(file)

    def send_reports(self, rank: int) -> None:
        """Append the reports of recoveries that have changed."""
        for number, report in enumerate(self._reports):
            found = report.current
            if found is not None and found != self._sent.get(number):
                self._sent[number] = found
                self.send("report", rank, number=number, report=found.as_dict())


def current() -> Rehearsal | None:
    """Return the rehearsal that this process belongs to; None if there is none."""
    folder = os.environ.get(VARIABLE)
    return _read(folder) if folder else None


def require() -> Rehearsal:
    """Return the rehearsal that this process belongs to."""
    found = current()
    assert found is not None
    return found


@cache
def _read(folder: str) -> Rehearsal:
    _print_whole_lines()
    return Rehearsal(Path(folder))


def _print_whole_lines() -> None:
    """Write each printed line by one system call.

    Without a buffer `print` writes a line and its end by two, and the lines of several processes, which share one file, are
    mixed. A line is not held back: what is printed before a kill is there.
    """
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(line_buffering=True, write_through=False)


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
