"""Inventory of one journal in its store: what the store holds of it, what is durable, what is missing, what can be deleted.

The newest manifest in the store is authoritative. The store is asked, and never assumed, to hold an object: its answers decide
which items count, which are sent again, and which objects may be deleted. Objects that the newest durable manifest names stay
until a newer manifest is durable: if the store loses its memory, only durable objects are left.
"""

from __future__ import annotations

import logging
import math
import secrets
import socket
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

from ..base.clock import Clock
from ..base.errors import CorruptCatalog, RunInUse, StoreRefused
from ..catalog import CheckpointRow, CommonRow, RunRow, SegmentRow, StoreRow
from ..catalog.rows import is_on_lineage
from ..journal import JournalPaths
from ..journal.owner_lock import OwnerLock
from ..stores import ObjectStatus, Store
from .attachment import check_place, select_own_history
from .manifest import (
    OBJECTS,
    Manifest,
    ManifestHistory,
    ShippedItem,
    is_durable,
    manifest_names,
    parse_manifest_name,
    publish,
    read_first_sound,
    read_local,
    read_newest,
    write_local,
)
from .plan import JournalContents, find_stored_step, list_contents
from .store_rows import StoreRows

_log = logging.getLogger(__name__)

_CALLS_MAX = 64  # for the durability of items, in one turn
_COLLECT_SECONDS = 3600.0
_GRACE_SECONDS = 3600.0  # An unreferenced object of another writer may be part of an upload that is not finished.
_GROUP_SECONDS = 30.0  # An older answer of other journals names an older step, so that more is kept, which is safe.


class Inventory:
    """Inventory of one journal. One thread calls it, except for `writer` and `is_attached`.

    The class joins the manifests in the store, the durability of objects, the garbage collector and the catalog, because a
    manifest may be published, and an object deleted, only if all of them agree. So it has many attributes.

    `persist_seconds` is the time after which the store is asked again to make an object durable.

    Attributes:
        shipped: the items that the newest manifest names, with changes that were found since.
    """

    def __init__(
        self,
        paths: JournalPaths,
        rows: StoreRows,
        store: Store,
        prefix: str,
        clock: Clock,
        *,
        takes_over: bool,
        persist_seconds: float,
    ) -> None:
        self._paths, self._rows, self._store, self._prefix, self._clock = paths, rows, store, prefix, clock
        self._takes_over, self._persist_seconds = takes_over, persist_seconds
        self._where = f"{store.url}/{prefix}"
        self.writer, self.is_attached = "", False
        self.shipped: dict[str, ShippedItem] = {}
        self._recorded: dict[str, Any] = {}  # in the journal's copy of the manifest: the files of each item
        self._requested_at: dict[str, float] = {}  # time of the last request to make an item durable
        self._superseded: list[ShippedItem] = []  # deleted once the durable manifest does not name them, either
        self._manifests = ManifestHistory(store, prefix, clock)
        self._collector = GarbageCollector(store, prefix, clock)
        self._shared_step = 0  # the step up to which the store holds this journal's history
        self._number = 0  # the number of the last manifest that was written, or could not be written
        self._known_number = 0  # the number of the newest manifest that is known to be in the store
        self._attached_to = 0  # `open_count` of the catalog when the journal was attached
        self._lock: OwnerLock | None = None

    def close(self) -> None:
        """Release the journal's lock for shipping."""
        if self._lock is not None:
            self._lock.release()
            self._lock = None

    def read_contents(self) -> JournalContents:
        """Return what the catalog lists now."""
        contents = self._rows.read_contents()
        if self._rows.catalog.open_count != self._attached_to:  # a new catalog file, which knows nothing of the store yet
            self.is_attached = False
        return contents

    # Reading the store's manifests.

    def attach(self) -> None:
        """Read what the store holds of this journal, unless that was done before.

        Raises:
            StoreRefused: the store holds another run, another machine has shipped this one since, or another process ships it.
            StoreUnavailable: the store does not answer.
        """
        if self.is_attached:
            return
        try:
            self._lock = self._lock or OwnerLock(self._paths.folder, "shipper")
        except RunInUse as error:
            why = f"process {error.pid} on {error.host} already ships {self._paths.folder} there"
            raise StoreRefused(self._store.url, why) from None
        catalog = self._rows.catalog.current()
        run = catalog.run()
        if run is None:
            raise CorruptCatalog(catalog.path, "the run's row is missing")
        row, known = self._rows.read_store(catalog), read_local(self._paths.folder)
        self._recorded = {name: item.files for name, item in known.items()}
        names = manifest_names(self._store, self._prefix)  # read first: a manifest that appears later is another writer's
        found, name, notes = read_first_sound(self._store, names)
        for note in notes:
            _log.warning("%s: %s; using an older manifest", self._paths.folder, note)
        check_place(self._where, found, names, row, run, takes_over=self._takes_over)
        if found is not None and not found.checkpoints:
            found = None  # without a checkpoint nothing can be recovered from it
        self.writer = row.writer if row is not None else secrets.token_hex(8)
        self.shipped, self._superseded, self._shared_step = {}, [], 0
        self._manifests = ManifestHistory(self._store, self._prefix, self._clock)
        if found is not None:
            self._manifests.load(found, name, names)
            self.shipped = select_own_history(found, self.read_contents(), known, self._paths.log)
            self._superseded = self._find_superseded(found, row)
        self._number = self._known_number = max((parse_manifest_name(name)[0] for name in names), default=0)
        row = row or StoreRow(self._store.url, self.writer)
        self._rows.begin(catalog, replace(row, number=max(row.number, 0 if found is None else found.number)))
        self._collector.keeps_all, self._collector.keeps_foreign = bool(notes), found is None
        self._collect_garbage(())
        self.is_attached, self._attached_to = True, self._rows.catalog.open_count
        count = sum(len(item.names()) for item in self.shipped.values())
        _log.info("%s: shipping to %s, which holds %d objects of this journal", self._paths.folder, self._where, count)

    def _find_superseded(self, found: Manifest, row: StoreRow | None) -> list[ShippedItem]:
        """Return the items that this journal has no use for.

        They belong to another history of the run, or only an older manifest names them.

        Raises:
            StoreRefused: the other history leads further than this journal, and the journal's catalog does not know it.
        """
        superseded = [item for name, item in found.shipped.items() if name not in self.shipped]
        contents = self.read_contents()
        shared = replace(found, shipped=self.shipped)
        self._shared_step = find_stored_step(shared, contents)
        step, local = find_stored_step(found, list_contents(found)), self._local_step(contents)
        if step > max(local, find_stored_step(shared, list_contents(found))):
            if not self._takes_over and (row is None or row.number != found.number):
                raise StoreRefused(
                    self._where,
                    f"the store holds another history of this run, up to step {step}, and this folder ends at step {local}: "
                    "was it restored from a backup? To continue from the store's history, move the folder away and pull; to "
                    "continue from this folder nevertheless, use --take-over (a monitor: --set take_over=true)",
                )
            _log.warning(
                "%s: another history of this run in %s, up to step %d, is superseded and will be deleted",
                self._paths.folder,
                self._where,
                step,
            )
            superseded = []  # The garbage collector deletes them after its grace period.
        durable = self._manifests.durable
        if durable is not None and durable is not found:
            older = [item for name, item in durable.shipped.items() if not _is_same(found.shipped.get(name), item)]
            stat = self._store.stat
            superseded += [replace(item, is_durable=all(is_durable(stat(name)) for name in item.names())) for item in older]
        return superseded

    # Publishing manifests.

    def is_stale(self, contents: JournalContents) -> bool:
        """Return True if the newest manifest differs from the present items and timelines."""
        newest = self._manifests.newest
        if newest is None:
            return bool(self.shipped)
        return (
            newest.shipped.keys() != self.shipped.keys()
            or newest.timelines != tuple(contents.timelines)
            or any(not _is_same(newest.shipped[name], item) for name, item in self.shipped.items())
        )

    def publish(self, contents: JournalContents, arrived: Sequence[ShippedItem], expired: Iterable[str]) -> None:
        """Publish a manifest that adds the items that have arrived, and leaves out the expired ones.

        Raises:
            StoreUnavailable: the manifest could not be written; the next one names what has arrived.
            StoreRefused: another machine has published one meanwhile.
        """
        self._superseded += [self.shipped[item.name] for item in arrived if item.name in self.shipped]
        self.shipped |= {item.name: item for item in arrived}
        expired = [name for name in expired if name in self.shipped]
        shipped = {name: item for name, item in self.shipped.items() if name not in expired}
        run: RunRow | None = self._rows.catalog.current().run()
        assert run is not None
        self._number += 1  # A number is not used again: a write that failed may have written the manifest.
        manifest = Manifest(
            self._number, self.writer, socket.gethostname(), self._clock.now(), run, tuple(contents.timelines), shipped
        )
        self._check_sole_writer(manifest_names(self._store, self._prefix))
        name = publish(self._store, self._prefix, manifest)  # commit point
        names = manifest_names(self._store, self._prefix)
        try:
            self._check_sole_writer(names)
        except StoreRefused:
            self._store.delete(name)
            raise
        self._known_number = self._number
        if self._manifests.is_newest_missing(names):
            self._collector.next_at = 0.0  # The previous manifest is missing; other objects may be missing, too.
        self._superseded += [self.shipped[name] for name in expired]
        self.shipped = dict(shipped)
        self._manifests.add(manifest, name, names)
        self._delete_superseded()

    def _check_sole_writer(self, names: Sequence[str]) -> None:
        """Check that no other writer has published a manifest since this journal was attached, or last published one."""
        others = [
            number
            for number, writer in map(parse_manifest_name, names)
            if writer != self.writer and number > self._known_number
        ]
        if others:
            self.is_attached = False
            raise StoreRefused(
                self._where, f"another copy of this run was shipped to this address meanwhile (manifest {max(others)})"
            )

    def _delete_superseded(self) -> None:
        """Delete superseded objects, except those that recovery would need if the store lost all that is not durable."""
        needed = self._manifests.durable_objects().union(*(item.names() for item in self.shipped.values()))
        for item in list(self._superseded):
            if needed.isdisjoint(item.names()):
                for name in item.names():
                    self._store.delete(name)
                self._superseded.remove(item)

    # Asking the store.

    def check_store(self, contents: JournalContents, in_flight: Collection[str]) -> None:
        """Ask the store which objects are durable or lost and, once an hour, which are missing.

        What is lost or missing is sent again if it still exists here.
        """
        self.check_items(contents)
        is_manifest_lost = self._manifests.update(self._persist_seconds)
        self._delete_superseded()
        if self._collector.is_due():
            self._collect_garbage(in_flight)
            is_manifest_lost |= self._manifests.is_newest_missing(manifest_names(self._store, self._prefix))
        if is_manifest_lost:
            _log.warning("%s: the store has lost the newest manifest; a new one is written", self._paths.folder)
        if is_manifest_lost or self.is_stale(contents):
            self.publish(contents, (), ())

    def check_items(self, contents: JournalContents) -> None:
        """Ask the store for items that are not durable yet, the oldest first. The watermarks follow what is lost at once."""
        waiting = [item for item in self.shipped.values() if not item.is_durable]
        waiting.sort(key=lambda item: item.is_lost)  # lost items last: they may never come back
        calls, lost = 0, []
        try:
            for item in waiting:
                if calls < _CALLS_MAX:
                    calls += len(item.names())
                    if not self._check_item(item):
                        lost.append(item.name)
        finally:  # Earlier answers count if the store fails.
            if lost:
                names = ", ".join(lost)
                _log.warning("%s: the store has lost %s; files that still exist here are sent again", self._paths.folder, names)
                self.write_marks(contents)  # At once, because a store that loses objects may not accept a manifest, either.

    def _check_item(self, item: ShippedItem) -> bool:
        """Query the store for one item; return False if the item was lost since the last query."""
        name, waiting = item.name, dict[str, ObjectStatus]()
        for part, nbytes, _ in item.parts():
            status = self._store.stat(part)
            if status is None or not status.is_complete or status.nbytes != nbytes:
                del self.shipped[name]
                return False
            if not status.is_durable:
                waiting[part] = status
        # A machine that comes back may bring a lost item.
        is_lost = any(status.is_lost and not status.copies for status in waiting.values())
        self.shipped[name] = replace(item, is_durable=not waiting, is_lost=is_lost)
        if is_lost:
            self._requested_at.pop(name, None)  # Durability is requested again as soon as the item is available.
            return item.is_lost
        now = self._clock.now()
        is_forgotten = name not in self._requested_at and any(one.is_forgotten or one.is_lost for one in waiting.values())
        if is_forgotten or (waiting and now - self._requested_at.get(name, item.at) > self._persist_seconds):
            self._requested_at[name] = now
            for part in waiting:
                self._store.request_durability(part)
        return True

    def _collect_garbage(self, in_flight: Collection[str]) -> None:
        """Delete the objects that nothing refers to, and give up the items of which an object is missing."""
        needed = self._manifests.referenced_objects().union(in_flight, *(item.names() for item in self._superseded))
        for name in self._collector.collect(self.shipped, self.writer, needed):
            _log.warning("%s: %s is missing from the store; it is sent again if it still exists here", self._paths.folder, name)
            del self.shipped[name]

    # The catalog.

    def write_marks(self, contents: JournalContents) -> None:
        """Write the store's row and watermarks to the catalog, and the journal's copy of the newest manifest."""
        assert self._rows.row is not None
        newest = self._manifests.newest
        files = {name: item.files for name, item in self.shipped.items()}
        if newest is not None and files != self._recorded:
            with suppress(OSError):  # the next turn tries again
                write_local(self._paths.folder, replace(newest, shipped=self.shipped))
                self._recorded = files
        row = replace(
            self._rows.row,
            number=max(self._rows.row.number, 0 if newest is None else newest.number),
            objects_bytes=sum(item.nbytes for item in self.shipped.values()),
        )
        local = self._local_step(contents)  # Later steps in the store belong to another history.
        marks = min(self._archived_step(contents), local), min(self._persisted_step(contents), local)
        self._rows.write(row, marks, contents)

    def _local_step(self, contents: JournalContents) -> int:
        """Return the newest step of the journal.

        If the trainer died or the catalog was rebuilt, the step in the catalog may be too low.
        """
        return max(contents.step, self._rows.catalog.current().watermarks().committed, self._shared_step)

    def _archived_step(self, contents: JournalContents) -> int:
        newest = self._manifests.newest
        if newest is None:
            return 0
        stored = {name: self.shipped[name] for name in newest.shipped if name in self.shipped}
        return find_stored_step(replace(newest, shipped=stored), contents)

    def _persisted_step(self, contents: JournalContents) -> int:
        """Return the step that recovery reaches from the durable manifest and the durable items that it names."""
        manifest = self._manifests.durable
        if manifest is None:
            return 0
        durable = {name for item in (*self.shipped.values(), *self._superseded) if item.is_durable for name in item.names()}
        stored = {name: item for name, item in manifest.shipped.items() if durable.issuperset(item.names())}
        return find_stored_step(replace(manifest, shipped=stored), contents)


def _is_same(item: ShippedItem | None, other: ShippedItem) -> bool:
    """Return True if two manifests describe an item in the same way.

    The durability of a segment is not compared, because no reader uses it.
    """
    if item is None or (item.files, item.is_lost) != (other.files, other.is_lost):
        return False
    return isinstance(item.row, SegmentRow) or item.is_durable == other.is_durable


class GarbageCollector:
    """Compares the objects of one journal with its manifest: when shipping begins, and then once an hour.

    Attributes:
        keeps_all: True if nothing may be deleted, because a manifest is unreadable: it may name objects that exist only there.
        keeps_foreign: True if objects of other writers stay, because this journal does not continue another writer's manifest.
        next_at: time of the next collection, in seconds of the monotonic clock.
    """

    def __init__(self, store: Store, prefix: str, clock: Clock) -> None:
        self._store, self._prefix, self._clock = store, prefix, clock
        self._unreferenced_since: dict[str, float] = {}
        self._has_collected = False
        self.keeps_all = self.keeps_foreign = True
        self.next_at = 0.0

    def is_due(self) -> bool:
        """Return True if the next collection is due."""
        return self._clock.monotonic() >= self.next_at

    def collect(self, shipped: Mapping[str, ShippedItem], writer: str, needed: Collection[str] = ()) -> list[str]:
        """Delete the objects that nothing refers to, and return the names of the items that lack an object.

        The first collection deletes what this writer had uploaded in part before it was restarted. Other unreferenced objects
        are deleted after a grace period. Objects that are `needed` stay.
        """
        now = self._clock.monotonic()
        self.next_at = now + _COLLECT_SECONDS
        stored = set(self._store.names(f"{self._prefix}/{OBJECTS}"))
        unreferenced = stored - {name for item in shipped.values() for name in item.names()}.union(needed)
        self._unreferenced_since = {name: self._unreferenced_since.get(name, now) for name in unreferenced}
        for name, since in [] if self.keeps_all else list(self._unreferenced_since.items()):
            is_own = name.rpartition("-")[2][:8] == writer[:8]
            is_old = now - since > _GRACE_SECONDS
            if (is_own and not self._has_collected) or (is_old and (is_own or not self.keeps_foreign)):
                self._store.delete(name)
                del self._unreferenced_since[name]
        self._has_collected = True
        return [name for name, item in shipped.items() if not stored.issuperset(item.names())]


class GroupSteps:
    """Reads up to which step the other ranks' journals are in the store.

    The checkpoint from which all journals can recover together is kept by each of them.
    """

    def __init__(self, store: Store, prefix: str, clock: Clock) -> None:
        self._store, self._clock = store, clock
        self._folder, _, self._name = prefix.rpartition("/")
        self._step = 0
        self._read_at, self._read_for = -math.inf, (0, 0)

    def read_common(self, contents: JournalContents) -> CommonRow | None:
        """Return the step up to which every other rank has a durable checkpoint in the store; None if there are no others."""
        if contents.world <= 1:
            return None
        timeline = max((row.number for row in contents.timelines), default=1)
        now = self._clock.monotonic()
        if now - self._read_at > _GROUP_SECONDS or self._read_for != (contents.world, timeline):
            names = [f"rank{rank}" for rank in range(contents.world) if f"rank{rank}" != self._name]
            self._step = min((self._read_step(f"{self._folder}/{name}", timeline) for name in names), default=0)
            self._read_at, self._read_for = now, (contents.world, timeline)
        return CommonRow(self._step, contents.world)

    def _read_step(self, prefix: str, timeline: int) -> int:
        """Return the step of a journal's newest durable checkpoint; 0 if it is on another timeline, since it may go back."""
        manifest, _ = read_newest(self._store, prefix)
        if manifest is None or max((row.number for row in manifest.timelines), default=1) != timeline:
            return 0
        limits = list_contents(manifest).limits
        durable = [item.row for item in manifest.checkpoints if item.is_durable]
        return max((row.step for row in durable if isinstance(row, CheckpointRow) and is_on_lineage(row, limits)), default=0)
