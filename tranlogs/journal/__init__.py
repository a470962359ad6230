"""The journal, through which integrations log and recover. Each process has its own; a journal has one writer at a time."""

from .journal import Journal
from .owner_lock import Owner, read_owner
from .paths import JournalPaths
from .requests import change_catalog

__all__ = ["Journal", "JournalPaths", "Owner", "change_catalog", "read_owner"]
