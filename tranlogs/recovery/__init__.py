"""Recovery: collect facts, plan (pure), then replay through the integration's small protocol."""

from .protocol import Divergence, Recoverable
from .recover import open_for_reading, recover
from .report import RecoveryReport

__all__ = ["Divergence", "Recoverable", "RecoveryReport", "open_for_reading", "recover"]
