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

import io
import json
import os
import re
import sys
import time
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import Any, Protocol

import xxhash

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
