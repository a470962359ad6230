"""When to take a checkpoint and which ones to keep: pure decisions, given facts."""

from .keep import KeepAll, KeepEvery, KeepLatest, RetentionPolicy, as_retention
from .monitor import Monitor
from .schedule import CheckpointFacts, CheckpointPolicy, EveryBytes, EverySeconds, EverySteps, RecoveryTime, as_policy

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
    "as_policy",
    "as_retention",
]
