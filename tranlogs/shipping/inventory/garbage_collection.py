"""Comparison of a store with its manifest: objects that are missing, and objects that nothing refers to."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from ...base.clock import Clock
from ...stores import Store
from ..manifest import OBJECTS, ShippedItem

_INTERVAL_SECONDS = 3600.0
_GRACE_SECONDS = 3600.0  # An unreferenced object of another writer may be part of an upload that is not finished.


class GarbageCollector:
    """Deletes the objects of one journal that nothing refers to: when shipping begins, and then once an hour.

    Attributes:
        keeps_all: True if nothing may be deleted, because a manifest is unreadable: it may name objects that exist only there.
        keeps_foreign: True if objects of other writers stay, because this journal does not continue another writer's manifest.
    """

    def __init__(self, store: Store, prefix: str, clock: Clock) -> None:
        self._store, self._prefix, self._clock = store, prefix, clock
        self._next_at = 0.0
        self._unreferenced_since: dict[str, float] = {}
        self._collections = 0
        self.keeps_all = self.keeps_foreign = True

    def is_due(self) -> bool:
        """Return True if the next collection is due."""
        return self._clock.monotonic() >= self._next_at

    def make_due(self) -> None:
        """Make the next collection due now, because an object was found to be missing."""
        self._next_at = 0.0

    def collect(self, shipped: Mapping[str, ShippedItem], writer: str, needed: Collection[str] = ()) -> list[str]:
        """Delete the unreferenced objects, and return the names of the items that lack an object.

        The first collection deletes what this writer had uploaded in part before it was restarted. Other unreferenced objects
        are deleted after a grace period.

        Args:
            shipped: the items that the manifest names.
            writer: name of the writer that this journal is.
            needed: further objects that stay.
        """
        now = self._clock.monotonic()
        self._next_at = now + _INTERVAL_SECONDS
        stored = set(self._store.names(f"{self._prefix}/{OBJECTS}"))
        unreferenced = stored - {name for item in shipped.values() for name in item.names()}.union(needed)
        self._unreferenced_since = {name: self._unreferenced_since.get(name, now) for name in unreferenced}
        for name, since in [] if self.keeps_all else list(self._unreferenced_since.items()):
            is_own = name.rpartition("-")[2][:8] == writer[:8]
            if (is_own and self._collections == 0) or (now - since > _GRACE_SECONDS and (is_own or not self.keeps_foreign)):
                self._store.delete(name)
                del self._unreferenced_since[name]
        self._collections += 1
        return [name for name, item in shipped.items() if not stored.issuperset(item.names())]
