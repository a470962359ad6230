"""A disk under a run of this process that keeps what syncs covered, and of all else nothing or a random part.

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

The power is cut at every sync of any thread: right before each fsync, fdatasync and commit to an LMDB file, two images are
taken. One has nothing that no sync covered, the other one a random part of it. All other syncs wait meanwhile, so that an
image is one moment. What memory maps and writes change goes on; it is not synced anyhow.
"""

from __future__ import annotations

import os
import random
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
WRITES_BACK = 0.05  # the share of syncs at which the disk writes pages back by itself

Names = dict[str, int]  # of a folder, and the inodes behind them


@dataclass(slots=True)
class File:
    """A regular file; its descriptor reads it when its name is gone, too.

    Attributes:
        kind: "catalog" (an LMDB file), "checkpoint", "log" or "other".
        disk: what the disk is sure to have.
    """

    fd: int
    kind: str
    disk: bytes = b""

    def now(self) -> bytes:
        """Return what processes see."""
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
        """Return names that the disk may have. A file has one, since the product makes no links."""
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
        sync: number of the sync that comes next.
        kind: of its file: as of `File`, or "names".
        keeps: share of what no sync covered that was kept.
    """

    folder: Path
    least: int
    sync: int
    kind: str
    keeps: float


class LossyDisk:
    """The disk under a folder, with all below it.

    Args:
        root: the folder.
        target: where images are put.
        chance: what random decisions are drawn from.

    Attributes:
        synced: returns the step that the run calls synced.
        images: those taken; the test takes them away.
        syncs: how many there were, by kind of file.
        lost, kept: in all images, of what no sync covered: pages, by kind of file, and changes of folders, "names".
        refused: what happened that is not modelled.
    """

    def __init__(self, root: Path, target: Path, chance: random.Random) -> None:
        self._root, self._target, self._chance = root, target, chance
        self._device, self._lock = os.stat(root).st_dev, threading.RLock()
        self._files, self._folders, self._above = dict[int, File](), dict[int, Folder](), dict[int, int]()
        self._opened = list[int]()
        self.synced: Callable[[], int] = lambda: 0
        self.images, self.syncs = list[Image](), Counter[str]()
        self.lost, self.kept, self.refused = Counter[str](), Counter[str](), list[str]()

    def close(self) -> None:
        """Let all files go, once the run is closed: to close the file of a lock takes its lock away."""
        while self._opened:
            os.close(self._opened.pop())

    def cut(self) -> None:
        """Take images now."""
        with self._lock:
            self._look()
            self.images += self._cut("rest")[0]

    # What the calls of the process tell.

    def install(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Cut the power at every sync from here on."""
        begin = Catalog._begin

        @contextmanager
        def begin_transaction(catalog: Catalog, *, write: bool = False) -> Iterator[Any]:
            with ExitStack() as stack, begin(catalog, write=write) as txn:
                yield txn
                if write:
                    self._demand_order(catalog._env)
                    stack.enter_context(self._committing(os.stat(catalog.path).st_ino))

        for name in ("fsync", "fdatasync"):
            monkeypatch.setattr(os, name, self._syncing(getattr(os, name)))
        for name in ("rename", "replace", "unlink", "rmdir"):
            monkeypatch.setattr(os, name, self._changing(getattr(os, name)))
        monkeypatch.setattr(Catalog, "_begin", begin_transaction)

    def _demand_order(self, env: Any) -> None:
        assert env is not None
        flags = env.flags()
        if not (flags["sync"] and flags["metasync"]) or flags["writemap"]:
            self.refused.append("an LMDB file is opened so that LMDB promises no order")

    def _syncing(self, call: Callable[[int], None]) -> Callable[[int], None]:
        return lambda fd: self._sync(os.fstat(fd), lambda: call(fd))

    def _changing(self, call: Callable[..., None]) -> Callable[..., None]:
        """No change of a name is missed: each file is met before its name goes."""

        def change(*given: Any, **options: Any) -> None:
            with self._lock:
                self._look()
                call(*given, **options)
                self._look()

        return change

    def _sync(self, about: os.stat_result, call: Callable[[], None]) -> None:
        """A sync covers what was there when it began."""
        with self._lock:
            if about.st_dev == self._device:
                self._look()
            inode = about.st_ino if about.st_dev == self._device else -1
            file, folder = self._files.get(inode), self._folders.get(inode)
            if file is not None:
                self.images += self._cut(file.kind)[0]
                content = file.now()
                call()
                file.disk = content
            elif folder is not None:
                self.images += self._cut("names")[0]
                call()
                folder.synced, folder.changes = folder.seen, []
            else:
                call()

    @contextmanager
    def _committing(self, inode: int) -> Iterator[None]:
        """Around a commit to an LMDB file. An image has other files as they are before it: nobody sees it before its end."""
        with self._lock:
            self._look()
            file = self._files[inode]
            before = file.now()
            images, places = self._cut(file.kind)
            torn = places.get(inode)
            yield
            now = file.now()
            if torn is not None:
                old = before[: 2 * PAGE] + now[2 * PAGE :]  # with the meta pages that it had
                share = self._chance.choice((0.1, 0.5, 0.9))
                content = self._chance.choice([now, old, *3 * [self._torn(file, file.disk, old, share)]])
                write_sparse(torn, content)
            file.disk = now
            self.images += images  # whole only now

    # Looking at the files, and taking images of them.

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
        self._files[os.fstat(fd).st_ino] = File(fd, "catalog" if path.name == CATALOG_NAME else kind)
        return inode in self._files

    def _cut(self, kind: str) -> tuple[list[Image], dict[int, Path]]:
        """Take both images; return them, and where the files of the second one lie."""
        self.syncs[kind] += 1
        if self._chance.random() < WRITES_BACK:
            files = [file for file in self._files.values() if file.kind != "catalog"]  # that has an order of its own
            if files:
                file = self._chance.choice(files)
                file.disk = self._torn(file, file.disk, file.now(), 0.5)
        nothing, _ = self._take(kind, 0.0)
        some, places = self._take(kind, self._chance.choice((0.1, 0.5, 0.9)))
        return [nothing, some], places

    def _take(self, kind: str, share: float) -> tuple[Image, dict[int, Path]]:
        """Make an image that keeps a share of what no sync covered; return it, and where its files lie."""
        number = sum(self.syncs.values())
        image = Image(self._target / f"{number}-{share}", self.synced(), number, kind, share)

        def is_kept() -> bool:
            found = self._chance.random() < share
            (self.kept if found else self.lost)["names"] += 1
            return found

        root = os.stat(self._root).st_ino
        places, folders = {root: image.folder}, [root]
        for inode in folders:
            for name, below in self._folders[inode].left(is_kept).items():
                places[below] = places[inode] / name
                if below in self._folders:
                    folders.append(below)
        for inode, path in places.items():
            file = self._files.get(inode)
            if file is None:
                path.mkdir(parents=True)
            elif file.kind == "catalog" or share == 0.0:
                write_sparse(path, file.disk)
            else:
                write_sparse(path, self._torn(file, file.disk, file.now(), share))
        return image, places

    def _torn(self, file: File, before: bytes, now: bytes, share: float) -> bytes:
        """Return content of pages old and new.

        Of the first two more are kept: with the old meta pages an LMDB file is, for LMDB, all as it was.
        """
        if before == now:
            return now
        size = len(now) if self._chance.random() < share else len(before)
        torn = bytearray(before.ljust(size, b"\0")[:size])
        for page in changed_pages(before, now):
            at = page * PAGE
            if at < size and self._chance.random() < (max(share, 0.7) if page < 2 else share):
                part = now[at : min(at + PAGE, size)]
                torn[at : at + len(part)] = part
                self.kept[file.kind] += 1
            else:
                self.lost[file.kind] += 1
        return bytes(torn)


def changed_pages(before: bytes, now: bytes) -> AnyArray:
    """Return the numbers of the pages that differ."""
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
