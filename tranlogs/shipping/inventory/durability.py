"""Whether what arrived has become durable: asked, never assumed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from ...base.clock import Clock
from ...base.errors import StoreUnavailable
from ...stores import ObjectStatus, Store
from .manifest import Shipped

_ASKED_MAX = 64  # parts a turn
_AGAIN_SECONDS_MIN, _AGAIN_SECONDS_MAX = 15.0, 600.0  # between attempts to make copies that are missing


@dataclass(slots=True)
class Found:
    """What has changed.

    Attributes:
        changed: items that are durable now, that are lost, or that are there again.
        lost: items that are gone for good.
        away: those that are lost now, and that a machine which comes back may bring again.
        error: why the store could not be asked about all.
    """

    changed: dict[str, Shipped] = field(default_factory=dict)
    lost: list[str] = field(default_factory=list)
    away: list[str] = field(default_factory=list)
    error: StoreUnavailable | None = None


@dataclass(slots=True)
class _Thin:
    """An item that fewer machines hold than should."""

    next_at: float
    pause: float = _AGAIN_SECONDS_MIN
    sent_at: float | None = None  # of the objects that are being replaced now


class Durability:
    """Of one journal's objects."""

    def __init__(self, store: Store, clock: Clock) -> None:
        self._store, self._clock = store, clock
        self._durable: set[str] = set()  # objects of items that are not yet
        self._hastened: dict[str, float] = {}  # when, by item
        self._thin: dict[str, _Thin] = {}

    @property
    def thin_count(self) -> int:
        """Items that are not durable yet and that fewer machines hold than should."""
        return len(self._thin)

    def look(self, shipped: Mapping[str, Shipped], persist_seconds: float) -> Found:
        """Ask the store about what is not durable yet, the oldest first."""
        found, asked = Found(), 0
        waiting = [(name, one) for name, one in shipped.items() if not one.objects.is_durable]
        waiting.sort(key=lambda item: item[1].objects.is_lost)  # at last what may never come back
        try:
            for name, one in waiting:
                if asked < _ASKED_MAX:
                    asked += self._ask(name, one, persist_seconds, found)
        except StoreUnavailable as error:  # what is known by now counts
            found.error = error
        for name in self._thin.keys() - shipped.keys():
            del self._thin[name]
        return found

    def asked(self, one: Shipped) -> Shipped:
        """An item with what the store says of it now.

        Raises:
            StoreUnavailable: it does not answer.
        """
        statuses = (self._store.stat(name) for name in one.names())
        is_durable = all(status is not None and status.is_complete and status.is_durable for status in statuses)
        return replace(one, objects=replace(one.objects, is_durable=is_durable))

    def _ask(self, name: str, one: Shipped, persist_seconds: float, found: Found) -> int:
        """Ask about one item; gives how many calls that took."""
        there: list[ObjectStatus] = []
        for part, nbytes, _ in (part for parts in one.objects.files.values() for part in parts):
            if part in self._durable:
                continue
            status = self._store.stat(part)
            if status is None or not status.is_complete or status.nbytes != nbytes:
                found.lost.append(name)
                return len(there) + 1
            there.append(status)
            if status.is_durable:
                self._durable.add(part)
        if any(status.is_lost and not status.copies for status in there):
            self._note_away(name, one, found)
        else:
            self._judge(name, one, there, persist_seconds, found)
        return len(there)

    def _note_away(self, name: str, one: Shipped, found: Found) -> None:
        self._hastened.pop(name, None)  # it is hastened as soon as it is there again
        self._thin.pop(name, None)
        if not one.objects.is_lost:
            found.away.append(name)
            found.changed[name] = replace(one, objects=replace(one.objects, is_lost=True))

    def _judge(self, name: str, one: Shipped, there: list[ObjectStatus], persist_seconds: float, found: Found) -> None:
        is_durable = all(status.is_durable for status in there)
        if is_durable or one.objects.is_lost:
            found.changed[name] = replace(one, objects=replace(one.objects, is_durable=is_durable, is_lost=False))
        if is_durable:
            self._durable.difference_update(one.names())
            self._thin.pop(name, None)
            return
        if any(status.copies is not None and status.copies < self._store.copies_wanted for status in there):
            self._thin.setdefault(name, _Thin(self._clock.monotonic() + _AGAIN_SECONDS_MIN))
        else:
            self._thin.pop(name, None)
        now = self._clock.now()
        is_forgotten = name not in self._hastened and any(status.is_forgotten or status.is_lost for status in there)
        if is_forgotten or now - self._hastened.get(name, one.objects.at) > persist_seconds:
            self._hastened[name] = now
            for part in one.names():
                if part not in self._durable:
                    self._store.hasten(part)

    def due_again(self, shipped: Mapping[str, Shipped]) -> list[str]:
        """Items to be sent again now, for the copies that they lack; less and less often while that does not help."""
        now, due = self._clock.monotonic(), []
        for name, thin in self._thin.items():
            at = shipped[name].objects.at if name in shipped else None
            if thin.sent_at is None:
                thin.sent_at = at if now >= thin.next_at else None
            elif thin.sent_at != at:  # they have arrived; whether that helped is seen when the store is asked next
                thin.pause = min(2 * thin.pause, _AGAIN_SECONDS_MAX)
                thin.next_at, thin.sent_at = now + thin.pause, None
            if thin.sent_at is not None:
                due.append(name)
        return due
