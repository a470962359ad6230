"""Recovery: read the facts, plan (pure), then replay through the protocol that each integration implements."""

from .facts import read_facts
from .protocol import Divergence, Recoverable
from .recover import recover
from .report import RecoveryReport

__all__ = ["Divergence", "Recoverable", "RecoveryReport", "read_facts", "recover"]
