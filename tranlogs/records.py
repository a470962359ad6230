"""Records, checkpoints and their encoding, as an integration reads and writes them. Names only; nothing is defined here."""

from .checkpoints import Checkpoint, Snapshot, SnapshotPool, write_checkpoint
from .encoding import tree
from .encoding.tree import Fixed, to_numpy
from .log.body import encode_parts
from .log.entry import Entry
from .log.layout import NO_TENSORS, Layout, Payload, SparseForm, array_of, spec_of
from .log.payload_reader import RecordFile
from .log.record import EntryKind, Position
from .log.writer import Tensor

__all__ = [
    "NO_TENSORS",
    "Checkpoint",
    "Entry",
    "EntryKind",
    "Fixed",
    "Layout",
    "Payload",
    "Position",
    "RecordFile",
    "Snapshot",
    "SnapshotPool",
    "SparseForm",
    "Tensor",
    "array_of",
    "encode_parts",
    "spec_of",
    "to_numpy",
    "tree",
    "write_checkpoint",
]
