"""Access of a rank to the journals of the other ranks: in place or, if they are on another machine's disk, in copies.

Copies are sent through the group of processes, file by file: all segments of a log, and the checkpoints that are needed.
Segments and checkpoints describe themselves, so a copy is read like a journal whose catalog was lost. Copies are deleted when
the recovery ends.
"""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import zstandard

from ...base.config import MIB
from ...base.errors import CorruptCatalog, RecoveryError, error_text
from ...catalog import Catalog, RunRow
from ...encoding import tree
from ...rebuild_catalog import read_files
from .summary.journal_summary import JournalSummary

_CHUNK_BYTES = 16 * MIB


class Transport(Protocol):
    """Connection between the ranks. All ranks must call the same methods in the same order."""

    def gather(self, value: Any) -> Sequence[Any]:
        """Return the values of all ranks, by rank."""
        ...

    def broadcast(self, blob: bytes, source: int) -> bytes:
        """Return the bytes that rank `source` passed."""
        ...

    def send(self, blob: bytes, to: int) -> None:
        """Send bytes to rank `to`, which must wait for them in `receive`."""
        ...

    def receive(self, source: int) -> bytes:
        """Wait for the bytes that rank `source` sends, and return them."""
        ...


class JournalAccess:
    """Read access to the journals of all ranks. Use it as a context: its end deletes the copies.

    Args:
        folder: the journal of this rank.
        rank: the rank of this process.
        summaries: the summaries of all journals.
        transport: connects the ranks.

    Attributes:
        folders: where to read each rank's journal. Empty journals are not listed.
    """

    def __init__(self, folder: Path, rank: int, summaries: Sequence[JournalSummary], transport: Transport) -> None:
        self._rank, self._transport = rank, transport
        self._copies = folder / "peers"
        held = {summary.rank: summary for summary in summaries if not summary.is_empty}
        self.folders = {owner: Path(summary.folder) for owner, summary in held.items()}
        self._senders = {owner: owner if summary.sender < 0 else summary.sender for owner, summary in held.items()}
        remote = {owner for owner in held if self._senders[owner] != rank}
        self._unreadable = {owner for owner in remote if not is_readable(held[owner])}
        self._sent: list[int] = []  # ranks whose journals come through the group
        self._fetched: set[tuple[int, str]] = set()
        self._error: OSError | None = None

    def __enter__(self) -> JournalAccess:
        return self

    def __exit__(self, *_: object) -> None:
        shutil.rmtree(self._copies, ignore_errors=True)

    @property
    def scratch(self) -> Path:
        """The folder for checkpoints that are made while the run recovers. It is deleted with the copies."""
        return self._copies / "compacted"

    def fetch_logs(self, segments: Mapping[int, Iterable[Path]]) -> None:
        """Copy the logs that some rank cannot read.

        All ranks must call it, and again when a segment was replaced: it deletes all earlier copies, also of checkpoints.

        Args:
            segments: the segments of the journals that this process sends, by rank.
        """
        shutil.rmtree(self._copies, ignore_errors=True)
        self._fetched.clear()
        answers = self._transport.gather({"unreadable": sorted(self._unreadable)})
        self._sent = sorted({rank for answer in answers for rank in answer["unreadable"]})
        for owner in self._sent:
            self._transfer(owner, list(segments.get(owner, ())))
        for rank in self._unreadable:
            self.folders[rank] = self._copies / f"rank{rank}"

    def fetch_checkpoints(self, wanted: Iterable[tuple[int, str]]) -> None:
        """Copy checkpoints, given by rank and name, that some rank cannot read. All ranks must call it with the same ones."""
        for owner, name in sorted(set(wanted) - self._fetched):
            self._fetched.add((owner, name))
            if owner in self._sent:
                folder = self.folders[owner] / "checkpoints" / name
                is_here = self._senders[owner] == self._rank and folder.is_dir()
                self._transfer(owner, sorted(folder.iterdir()) if is_here else [])

    def raise_error(self) -> None:
        """Raise the first error that occurred while copies were written.

        Raises:
            RecoveryError: a copy could not be written.
        """
        if self._error is not None:
            raise RecoveryError(
                f"{self._copies}: the journals of other ranks cannot be copied into this folder ({error_text(self._error)})"
            )

    def _transfer(self, owner: int, paths: Sequence[Path]) -> None:
        """Send files of a journal to all ranks. Those that cannot read the journal write them down."""
        base, sender = self.folders[owner].resolve(), self._senders[owner]
        files: list[Any] = tree.decode(self._transport.broadcast(tree.encode(_list_files(paths, base)), sender))
        for name, nbytes in files:
            chunks = _read_chunks(base / name, nbytes) if sender == self._rank else iter(())
            target = self._copies / f"rank{owner}" / name if owner in self._unreadable else None
            if target is not None:
                self._write(target, b"", mode="wb")
            for _ in range(0, nbytes, _CHUNK_BYTES):
                chunk = zstandard.decompress(self._transport.broadcast(next(chunks, b""), sender))
                if target is not None:
                    self._write(target, chunk, mode="ab")

    def _write(self, target: Path, chunk: bytes, mode: str) -> None:
        try:
            target.parent.mkdir(parents=True, exist_ok=True)
            with open(target, mode) as file:
                file.write(chunk)
        except OSError as error:  # the other ranks go on sending: `raise_error` reports it when all files are through
            self._error = self._error or error


def _list_files(paths: Sequence[Path], base: Path) -> list[tuple[str, int]]:
    return [(str(path.relative_to(base)), path.stat().st_size) for path in paths if path.is_file()]


def _read_chunks(path: Path, nbytes: int) -> Iterator[bytes]:
    """Yield a file in compressed parts of one size, but the last. Unreadable bytes become zeros, which checksums detect."""
    with contextlib.ExitStack() as stack:
        try:
            file = stack.enter_context(open(path, "rb"))
        except OSError:
            file = None
        for at in range(0, nbytes, _CHUNK_BYTES):
            size = min(_CHUNK_BYTES, nbytes - at)
            try:
                chunk = b"" if file is None else file.read(size)
            except OSError:
                chunk, file = b"", None
            yield zstandard.compress(chunk.ljust(size, b"\0"), 1)


def read_run_id(folder: Path) -> str | None:
    """Return the id of the journal in a folder; None if the folder holds none that can be read."""
    row = read_run_row(folder)
    return None if row is None else row.run_id


def read_run_row(folder: Path) -> RunRow | None:
    """Return the run's row of the journal in a folder; None if the folder holds none that can be read."""
    try:
        catalog = Catalog.open(folder)
        try:
            return catalog.run()
        finally:
            catalog.close()
    except (CorruptCatalog, OSError):
        rows = read_files(folder).runs if folder.is_dir() else []
        return rows[0] if rows else None


def is_readable(summary: JournalSummary) -> bool:
    """Return True if this process can read the journal of another rank where that rank sees it."""
    return read_run_id(Path(summary.folder)) == summary.run_id
