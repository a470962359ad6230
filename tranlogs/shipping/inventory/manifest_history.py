"""The manifests of a journal that lie in its store: the newest, and the newest that is durable.

Until a newer one is durable, all that the durable one names must stay: should the store lose its memory, it is what is left.
"""

from __future__ import annotations

from collections.abc import Sequence

from ...base.clock import Clock
from ...base.errors import CorruptObject
from ...stores import Store
from .manifest import KEPT, Manifest, read_manifest


class Published:
    """See the module.

    Attributes:
        durable: the newest manifest that the store calls durable; None if there is none, or it has vanished.
    """

    def __init__(self, store: Store, place: str, clock: Clock) -> None:
        self._store, self._place, self._clock = store, place, clock
        self._since = clock.now()
        self._recent: list[tuple[str, Manifest]] = []  # with their names, the newest first, down to the durable one
        self._durable_name = ""
        self.durable: Manifest | None = None

    @property
    def newest(self) -> Manifest | None:
        """The newest one; None if there is none."""
        return self._recent[0][1] if self._recent else None

    @property
    def name(self) -> str:
        """Of the newest one; "" if there is none."""
        return self._recent[0][0] if self._recent else ""

    def begin(self, found: Manifest, name: str, names: Sequence[str]) -> None:
        """Begin with a manifest that was read; `names` are of all that are there, newest first.

        Raises:
            StoreUnavailable: the store does not answer.
        """
        self._recent, self._since = [(name, found)], self._clock.now()
        self._durable_name, self.durable = "", None
        for each in names[names.index(name) :]:
            if self._is_durable(each):
                try:
                    self.durable = found if each == name else read_manifest(self._store, each)
                except CorruptObject:
                    continue
                self._durable_name = each
                return

    def accept(self, manifest: Manifest, name: str, names: Sequence[str]) -> None:
        """A manifest that was published counts; `names` are of all that are there now, newest first. Older ones are deleted."""
        self._recent = [(name, manifest), *self._recent][:KEPT]
        self._since = self._clock.now()
        if self._durable_name not in names:
            self._durable_name, self.durable = "", None
        for each in names[KEPT:]:
            if each != self._durable_name:
                self._store.delete(each)

    def look(self, persist_seconds: float) -> bool:
        """Ask what is durable by now; gives whether the newest is lost. If it takes long, it is asked for again.

        Raises:
            StoreUnavailable: the store does not answer.
        """
        for place, (name, manifest) in enumerate(self._recent):
            if name == self._durable_name:
                break
            status = self._store.stat(name)
            if status is not None and status.is_complete and status.is_durable:
                self._durable_name, self.durable = name, manifest
                del self._recent[place + 1 :]
                break
            if place == 0 and (status is None or status.is_lost):
                return True
            if place == 0 and self._clock.now() - self._since > persist_seconds:
                self._since = self._clock.now()
                self._store.hasten(name)
        return False

    def is_gone(self, names: Sequence[str]) -> bool:
        """Whether the newest is not among those that are there."""
        return bool(self._recent) and self.name not in names

    def objects(self) -> set[str]:
        """What these manifests name, and what must not be deleted as nobody's."""
        manifests = [manifest for _, manifest in self._recent] + ([] if self.durable is None else [self.durable])
        return {name for manifest in manifests for one in manifest.shipped.values() for name in one.names()}

    def durable_objects(self) -> set[str]:
        """What the durable one names."""
        return set() if self.durable is None else {name for one in self.durable.shipped.values() for name in one.names()}

    def _is_durable(self, name: str) -> bool:
        status = self._store.stat(name)
        return status is not None and status.is_complete and status.is_durable
