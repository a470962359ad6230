"""A disk under a run of this process that keeps what syncs covered, and of all else a random part: as harsh as POSIX allows.

What is modelled
* A file, by inode. What its last fsync, fdatasync or msync covered stays. Of each page written later the disk has the old
  content or the new one, or one in between that it wrote back by itself; of a change of size likewise, with zeros for
  pages that it lacks. A page of 4096 bytes is never half old and half new.
* A folder. Names made, renamed and removed since its last fsync are kept or lost, each for itself, in their order. A rename
  leaves the old name or the new one, never both or neither, as on every journaling file system. Unlike there, a later change
  may be kept where an earlier one is lost, and the fsync of a file does not keep its name. A file whose removal is lost
  comes back with its content, a folder with what was left in it. Renames from one folder into another are not modelled
  (`refused` tells of them): a run has none.
* The catalog. LMDB writes the pages of a transaction, calls fdatasync, and writes the meta page through
  a descriptor with O_DSYNC; no reader sees the transaction before that. (So it is without MDB_NOSYNC, MDB_NOMETASYNC and
  MDB_WRITEMAP, and it is opened without.) Amid a commit the disk has the old meta page and any of the others, or all
  pages and either meta page. In a meta page the bytes that a commit changes lie in one sector.

An image is taken at a call of any thread that syncs, renames, removes, or commits to an LMDB file, or at rest. All other such
calls wait meanwhile, so that it is one moment. What memory maps and writes change goes on; it is not synced anyhow.
"""

from __future__ import annotations

import os
import random
import shutil
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tranlogs.base.types import AnyArray
from tranlogs.catalog import CATALOG_NAME, Catalog

PAGE = 4096
_ZEROS = bytes(64 * PAGE)
_LMDB_FILES = {CATALOG_NAME: "catalog"}
_LMDB_KINDS = tuple(_LMDB_FILES.values())
WRITES_BACK = 0.05  # the share of moments at which the disk writes pages back by itself

Names = dict[str, int]  # of a folder, and the inodes behind them


@dataclass(slots=True)
class File:
    """A regular file; its descriptor reads it when its name is gone, too."""

    fd: int
    kind: str  # "catalog" (an LMDB file), "checkpoint", "log" or "other"
    disk: bytes = b""  # what the disk is sure to have

    def now(self) -> bytes:
        """What processes see."""
        parts, at = list[bytes](), 0
        while part := os.pread(self.fd, 16 << 20, at):
            parts.append(part)
            at += len(part)
        return b"".join(parts)


@dataclass(slots=True)
class Folder:
    """A folder: its names at the last fsync, the changes since, in order, and the names when it was last looked at."""

    synced: Names = field(default_factory=dict)
    changes: list[dict[str, int | None]] = field(default_factory=list)
    seen: Names = field(default_factory=dict)

    def note(self, names: Names) -> None:
        """Take down what has changed; a rename is one change of two names."""
        gone = {inode: name for name, inode in self.seen.items() if names.get(name) != inode}
        made = {name: inode for name, inode in names.items() if self.seen.get(name) != inode}
        renamed = gone.keys() & made.values()
        self.changes += [{gone[inode]: None, name: inode} for name, inode in made.items() if inode in renamed]
        self.changes += [{name: inode} for name, inode in made.items() if inode not in renamed]
        self.changes += [{name: None} for inode, name in gone.items() if inode not in renamed and name not in names]
        self.seen = names

    def left(self, is_kept: Callable[[], bool]) -> Names:
        """Names that the disk may have. A file has one, since the product makes no links."""
        names = dict(self.synced)
        for change in self.changes:
            if is_kept():
                for name, inode in change.items():
                    names = {other: there for other, there in names.items() if other != name and there != inode}
                    if inode is not None:
                        names[name] = inode
        return names


@dataclass(frozen=True, slots=True)
class Image:
    """What the disk has at one moment.

    Attributes:
        folder: where that was put.
        least: the step that was called synced.
        at: the kind of call.
    """

    folder: Path
    least: int
    at: str


@dataclass(slots=True)
class Wanted:
    """An image that is to be taken: at which kind of call, and how many of them are let pass before.

    `must_tear`: one in which a page of the call's own file is lost, and not the file's name.
    """

    at: str
    later: int
    must_tear: bool


class LossyDisk:
    """The disk under a folder, with all below it.

    Attributes:
        synced: gives the step that the run calls synced.
        images: those taken; the test takes them away.
        lost, kept: in all images, of what no sync covered: pages, by kind of file, and changes of folders, "names".
        refused: what happened that is not modelled.
    """

    def __init__(self, root: Path, images: Path, share: float, rnd: random.Random) -> None:
        """`share` of the pages is kept; of the names, one of several shares in each image."""
        self._root, self._target, self._share, self._rnd = root, images, share, rnd
        self._device, self._number = os.stat(root).st_dev, 0
        self._lock = threading.RLock()
        self._files, self._folders, self._above = dict[int, File](), dict[int, Folder](), dict[int, int]()
        self._opened = list[int]()
        self._wanted: Wanted | None = None
        self.synced: Callable[[], int] = lambda: 0
        self.images = list[Image]()
        self.lost, self.kept, self.refused = Counter[str](), Counter[str](), list[str]()

    def close(self) -> None:
        """Once the run is closed: to close the file of a lock takes its lock away."""
        while self._opened:
            os.close(self._opened.pop())

    def want(self, at: str, later: int) -> None:
        """Take an image at one of the next calls: on a file of a kind, of "names", or "any"."""
        with self._lock:
            self._wanted = Wanted(at, later, must_tear=at in (*_LMDB_KINDS, "checkpoint"))

    @property
    def is_waiting(self) -> bool:
        """Whether an image is still to come, or being made."""
        with self._lock:
            return self._wanted is not None

    def take(self) -> None:
        """Take an image now."""
        with self._lock:
            self._look()
            self._take("rest")

    # What the calls of the process tell.

    def install(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Listen to them."""
        begin = Catalog._begin

        @contextmanager
        def begin_transaction(catalog: Catalog, *, write: bool = False) -> Iterator[Any]:
            with ExitStack() as stack, begin(catalog, write=write) as txn:
                yield txn
                if write:
                    self._know_order(catalog._env)
                    stack.enter_context(self._committing(os.stat(catalog.path).st_ino))

        for name in ("fsync", "fdatasync"):
            monkeypatch.setattr(os, name, self._syncing(getattr(os, name)))
        for name in ("rename", "replace", "unlink", "rmdir"):
            monkeypatch.setattr(os, name, self._changing(getattr(os, name)))
        monkeypatch.setattr(Catalog, "_begin", begin_transaction)

    def _know_order(self, env: Any) -> None:
        assert env is not None
        flags = env.flags()
        if not (flags["sync"] and flags["metasync"]) or flags["writemap"]:
            self.refused.append("an LMDB file is opened so that LMDB promises no order")

    def _syncing(self, call: Callable[[int], None]) -> Callable[[int], None]:
        return lambda fd: self._sync(os.fstat(fd), lambda: call(fd))

    def _changing(self, call: Callable[..., None]) -> Callable[..., None]:
        def change(path: str | Path, *others: Any, **options: Any) -> None:
            if self._has(path, options.get("dir_fd")):
                with self._lock:
                    self._moment("names")
                    call(path, *others, **options)
                    self._moment("any")
            else:
                call(path, *others, **options)

        return change

    def _has(self, path: str | Path, dir_fd: int | None) -> bool:
        folder = os.getcwd() if dir_fd is None else os.readlink(f"/proc/self/fd/{dir_fd}")
        return Path(folder, path).is_relative_to(self._root)

    def _sync(self, about: os.stat_result, call: Callable[[], None]) -> None:
        """A sync covers what was there when it began."""
        with self._lock:
            if about.st_dev == self._device:
                self._look()
            inode = about.st_ino if about.st_dev == self._device else -1
            file, folder = self._files.get(inode), self._folders.get(inode)
            if file is not None:
                self._moment(file.kind, inode)
                content = file.now()
                call()
                file.disk = content
                self._moment("any")
                return
            if folder is not None:
                self._moment("names")
                call()
                folder.synced, folder.changes = folder.seen, []
                self._moment("any")
                return
        call()

    @contextmanager
    def _committing(self, inode: int) -> Iterator[None]:
        """Around a commit to an LMDB file. An image has other files as they are before it: nobody sees it before its end."""
        with self._lock:
            self._look()
            file, wanted = self._files[inode], self._wanted
            before, places = file.now(), dict[int, Path]()
            if self._is_due(file.kind):
                places = self._take(file.kind, inode if wanted is not None and wanted.must_tear else None)
            yield
            now = file.now()
            if inode in places and not self._tear_commit(places[inode], file, before, now, wanted):
                shutil.rmtree(self.images.pop().folder)
                self._wanted = wanted
            file.disk = now
            self._moment("any")

    def _tear_commit(self, place: Path, file: File, before: bytes, now: bytes, wanted: Wanted | None) -> bool:
        """Put the LMDB file into an image; False where there is nothing to tear."""
        old = before[: 2 * PAGE] + now[2 * PAGE :]  # with the meta pages that it had
        changed = len(changed_pages(file.disk, old))
        if wanted is not None and wanted.must_tear:
            if changed < 2:
                return False
            content, lost = self._torn(file.disk, old)
            while not 0 < lost < changed:
                content, lost = self._torn(file.disk, old)
        else:
            content, lost = self._rnd.choice([(now, 0), (old, 0), self._torn(file.disk, old)])
        self.lost[file.kind] += lost
        self.kept[file.kind] += changed - lost
        write_sparse(place, content)
        return True

    # Looking at the files, and taking images of them.

    def _moment(self, at: str, inode: int | None = None) -> None:
        """Something happens, to a file or to names: an image may be due."""
        self._look()
        if self._rnd.random() < WRITES_BACK:
            self._write_back()
        wanted = self._wanted
        if wanted is None or (wanted.must_tear and not self._may_lose(inode)):
            return
        if self._is_due(at):
            self._take(at, inode if wanted.must_tear else None)

    def _may_lose(self, inode: int | None) -> bool:
        """Whether a file has something to lose."""
        file = None if inode is None else self._files[inode]
        return file is not None and file.kind not in _LMDB_KINDS and len(changed_pages(file.disk, file.now())) > 0

    def _is_due(self, at: str) -> bool:
        wanted = self._wanted
        if wanted is None or wanted.at not in (at, "any"):
            return False
        wanted.later -= 1
        if wanted.later < 0:
            self._wanted = None
        return wanted.later < 0

    def _look(self) -> None:
        """Find the names that there are now."""
        folders = [(self._root, os.stat(self._root).st_ino)]
        for path, inode in folders:
            names = Names()
            with suppress(FileNotFoundError), os.scandir(path) as entries:
                for entry in entries:
                    if entry.is_dir(follow_symlinks=False):
                        folders.append((path / entry.name, entry.inode()))
                    elif entry.inode() not in self._files and not self._meet(path / entry.name, entry.inode()):
                        continue  # gone already
                    names[entry.name] = entry.inode()
                    if self._above.setdefault(entry.inode(), inode) != inode:
                        self.refused.append(f"{path / entry.name} came out of another folder")
                if inode not in self._folders:
                    self._folders[inode] = Folder()
                    self._opened.append(os.open(path, os.O_RDONLY | os.O_DIRECTORY))  # keeps its number from being used again
                self._folders[inode].note(names)

    def _meet(self, path: Path, inode: int) -> bool:
        try:
            fd = os.open(path, os.O_RDONLY)
        except FileNotFoundError:
            return False
        self._opened.append(fd)
        kind = "log" if ".seg" in path.name else "checkpoint" if "checkpoints" in path.parts else "other"
        self._files[os.fstat(fd).st_ino] = File(fd, _LMDB_FILES.get(path.name, kind))
        return inode in self._files

    def _write_back(self) -> None:
        files = [file for file in self._files.values() if file.kind not in _LMDB_KINDS]  # which have an order of their own
        if files:
            file = self._rnd.choice(files)
            file.disk, _ = self._torn(file.disk, file.now())

    def _take(self, at: str, must_tear: int | None = None) -> dict[int, Path]:
        """Make an image; gives where its files lie."""
        image = Image(self._target / str(self._number), self.synced(), at)
        self._number += 1
        self.images.append(image)
        share = self._rnd.choice((0.1, 0.5, 0.9))
        places, kept = self._places(image.folder, share)
        while must_tear is not None and must_tear not in places:
            places, kept = self._places(image.folder, share)
        self.lost["names"] += kept[False]
        self.kept["names"] += kept[True]
        for inode, path in places.items():
            file = self._files.get(inode)
            if file is None:
                path.mkdir(parents=True)
            elif file.kind in _LMDB_KINDS:
                write_sparse(path, file.disk)
            else:
                now = file.now()
                content, lost = self._torn(file.disk, now)
                while inode == must_tear and lost == 0:
                    content, lost = self._torn(file.disk, now)
                self.lost[file.kind] += lost
                self.kept[file.kind] += len(changed_pages(file.disk, now)) - lost
                write_sparse(path, content)
        return places

    def _places(self, target: Path, share: float) -> tuple[dict[int, Path], Counter[bool]]:
        """Draw which names are kept: the path in an image of each file and folder, those above first; how many are."""
        kept = Counter[bool]()

        def is_kept() -> bool:
            is_kept = self._rnd.random() < share
            kept[is_kept] += 1
            return is_kept

        root = os.stat(self._root).st_ino
        places, folders = {root: target}, [root]
        for inode in folders:
            for name, below in self._folders[inode].left(is_kept).items():
                places[below] = places[inode] / name
                if below in self._folders:
                    folders.append(below)
        return places, kept

    def _torn(self, before: bytes, now: bytes) -> tuple[bytes, int]:
        """A file of pages old and new, and how many of the new ones are lost.

        Of the first two more are kept: with the old meta pages an LMDB file is, for LMDB, all as it was.
        """
        if before == now:
            return now, 0
        size = len(now) if self._rnd.random() < self._share else len(before)
        torn, lost = bytearray(before.ljust(size, b"\0")[:size]), 0
        for page in changed_pages(before, now):
            at = page * PAGE
            if at < size and self._rnd.random() < (max(self._share, 0.7) if page < 2 else self._share):
                part = now[at : min(at + PAGE, size)]
                torn[at : at + len(part)] = part
            else:
                lost += 1
        return bytes(torn), lost


def changed_pages(before: bytes, now: bytes) -> AnyArray:
    """Numbers of the pages that differ."""
    if before == now:
        return np.empty(0, np.int64)
    size = -(-max(len(before), len(now)) // PAGE) * PAGE
    pages = [np.frombuffer(content.ljust(size, b"\0"), np.uint64).reshape(-1, PAGE // 8) for content in (before, now)]
    return np.flatnonzero((pages[0] != pages[1]).any(axis=1))


def write_sparse(path: Path, content: bytes) -> None:
    """Write a file anew; where it is zero it has holes."""
    with path.open("wb") as file:
        for at in range(0, len(content), 64 * PAGE):
            part = content[at : at + 64 * PAGE]
            if part != _ZEROS[: len(part)]:
                file.seek(at)
                file.write(part)
        file.truncate(len(content))
