"""Rows of a catalog, their keys, and the lineage of a timeline: the path from the root of the tree of timelines to it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Literal, TypeVar

from ..base.config import FORMAT_VERSION

SegmentState = Literal["ready", "open", "sealed", "retired"]


@dataclass(frozen=True, slots=True)
class SegmentRow:
    """A segment of the log.

    Attributes:
        ordinal: the place of the segment in the order of segments.
        segment_id: the id of the segment, in 16 hex digits. A recycled file gets a new one.
        size: length of the file. Blocks at its end may not be allocated yet.
        state: "ready" = prepared, and perhaps written to since this row was written; "open"; "sealed"; "retired" = the file
            may be recycled or deleted.
        timeline: the timeline that the segment belongs to; 0 until it is opened.
        base_sequence: the sequence number of the record before the first one.
        last_sequence: the sequence number of the last record; 0 until the segment is sealed.
        used_bytes: bytes that hold records; 0 until the segment is sealed.
    """

    ordinal: int
    segment_id: str
    file: str
    size: int
    state: SegmentState
    timeline: int = 0
    base_sequence: int = 0
    base_step: int = 0
    last_sequence: int = 0
    last_step: int = 0
    used_bytes: int = 0
    sealed_at: float = 0.0
    created_at: float = 0.0

    @property
    def number(self) -> int:
        """The segment id as a number."""
        return int(self.segment_id, 16)


@dataclass(frozen=True, slots=True)
class CheckpointRow:
    """A checkpoint.

    Attributes:
        sequence: the sequence number of the record after which it was taken.
        chain: the digest of that record, in hex; the next record names it as its predecessor.
        nbytes: bytes of the folder.
        seconds: the time that writing took.
        state: "published", or "retired" = the folder may be deleted.
    """

    name: str
    step: int
    sequence: int
    chain: str
    timeline: int
    nbytes: int
    created_at: float
    seconds: float = 0.0
    state: Literal["published", "retired"] = "published"


@dataclass(frozen=True, slots=True)
class TimelineRow:
    """A timeline, and the record at which it forks from its parent. Timeline 1 has no parent."""

    number: int
    parent: int = 0
    fork_sequence: int = 0
    fork_step: int = 0
    created_at: float = 0.0


@dataclass(frozen=True, slots=True)
class Watermarks:
    """The watermarks: step numbers, each at most the previous one. `committed` trails the log, which has the exact value."""

    committed: int = 0
    synced: int = 0
    archived: int = 0
    persisted: int = 0
    at: float = 0.0

    def at_most(self, step: int) -> Watermarks:
        """Return the watermarks of a run that was rewound to a step."""
        return Watermarks(step, min(self.synced, step), min(self.archived, step), min(self.persisted, step), self.at)


@dataclass(frozen=True, slots=True)
class Incident:
    """A time in which logging was suspended: the reason, and the steps and times of its start and end (None while it lasts)."""

    number: int
    why: str
    from_step: int
    from_time: float
    to_step: int | None = None
    to_time: float | None = None


@dataclass(frozen=True, slots=True)
class PrunedRow:
    """Totals of what monitors have pruned so far. Holes in the log up to `sequence` are no damage."""

    sequence: int = 0
    segments: int = 0
    checkpoints: int = 0
    nbytes: int = 0


@dataclass(frozen=True, slots=True)
class CommonRow:
    """Common progress of a group, as far as the ranks know of each other's checkpoints.

    Attributes:
        step: no rank's newest checkpoint is older than this step, as of the last exchange.
        world: the number of journals in the group; 0 if it is not known.
    """

    step: int
    world: int = 0


@dataclass(frozen=True, slots=True)
class StoreRow:
    """The store that the journal is shipped to, and the state of shipping.

    Attributes:
        writer: the name of this journal in the store. A copy of the run on another machine has another name.
        number: the number of the last manifest that was published, or that another writer had published.
        at: the time of the last change, in seconds since 1970.
        problem: why shipping cannot continue; "" if it can.
        objects_bytes: bytes of the journal's objects in the store.
        host: the machine and folder that `writer` stands for. A copy of the journal elsewhere is another writer.
    """

    url: str
    writer: str
    number: int = 0
    at: float = 0.0
    problem: str = ""
    objects_bytes: int = 0
    host: str = ""


@dataclass(frozen=True, slots=True)
class MeasuredRow:
    """What the run's trainers have measured. A time or a size is 0 as long as it was not.

    Attributes:
        phase: what is logged: "gradients" or "inputs", or another phase of `log="auto"` (see training/rungs.py).
        tensors: what a record with tensors holds: "gradients" or "weights"; "" if there was none yet.
        overhead: what logged tensors may cost, as a share of a step; None if nobody has set it.
        cost: what they cost in the last trial; None if there was none.
        is_settled: True if tensors are logged whatever they cost: training would not compute the same again.
        is_repeatable: False if the arithmetic of a step gives other bits each time.
        step_seconds: time of a step, with all that belongs to the loop.
        step_bytes: bytes of tensors that a step logs.
        redo_seconds: time to redo a step.
        is_redo_measured: False if `redo_seconds` is the time of the optimizer's own step.
        stall_seconds: time that training stood still for the last checkpoint.
        writing_seconds: time that it took to write it.
        interval_seconds: time between the last two checkpoints; None where "auto" decides.
        log_bytes_max: bytes of log between two checkpoints at most.
        mtbf_seconds: the mean time between two failures, if the user has set it.
        trained_seconds: time that former processes have trained.
        failures: how many of them did not come to their end.
        since: when the process began to train that has written this row, in seconds since 1970.
    """

    phase: str = ""
    tensors: str = ""
    overhead: float | None = None
    cost: float | None = None
    is_settled: bool = False
    is_repeatable: bool = True
    step_seconds: float = 0.0
    step_bytes: int = 0
    redo_seconds: float = 0.0
    is_redo_measured: bool = False
    load_seconds: float = 0.0
    stall_seconds: float = 0.0
    writing_seconds: float = 0.0
    interval_seconds: float | None = 0.0
    log_bytes_max: int = 0
    mtbf_seconds: float = 0.0
    trained_seconds: float = 0.0
    failures: int = 0
    since: float = 0.0


@dataclass(frozen=True, slots=True)
class RunRow:
    """The run that the journal is part of."""

    run_id: str
    rank: int
    created_at: float
    format: int = FORMAT_VERSION
    framework: str = ""
    settings: dict[str, Any] = field(default_factory=dict)


Row = TypeVar(
    "Row",
    SegmentRow,
    CheckpointRow,
    TimelineRow,
    Watermarks,
    Incident,
    PrunedRow,
    CommonRow,
    StoreRow,
    MeasuredRow,
    RunRow,
)

KINDS: dict[str, type[Any]] = {
    "segment/": SegmentRow,
    "checkpoint/": CheckpointRow,
    "timeline/": TimelineRow,
    "incident/": Incident,
    "pruned": PrunedRow,
    "common": CommonRow,
    "store": StoreRow,
    "measured": MeasuredRow,
    "watermarks": Watermarks,
    "run": RunRow,
}


def segment_key(ordinal: int) -> str:
    """Return the key of a segment's row."""
    return f"segment/{ordinal:010d}"


def timeline_key(number: int) -> str:
    """Return the key of a timeline's row."""
    return f"timeline/{number:06d}"


Limits = dict[int, int | None]  # the timelines of a lineage, each with the last sequence number on it; None for no limit


def trace_lineage(timelines: Iterable[TimelineRow], number: int) -> Limits:
    """Return the timelines that lead to a timeline, each with the last sequence number that belongs to the lineage.

    Args:
        number: the number of the timeline that they lead to. Its limit is None.
    """
    rows = {row.number: row for row in timelines}
    limits: Limits = {number: None}
    limit: int | None = None
    while (row := rows.get(number)) is not None and row.parent and row.parent not in limits:
        limit = row.fork_sequence if limit is None else min(limit, row.fork_sequence)
        limits[row.parent] = limit
        number = row.parent
    return limits


def is_on_lineage(row: CheckpointRow, limits: Limits) -> bool:
    """Return True if a checkpoint lies on a lineage."""
    limit = limits.get(row.timeline, -1)
    return limit is None or row.sequence <= limit
