"""The processes of a rehearsal: where they work, how they are followed by what they report, and how all of them are ended."""

from __future__ import annotations

import ctypes
import json
import os
import shutil
import signal
import stat
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from ..training.rehearsed_process import EVENTS, VARIABLE, Orders

_PR_SET_CHILD_SUBREAPER = 36
_END_SECONDS_MAX = 10.0


class ProcessTracker:
    """Finds the processes of a rehearsal, and ends them.

    A process belongs to a rehearsal if its environment names a folder of it, or if it was handed to this process because its
    parent has ended (see `adopting`). Sessions, groups and parents that a process has left do not matter.

    Args:
        folder: folder of the rehearsal.
    """

    def __init__(self, folder: Path) -> None:
        self._marker = f"{VARIABLE}={folder}/".encode()
        self._others = set(_children())

    def find(self) -> list[int]:
        """Return the ids of the processes that are alive."""
        found = set(_children()) - self._others
        for pid in _all_pids():
            with suppress(OSError):
                variables = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
                if pid != os.getpid() and any(variable.startswith(self._marker) for variable in variables):
                    found.add(pid)
        return sorted(found)

    def find_written(self) -> set[str]:
        """Return the names of the files that the processes have open for writing."""
        found = set()
        for pid in self.find():
            with suppress(OSError):
                for number in os.listdir(f"/proc/{pid}/fd"):
                    with suppress(OSError, ValueError, IndexError):
                        found |= _written_file(pid, number)
        return found

    def end_all(self) -> list[int]:
        """End all processes by SIGKILL; return the ids of those that are still there after some seconds."""
        started = time.monotonic()
        while left := self.find():
            for pid in left:
                with suppress(ProcessLookupError, PermissionError):
                    os.kill(pid, signal.SIGKILL)
                with suppress(ChildProcessError):
                    os.waitpid(pid, os.WNOHANG)
            if time.monotonic() - started > _END_SECONDS_MAX:
                break
            time.sleep(0.01)
        return left


@contextmanager
def adopting() -> Iterator[None]:
    """Make orphans among the descendants of this process its children, so that daemons can be found."""
    libc = ctypes.CDLL(None, use_errno=True)
    libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    try:
        yield
    finally:
        libc.prctl(_PR_SET_CHILD_SUBREAPER, 0, 0, 0, 0)


@contextmanager
def ending_orderly() -> Iterator[None]:
    """Raise SystemExit at SIGTERM and SIGHUP, so that the processes of the rehearsal are ended and its folder is deleted."""

    def end(number: int, frame: object) -> None:
        raise SystemExit(128 + number)

    former = {number: signal.signal(number, end) for number in (signal.SIGTERM, signal.SIGHUP)}
    try:
        yield
    finally:
        for number, handler in former.items():
            signal.signal(number, handler)


def describe(pids: list[int]) -> str:
    """Return the names of processes, for a message."""
    names = []
    for pid in pids[:3]:
        with suppress(OSError):
            names.append(f"{Path(f'/proc/{pid}/comm').read_text().strip()} (pid {pid})")
    return ", ".join(names)


def _written_file(pid: int, number: str) -> set[str]:
    """Return the name of the regular file that a descriptor of a process writes to, if it does."""
    link = f"/proc/{pid}/fd/{number}"
    flags = int(Path(f"/proc/{pid}/fdinfo/{number}").read_text().split("flags:")[1].split()[0], 8)
    is_written = flags & os.O_ACCMODE != os.O_RDONLY and stat.S_ISREG(os.stat(link).st_mode)
    return {os.readlink(link)} if is_written else set()


def _all_pids() -> list[int]:
    return [int(name) for name in os.listdir("/proc") if name.isdigit()]


def _children() -> list[int]:
    """Return the ids of the children of this process, without those that have ended."""
    found = []
    for pid in _all_pids():
        with suppress(OSError, IndexError, ValueError):
            fields = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()
            if int(fields[1]) == os.getpid() and fields[0] != b"Z":
                found.append(pid)
    return found


LAUNCHER = Path(__file__).with_name("launch.py")
_ENTRIES_MAX = 20_000  # that are linked one by one
_FORBIDDEN = set(",:\\")  # they separate options of the mount
_IGNORED = {"__pycache__", ".git"}

Stamps = dict[str, tuple[int, int]]  # size, and time of the last write, of each file


@dataclass(frozen=True, slots=True)
class WorkingFolder:
    """The working folder of the processes that one after the other train one run.

    Attributes:
        user: the user's working folder.
        written: folder with the files that the script has written.
        is_mounted: whether a file system is mounted over the user's folder.
    """

    user: Path
    written: Path
    is_mounted: bool

    @classmethod
    def make(cls, user: Path, folder: Path, *, is_mounted: bool) -> WorkingFolder:
        """Make a working folder.

        Args:
            user: the user's working folder.
            folder: a new folder in that of the rehearsal.
            is_mounted: whether a file system can be mounted over the user's folder.
        """
        written = folder / "files"
        written.mkdir(parents=True)
        if is_mounted:
            (folder / "overlay").mkdir()
        else:
            _link(user, written, folder.parent)
        return cls(user, written, is_mounted)

    def launch(self, command: list[str]) -> list[str]:
        """Return the command line that starts a command here."""
        here = [sys.executable, "-I", "-S", str(LAUNCHER)]
        if not self.is_mounted:
            return [*here, str(self.written), "", "", *command]
        return [*here, str(self.user), str(self.written), str(self.written.with_name("overlay")), *command]

    def files(self) -> dict[str, Path]:
        """Return the files that the script has written, by their names in the working folder."""
        found = {}
        for folder, folders, names in os.walk(self.written):
            folders[:] = [name for name in folders if name not in _IGNORED]
            for name in names:
                path = Path(folder, name)
                if path.is_file() and not path.is_symlink():
                    found[str(path.relative_to(self.written))] = path
        return found


def can_mount(user: Path, scratch: Path) -> bool:
    """Return True if a file system can be mounted over a folder, with what is written in another one."""
    if scratch.is_relative_to(user) or _FORBIDDEN & set(f"{user}{scratch}") or _has_mounts(user):
        return False
    trial = scratch / "trial"
    place = WorkingFolder.make(user, trial, is_mounted=True)
    try:
        return subprocess.run(place.launch(["true"]), capture_output=True, stdin=subprocess.DEVNULL).returncode == 0
    finally:
        remove(trial)


def stamp_files(user: Path, scratch: Path) -> Stamps:
    """Return size and time of the files in a folder: what a script changes although it should not shows later.

    Args:
        user: the folder.
        scratch: folder of the rehearsal, which is left out.
    """
    found: Stamps = {}
    for folder, folders, names in os.walk(user):
        folders[:] = [name for name in folders if name not in _IGNORED and Path(folder, name) != scratch]
        for name in names:
            with suppress(OSError):
                about = os.stat(os.path.join(folder, name))
                found[os.path.relpath(os.path.join(folder, name), user)] = about.st_size, about.st_mtime_ns
        if len(found) > _ENTRIES_MAX:
            break
    return found


def find_changed(user: Path, scratch: Path, before: Stamps) -> list[str]:
    """Return the names of files that are new, have changed or are gone."""
    now = stamp_files(user, scratch)
    return sorted(name for name in now.keys() | before.keys() if now.get(name) != before.get(name))


def remove(folder: Path) -> None:
    """Delete a folder with all that is in it. The kernel leaves folders behind that may not be entered."""
    for inner, folders, _ in os.walk(folder):
        for path in (os.path.join(inner, name) for name in folders):
            if not os.path.islink(path):
                with suppress(OSError):
                    os.chmod(path, 0o700)
    shutil.rmtree(folder, ignore_errors=True)


def count_bytes(folder: Path) -> int:
    """Return the bytes that a folder takes on the disk."""
    total = 0
    for inner, _, names in os.walk(folder):
        for name in names:
            with suppress(OSError):
                total += os.lstat(os.path.join(inner, name)).st_blocks * 512
    return total


def _has_mounts(user: Path) -> bool:
    """Return True if other file systems are mounted within the folder: they would not be seen."""
    inner = f"{user}".rstrip("/") + "/"
    lines = Path("/proc/self/mountinfo").read_text().splitlines()
    return any(line.split()[4].startswith(inner) for line in lines)


def _link(user: Path, written: Path, scratch: Path) -> None:
    """Fill a folder with links to the files of another one, which may contain it."""
    entries = 0
    for folder, folders, names in os.walk(user):
        folders[:] = [name for name in folders if Path(folder, name) != scratch]
        here = written / os.path.relpath(folder, user)
        here.mkdir(exist_ok=True)
        linked = [*names, *(name for name in folders if name.startswith(".") or os.path.islink(os.path.join(folder, name)))]
        entries += len(linked) + len(folders)
        if entries > _ENTRIES_MAX:
            linked = [*names, *folders]
        folders[:] = [name for name in folders if name not in linked]
        for name in linked:
            if name not in _IGNORED:
                (here / name).symlink_to(os.path.join(folder, name))


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
