"""TranLogs: a write-ahead log between checkpoints, so that a crash costs a training run no finished step."""

from .base.stderr_warnings import show_warnings
from .retention import (
    CheckpointFacts,
    CheckpointPolicy,
    EveryBytes,
    EverySeconds,
    EverySteps,
    KeepAll,
    KeepEvery,
    KeepLatest,
    Monitor,
    RecoveryTime,
    RetentionPolicy,
)

show_warnings()

__version__ = "0.1.0"

__all__ = [
    "CheckpointFacts",
    "CheckpointPolicy",
    "EveryBytes",
    "EverySeconds",
    "EverySteps",
    "KeepAll",
    "KeepEvery",
    "KeepLatest",
    "Monitor",
    "RecoveryTime",
    "RetentionPolicy",
]
