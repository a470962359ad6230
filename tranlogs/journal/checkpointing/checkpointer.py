"""The checkpointer copies a snapshot on the training thread (one memcpy), and writes it in a thread in the background."""

from __future__ import annotations

import logging
import shutil
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from ...base.atomic_files import is_disk_full
from ...base.clock import Clock
from ...base.errors import CorruptCheckpoint, LogUnavailable
from ...base.failpoints import hit
from ...base.threads import start_thread
from ...catalog import Catalog, CheckpointRow
from ...checkpoints import Checkpoint, Snapshot, SnapshotPool, checkpoint_name, write_checkpoint
from ...encoding.tree import Adapt
from ...log.record_format import Position
from ..ownership.writer_lock import OwnerLock

_log = logging.getLogger(__name__)

_JOIN_SECONDS = 0.1  # between two looks at whether a foreign process holds the catalog


class Checkpointer:
    """Writes checkpoints, one at a time.

    Args:
        folder: folder of the checkpoints.
        catalog: the journal's.
        clock: returns the time.
        about: description of the run for the manifest.
        lock: of the journal.
        on_published: called with the row of a checkpoint that was published.
        make_room: called if the disk is full; returns True if it freed space.

    Attributes:
        failure: why the last checkpoint could not be written; None if it was written.
    """

    def __init__(
        self,
        folder: Path,
        catalog: Catalog,
        clock: Clock,
        about: dict[str, Any],
        lock: OwnerLock,
        on_published: Callable[[CheckpointRow], None],
        make_room: Callable[[], bool],
    ) -> None:
        self._folder, self._catalog, self._clock, self._about = folder, catalog, clock, about
        self._lock, self._on_published, self._make_room = lock, on_published, make_room
        self._pool = SnapshotPool()
        self._thread: threading.Thread | None = None
        self._is_ending = threading.Event()
        self._is_background = False
        self.failure: BaseException | None = None

    @property
    def is_busy(self) -> bool:
        """True while a checkpoint is being written."""
        return self._thread is not None and self._thread.is_alive()

    def take(self, snapshot: Snapshot, position: Position, adapt: Adapt | None, *, wait: bool = False) -> None:
        """Copy a snapshot of the state at `position`, and write it in the background, or in this thread if `wait` is True."""
        assert not self.is_busy
        hit("checkpoint.snapshot")
        self.failure, self._is_background = None, not wait
        snapshot.encode(adapt)
        self._pool.hold(snapshot)
        if wait:
            self._write(snapshot, position)
            return
        self._thread = start_thread("tranlogs-checkpoint", self._write, snapshot, position)

    def _write(self, snapshot: Snapshot, position: Position) -> None:
        start = self._clock.monotonic()
        name = checkpoint_name(position.step, position.timeline, position.sequence)
        about = {
            **self._about,
            "step": position.step,
            "sequence": position.sequence,
            "chain": f"{position.chain:016x}",
            "timeline": position.timeline,
            "created_at": self._clock.now(),
        }
        try:
            self._lock.demand()
            if self._has(name, position):
                return
            nbytes = self._write_folder(name, snapshot, about)
            seconds = self._clock.monotonic() - start
            row = CheckpointRow(
                name, position.step, position.sequence, about["chain"], position.timeline, nbytes, about["created_at"], seconds
            )
            with self._catalog.transaction(self._is_patient) as tables:  # commit point: the checkpoint counts
                tables.put(f"checkpoint/{name}", row)
            self._on_published(row)
        except Exception as error:  # The journal checks for a failure at the next boundary.
            self.failure = error

    def _write_folder(self, name: str, snapshot: Snapshot, about: dict[str, Any]) -> int:
        """Write a checkpoint and return its size in bytes. If the disk is full, make room and try once more."""
        try:
            return self._write_at_place(name, snapshot, about)
        except OSError as error:
            if not is_disk_full(error) or not self._make_room():
                raise
            return self._write_at_place(name, snapshot, about)

    def _write_at_place(self, name: str, snapshot: Snapshot, about: dict[str, Any]) -> int:
        place = self._find_place()
        try:
            return write_checkpoint(place, name, snapshot, about)
        except OSError as error:
            if error.filename is not None:
                error.filename = str(error.filename).replace(str(place), str(self._folder))
            raise

    def _find_place(self) -> Path:
        """Return the folder for writing and deleting. Another run may lie at its path, with a checkpoint of the same name."""
        return self._lock.find_place() / self._folder.name

    def _has(self, name: str, position: Position) -> bool:
        """Return True if this checkpoint is published and sound. Delete its folder if not: it is damaged, or was not listed,
        or belongs to a history that was lost.
        """
        if any(row.name == name for row in self._catalog.checkpoints()):
            with suppress(CorruptCheckpoint), Checkpoint(self._folder / name) as found:
                if found.chain == position.chain and all(damage is None for _, damage in found.verify()):
                    return True
        shutil.rmtree(self._find_place() / name, ignore_errors=True)
        return False

    def _is_patient(self) -> bool:
        """Return True as long as the thread can wait for a process that holds LMDB's write lock."""
        return self._is_background and not self._is_ending.is_set()

    def reserve(self, nbytes: int) -> None:
        """Allocate the memory for snapshots of about `nbytes`, in the background."""
        if not self.is_busy:
            try:
                self._thread = start_thread("tranlogs-reserve", self._reserve, nbytes)
            except LogUnavailable as error:
                _log.debug("could not allocate memory for snapshots ahead of time: %s", error)

    def _reserve(self, nbytes: int) -> None:
        try:
            self._pool.reserve(nbytes)
        except MemoryError as error:
            _log.debug("could not allocate memory for snapshots ahead of time: %s", error)

    def wait(self) -> None:
        """Wait for the checkpoint that is being written, unless a foreign process holds the catalog."""
        while self._thread is not None and self._thread.is_alive() and not self._catalog.is_held:
            self._thread.join(_JOIN_SECONDS)

    def close(self) -> BaseException | None:
        """Wait as `wait` does, and end the thread. Return why the last checkpoint is not in the catalog; None if it is."""
        self.wait()
        self._is_ending.set()
        if self._thread is not None:
            self._thread.join()
        return self.failure
