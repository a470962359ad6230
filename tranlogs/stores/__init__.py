"""Stores, to which sealed segments and checkpoints are shipped: one narrow interface, one module for each kind."""

from .opening import is_address, open_store, split_url
from .store import STALL_SECONDS, Content, ObjectStatus, Store, TimeoutStore

__all__ = ["STALL_SECONDS", "Content", "ObjectStatus", "Store", "TimeoutStore", "is_address", "open_store", "split_url"]
