"""Stores: where sealed segments and checkpoints are shipped. One narrow interface, one module a kind."""

from .base import ObjectStatus, Store
from .opening import open_store

__all__ = ["ObjectStatus", "Store", "open_store"]
