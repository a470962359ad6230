"""One life of a script: a process that is started, followed by what it reports, and ended with all that it has started."""

from __future__ import annotations

import json
import os
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from ...training.rehearsed_process.orders import EVENTS, VARIABLE, Orders
from .tracker import ProcessTracker, describe
from .working_folder import WorkingFolder, count_bytes

_POLL_SECONDS = 0.01
_LOOK_SECONDS = 0.25  # between two looks at the disk and at open files
_SCRATCH_CHARS_MAX = 50  # The path of a socket in a temporary folder has at most 107 bytes.
_LEFT_SECONDS = 2.0  # for processes that end soon after the script has

Event = dict[str, Any]
Ending = Literal["end", "died", "killed", "exited", "daemon", "time", "disk"]


@dataclass(slots=True)
class Limits:
    """Limits of the whole rehearsal.

    Attributes:
        deadline: when it must have ended, on the monotonic clock.
        disk_bytes: bytes that its folder may take.
    """

    deadline: float
    disk_bytes: int


@dataclass(slots=True)
class Life:
    """A life that has ended.

    Attributes:
        folder: folder with its standard output, its errors and its events.
        ending: how it ended. "end": the ordered unit was committed; "died": it has killed itself as ordered; "killed": the
            rehearsal has killed it at a moment of its own; "exited": the script has ended; "daemon": the script has ended, and
            left processes behind; "time", "disk": a limit was reached.
        code: exit code of the script, if it has ended.
        events: what its processes reported.
        left: names of the processes that it left behind.
        seconds: how long it lived.
    """

    folder: Path
    ending: Ending
    code: int | None
    events: list[Event] = field(default_factory=list)
    left: str = ""
    seconds: float = 0.0

    def of(self, *kinds: str) -> list[Event]:
        """Return the events of these kinds."""
        return [event for event in self.events if event["event"] in kinds]

    @property
    def steps(self) -> int:
        """The newest step that was committed."""
        return max((event["step"] for event in self.of("unit", "begin")), default=0)

    @property
    def units(self) -> list[Event]:
        """The units that the first rank has committed, in order."""
        return [event for event in self.of("unit") if event["rank"] == 0]

    @property
    def output(self) -> bytes:
        """The standard output."""
        return (self.folder / "stdout").read_bytes()

    @property
    def errors(self) -> str:
        """The standard error."""
        return (self.folder / "stderr").read_bytes().decode(errors="replace")

    @property
    def reports(self) -> list[dict[str, Any]]:
        """The last word of each report of a recovery."""
        found: dict[tuple[int, int], dict[str, Any]] = {}
        for event in self.of("report"):
            found[event["pid"], event["number"]] = event["report"]
        return list(found.values())


class Stage:
    """Starts lives, one at a time, and follows them.

    Args:
        scratch: folder of the rehearsal.
        command: the command line of the script.
        limits: of the whole rehearsal.

    Attributes:
        written: names of the files that processes had open for writing when they were looked at.
    """

    def __init__(self, scratch: Path, command: list[str], limits: Limits) -> None:
        self.scratch, self.command, self.limits = scratch, command, limits
        self._tracker = ProcessTracker(scratch)
        self.written: set[str] = set()

    def live(
        self,
        folder: Path,
        place: WorkingFolder,
        orders: Orders,
        *,
        seconds: float | None = None,
        is_patient: bool = False,
        progress: Callable[[int], None] = lambda step: None,
    ) -> Life:
        """Run the script once, until it ends or is ended.

        Args:
            folder: a new folder, for what it prints and reports.
            place: the working folder.
            orders: what its processes are ordered to do.
            seconds: time after which it is killed; None for no such time.
            is_patient: do not kill it after that time if it has opened a run by then.
            progress: called with each step that is committed.
        """
        folder.mkdir(parents=True)
        orders.write(folder)
        environment = {**os.environ, VARIABLE: str(folder), "PYTHONUNBUFFERED": "1"}
        environment.setdefault("WANDB_MODE", "offline")
        if len(str(self.scratch)) <= _SCRATCH_CHARS_MAX:  # what a killed process leaves there is deleted with the rest
            environment["TMPDIR"] = str(self.scratch / "tmp")
            (self.scratch / "tmp").mkdir(exist_ok=True)
        with open(folder / "stdout", "ab") as out, open(folder / "stderr", "ab") as err:
            process = subprocess.Popen(
                place.launch(self.command),
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=err,
                env=environment,
                start_new_session=True,
            )
        started = time.monotonic()
        life = Life(folder, "exited", None)
        kill_at = None if seconds is None else started + seconds
        try:
            self._follow(life, process, kill_at, is_patient, progress)
            self.written |= self._tracker.find_written()
        finally:
            self._tracker.end_all()
            process.wait()
        life.seconds = time.monotonic() - started
        return life

    def _follow(
        self,
        life: Life,
        process: subprocess.Popen[bytes],
        kill_at: float | None,
        is_patient: bool,
        progress: Callable[[int], None],
    ) -> None:
        reader, look_at, exited_at = EventReader(life.folder / EVENTS), 0.0, None
        while True:
            now = time.monotonic()
            if new := reader.read():
                life.events += new
                progress(life.steps)
            if self._has_ended(life):
                return
            if kill_at is not None and now >= kill_at and not (is_patient and life.of("open")):
                life.ending = "killed"
                return
            if now >= self.limits.deadline:
                life.ending = "time"
                return
            if now >= look_at:
                look_at = now + _LOOK_SECONDS
                self.written |= self._tracker.find_written()
                if count_bytes(self.scratch) > self.limits.disk_bytes:
                    life.ending = "disk"
                    return
            if exited_at is None and process.poll() is not None:
                exited_at, life.code = now, process.returncode
            if exited_at is not None:
                life.events += reader.read()
                left = self._tracker.find()
                if not left or now > exited_at + _LEFT_SECONDS:
                    life.ending = "daemon" if left else "exited"
                    life.left = describe(left)
                    return
            time.sleep(_POLL_SECONDS)

    def _has_ended(self, life: Life) -> bool:
        """Return True if a process has died as ordered, or all have come to the ordered unit."""
        if life.of("dying"):
            life.ending = "died"
            return True
        ended = {(event["rank"], event["pid"]) for event in life.of("end")}
        if not ended or {(event["rank"], event["pid"]) for event in life.of("open")} - ended:
            return False
        life.ending = "end"
        return True


class EventReader:
    """Reads the events that processes append to a file."""

    def __init__(self, path: Path) -> None:
        self._path, self._at = path, 0

    def read(self) -> list[Event]:
        """Return the events since the last call."""
        try:
            with open(self._path, "rb") as file:
                file.seek(self._at)
                data = file.read()
        except FileNotFoundError:
            return []
        end = data.rfind(b"\n") + 1
        self._at += end
        return [json.loads(line) for line in data[:end].splitlines()]
