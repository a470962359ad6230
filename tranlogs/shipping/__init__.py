"""Shipping of a run to a store and back: sealed segments and checkpoints are uploaded, a manifest names those that count, and
another machine fetches them.
"""

from .archiver import LAG_SECONDS, Archiver, InProcessShipper, ShippingProgress, ShippingSettings, StoreSettings
from .fetch import StoreCopies, fetch_missing_journal, pull
from .listing import find_run, list_runs
from .manifest import journal_prefix, read_newest
from .upload import Throttle

__all__ = [
    "LAG_SECONDS",
    "Archiver",
    "InProcessShipper",
    "ShippingProgress",
    "ShippingSettings",
    "StoreCopies",
    "StoreSettings",
    "Throttle",
    "fetch_missing_journal",
    "find_run",
    "journal_prefix",
    "list_runs",
    "pull",
    "read_newest",
]
