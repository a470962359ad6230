"""Disks of a test's own, in memory or in image files: these can have their power cut, and can die. Needs root.

The image lies on XFS, whose `cp --reflink=always` copies a file at one instant: what the disk holds when the power goes.
"""

from __future__ import annotations

import errno
import fcntl
import os
import shutil
import signal
import struct
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_TOOLS = ("mkfs.xfs", "mkfs.ext4", "mount", "umount", "losetup")
_SHUTDOWN = 0x8004587D  # EXT4_IOC_SHUTDOWN
_NO_LOG_FLUSH = 2
_MIB = 1 << 20


def why_not() -> str:
    """Why such disks cannot be made here; empty if they can."""
    missing = [tool for tool in _TOOLS if shutil.which(tool) is None]
    if os.geteuid() != 0:
        return "needs root"
    if missing:
        return f"needs {', '.join(missing)}"
    found = subprocess.run(["losetup", "--find"], capture_output=True, text=True)
    return f"needs a loop device ({found.stderr.strip()})" if found.returncode else ""


@contextmanager
def mounted(image: Path, folder: Path) -> Iterator[Path]:
    """Mount an image; the file system does what it does after a crash."""
    with _mounted(folder, "-o", "loop", str(image)):
        yield folder


@contextmanager
def memory_disk(folder: Path, size: int = 64 * _MIB) -> Iterator[Path]:
    """An empty disk in memory, mounted at a folder."""
    with _mounted(folder, "-t", "tmpfs", "-o", f"size={size}", "tmpfs"):
        yield folder


def turn_read_only(folder: Path) -> None:
    """The ext4 mounted there turns read-only, as at an error, while files are open for writing."""
    _run("mount", "-o", "remount,abort", str(folder))


def fill(disk: Path, *, leave: int = 0) -> Path:
    """Use up all space but `leave` bytes, while others may take some, too."""
    path = disk / f"ballast-{len(list(disk.glob('ballast-*')))}"
    at_once = 1 << 40
    with path.open("wb") as file:
        while (free := free_bytes(disk) - leave) > 0 and at_once:
            try:
                os.posix_fallocate(file.fileno(), path.stat().st_size, min(free, at_once))
            except OSError as error:
                if error.errno != errno.ENOSPC:
                    raise
                at_once = min(free, at_once) // 2 // 4096 * 4096  # a file system needs some of it for itself
    return path


def free_bytes(disk: Path) -> int:
    """What others than root may still write."""
    return os.statvfs(disk).f_bavail * os.statvfs(disk).f_frsize


def make_read_only(folder: Path) -> None:
    """The disk that is mounted there cannot be written any more."""
    _run("mount", "-o", "remount,ro", str(folder))


@contextmanager
def _mounted(folder: Path, *what: str) -> Iterator[None]:
    """Mount something on a folder, upon a shared mount of the folder itself.

    A rehearsal that begins meanwhile has copies of all mounts. An unmount takes these down, too, if what is below is shared;
    otherwise they would hold the disk, and its image, until the rehearsal ends.
    """
    folder.mkdir(exist_ok=True)
    _run("mount", "--bind", "--make-shared", str(folder), str(folder))
    try:
        _run("mount", *what, str(folder))
        try:
            yield
        finally:
            _unmount(folder)
    finally:
        _run("umount", "--lazy", str(folder))


def _unmount(folder: Path) -> None:
    """Unmount what is there. The kernel may let go of the files of a process a moment after its end.

    Until then the same image, mounted anew, would be the file system that has died.
    """
    for _ in range(50):
        if subprocess.run(["umount", str(folder)], capture_output=True).returncode == 0:
            return
        signal.sigtimedwait([], 0.1)
    _run("umount", "--lazy", str(folder))


def make_ext4(image: Path, size: int = 512 * _MIB) -> Path:
    """An image with an empty ext4."""
    with image.open("wb") as file:
        file.truncate(size)
    _run("mkfs.ext4", "-q", "-F", "-m", "0", str(image))
    return image


class CuttableDisk:
    """A mounted ext4 whose content can be copied at one instant."""

    def __init__(self, image: Path, folder: Path) -> None:
        self.image, self.folder = image, folder

    def cut(self, name: str) -> Path:
        """What the disk holds now, as an image of its own."""
        target = self.image.with_name(name)
        _run("cp", "--reflink=always", str(self.image), str(target))
        return target


@contextmanager
def cuttable_disk(folder: Path) -> Iterator[CuttableDisk]:
    """A disk whose power can be cut, mounted under `folder`."""
    below = folder / "below.img"
    with below.open("wb") as file:
        file.truncate(6 * 512 * _MIB)  # sparse: for the copies, too
    _run("mkfs.xfs", "-q", "-m", "reflink=1", str(below))
    with mounted(below, folder / "below") as images, mounted(make_ext4(images / "disk.img"), folder / "disk") as disk:
        yield CuttableDisk(images / "disk.img", disk)


def let_die(folder: Path) -> None:
    """From now on every call to the file system mounted at `folder` fails; what was not written back is lost."""
    fd = os.open(folder, os.O_RDONLY)
    try:
        fcntl.ioctl(fd, _SHUTDOWN, struct.pack("=I", _NO_LOG_FLUSH))
    finally:
        os.close(fd)


def _run(*command: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise OSError(f"{' '.join(command)}: {done.stderr.strip()}")
