"""Policies on when to take a checkpoint and which checkpoints to keep: pure decisions over facts."""

from .checkpoint_interval import (
    Automatic,
    CheckpointFacts,
    CheckpointPolicy,
    EveryBytes,
    EverySeconds,
    EverySteps,
    RecoveryTime,
    as_policy,
)
from .keep_policy import KeepAll, KeepEvery, KeepLatest, RetentionPolicy, as_retention
from .monitor_settings import Monitor

__all__ = [
    "Automatic",
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
    "as_policy",
    "as_retention",
]
