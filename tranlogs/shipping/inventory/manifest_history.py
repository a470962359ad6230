"""The manifests of a journal in its store: the newest one, and the newest durable one.

All objects that the durable manifest names must stay until a newer manifest is durable: if the store loses its memory, only
durable objects are left.
"""

from __future__ import annotations

from collections.abc import Sequence

from ...base.clock import Clock
from ...base.errors import CorruptObject
from ...stores import Store
from ..manifest import KEPT, Manifest, read_manifest


class ManifestHistory:
    """The recent manifests of one journal.

    Attributes:
        durable: the newest manifest that the store calls durable; None if there is none, or it has vanished.
    """

    def __init__(self, store: Store, prefix: str, clock: Clock) -> None:
        self._store, self._prefix, self._clock = store, prefix, clock
        self._since = clock.now()
        self._recent: list[tuple[str, Manifest]] = []  # names and manifests, newest first, down to the durable one
        self._durable_name = ""
        self.durable: Manifest | None = None

    @property
    def newest(self) -> Manifest | None:
        """The newest manifest; None if there is none."""
        return self._recent[0][1] if self._recent else None

    @property
    def name(self) -> str:
        """The name of the newest manifest; "" if there is none."""
        return self._recent[0][0] if self._recent else ""

    def load(self, found: Manifest, name: str, names: Sequence[str]) -> None:
        """Start from a manifest that was read.

        Args:
            found: the manifest.
            name: its name.
            names: names of all manifests that are in the store, newest first.

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

    def add(self, manifest: Manifest, name: str, names: Sequence[str]) -> None:
        """Add a manifest that was published, and delete the oldest ones from the store.

        Args:
            manifest: the new manifest.
            name: its name.
            names: names of all manifests that are in the store now, newest first.
        """
        self._recent = [(name, manifest), *self._recent][:KEPT]
        self._since = self._clock.now()
        if self._durable_name not in names:
            self._durable_name, self.durable = "", None
        for each in names[KEPT:]:
            if each != self._durable_name:
                self._store.delete(each)

    def update(self, persist_seconds: float) -> bool:
        """Query the store for the newest durable manifest; return True if the store has lost the newest manifest.

        If the newest takes longer than `persist_seconds`, its durability is requested again.

        Raises:
            StoreUnavailable: the store does not answer.
        """
        for i, (name, manifest) in enumerate(self._recent):
            if name == self._durable_name:
                break
            status = self._store.stat(name)
            if status is not None and status.is_complete and status.is_durable:
                self._durable_name, self.durable = name, manifest
                del self._recent[i + 1 :]
                break
            if i == 0 and (status is None or status.is_lost):
                return True
            if i == 0 and self._clock.now() - self._since > persist_seconds:
                self._since = self._clock.now()
                self._store.request_durability(name)
        return False

    def is_newest_missing(self, names: Sequence[str]) -> bool:
        """Return True if the newest manifest is not among the names."""
        return bool(self._recent) and self.name not in names

    def referenced_objects(self) -> set[str]:
        """Return the objects that the recent manifests name, which must not be deleted as garbage."""
        manifests = [manifest for _, manifest in self._recent] + ([] if self.durable is None else [self.durable])
        return {name for manifest in manifests for item in manifest.shipped.values() for name in item.names()}

    def durable_objects(self) -> set[str]:
        """Return the objects that the durable manifest names."""
        return set() if self.durable is None else {name for item in self.durable.shipped.values() for name in item.names()}

    def _is_durable(self, name: str) -> bool:
        status = self._store.stat(name)
        return status is not None and status.is_complete and status.is_durable
