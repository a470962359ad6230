"""Verification of a journal: every checksum, every chain, every byte of log and checkpoints, and the catalog."""

from .findings import Checked, Finding, Problem
from .journal_checks import verify_journal

__all__ = ["Checked", "Finding", "Problem", "verify_journal"]
