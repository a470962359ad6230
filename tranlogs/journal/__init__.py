"""The journal: what integrations and the monitor talk to. One a process, one writer at a time."""

from .journal import Journal
from .opening import JournalPaths
from .ownership.writer_lock import Owner, read_owner

__all__ = ["Journal", "JournalPaths", "Owner", "read_owner"]
