"""Where a rank reads the journals of the others: where they lie, or, if that is another machine's disk, in copies of its own.

What is copied comes through the group of processes, file by file: the segments of the log, and of checkpoints those that are
needed. Segments and checkpoints describe themselves, so a copy is read like a journal whose catalog was lost. Copies go when
the recovery is over.
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
from ...rebuild import read_files
from .journal_summary import Holding

_CHUNK_BYTES = 16 * MIB


class Channel(Protocol):
    """Connects the ranks. All must call the same methods in the same order."""

    def gather(self, value: Any) -> Sequence[Any]:
        """The values of all, by rank."""
        ...

    def broadcast(self, blob: bytes, source: int) -> bytes:
        """The bytes that rank `source` gave."""
        ...

    def send(self, blob: bytes, to: int) -> None:
        """Give bytes to rank `to`, which waits for them."""
        ...

    def receive(self, source: int) -> bytes:
        """The bytes that rank `source` sends."""
        ...


class Reach:
    """See the module. Use it as a context.

    Args:
        folder: this rank's journal.
        rank: of this process.
        holdings: of all ranks.
        channel: connects them.

    Attributes:
        folders: where to read each rank's journal; without those that are empty.
    """

    def __init__(self, folder: Path, rank: int, holdings: Sequence[Holding], channel: Channel) -> None:
        self._rank, self._channel = rank, channel
        self._copies = folder / "peers"
        held = {holding.rank: holding for holding in holdings if not holding.is_empty}
        self.folders = {owner: Path(holding.folder) for owner, holding in held.items()}
        self._keepers = {owner: owner if holding.keeper < 0 else holding.keeper for owner, holding in held.items()}
        self._far = {owner for owner, holding in held.items() if self._keepers[owner] != rank and not is_readable(holding)}
        self._sent: list[int] = []  # whose journals come through the group
        self._fetched: set[tuple[int, str]] = set()
        self._error: OSError | None = None

    def __enter__(self) -> Reach:
        return self

    def __exit__(self, *_: object) -> None:
        shutil.rmtree(self._copies, ignore_errors=True)

    def fetch_logs(self, kept: Mapping[int, Iterable[Path]]) -> None:
        """Bring the logs that any rank cannot read; `kept` are segments of those that this one sends. All must call it, and
        again when any of that was replaced: what was copied before, checkpoints too, is forgotten."""
        shutil.rmtree(self._copies, ignore_errors=True)
        self._fetched.clear()
        far = self._channel.gather({"far": sorted(self._far)})
        self._sent = sorted({rank for one in far for rank in one["far"]})
        for owner in self._sent:
            self._transfer(owner, list(kept.get(owner, ())))
        for rank in self._far:
            self.folders[rank] = self._copies / f"rank{rank}"

    def fetch_checkpoints(self, wanted: Iterable[tuple[int, str]]) -> None:
        """Bring checkpoints, by owner and name, that not all can read. All must call it, with the same ones."""
        for owner, name in sorted(set(wanted) - self._fetched):
            self._fetched.add((owner, name))
            if owner in self._sent:
                folder = self.folders[owner] / "checkpoints" / name
                is_here = self._keepers[owner] == self._rank and folder.is_dir()
                self._transfer(owner, sorted(folder.iterdir()) if is_here else [])

    def demand(self) -> None:
        """Raise what went wrong while copies were written."""
        if self._error is not None:
            why = error_text(self._error)
            raise RecoveryError(f"{self._copies}: the journals of other ranks cannot be copied there ({why})")

    def _transfer(self, owner: int, paths: Sequence[Path]) -> None:
        """Send files of a journal to all; those that cannot read it write them down."""
        base, keeper = self.folders[owner].resolve(), self._keepers[owner]
        files: list[Any] = tree.decode(self._channel.broadcast(tree.encode(_listed(paths, base)), keeper))
        for name, nbytes in files:
            chunks = _chunks(base / name, nbytes) if keeper == self._rank else iter(())
            target = self._copies / f"rank{owner}" / name if owner in self._far else None
            if target is not None:
                self._write(target, b"", mode="wb")
            for _ in range(0, nbytes, _CHUNK_BYTES):
                chunk = zstandard.decompress(self._channel.broadcast(next(chunks, b""), keeper))
                if target is not None:
                    self._write(target, chunk, mode="ab")

    def _write(self, target: Path, chunk: bytes, mode: str) -> None:
        try:
            target.parent.mkdir(parents=True, exist_ok=True)
            with open(target, mode) as file:
                file.write(chunk)
        except OSError as error:  # the others go on sending: it is told when all are through
            self._error = self._error or error


def _listed(paths: Sequence[Path], base: Path) -> list[tuple[str, int]]:
    return [(str(path.relative_to(base)), path.stat().st_size) for path in paths if path.is_file()]


def _chunks(path: Path, nbytes: int) -> Iterator[bytes]:
    """Compressed parts of a file, all of one size but the last; zeros where it cannot be read, which checksums will tell."""
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


def run_id_of(folder: Path) -> str | None:
    """The id of the journal in a folder; None if there is none that can be read."""
    row = run_row_of(folder)
    return None if row is None else row.run_id


def run_row_of(folder: Path) -> RunRow | None:
    """What the journal in a folder is part of; None if there is none that can be read."""
    try:
        catalog = Catalog.open(folder)
        try:
            return catalog.run()
        finally:
            catalog.close()
    except (CorruptCatalog, OSError):
        rows = read_files(folder).runs if folder.is_dir() else []
        return rows[0] if rows else None


def is_readable(holding: Holding) -> bool:
    """Whether another rank's journal lies where this process can read it."""
    return run_id_of(Path(holding.folder)) == holding.run_id
