"""Limits and settings with their defaults. Every queue, batch, retry and length has its maximum here."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from .errors import UsageError

FORMAT_VERSION = 2  # of segments, checkpoints and the catalog; see docs/format.md

KIB, MIB, GIB = 1 << 10, 1 << 20, 1 << 30

OUT_OF_LINE_BYTES_MIN = 8 * KIB  # arrays in auxiliary state from here on are frames of their own
TREE_DEPTH_MAX = 64
META_BYTES_MAX = 256 * MIB  # a record's description; more is a damaged length
CATALOG_BYTES = 256 * MIB  # address space of the catalog's map, not disk; doubled where a stopped reader pins old pages ...
CATALOG_BYTES_GROWN_MAX = 64 * GIB  # ... up to this
INDEX_BYTES = 256 * MIB  # address space of the log's index, doubled as it grows ...
INDEX_BYTES_GROWN_MAX = 64 * GIB  # ... up to this
CATALOG_BYTES_RESERVED = 1 * MIB  # behind what it uses: commits that give space back on a full disk
PART_BYTES_MAX = 64 * MIB  # of an object in a store; larger files become several
SEGMENT_BYTES_MIN = 1 * MIB
SEGMENT_RECORDS_WANTED = 8  # a segment has room for so many of the largest records seen ...
SEGMENT_BYTES_GROWN_MAX = 2 * GIB  # ... up to this size
SEGMENT_STEPS_FITTING = 16  # a segment that fits a model has room for so many steps ...
SEGMENT_BYTES_FITTING = 4 * MIB, 128 * MIB  # ... but is not smaller, nor larger
PAYLOAD_THREAD_BYTES_MIN = 1 * MIB  # a payload from here on is written by a thread while the optimizer steps
RECORD_SLACK_BYTES = 64 * KIB  # left behind a payload for its description; a longer one makes the file larger
RESERVE_BYTES_MIN = 16 * MIB  # a snapshot below this needs no memory got ahead
SPARE_FILES_MAX = 2  # retired segment files kept to be used again, where the last interval needed no more
RETRY_SECONDS_MIN, RETRY_SECONDS_MAX = 2.0, 60.0  # between attempts to take logging up again
QUEUE_JOBS_MAX = 256  # in the hand-over queue: steps and boundaries, however small
RING_BYTES_MIN = 64 * MIB  # of pinned memory, through which gradients come from a GPU; two steps of a larger model ...
RING_BYTES_MAX = 1 * GIB  # ... up to this; one step of a model for which two are more
RING_SECONDS_MAX = 60.0  # that training waits for the writer to give back space in the ring; logging is suspended then
TRANSFER_BYTES = 8 * MIB  # of one transfer from a GPU, between which those of training get their turn
STAGED_BYTES_MIN = 64 * MIB  # of memory on the GPU for what is staged; more only as it has free memory
FETCH_BYTES = 16 * MIB  # of each of the two windows through which a snapshot comes from a GPU
DIGEST_BYTES = 32 * MIB  # of tensors on a GPU that are digested at once
SCALARS_MAX = 256  # names of scalars that a run may note
THREAD_SECONDS_MAX = 5.0  # for a new thread to begin, and for another one to end what it does
STORE_CONNECT_SECONDS = 20.0  # to reach a store, and for it to take the next bytes
STORE_ANSWER_SECONDS = 60.0  # for the next bytes of its answer
STORE_CHECK_SECONDS = 30.0  # for an object to become durable in `tranlogs store check`
STORE_COPIES_MAX = 16
PATIENCE_SECONDS_MAX = 24 * 3600.0  # for one of several processes to read and redo its log; one that died is noticed at once
MISSING_SECONDS_WARNED = 60.0  # that others wait for a process that did not come, before it is said, and then said again ...
MISSING_SECONDS_MAX = 1800.0  # ... and before it is an error, unless the process group itself waits longer
GROUP_SECONDS = 0.01  # from one group that was made durable to the next: each costs the training thread a moment
CATALOG_SECONDS = 0.5  # watermarks are written to the catalog this often at most


def fitting_segment_bytes(step_bytes: int) -> int:
    """Size of a segment with room for some dozen steps, so that a small model's run does not take a large one's disk."""
    least, most = SEGMENT_BYTES_FITTING
    return min(max(SEGMENT_STEPS_FITTING * step_bytes // MIB * MIB, least), most)


@dataclass(frozen=True, slots=True)
class JournalConfig:
    """How a journal writes.

    Attributes:
        durability: "process" survives the process; "machine" also power loss (`synced` trails `committed`).
        segment_bytes: size of a segment file in bytes; grows by itself where records are large.
        segment_age_seconds: seal the open segment when it is this old, None for never.
        writer: "direct" appends on the training thread (CPU), "thread" hands records to a writer thread (GPU).
        queue_bytes_max: most bytes that wait in the hand-over queue; the training thread then waits.
    """

    durability: Literal["process", "machine"] = "machine"
    segment_bytes: int = 256 * MIB
    segment_age_seconds: float | None = None
    writer: Literal["direct", "thread"] = "direct"
    queue_bytes_max: int = 1 * GIB

    def __post_init__(self) -> None:
        if self.durability not in ("process", "machine"):
            raise UsageError(f'durability={self.durability!r}: use "process" or "machine"')
        if self.writer not in ("direct", "thread"):
            raise UsageError(f'writer={self.writer!r}: use "direct" or "thread"')
        if self.segment_bytes < SEGMENT_BYTES_MIN:
            raise UsageError(f"segment_bytes={self.segment_bytes}: at least {SEGMENT_BYTES_MIN}")
