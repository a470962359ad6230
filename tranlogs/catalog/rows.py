"""The rows of a catalog: what is known of segments, checkpoints and timelines, and under which keys."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal, TypeVar

from ..base.config import FORMAT_VERSION
from ..base.quantities import count

SegmentState = Literal["ready", "open", "sealed", "retired"]


@dataclass(frozen=True, slots=True)
class SegmentRow:
    """A segment. `ready` = prepared, maybe written to since; `retired` = its file may be reused or deleted."""

    ordinal: int
    segment_id: str  # 16 hex digits
    file: str
    size: int
    state: SegmentState
    timeline: int = 0
    base_sequence: int = 0  # the entry before its first
    base_step: int = 0
    last_sequence: int = 0  # set when sealed, as are the next three
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
    """A published checkpoint; `chain` is the digest that the entry after it names."""

    name: str
    step: int
    sequence: int
    chain: str
    timeline: int
    nbytes: int
    created_at: float
    seconds: float = 0.0  # what writing it took
    state: Literal["published", "retired"] = "published"


@dataclass(frozen=True, slots=True)
class TimelineRow:
    """A timeline and where it left its parent; timeline 1 has none."""

    number: int
    parent: int = 0
    fork_sequence: int = 0
    fork_step: int = 0
    created_at: float = 0.0


@dataclass(frozen=True, slots=True)
class Watermarks:
    """Step numbers, each at most the one before; `committed` here trails the log (read it there)."""

    committed: int = 0
    synced: int = 0
    archived: int = 0
    persisted: int = 0
    at: float = 0.0

    def at_most(self, step: int) -> Watermarks:
        """Of a run that was wound back to a step."""
        return Watermarks(step, min(self.synced, step), min(self.archived, step), min(self.persisted, step), self.at)


@dataclass(frozen=True, slots=True)
class Incident:
    """Logging was suspended for a time: why, from which step to which."""

    number: int
    why: str
    from_step: int
    from_time: float
    to_step: int | None = None
    to_time: float | None = None


@dataclass(frozen=True, slots=True)
class EvaluationRow:
    """What the monitor saw at one of its evaluations, for curves; arrays are base64 of little-endian numbers."""

    number: int
    at: float
    committed: int = 0
    synced: int = 0
    archived: int = 0
    persisted: int = 0
    log_bytes: int = 0
    checkpoint_bytes: int = 0
    budget_bytes: int | None = None
    ordinals: str = ""  # <i8, of sealed segments
    values: str = ""  # <f8, of each
    protected: str = ""  # u1, of each


@dataclass(frozen=True, slots=True)
class PrunedRow:
    """What monitors have given up so far: holes in the log up to `sequence` are no damage."""

    sequence: int = 0
    segments: int = 0
    checkpoints: int = 0
    nbytes: int = 0


@dataclass(frozen=True, slots=True)
class CommonRow:
    """Of a journal among several: no rank's newest checkpoint is older than this step, as far as all have told each other.

    `world` is how many journals these are; 0 where that is not known.
    """

    step: int
    world: int = 0


@dataclass(frozen=True, slots=True)
class StoreRow:
    """The store that the journal is shipped to, and how that goes.

    `writer` names this journal in it: another copy of the run, on another machine, has another. `number` is that of the
    last manifest that was published, or whose place was taken. `problem` says why shipping does not go on, "" if it does.
    """

    url: str
    writer: str
    number: int = 0
    at: float = 0.0
    problem: str = ""
    objects_bytes: int = 0
    under_replicated: int = 0  # segments and checkpoints that are not durable yet and have fewer copies than wanted
    host: str = ""  # the machine and folder that `writer` names: a copy of the journal is another writer

    @property
    def copies_missing(self) -> str:
        """What lacks copies, in words; nothing if nothing does."""
        if not self.under_replicated:
            return ""
        what = count(self.under_replicated, "file")
        return f"{what} not durable yet, with fewer copies than asked for; made up for when there are workers again"


@dataclass(frozen=True, slots=True)
class ShippedRow:
    """A segment or checkpoint that the store holds: its parts there by file, each [name, bytes, xxh3_128 in hex].

    Of a segment also where its chain comes from (`base_chain`, the digest that its first entry names), and where another
    segment can go on from: its last entry, or after a crash its newest boundary. Digests are 16 hex digits.
    """

    name: str  # of the segment's file, or the checkpoint's folder
    files: dict[str, list[list[Any]]]
    boundary_step: int = 0  # the newest boundary in a segment
    boundary_sequence: int = 0
    boundary_chain: str = ""
    base_chain: str = ""
    end_sequence: int = 0
    end_chain: str = ""
    is_durable: bool = False
    at: float = 0.0
    is_lost: bool = False  # the store has it no more, or not now: it does not count


@dataclass(frozen=True, slots=True)
class RunRow:
    """What the journal is part of."""

    run_id: str
    rank: int
    created_at: float
    format: int = FORMAT_VERSION
    framework: str = ""
    settings: dict[str, Any] = field(default_factory=dict)


Row = TypeVar("Row", SegmentRow, CheckpointRow, TimelineRow, Watermarks, Incident, EvaluationRow, PrunedRow, CommonRow,
              StoreRow, ShippedRow, RunRow)  # fmt: skip

KINDS: dict[str, type[Any]] = {
    "segment/": SegmentRow, "checkpoint/": CheckpointRow, "timeline/": TimelineRow, "incident/": Incident,
    "evaluation/": EvaluationRow, "pruned": PrunedRow, "common": CommonRow, "store": StoreRow, "shipped/": ShippedRow,
    "watermarks": Watermarks, "run": RunRow,
}  # fmt: skip


def segment_key(ordinal: int) -> str:
    return f"segment/{ordinal:010d}"


def evaluation_key(number: int) -> str:
    return f"evaluation/{number:010d}"


def timeline_key(number: int) -> str:
    return f"timeline/{number:06d}"
