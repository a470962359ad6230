"""Limits and settings with their defaults. Every queue, batch, retry and length has its maximum here."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from .errors import UsageError

FORMAT_VERSION = 3  # version of segments, checkpoints and the catalog (docs/format.md)

KIB, MIB, GIB = 1 << 10, 1 << 20, 1 << 30

# Encoding.
OUT_OF_LINE_BYTES_MIN = 2 * KIB  # Arrays of this size or more in auxiliary state are stored outside of the tree.
TREE_DEPTH_MAX = 64
META_BYTES_MAX = 256 * MIB  # A larger description of a record has a damaged length.
REMEMBERED_BYTES_MAX = 64 * MIB  # of all that a loop remembers, since it is written at each boundary
REMEMBERED_VALUES_MAX = 100_000
TRACKED_BYTES_MAX = 1 * GIB  # of one tracked object, or four times the model where that is more

# Loops.
OUTSIDE_UNITS_MAX = 10  # in a row, that are committed outside of all loops without a warning: a script may warm up

# LMDB. The size of a map is address space, not disk space. A map is doubled when it is full, up to the maximum.
CATALOG_BYTES = 256 * MIB  # map of the catalog; it becomes full if a stopped reader keeps old pages from being reused
CATALOG_BYTES_GROWN_MAX = 64 * GIB
CATALOG_BYTES_RESERVED = 1 * MIB  # preallocated space, with which the catalog can free segments on a full disk

# Segments.
SEGMENT_BYTES_MIN = 1 * MIB
SEGMENT_RECORDS_WANTED = 8  # Segments grow until they hold this number of the largest records,
SEGMENT_BYTES_GROWN_MAX = 2 * GIB  # but not beyond this size.
SEGMENT_STEPS_FITTING = 16  # The default size of segments holds this number of steps of a model,
SEGMENT_BYTES_FITTING = 1 * MIB, 128 * MIB  # within these limits.
RECORD_SLACK_BYTES = 64 * KIB  # space for the description of a record; a longer description enlarges the file
SEGMENT_STEP_BYTES = 256 * KIB  # Blocks of a young run's segments are allocated in steps of this size while the disk has
SPACE_PLENTY_BYTES = 1 * GIB  # this much free space, besides two segments and a checkpoint.
SPARE_FILES_MAX = 2  # retired files that are kept for recycling if the last interval did not need more
GROUP_SECONDS = 0.01  # time between two groups that are made durable, because each group delays the training thread a little
CATALOG_HELD_SECONDS = 5.0  # A foreign process that holds LMDB's write lock so long is named, and training waits no longer.
REQUEST_SECONDS = 2.0  # time for the owner of a journal to make a change that another process asks for
REQUEST_POLL_SECONDS = 0.1  # time between two looks for requests
REQUEST_BYTES_MAX = 64 * MIB  # size of a request; a larger one is damaged
WAITING_RECORDS_MAX = 200_000  # records whose rows a held catalog delays, before logging is suspended; some 60 MB of memory
SWEEP_SECONDS = 10.0  # time between two searches for rows of records of pruned segments
RECORDS_CHECKED_MAX = 10_000  # newest records of which `status` and `log` check the chain; `verify` checks all
CATALOG_SECONDS = 0.5  # minimum time between two writes of the watermarks

# Writing.
PAYLOAD_THREAD_BYTES_MIN = 1 * MIB  # A thread writes payloads of this size or more while the optimizer steps.
WRITE_BYTES = 4 * MIB  # Pieces of a payload are written together until they have this size.
QUEUE_JOBS_MAX = 256  # steps and boundaries in the queue of the writer thread
RETRY_SECONDS_MIN, RETRY_SECONDS_MAX = 2.0, 60.0  # time between attempts to resume logging
RESERVE_BYTES_MIN = 16 * MIB  # A snapshot of this size or more reserves memory in advance.
SCALARS_MAX = 256  # names of scalars that a run may log
CURVE_POINTS_MAX = 16_384  # that are kept of one name: the newest half in full, older ones thinned out
THREAD_SECONDS_MAX = 5.0  # time for a new thread to start, and for a thread to end

# GPU.
RING_BYTES_MIN = 64 * MIB  # Pinned memory for gradients: at least this much, or two steps of the model
RING_BYTES_MAX = 1 * GIB  # up to this much, or one step of a larger model.
RING_SECONDS_MAX = 60.0  # time that training waits for space in the ring before logging is suspended
TRANSFER_BYTES = 8 * MIB  # size of one transfer from a GPU; transfers of the training loop run in between
STAGED_BYTES_MIN = 64 * MIB  # GPU memory for staged gradients; more is used only if the GPU has free memory
FETCH_BYTES = 16 * MIB  # size of each of the two buffers through which a snapshot comes from a GPU
DIGEST_BYTES = 32 * MIB  # bytes of tensors on a GPU that are digested in one batch

# Stores.
PART_BYTES_MAX = 64 * MIB  # size of an object in a store; a larger file becomes several objects
STORE_CONNECT_SECONDS = 20.0  # time to connect to a store, and for the store to accept the next bytes
STORE_ANSWER_SECONDS = 60.0  # time for the next bytes of an answer
STORE_CHECK_SECONDS = 30.0  # time for an object to become durable in `tranlogs verify URL`
STORE_COPIES_MAX = 16

# Several processes.
PATIENCE_SECONDS_MAX = 24 * 3600.0  # time for one process to read and redo its log; a process that died is noticed at once
MISSING_SECONDS_WARNED = 60.0  # A missing process is reported after this time and then in intervals of this length,
MISSING_SECONDS_MAX = 1800.0  # and is an error after this time or the timeout of the process group, if that is longer.


def fitting_segment_bytes(step_bytes: int) -> int:
    """Return a segment size with room for some steps of a model, so that a small model's run needs little disk space."""
    least, most = SEGMENT_BYTES_FITTING
    return min(max(SEGMENT_STEPS_FITTING * step_bytes // MIB * MIB, least), most)


@dataclass(frozen=True, slots=True)
class JournalConfig:
    """Settings of a journal's log.

    Attributes:
        durability: "process": committed steps survive the end of the process; "machine": synced steps survive power loss, too.
        segment_bytes: size of a segment file in bytes. Segments become larger if records are large.
        segment_bytes_first: size of the first one; the next ones grow with the log. None: all have segment_bytes.
        segment_age_seconds: age at which the open segment is sealed; None for no limit.
        writer: "direct" appends on the training thread (CPU), "thread" gives records to a writer thread (GPU).
        queue_bytes_max: maximum number of bytes in the queue of the writer thread. If it is full, the training thread waits.
    """

    durability: Literal["process", "machine"] = "machine"
    segment_bytes: int = 256 * MIB
    segment_bytes_first: int | None = None
    segment_age_seconds: float | None = None
    writer: Literal["direct", "thread"] = "direct"
    queue_bytes_max: int = 1 * GIB

    def __post_init__(self) -> None:
        if self.durability not in ("process", "machine"):
            raise UsageError(f'durability={self.durability!r}: use "process" or "machine"')
        if self.writer not in ("direct", "thread"):
            raise UsageError(f'writer={self.writer!r}: use "direct" or "thread"')
        if self.segment_bytes < SEGMENT_BYTES_MIN:
            raise UsageError(f"segment_bytes must be at least {SEGMENT_BYTES_MIN}, got {self.segment_bytes}")
