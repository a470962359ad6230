"""Records, checkpoints and their encoding, as an integration reads and writes them. Names only; nothing is defined here."""

from .checkpoints import Checkpoint, Snapshot
from .encoding import tree
from .encoding.tree import Fixed, to_numpy
from .log.layout import NO_TENSORS, Layout, Payload, SparseForm, array_of, spec_of
from .log.reader import Record
from .log.record_body import BodyEncoder, decode_part
from .log.writer import Tensor

__all__ = [
    "NO_TENSORS",
    "BodyEncoder",
    "Checkpoint",
    "Fixed",
    "Layout",
    "Payload",
    "Record",
    "Snapshot",
    "SparseForm",
    "Tensor",
    "array_of",
    "decode_part",
    "spec_of",
    "to_numpy",
    "tree",
]
