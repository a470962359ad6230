"""The exchange between the ranks of a group: typed messages, encoded in one place, and copies of journals.

All ranks must gather the same messages in the same order:

    Opening      what a rank's journals hold, and what it is asked for
    tuple        the ranks whose journals it can read without another rank's help
    UnitSummary  the newest unit of its log (plan.py), if training is to compute one again
    Attempt      the outcome of an attempt (recover.py): damage, errors, a digest of the state. It may be repeated
    tuple        what sound copies have replaced, one sentence each
    FormerRank   a list of them: the checkpoints that it made of former ranks (reshard.py)

`TimelineUse` precedes `Opening`, because timelines whose start a crash interrupted must be known before a journal is read.
A process alone is a group of one, with `Solo` as its transport.

A journal on another machine's disk is copied through the transport, file by file: all segments of a log, and the checkpoints
that are needed. Segments and checkpoints describe themselves, so a copy is read like a journal whose catalog was lost. Copies
are deleted when the recovery ends.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field, fields, is_dataclass, replace
from pathlib import Path
from typing import Any, Protocol, TypeVar

from ...base.config import MIB
from ...base.errors import RecoveryError, UsageError, error_text
from ...base.types import Extension
from ...encoding import tree
from ..journal_facts import Facts, read_facts, replace_damaged
from ..state_protocol import ReplacementSource
from .decide import Damage
from .journals import (
    GenerationLog,
    TimelineUse,
    find_unused_timelines,
    get_timeline_use,
    is_readable,
    list_journals,
    read_generations,
    read_run_row,
    summarize_generations,
)
from .summary import CheckpointRef, JournalSummary, LogRange, keep_common_history, new_timeline_id, remove_duplicates

T = TypeVar("T")

_CHUNK_BYTES = 16 * MIB  # of a copy
_MESSAGES: dict[str, type[Any]] = {}


def message(kind: type[T]) -> type[T]:
    """Let values of a dataclass be sent, as a message or within one."""
    _MESSAGES[kind.__name__] = kind
    return kind


for _kind in (CheckpointRef, Damage, JournalSummary, LogRange, TimelineUse):
    message(_kind)


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


class Solo:
    """The transport of a process without others: it continues a run of several processes, or only reads it."""

    def gather(self, value: Any) -> Sequence[Any]:
        """Return the value of this process."""
        return [value]

    def broadcast(self, blob: bytes, source: int) -> bytes:
        """Return the bytes of this process."""
        return blob

    def send(self, blob: bytes, to: int) -> None:
        """Raise AssertionError: there is no other process."""
        raise AssertionError(f"rank {to} does not run")

    def receive(self, source: int) -> bytes:
        """Raise AssertionError: there is no other process."""
        raise AssertionError(f"rank {source} does not run")


def gather(transport: Transport, value: T) -> list[T]:
    """Return the messages of all ranks, by rank. All ranks must call it with messages of the same type."""
    return [decode(blob) for blob in transport.gather(encode(value))]


def encode(value: Any) -> bytes:
    """Encode a message."""
    return tree.encode(value, path="message", adapt=_to_extension)


def decode(blob: bytes) -> Any:
    """Return the message that `encode` turned into bytes."""
    return tree.decode(blob, make_extension=lambda found: _MESSAGES[found.tag](*found.value))


def _to_extension(value: Any) -> Extension | None:
    if is_dataclass(value) and type(value).__name__ in _MESSAGES:
        return Extension(type(value).__name__, tuple(getattr(value, one.name) for one in fields(value)))
    return None


@message
@dataclass(frozen=True, slots=True)
class Opening:
    """What a rank's journals hold, and what it is asked for.

    Attributes:
        summaries: the summaries of its journal, and of journals next to it whose ranks no longer exist.
        writer: the rank that wrote its journal; its own rank if the journal is empty.
        nearby: ranks of the group whose journals lie in its run folder and have a checkpoint of a step.
        resharded: the first timelines of generations whose parameters are sharded in another way now.
        error: why it cannot read its journal; "" if it can.
    """

    summaries: tuple[JournalSummary, ...]
    writer: int
    nearby: tuple[int, ...] = ()
    step: int | None = None
    resharded: tuple[int, ...] = ()
    timeline_id: str = ""
    error: str = ""


@dataclass(slots=True)
class Known:
    """What a rank knows after the opening of a group recovery.

    Attributes:
        other_logs: the generations of other ranks' journals, if the process has read them where they lie.
        segments: the segments of the journals that it can send to the others, by rank.
        abandoned: those of the notes that name journals on a timeline which the group has abandoned.
        unused_timelines: timelines whose start a crash interrupted; they do not count.
    """

    logs: list[GenerationLog] = field(default_factory=list)
    other_logs: Mapping[int, list[GenerationLog]] = field(default_factory=dict)
    segments: dict[int, list[Path]] = field(default_factory=dict)
    summaries: list[JournalSummary] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    abandoned: list[str] = field(default_factory=list)
    timeline_id: str = ""
    resharded: frozenset[int] = frozenset()
    unused_timelines: Collection[int] = ()


@dataclass(frozen=True, slots=True)
class OwnJournal:
    """The journal of a process, and those next to it whose ranks no longer exist, for which it answers."""

    folder: Path
    rank: int
    world: int
    run_id: str
    spare: ReplacementSource | None = None

    def open(self, transport: Transport, is_resharded: Callable[[Mapping[str, Any]], bool], step: int | None) -> Known:
        """Read the journals and exchange their summaries. All ranks must call it at the same time.

        Raises:
            RecoveryError: a journal cannot be read, or is not that of its rank, or the journals belong to several runs.
            UsageError: the ranks are asked for different steps.
        """
        facts: dict[Path, Facts] = {}
        known = Known(unused_timelines=find_unused_timelines(gather(transport, self._read_timeline_use(facts))))
        error: Exception | None = None
        own, writer = [JournalSummary(self.rank, str(self.folder.resolve()), self.run_id)], self.rank
        try:
            own = self._summarize(known, facts)
            row = None if own[0].is_empty else read_run_row(self.folder)
            writer = writer if row is None else row.rank
        except Exception as caught:  # the other ranks wait for this one's answer
            error = caught
        held = [log for log in known.logs if not log.is_empty]  # a lost journal records no environment
        opening = Opening(
            tuple(own),
            writer,
            tuple(rank for rank, folder in list_journals(self.folder) if rank < self.world and _holds_step(folder)),
            step,
            tuple(log.first_timeline for log in held if is_resharded(log.environment.get("sharding", {}))),
            new_timeline_id(),
            error_text(error) if error else "",
        )
        answers = gather(transport, opening)
        if error is not None:
            raise error
        run = self.folder.parent
        failed = [f"rank {rank}: {one.error}" for rank, one in enumerate(answers) if one.error]
        if failed:
            raise RecoveryError(f"{run}: another rank cannot read its journal: {'; '.join(failed)}")
        if len({one.step for one in answers}) > 1:
            raise UsageError(f"recover(step=...) must name the same step on all ranks, got {[one.step for one in answers]}")
        _require_in_place(run, answers)
        known.resharded = frozenset(number for one in answers for number in one.resharded)
        known.timeline_id = answers[0].timeline_id
        try:
            found = remove_duplicates([summary for one in answers for summary in one.summaries])
            known.summaries, known.abandoned = keep_common_history(found)
        except RecoveryError as different:
            raise RecoveryError(f"{run}: {different}") from None
        known.notes += known.abandoned
        return known

    def replace_damaged(self, known: Known, paths: Sequence[Path]) -> list[str]:
        """Replace damaged files of the journal by sound copies and read it again. Return a sentence about each."""
        notes = replace_damaged(self.spare, paths)
        if notes:
            self._read_log(known)
        return notes

    def _read_timeline_use(self, facts: dict[Path, Facts]) -> TimelineUse:
        """Return the timelines that the journals of this process use, and those that they only started. Fill `facts`."""
        found = TimelineUse()
        with suppress(Exception):  # reading the journals raises the error again, where all ranks learn of it
            for folder in (self.folder, *(folder for _, folder in self._list_stopped())):
                facts[folder] = read_facts(folder)
                use = get_timeline_use(facts[folder])
                found = TimelineUse((*found.used, *use.used), (*found.empty, *use.empty))
        return found

    def _summarize(self, known: Known, facts: Mapping[Path, Facts]) -> list[JournalSummary]:
        unused = known.unused_timelines
        self._read_log(known, facts.get(self.folder))
        known.notes += self.replace_damaged(known, known.logs[0].facts.torn_paths)
        own = summarize_generations(known.logs, self.rank, self.folder, self.run_id, unused)
        for rank, folder in self._list_stopped():
            logs = read_generations(folder, unused, facts.get(folder))
            row = read_run_row(folder)
            found = summarize_generations(logs, rank, folder, row.run_id if row is not None else "", unused)
            own += [replace(summary, sender=self.rank) for summary in found]
            known.segments[rank] = _list_segments(logs)
        return own

    def _read_log(self, known: Known, facts: Facts | None = None) -> None:
        known.logs = read_generations(self.folder, known.unused_timelines, facts)
        known.segments[self.rank] = _list_segments(known.logs)

    def _list_stopped(self) -> list[tuple[int, Path]]:
        """Return the journals next to this one whose ranks no longer exist."""
        return [(rank, folder) for rank, folder in list_journals(self.folder) if rank >= self.world]


def _holds_step(journal: Path) -> bool:
    """Return True if a journal has a checkpoint of a step, sound or not."""
    return any(path.name.removeprefix("step-").partition("-")[0].strip("0") for path in journal.glob("checkpoints/step-*"))


def _require_in_place(run: Path, answers: Sequence[Opening]) -> None:
    """Compare the ranks of the journals with those of the processes.

    Raises:
        RecoveryError: a journal lies where another rank runs, because nodes or folders have changed places.
    """
    swapped = [f"rank{rank} is the journal of rank {one.writer}" for rank, one in enumerate(answers) if one.writer != rank]
    if swapped:
        raise RecoveryError(
            f"{run}: journals lie under the names of other ranks: {', '.join(swapped)}. Each journal holds state that only its "
            "rank has (random numbers, buffers, shards): rename the folders back, and start again"
        )
    misplaced = [
        f"that of rank {rank} where rank {finder} runs ({Path(one.summaries[0].folder).with_name(f'rank{rank}')})"
        for finder, one in enumerate(answers)
        for rank in one.nearby
        if rank not in answers[rank].nearby and answers[rank].summaries[0].is_empty  # what cannot be read in its place is lost
    ]
    if misplaced:
        raise RecoveryError(
            f"{run}: journals lie where another rank runs, and the places of their own ranks are empty: "
            f"{', '.join(misplaced)}. No new run was started. Start each rank on the machine that has its journal, or move the "
            "folders; with `run=` on a disk that all machines share, or `store=`, a rank finds its journal on any machine. "
            "Remove journals that are out of date"
        )


def _list_segments(logs: Sequence[GenerationLog]) -> list[Path]:
    return [segment.path.resolve() for segment in logs[0].facts.segments]


# Copies of journals.


class JournalAccess:
    """Read access to the journals of all ranks. Use it as a context: its end deletes the copies.

    All ranks must create it at the same time, because they exchange which journals each of them can read.

    Attributes:
        folders: where to read each rank's journal. Empty journals are not listed.
        readable_by: the processes that can read each rank's journal in place.
    """

    def __init__(self, folder: Path, rank: int, summaries: Sequence[JournalSummary], transport: Transport) -> None:
        self._rank, self._transport = rank, transport
        self._copies = folder / "peers"
        held = {summary.rank: summary for summary in summaries if not summary.is_empty}
        self.folders = {owner: Path(summary.folder) for owner, summary in held.items()}
        self._senders = {owner: owner if summary.sender < 0 else summary.sender for owner, summary in held.items()}
        near = {owner for owner in held if self._senders[owner] == rank or is_readable(held[owner])}
        self._unreadable = held.keys() - near
        answers = gather(transport, tuple(sorted(near)))
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
    with ExitStack() as stack:
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
