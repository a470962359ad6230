"""Rows of a catalog, and their keys."""

from __future__ import annotations

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
        file: the name of the file.
        size: length of the file. Blocks at its end may not be allocated yet.
        state: "ready" = prepared, and perhaps written to since this row was written; "open"; "sealed"; "retired" = the file
            may be recycled or deleted.
        timeline: the timeline that the segment belongs to; 0 until it is opened.
        base_sequence: the sequence number of the record before the first one.
        base_step: the step of that record.
        last_sequence: the sequence number of the last record; 0 until the segment is sealed.
        last_step: the step of the last record; 0 until the segment is sealed.
        used_bytes: bytes that hold records; 0 until the segment is sealed.
        sealed_at: the time of sealing, in seconds since 1970.
        created_at: the time of creation, in seconds since 1970.
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
        name: the name of the folder.
        step: the step of the checkpoint.
        sequence: the sequence number of the record after which it was taken.
        chain: the digest of that record, in hex; the next record names it as its predecessor.
        timeline: the timeline that the checkpoint belongs to.
        nbytes: bytes of the folder.
        created_at: the time of creation, in seconds since 1970.
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
        url: the URL of the store.
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
    "watermarks": Watermarks,
    "run": RunRow,
}


def segment_key(ordinal: int) -> str:
    """Return the key of a segment's row."""
    return f"segment/{ordinal:010d}"


def timeline_key(number: int) -> str:
    """Return the key of a timeline's row."""
    return f"timeline/{number:06d}"
