"""Stores: where sealed segments and checkpoints are shipped. One narrow interface, one module a kind."""

from .base import ObjectStatus, Store
from .local import LocalStore
from .opening import is_address, open_store, split_url
from .timeouts import STALL_SECONDS, PatientStore

__all__ = ["STALL_SECONDS", "LocalStore", "ObjectStatus", "PatientStore", "Store", "is_address", "open_store", "split_url"]
