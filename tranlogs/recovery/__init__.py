"""Recovery: read the facts, plan (pure), then replay through the protocol that each integration implements."""

from .journal_facts import read_facts
from .recover import recover
from .report import RecoveryReport
from .state_protocol import Divergence, Recoverable

__all__ = ["Divergence", "Recoverable", "RecoveryReport", "read_facts", "recover"]
