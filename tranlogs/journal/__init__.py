"""The journal, through which integrations log and recover. Each process has its own; a journal has one writer at a time.

Those who look into a journal, or ask its writer for a change, do not import what writes it: `journal.Journal`.
"""

from .owner_lock import Owner, read_owner
from .paths import JournalPaths
from .requests import change_catalog

__all__ = ["JournalPaths", "Owner", "change_catalog", "read_owner"]
