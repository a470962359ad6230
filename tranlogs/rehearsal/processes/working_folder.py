"""The folder in which a script works during a rehearsal: it reads the user's files, and what it writes goes elsewhere.

Where the kernel allows it, a file system is mounted over the user's working folder, for the script's processes alone, so that
every path within it means what it means without a rehearsal. Else the script works in another folder, which has the same
folders, and links to the user's files.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

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
