"""TranLogs for PyTorch: an optimizer wrapper that logs every step and brings a crashed run back to it."""

from tranlogs.training import RecoveryReport

from .optimizer import LoggedOptimizer

__all__ = ["LoggedOptimizer", "RecoveryReport"]
