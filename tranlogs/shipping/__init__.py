"""Shipping of a run to a store and back: sealed segments and checkpoints are uploaded, a manifest names those that count, and
another machine pulls them.
"""

from .embedded import LAG_SECONDS, fetch_missing_journal, start_shipping
from .fetching.pull import find_run, pull
from .fetching.replacement import ReplacementSource
from .inventory.listing import list_runs
from .items.throttle import Throttle
from .manifest import journal_prefix, read_newest
from .sending.archiver import Archiver, ShippingProgress, ShippingSettings

__all__ = [
    "LAG_SECONDS",
    "Archiver",
    "ReplacementSource",
    "ShippingProgress",
    "ShippingSettings",
    "Throttle",
    "fetch_missing_journal",
    "find_run",
    "journal_prefix",
    "list_runs",
    "pull",
    "read_newest",
    "start_shipping",
]
