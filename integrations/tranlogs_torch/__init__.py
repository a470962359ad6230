"""TranLogs for PyTorch: an optimizer wrapper that logs every step and brings a crashed run back to it."""

from tranlogs.recovery import RecoveryReport

from .optimizer import LoggedOptimizer
from .starting import StartFrom

__all__ = ["LoggedOptimizer", "RecoveryReport", "StartFrom"]
