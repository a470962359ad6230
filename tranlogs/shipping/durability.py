"""Whether what arrived has become durable: asked, never assumed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from ..clock import Clock
from ..errors import StoreUnavailable
from ..store import ObjectStatus, Store
from .manifest import Shipped

_ASKED_MAX = 64  # parts a turn
_AGAIN_SECONDS_MIN, _AGAIN_SECONDS_MAX = 15.0, 600.0  # between attempts to make copies that are missing


@dataclass(slots=True)
class Found:
    """Items that are durable now, or whose objects have other names (`changed`), those that were lost, and why the store
    could not be asked about all. `is_manifest_lost`: the newest manifest is not there any more, or nothing makes it durable."""

    changed: dict[str, Shipped] = field(default_factory=dict)
    lost: list[str] = field(default_factory=list)
    error: StoreUnavailable | None = None
    is_manifest_lost: bool = False


@dataclass(slots=True)
class _Thin:
    """An item that fewer machines hold than should."""

    next_at: float
    pause: float = _AGAIN_SECONDS_MIN
    sent_at: float | None = None  # of the objects that are being replaced now


class Durability:
    """Of one journal's objects.

    Attributes:
        is_manifest_durable: whether the newest manifest is.
    """

    def __init__(self, store: Store, clock: Clock) -> None:
        self._store, self._clock = store, clock
        self.is_manifest_durable = False
        self._manifest_since = clock.now()
        self._durable: set[str] = set()  # objects of items that are not yet
        self._hastened: dict[str, float] = {}  # when, by item
        self._thin: dict[str, _Thin] = {}

    @property
    def thin_count(self) -> int:
        """Items that are not durable yet and that fewer machines hold than should."""
        return len(self._thin)

    def forget_manifest(self) -> None:
        """A new manifest was written."""
        self.is_manifest_durable, self._manifest_since = False, self._clock.now()

    def look(self, shipped: Mapping[str, Shipped], manifest: str, persist_seconds: float) -> Found:
        """Ask the store about what is not durable yet, the oldest first."""
        found, asked = Found(), 0
        waiting = [(name, one) for name, one in shipped.items() if not one.objects.is_durable]
        try:
            if manifest and not self.is_manifest_durable:
                status = self._store.stat(manifest)
                self.is_manifest_durable = status is not None and status.is_complete and status.is_durable
                found.is_manifest_lost = status is None or status.is_lost or (
                    status.is_forgotten and self._clock.now() - self._manifest_since > persist_seconds)  # fmt: skip
            for name, one in waiting:
                if asked < _ASKED_MAX:
                    asked += self._ask(name, one, persist_seconds, found)
        except StoreUnavailable as error:  # what is known by now counts
            found.error = error
        for name in self._thin.keys() - shipped.keys():
            del self._thin[name]
        return found

    def _ask(self, name: str, one: Shipped, persist_seconds: float, found: Found) -> int:
        """Ask about one item; gives how many calls that took."""
        there: list[ObjectStatus] = []
        for part, nbytes, _ in (part for parts in one.objects.files.values() for part in parts):
            if part in self._durable:
                continue
            status = self._store.stat(part)
            if status is None or not status.is_complete or status.is_lost or status.nbytes != nbytes:
                found.lost.append(name)
                return len(there) + 1
            there.append(status)
            if status.is_durable:
                self._durable.add(part)
        self._judge(name, one, there, persist_seconds, found)
        return len(there)

    def _judge(self, name: str, one: Shipped, there: list[ObjectStatus], persist_seconds: float, found: Found) -> None:
        if all(status.is_durable for status in there):
            found.changed[name] = replace(one, objects=replace(one.objects, is_durable=True))
            self._durable.difference_update(one.names())
            self._thin.pop(name, None)
            return
        if any(status.copies is not None and status.copies < self._store.copies_wanted for status in there):
            self._thin.setdefault(name, _Thin(self._clock.monotonic() + _AGAIN_SECONDS_MIN))
        else:
            self._thin.pop(name, None)
        now = self._clock.now()
        is_forgotten = name not in self._hastened and any(status.is_forgotten for status in there)
        if is_forgotten or now - self._hastened.get(name, one.objects.at) > persist_seconds:
            self._hastened[name] = now
            found.changed[name] = self._hasten(one)

    def _hasten(self, one: Shipped) -> Shipped:
        files = {
            file: [[self._store.hasten(part[0]), *part[1:]] for part in parts] for file, parts in one.objects.files.items()
        }
        return replace(one, objects=replace(one.objects, files=files))

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
