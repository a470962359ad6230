"""What a store holds against what it should: objects that are missing, and such that nobody needs."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from ...base.clock import Clock
from ...stores import Store
from .manifest import OBJECTS, Shipped

_EVERY_SECONDS = 3600.0
_GRACE_SECONDS = 3600.0  # before an object of another writer that no manifest names is deleted: it may be on its way


class Census:
    """Of one journal; taken when shipping begins, and then once an hour.

    Attributes:
        spares_all: whether everything stays, since a manifest cannot be read: what it names may be all that there is.
        spares_others: whether what others have written stays, since there is no manifest that goes on from theirs.
    """

    def __init__(self, store: Store, place: str, clock: Clock) -> None:
        self._store, self._place, self._clock = store, place, clock
        self._next_at = 0.0
        self._seen: dict[str, float] = {}  # objects of others that no manifest names, and since when
        self._taken = 0
        self.spares_all = self.spares_others = True

    def is_due(self) -> bool:
        """Whether it is time for the next."""
        return self._clock.monotonic() >= self._next_at

    def hurry(self) -> None:
        """Something is missing: take the next one at once."""
        self._next_at = 0.0

    def take(self, shipped: Mapping[str, Shipped], writer: str, needed: Collection[str] = ()) -> list[str]:
        """The names of items of which something is missing. What this writer left half sent before it began is deleted (by
        the first census), and what others left, after a time of grace.

        Args:
            shipped: what the manifest names.
            writer: who takes the census.
            needed: further objects that stay.
        """
        now = self._clock.monotonic()
        self._next_at = now + _EVERY_SECONDS
        there = set(self._store.names(f"{self._place}/{OBJECTS}"))
        useless = there - {name for one in shipped.values() for name in one.names()}.union(needed)
        self._seen = {name: self._seen.get(name, now) for name in useless}
        for name, since in [] if self.spares_all else list(self._seen.items()):
            is_own = name.rpartition("-")[2][:8] == writer[:8]
            if (is_own and self._taken == 0) or (now - since > _GRACE_SECONDS and (is_own or not self.spares_others)):
                self._store.delete(name)
                del self._seen[name]
        self._taken += 1
        return [name for name, one in shipped.items() if not there.issuperset(one.names())]
