"""Checkpoints: the full state at one boundary, as a folder that is published atomically and checked when read."""

from .reader import Checkpoint
from .writer import Snapshot, SnapshotPool, checkpoint_name, write_checkpoint, write_folder

__all__ = ["Checkpoint", "Snapshot", "SnapshotPool", "checkpoint_name", "write_checkpoint", "write_folder"]
