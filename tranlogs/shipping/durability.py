"""Whether what arrived has become durable: asked, never assumed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from ..clock import Clock
from ..store import ObjectStatus, Store
from .manifest import Shipped

_ASKED_MAX = 64  # parts a turn
_AGAIN_SECONDS_MIN, _AGAIN_SECONDS_MAX = 15.0, 600.0  # between attempts to make copies that are missing


@dataclass(slots=True)
class Found:
    """Items that are durable now, or whose objects have other names (`changed`), and those that were lost."""

    changed: dict[str, Shipped] = field(default_factory=dict)
    lost: list[str] = field(default_factory=list)


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
        self._hastened: dict[str, float] = {}  # when, by item
        self._thin: dict[str, _Thin] = {}

    @property
    def thin_count(self) -> int:
        """Items that are not durable yet and that fewer machines hold than should."""
        return len(self._thin)

    def forget_manifest(self) -> None:
        """A new manifest was written."""
        self.is_manifest_durable = False

    def look(self, shipped: Mapping[str, Shipped], manifest: str, persist_seconds: float) -> Found:
        """Ask the store about what is not durable yet, the oldest first."""
        if manifest and not self.is_manifest_durable:
            status = self._store.stat(manifest)
            self.is_manifest_durable = status is not None and status.is_complete and status.is_durable
        found, asked = Found(), 0
        for name, one in shipped.items():
            if one.objects.is_durable:
                continue
            if asked >= _ASKED_MAX:
                break
            statuses = [self._store.stat(part) for part in one.names()]
            asked += len(statuses)
            self._judge(name, one, statuses, persist_seconds, found)
        for name in self._thin.keys() - shipped.keys():
            del self._thin[name]
        return found

    def _judge(self, name: str, one: Shipped, statuses: list[ObjectStatus | None], persist_seconds: float,
               found: Found) -> None:  # fmt: skip
        there = [status for status in statuses if status is not None and status.is_complete]
        if len(there) < len(statuses) or any(status.is_lost for status in there):
            found.lost.append(name)
            return
        if all(status.is_durable for status in there):
            found.changed[name] = replace(one, objects=replace(one.objects, is_durable=True))
            self._thin.pop(name, None)
            return
        if any(status.copies is not None and status.copies < self._store.copies_wanted for status in there):
            self._thin.setdefault(name, _Thin(self._clock.monotonic() + _AGAIN_SECONDS_MIN))
        else:
            self._thin.pop(name, None)
        now = self._clock.now()
        if now - self._hastened.get(name, one.objects.at) > persist_seconds:
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
            if thin.sent_at is None and now >= thin.next_at:
                thin.sent_at = at
            elif thin.sent_at != at:  # they have arrived; whether that helped is seen when the store is asked next
                thin.pause = min(2 * thin.pause, _AGAIN_SECONDS_MAX)
                thin.next_at, thin.sent_at = now + thin.pause, None
            if thin.sent_at is not None:
                due.append(name)
        return due
