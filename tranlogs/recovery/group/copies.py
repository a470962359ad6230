"""Copies of journals of other ranks, where they are on another machine's disk.

Copies are sent through the group of processes, file by file: all segments of a log, and the checkpoints that are needed.
Segments and checkpoints describe themselves, so a copy is read like a journal whose catalog was lost. Copies are deleted when
the recovery ends.
"""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from ...base.config import MIB
from ...base.errors import RecoveryError, error_text
from ...encoding import tree
from . import journals
from .exchange import Exchange
from .summary import JournalSummary

_CHUNK_BYTES = 16 * MIB


class JournalAccess:
    """Read access to the journals of all ranks. Use it as a context: its end deletes the copies.

    All ranks must create it at the same time, because they exchange which journals each of them can read.

    Attributes:
        folders: where to read each rank's journal. Empty journals are not listed.
        readable_by: the processes that can read each rank's journal in place.
    """

    def __init__(self, folder: Path, rank: int, summaries: Sequence[JournalSummary], exchange: Exchange) -> None:
        self._rank, self._transport = rank, exchange.transport
        self._copies = folder / "peers"
        held = {summary.rank: summary for summary in summaries if not summary.is_empty}
        self.folders = {owner: Path(summary.folder) for owner, summary in held.items()}
        self._senders = {owner: owner if summary.sender < 0 else summary.sender for owner, summary in held.items()}
        near = {owner for owner in held if self._senders[owner] == rank or journals.is_readable(held[owner])}
        self._unreadable = held.keys() - near
        answers = exchange.gather(tuple(sorted(near)))
        self.readable_by = {owner: [process for process, one in enumerate(answers) if owner in one] for owner in held}
        self._far = sorted(owner for owner in held if len(self.readable_by[owner]) < len(answers))
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
        """Copy the logs that some rank cannot read, given the segments that this process can send, by rank.

        All ranks must call it, and again when a segment was replaced: it deletes all earlier copies, also of checkpoints.
        """
        shutil.rmtree(self._copies, ignore_errors=True)
        self._fetched.clear()
        self._sent = self._far
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
            for at in range(0, nbytes, _CHUNK_BYTES):
                chunk = self._transport.broadcast(next(chunks, b""), sender).ljust(min(_CHUNK_BYTES, nbytes - at), b"\0")
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
    """Yield a file in parts of one size, but the last, without the zeros at the end of each.

    Unreadable bytes become zeros, which checksums detect.
    """
    with contextlib.ExitStack() as stack:
        try:
            file = stack.enter_context(open(path, "rb"))
        except OSError:
            file = None
        for at in range(0, nbytes, _CHUNK_BYTES):
            try:
                chunk = b"" if file is None else file.read(min(_CHUNK_BYTES, nbytes - at))
            except OSError:
                chunk, file = b"", None
            yield chunk.rstrip(b"\0")
