"""Shipping of a run to a store and back: sealed segments and checkpoints are uploaded, a manifest names those that count, and
another machine pulls them.
"""

from .fetching.damaged_files import StoreCopies
from .fetching.missing_journal import fetch_missing_journal
from .fetching.pull import find_run, pull
from .in_process_shipping import LAG_SECONDS, start_shipping
from .inventory.store_listing import list_runs
from .items.throttle import Throttle
from .manifest import journal_prefix, read_newest
from .sending.archiver import Archiver, ShippingProgress, ShippingSettings

__all__ = [
    "LAG_SECONDS",
    "Archiver",
    "ShippingProgress",
    "ShippingSettings",
    "StoreCopies",
    "Throttle",
    "fetch_missing_journal",
    "find_run",
    "journal_prefix",
    "list_runs",
    "pull",
    "read_newest",
    "start_shipping",
]
