"""The journals of ranks as they lie on the disk: what is recorded of the group, a log by generations, and its summary."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from ...base.errors import CorruptCatalog, CorruptCheckpoint, CorruptRecord
from ...catalog import Catalog, CheckpointRow, RunRow
from ...catalog.rows import Limits, is_on_lineage
from ...checkpoints import Checkpoint
from ...log.reader import Record, SegmentReader
from ...log.record_format import RecordKind
from ...rebuild_catalog import read_files, read_first_body
from ..history import History, Link, ScannedSegment, build_history, without_unlogged_steps
from ..journal_facts import Facts, read_facts
from .summary import CheckpointRef, JournalSummary, LogRange, TimelineIds, get_timeline_ids

Environment = Mapping[str, Any]  # what a checkpoint or a segment records of the processes that trained together


@dataclass(slots=True)
class GenerationLog:
    """The part of one generation in a journal.

    Attributes:
        limits: the timelines of the generation that lead to the newest one, each with its last sequence number.
        history: the chained records on these timelines that redo can reach.
        recorded: all chained records on these timelines.
        environment: the environment that the newest checkpoint or segment recorded.
        earlier_limits: the timelines of earlier generations that the generation continues.
    """

    facts: Facts
    limits: Limits
    history: History
    recorded: History = field(default_factory=History)
    checkpoints: list[CheckpointRow] = field(default_factory=list)
    environment: dict[str, Any] = field(default_factory=dict)
    earlier_limits: Limits = field(default_factory=dict)

    @classmethod
    def from_facts(cls, facts: Facts, folder: Path, limits: Limits | None = None) -> GenerationLog:
        """Return the part of the newest generation that facts show. A later generation may have limited its lineage."""
        log = cls(facts, limits or facts.rows.limits, History())
        log._fill()
        log.environment = _read_checkpoint_environment(folder, [row.name for row in log.checkpoints]) or {}
        log.environment = log.environment or log._read_segment_environment()
        if log.first_timeline > 1:
            log.earlier_limits = {number: limit for number, limit in log.limits.items() if number < log.first_timeline}
            log.limits = {number: limit for number, limit in log.limits.items() if number >= log.first_timeline}
            log._fill()
        return log

    def _fill(self) -> None:
        self.checkpoints = [row for row in self.facts.checkpoints if is_on_lineage(row, self.limits)]
        self.recorded = build_history(self.facts.segments, self.limits)
        self.history = without_unlogged_steps(self.recorded, self.checkpoints)

    @property
    def first_timeline(self) -> int:
        """The timeline that started the generation."""
        return get_first_timeline(self.environment)

    @property
    def is_empty(self) -> bool:
        """True if there is nothing to recover from."""
        return not self.checkpoints and not self.history.runs

    def summarize(self, rank: int, folder: Path, run_id: str) -> JournalSummary:
        """Return the summary that the other ranks need."""
        place = str(folder.resolve())
        if self.is_empty:
            return JournalSummary(rank, place, run_id, timeline=self.facts.rows.timeline)
        world = get_world(self.environment)
        body = self._read_newest_boundary() if world > 1 else {}
        replicated = world == 1 or is_replicated(self.environment)
        ranges, numbers = _summarize_ranges(self.history.runs, {row.sequence for row in self.checkpoints})
        refs = (
            CheckpointRef(row.step, row.name, numbers.get(row.sequence, 0), self.history.find_next(row)[0])
            for row in self.checkpoints
        )
        return JournalSummary(
            rank,
            place,
            run_id,
            world=world,
            is_replicated=replicated,
            timeline=self.facts.rows.timeline,
            ranges=tuple(ranges),
            checkpoints=tuple(refs),
            first_timeline=self.first_timeline,
            copies=int(self.environment.get("ddp", {}).get("copies", 1)),
            is_sharded=is_sharded(self.environment),
            timeline_ids=self._read_timeline_ids(),
            has_full_records=replicated and bool(body.get("ddp", {}).get("is_divided")) and self._ends_with_full_record(),
            last_equal_step=int(body.get("equal", -1)),
            recorded_steps=self._find_recorded_steps(),
        )

    def _find_recorded_steps(self) -> tuple[int, ...]:
        """Return the two newest steps with a boundary in the newest run of chained records, or fewer; the newest first."""
        found = list[int]()
        for link in reversed(self.recorded.runs[-1]) if self.recorded.runs else ():
            if link.kind.is_boundary and link.step not in found:
                found.append(link.step)
            if len(found) == 2:
                break
        return tuple(found)

    def _read_newest_boundary(self) -> dict[str, Any]:
        """Return the body of the newest boundary; {} if it cannot be read."""
        last = self._find_newest(lambda kind: kind.is_boundary)
        return {} if last is None else _read(last, Record.boundary)

    def _ends_with_full_record(self) -> bool:
        """Return True if the newest record holds all that its step needs."""
        last = self._find_newest(lambda kind: kind.is_step)
        body = {} if last is None else _read(last, Record.body)
        return bool(body) and "share" not in body

    def _find_newest(self, is_wanted: Callable[[RecordKind], bool]) -> Link | None:
        """Return the last record of some kind in the newest run of chained records; None if it has none."""
        run = self.history.runs[-1] if self.history.runs else []
        return next((link for link in reversed(run) if is_wanted(link.kind)), None)

    def _read_timeline_ids(self) -> TimelineIds:
        """Return the ids that the newest timeline with a record lists; it may be newer than the newest checkpoint."""
        newest = max((row.timeline for row in self.checkpoints), default=0)
        return get_timeline_ids(self._read_segment_environment(newest) or self.environment)

    def _read_segment_environment(self, after_timeline: int = 0) -> dict[str, Any]:
        """Return the environment that the newest segment with a record on a later timeline records; {} if there is none."""
        for segment in sorted(self.facts.segments, key=lambda segment: -segment.row.ordinal):
            if segment.row.timeline in self.limits and segment.row.timeline > after_timeline and _has_records(segment):
                body = read_first_body(segment.path, segment.locations[0])
                if "environment" in body:
                    return dict(body["environment"])
        return {}


def read_generations(folder: Path, ignored: Collection[int] = (), facts: Facts | None = None) -> list[GenerationLog]:
    """Return the generations of a journal without some timelines, the newest first. Some may be empty.

    The facts of the first generation are those of the whole journal, which is read unless they are given.
    """
    facts = facts or read_facts(folder)
    timelines = [row for row in facts.rows.timelines if row.number not in ignored]
    facts = replace(facts, rows=replace(facts.rows, timelines=timelines))
    found = [GenerationLog.from_facts(facts, folder)]
    while True:
        newest = found[-1]
        start = min(newest.limits) if newest.is_empty else newest.first_timeline
        earlier = newest.earlier_limits
        older = [row for row in facts.rows.timelines if row.number in earlier or (not earlier and row.number < start)]
        if not older:
            break
        numbers = {row.number for row in older}
        segments = [segment for segment in facts.segments if segment.row.timeline in numbers]
        facts = replace(facts, rows=replace(facts.rows, timelines=older), segments=segments)
        found.append(GenerationLog.from_facts(facts, folder, earlier))
    return found


def select_generation(logs: Sequence[GenerationLog], first_timeline: int) -> GenerationLog:
    """Return one of a journal's generations; an empty one if the journal has no part in it."""
    matching = (log for log in logs if log.first_timeline == first_timeline and not log.is_empty)
    return next(matching, GenerationLog(replace(logs[0].facts, segments=[]), {}, History()))


def summarize_generations(
    logs: Sequence[GenerationLog], rank: int, folder: Path, run_id: str, ignored: Collection[int] = ()
) -> list[JournalSummary]:
    """Return the summaries of a journal's generations, the newest first: at least one, which may be empty."""
    held = [log for log in logs if not log.is_empty] or logs[:1]
    newest = max([logs[0].facts.rows.timeline, *ignored])
    has_empty_timeline = bool(ignored) or (logs[0].is_empty and held[0] is not logs[0])
    summaries = [log.summarize(rank, folder, run_id) for log in held]
    return [replace(one, timeline=newest, has_empty_timeline=has_empty_timeline) for one in summaries]


@dataclass(frozen=True, slots=True)
class TimelineUse:
    """The timelines of which journals hold a record or a checkpoint (`used`), and those that they only started (`empty`)."""

    used: tuple[int, ...] = ()
    empty: tuple[int, ...] = ()


def get_timeline_use(facts: Facts) -> TimelineUse:
    """Return the timelines of a journal."""
    used = {row.timeline for row in facts.checkpoints}
    used |= {segment.row.timeline for segment in facts.segments if _has_records(segment)}
    return TimelineUse(tuple(sorted(used)), tuple(row.number for row in facts.rows.timelines if row.number not in used))


def find_unused_timelines(uses: Sequence[TimelineUse]) -> frozenset[int]:
    """Return the newest timelines of which no journal holds anything: a crash interrupted their start."""
    last = max((number for one in uses for number in one.used), default=1)
    return frozenset(number for one in uses for number in one.empty if number > last)


def list_journals(folder: Path) -> list[tuple[int, Path]]:
    """Return the journals of a run, by rank, given the folder of one of them."""
    found = ((path.name[4:], path) for path in folder.resolve().parent.glob("rank*"))
    return sorted((int(number), path) for number, path in found if number.isdigit() and (path / "log").is_dir())


def read_run_row(folder: Path) -> RunRow | None:
    """Return the run's row of the journal in a folder; None if the folder holds none that can be read."""
    try:
        with Catalog.open(folder) as catalog:
            return catalog.run()
    except (CorruptCatalog, OSError):
        rows = read_files(folder).runs if folder.is_dir() else []
        return rows[0] if rows else None


def read_run_id(folder: Path) -> str | None:
    """Return the id of the journal in a folder; None if the folder holds none that can be read."""
    row = read_run_row(folder)
    return None if row is None else row.run_id


def is_readable(summary: JournalSummary) -> bool:
    """Return True if this process can read the journal of another rank where that rank sees it."""
    return read_run_id(Path(summary.folder)) == summary.run_id


def enumerate_boundaries(run: Collection[Link]) -> Iterator[tuple[int, Link]]:
    """Yield the index and the link of each boundary in a run of records."""
    return ((i, link) for i, link in enumerate(run) if link.kind.is_boundary)


def get_world(environment: Environment) -> int:
    """Return the number of processes that trained together."""
    return int(environment.get("world", 1))


def get_first_timeline(environment: Environment) -> int:
    """Return the timeline that started the generation: with it, this number of processes began to train the run."""
    return int(environment.get("since", 1))


def is_replicated(environment: Environment) -> bool:
    """Return True if weights and optimizer state were the same on all ranks, so that records may hold gradient shards."""
    return bool(environment.get("ddp", {}).get("is_divided"))


def is_sharded(environment: Environment) -> bool:
    """Return True if parameters were sharded over the ranks, so that each rank has a part."""
    return bool(environment.get("sharding"))


def is_of_group(environment: Environment) -> bool:
    """Return True if several processes trained the run with the same weights, in this generation or in an earlier one."""
    return is_replicated(environment) or get_first_timeline(environment) > 1


def read_environment(folder: Path) -> dict[str, Any]:
    """Return the environment that the newest readable checkpoint of a journal records, or else its log; {} if it is empty."""
    names = sorted((path.name for path in (folder / "checkpoints").glob("step-*")), key=_parse_timeline_and_step)
    found = _read_checkpoint_environment(folder, names)
    if found is not None:
        return found
    return next((log.environment for log in read_generations(folder) if log.environment), {})


def _parse_timeline_and_step(name: str) -> tuple[str, str]:
    """Return the sort key of a checkpoint's name. The timeline comes first: after a rewind, newer steps are smaller."""
    step, _, rest = name.removeprefix("step-").partition("-")
    return rest.partition("-")[0], step


def _read_checkpoint_environment(folder: Path, names: Sequence[str]) -> dict[str, Any] | None:
    """Return the environment of the last of the named checkpoints that can be opened; None if none can."""
    for name in reversed(names):
        with contextlib.suppress(CorruptCheckpoint), Checkpoint(folder / "checkpoints" / name) as checkpoint:
            return dict(checkpoint.manifest["environment"])
    return None


def _read(link: Link, decode: Callable[[Record], Any]) -> dict[str, Any]:
    """Return what a record holds; {} if it cannot be read."""
    with contextlib.suppress(CorruptRecord, OSError), SegmentReader(link.segment.path) as reader:
        return dict(decode(reader.decode(link.location)))
    return {}


def _has_records(segment: ScannedSegment) -> bool:
    return any(location.head.kind != RecordKind.SEGMENT for location in segment.locations)


def _summarize_ranges(runs: Sequence[Sequence[Link]], sequences: Collection[int]) -> tuple[list[LogRange], dict[int, int]]:
    """Return the ranges of a log, and which of the boundaries at its step, from 1, each boundary in `sequences` is."""
    ranges, numbers = list[LogRange](), dict[int, int]()
    for run in runs:
        steps = [link.step for link in run if link.kind.is_step]
        counts: dict[int, int] = {0: 0} if run[0].sequence == 1 else {}
        for _, link in enumerate_boundaries(run):
            counts[link.step] = counts.get(link.step, 0) + 1
            if link.sequence in sequences:
                numbers.setdefault(link.sequence, counts[link.step])
        after = steps[0] - 1 if steps else run[0].step
        ranges.append(LogRange(after, steps[-1] if steps else after, counts))
    return ranges, numbers
