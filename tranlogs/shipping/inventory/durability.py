"""Durability of shipped items, which is queried from the store and never assumed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from ...base.clock import Clock
from ...base.errors import StoreUnavailable
from ...stores import ObjectStatus, Store
from ..manifest import ShippedItem

_CALLS_MAX = 64  # in one turn
_RESEND_SECONDS_MIN, _RESEND_SECONDS_MAX = 15.0, 600.0  # between two resends of an item that lacks copies


@dataclass(slots=True)
class DurabilityChange:
    """Changes since the last query of the store.

    Attributes:
        changed: items that have become durable, lost or available again.
        lost: names of the items that the store has lost for good.
        unreachable: names of the items that are lost now, and available again if their machine comes back.
        error: why not every item could be queried; None if all were.
    """

    changed: dict[str, ShippedItem] = field(default_factory=dict)
    lost: list[str] = field(default_factory=list)
    unreachable: list[str] = field(default_factory=list)
    error: StoreUnavailable | None = None


@dataclass(slots=True)
class _UnderReplicated:
    """An item that fewer machines hold than should."""

    next_at: float
    pause: float = _RESEND_SECONDS_MIN
    sent_at: float | None = None  # upload time of the objects that a resend is replacing now


class DurabilityTracker:
    """Tracks which items of one journal are durable, lost, or stored on too few machines."""

    def __init__(self, store: Store, clock: Clock) -> None:
        self._store, self._clock = store, clock
        self._durable: set[str] = set()  # durable objects of items that are not durable as a whole
        self._requested_at: dict[str, float] = {}  # time of the last request to make an item durable, by its name
        self._under_replicated: dict[str, _UnderReplicated] = {}

    @property
    def under_replicated_count(self) -> int:
        """The number of items that are not durable yet and that fewer machines hold than should."""
        return len(self._under_replicated)

    def update(self, shipped: Mapping[str, ShippedItem], persist_seconds: float) -> DurabilityChange:
        """Query the store for the items that are not durable yet, the oldest first."""
        found, calls = DurabilityChange(), 0
        waiting = [(name, item) for name, item in shipped.items() if not item.objects.is_durable]
        waiting.sort(key=lambda item: item[1].objects.is_lost)  # lost items last: they may never come back
        try:
            for name, item in waiting:
                if calls < _CALLS_MAX:
                    calls += self._query(name, item, persist_seconds, found)
        except StoreUnavailable as error:  # Earlier answers count.
            found.error = error
        for name in self._under_replicated.keys() - shipped.keys():
            del self._under_replicated[name]
        return found

    def read_durability(self, item: ShippedItem) -> ShippedItem:
        """Return an item with its present state in the store.

        Raises:
            StoreUnavailable: the store does not answer.
        """
        statuses = (self._store.stat(name) for name in item.names())
        is_durable = all(status is not None and status.is_complete and status.is_durable for status in statuses)
        return replace(item, objects=replace(item.objects, is_durable=is_durable))

    def _query(self, name: str, item: ShippedItem, persist_seconds: float, found: DurabilityChange) -> int:
        """Query the store for one item; return the number of calls."""
        statuses: list[ObjectStatus] = []
        for part, nbytes, _ in (part for parts in item.objects.files.values() for part in parts):
            if part in self._durable:
                continue
            status = self._store.stat(part)
            if status is None or not status.is_complete or status.nbytes != nbytes:
                found.lost.append(name)
                return len(statuses) + 1
            statuses.append(status)
            if status.is_durable:
                self._durable.add(part)
        if any(status.is_lost and not status.copies for status in statuses):
            self._note_unreachable(name, item, found)
        else:
            self._judge(name, item, statuses, persist_seconds, found)
        return len(statuses)

    def _note_unreachable(self, name: str, item: ShippedItem, found: DurabilityChange) -> None:
        self._requested_at.pop(name, None)  # Durability is requested again as soon as the item is available.
        self._under_replicated.pop(name, None)
        if not item.objects.is_lost:
            found.unreachable.append(name)
            found.changed[name] = replace(item, objects=replace(item.objects, is_lost=True))

    def _judge(
        self, name: str, item: ShippedItem, statuses: list[ObjectStatus], persist_seconds: float, found: DurabilityChange
    ) -> None:
        is_durable = all(status.is_durable for status in statuses)
        if is_durable or item.objects.is_lost:
            found.changed[name] = replace(item, objects=replace(item.objects, is_durable=is_durable, is_lost=False))
        if is_durable:
            self._durable.difference_update(item.names())
            self._under_replicated.pop(name, None)
            return
        if any(status.copies is not None and status.copies < self._store.copies_wanted for status in statuses):
            self._under_replicated.setdefault(name, _UnderReplicated(self._clock.monotonic() + _RESEND_SECONDS_MIN))
        else:
            self._under_replicated.pop(name, None)
        now = self._clock.now()
        is_forgotten = name not in self._requested_at and any(status.is_forgotten or status.is_lost for status in statuses)
        if is_forgotten or now - self._requested_at.get(name, item.objects.at) > persist_seconds:
            self._requested_at[name] = now
            for part in item.names():
                if part not in self._durable:
                    self._store.request_durability(part)

    def due_for_resend(self, shipped: Mapping[str, ShippedItem]) -> list[str]:
        """Return the items to send again now because they lack copies.

        The pause before each resend doubles as long as resending does not help.
        """
        now, due = self._clock.monotonic(), []
        for name, entry in self._under_replicated.items():
            at = shipped[name].objects.at if name in shipped else None
            if entry.sent_at is None:
                entry.sent_at = at if now >= entry.next_at else None
            elif entry.sent_at != at:  # the resend has arrived; the next answer of the store shows whether it helped
                entry.pause = min(2 * entry.pause, _RESEND_SECONDS_MAX)
                entry.next_at, entry.sent_at = now + entry.pause, None
            if entry.sent_at is not None:
                due.append(name)
        return due
