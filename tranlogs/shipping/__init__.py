"""Shipping of a run to a store and back: sealed segments and checkpoints are uploaded, a manifest names those that count, and
another machine fetches them.
"""

from .archiver import Archiver, ShippingProgress, ShippingSettings, StoreSettings
from .fetch import StoreCopies, fetch_missing_journal, pull
from .in_process_shipping import LAG_SECONDS, InProcessShipper
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
