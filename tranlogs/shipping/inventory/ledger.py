"""Account of the items of one journal that a store holds.

The newest manifest in the store is authoritative; `CatalogMirror` copies it to the catalog.
"""

from __future__ import annotations

import logging
import secrets
import socket
from collections.abc import Collection, Iterable, Sequence
from dataclasses import replace
from typing import Any

from ...base.clock import Clock
from ...base.errors import CorruptCatalog, RunInUse, StoreRefused
from ...catalog import CheckpointRow, SegmentRow, ShippedRow, StoreRow
from ...journal import JournalPaths
from ...journal.ownership.writer_lock import OwnerLock
from ...stores import Store
from ..items.shipping_plan import JournalContents, find_stored_step, list_contents
from ..manifest import Manifest, ShippedItem, manifest_names, parse_manifest_name, publish, read_first_sound
from .ancestry import select_own_history
from .attachment import check_continues, check_newest, check_same_run
from .catalog_mirror import CatalogMirror
from .durability import DurabilityTracker
from .garbage_collection import GarbageCollector
from .manifest_history import ManifestHistory

_log = logging.getLogger(__name__)


class Ledger:
    """Account of the items of one journal that a store holds. One thread calls it, except for `writer` and `is_attached`.

    The class joins the manifests in the store, the durability of objects, the garbage collector and the catalog, because a
    manifest may be published, and an object deleted, only if all of them agree. So it has many attributes.

    Args:
        paths: the journal's.
        store: the store to which the journal is shipped.
        prefix: the journal's place in the store, "RUN/rank0".
        clock: the catalog's.
        takes_over: True to ship even if another copy of the run was shipped to this place.

    Attributes:
        writer: name of this journal as a writer to the store.
        is_attached: True once the store's manifests were read, and this journal may write to the store.
        shipped: the items that the newest manifest names, with changes that were found since.
    """

    def __init__(self, paths: JournalPaths, store: Store, prefix: str, clock: Clock, *, takes_over: bool) -> None:
        self._paths, self._store, self._prefix, self._clock, self._takes_over = paths, store, prefix, clock, takes_over
        self._where = f"{store.url}/{prefix}"
        self._mirror = CatalogMirror(paths, store.url, clock)
        self.writer, self.is_attached = "", False
        self.shipped: dict[str, ShippedItem] = {}
        self._superseded: list[ShippedItem] = []  # deleted once the durable manifest does not name them, either
        self._history = ManifestHistory(store, prefix, clock)
        self._shared_step = 0  # the step up to which the store holds this journal's history
        self._number = 0  # the number of the last manifest that was written, or could not be written
        self._known_number = 0  # the number of the newest manifest that is known to be in the store
        self._attached_to = 0  # `CatalogMirror.opened` when the journal was attached
        self._lock: OwnerLock | None = None
        self._durability = DurabilityTracker(store, clock)
        self._collector = GarbageCollector(store, prefix, clock)

    @property
    def marks(self) -> tuple[int, int]:
        """The watermarks `archived` and `persisted`."""
        return self._mirror.marks

    def close(self) -> None:
        """Close the catalog, and release the journal's lock for shipping."""
        self._mirror.close()
        if self._lock is not None:
            self._lock.release()
            self._lock = None

    def read_contents(self) -> JournalContents:
        """Return what the catalog lists now."""
        contents = self._mirror.read_contents()
        if self._mirror.opened != self._attached_to:  # a new catalog file, which knows nothing of the store yet
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
        self._take_lock()
        catalog = self._mirror.current()
        run = catalog.run()
        if run is None:
            raise CorruptCatalog(catalog.path, "the run's row is missing")
        row = self._mirror.read_store_row(catalog)
        names = manifest_names(self._store, self._prefix)  # read first: a manifest that appears later is another writer's
        found, name, notes = read_first_sound(self._store, names)
        for note in notes:
            _log.warning("%s: %s; using an older manifest", self._paths.folder, note)
        if not self._takes_over:
            check_newest(self._where, found, names, row)
        if found is not None and not found.checkpoints:
            found = None  # without a checkpoint nothing can be recovered from it
        if found is not None:
            check_same_run(self._where, found, run)
            if not self._takes_over:
                check_continues(self._where, found, row)
        self.writer = row.writer if row is not None else secrets.token_hex(8)
        known = {item.name: item for item in catalog.read(lambda tables: tables.rows("shipped/", ShippedRow))}
        self._adopt(found, name, names, row, known)
        row = row or StoreRow(self._store.url, self.writer)
        self._mirror.begin(catalog, replace(row, number=max(row.number, 0 if found is None else found.number)), known)
        self._collector.keeps_all, self._collector.keeps_foreign = bool(notes), found is None
        self._drop_missing(self._collector.collect(self.shipped, self.writer, self._referenced_objects()))
        self.is_attached, self._attached_to = True, self._mirror.opened
        count = sum(len(item.names()) for item in self.shipped.values())
        _log.info("%s: shipping to %s, which holds %d objects of this journal", self._paths.folder, self._where, count)

    def _take_lock(self) -> None:
        try:
            self._lock = self._lock or OwnerLock(self._paths.folder, "shipper")
        except RunInUse as error:
            raise StoreRefused(
                self._store.url, f"process {error.pid} on {error.host} already ships {self._paths.folder} there"
            ) from None

    def _adopt(
        self, found: Manifest | None, name: str, names: Sequence[str], row: StoreRow | None, known: dict[str, ShippedRow]
    ) -> None:
        """Start from the manifest that was found, with the items that belong to this journal's history."""
        self.shipped, self._superseded, self._shared_step = {}, [], 0
        self._history = ManifestHistory(self._store, self._prefix, self._clock)
        if found is not None:
            self._history.load(found, name, names)
            self.shipped = select_own_history(found.shipped, self.read_contents(), known, self._paths.log)
            self._find_superseded(found, row)
        self._number = self._known_number = max((parse_manifest_name(name)[0] for name in names), default=0)

    def _find_superseded(self, found: Manifest, row: StoreRow | None) -> None:
        """Collect the items that this journal has no use for.

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
                    "continue from this folder nevertheless, use --take-over",
                )
            _log.warning(
                "%s: another history of this run in %s, up to step %d, is superseded and will be deleted",
                self._paths.folder,
                self._where,
                step,
            )
            superseded = []  # The garbage collector deletes them after its grace period.
        durable = self._history.durable
        if durable is not None and durable is not found:
            older = [item for name, item in durable.shipped.items() if not _is_same(found.shipped.get(name), item)]
            superseded += [self._durability.read_durability(item) for item in older]
        self._superseded = superseded

    # Publishing manifests.

    def is_stale(self, contents: JournalContents) -> bool:
        """Return True if the newest manifest differs from the present items and timelines."""
        newest = self._history.newest
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
        replaced = [self.shipped[item.objects.name] for item in arrived if item.objects.name in self.shipped]
        self.shipped |= {item.objects.name: item for item in arrived}
        self._superseded += replaced
        expired = [name for name in expired if name in self.shipped]
        shipped = {name: item for name, item in self.shipped.items() if name not in expired}
        run = self._mirror.current().run()
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
        if self._history.name and self._history.name not in names:
            self._collector.make_due()  # The previous manifest is missing; other objects may be missing, too.
        self._superseded += [self.shipped[name] for name in expired]
        self.shipped = dict(shipped)
        self._history.add(manifest, name, names)
        self._delete_superseded()

    def _check_sole_writer(self, names: Sequence[str]) -> None:
        """Check that no other writer has published a manifest since this journal was attached, or last published one.

        Raises:
            StoreRefused: another writer has.
        """
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
        needed = self._history.durable_objects().union(*(item.names() for item in self.shipped.values()))
        for item in list(self._superseded):
            if needed.isdisjoint(item.names()):
                for name in item.names():
                    self._store.delete(name)
                self._superseded.remove(item)

    def _referenced_objects(self, in_flight: Collection[str] = ()) -> set[str]:
        """Return the objects that the garbage collector must not delete."""
        return self._history.referenced_objects().union(in_flight, *(item.names() for item in self._superseded))

    # Queries.

    def check_store(self, contents: JournalContents, persist_seconds: float, in_flight: Collection[str]) -> None:
        """Query the store for durable and lost objects, and once an hour for missing ones."""
        found = self._durability.update(self.shipped, persist_seconds)
        for name in found.lost:
            self.shipped.pop(name, None)
        self.shipped |= found.changed
        if found.lost or found.unreachable:
            names = ", ".join([*found.lost, *found.unreachable])
            _log.warning("%s: the store has lost %s; files that still exist here are sent again", self._paths.folder, names)
            self.write_marks(contents)  # At once, because a store that loses objects may not accept a manifest, either.
        if found.error is not None:
            raise found.error
        is_manifest_lost = self._history.update(persist_seconds)
        self._delete_superseded()
        if self._collector.is_due():
            self._drop_missing(self._collector.collect(self.shipped, self.writer, self._referenced_objects(in_flight)))
            is_manifest_lost |= self._history.is_newest_missing(manifest_names(self._store, self._prefix))
        if is_manifest_lost:
            _log.warning("%s: the store has lost the newest manifest; a new one is written", self._paths.folder)
        if is_manifest_lost or self.is_stale(contents):
            self.publish(contents, (), ())

    def _drop_missing(self, missing: Sequence[str]) -> None:
        for name in missing:
            _log.warning("%s: %s is missing from the store; it is sent again if it still exists here", self._paths.folder, name)
            self.shipped.pop(name, None)

    def plan_resends(self, contents: JournalContents) -> list[SegmentRow | CheckpointRow]:
        """Return the items to send again because too few machines hold them."""
        wanted = self._durability.due_for_resend(self.shipped)
        rows: dict[str, Any] = {row.file: row for row in contents.segments if row.state == "sealed"}
        rows |= {row.name: row for row in contents.checkpoints}
        return [rows[name] for name in wanted if name in rows]

    # The catalog.

    def request_seals(self, age_seconds: float) -> None:
        """Request that the trainer seals segments of this age. The request lapses unless it is renewed."""
        self._mirror.request_seals(age_seconds)

    def write_marks(self, contents: JournalContents) -> None:
        """Write the store's rows and watermarks to the catalog."""
        assert self._mirror.row is not None
        newest = self._history.newest
        row = replace(
            self._mirror.row,
            number=max(self._mirror.row.number, 0 if newest is None else newest.number),
            objects_bytes=sum(item.nbytes for item in self.shipped.values()),
            under_replicated=self._durability.under_replicated_count,
        )
        local = self._local_step(contents)  # Later steps in the store belong to another history.
        marks = min(self._archived_step(contents), local), min(self._persisted_step(contents), local)
        self._mirror.write({name: item.objects for name, item in self.shipped.items()}, row, marks, contents)

    def write_problem(self, problem: str) -> None:
        """Write to the catalog why shipping does not proceed; "" if it does."""
        self._mirror.write_problem(problem)

    def _local_step(self, contents: JournalContents) -> int:
        """Return the newest step of the journal.

        If the trainer died or the catalog was rebuilt, the step in the catalog may be too low.
        """
        return max(contents.step, self._mirror.current().watermarks().committed, self._shared_step)

    def _archived_step(self, contents: JournalContents) -> int:
        newest = self._history.newest
        if newest is None:
            return 0
        stored = {name: self.shipped[name] for name in newest.shipped if name in self.shipped}
        return find_stored_step(replace(newest, shipped=stored), contents)

    def _persisted_step(self, contents: JournalContents) -> int:
        """Return the step that recovery reaches from the durable manifest and the durable items that it names."""
        manifest = self._history.durable
        if manifest is None:
            return 0
        durable = {
            name for item in (*self.shipped.values(), *self._superseded) if item.objects.is_durable for name in item.names()
        }
        stored = {name: item for name, item in manifest.shipped.items() if durable.issuperset(item.names())}
        return find_stored_step(replace(manifest, shipped=stored), contents)


def _is_same(item: ShippedItem | None, other: ShippedItem) -> bool:
    """Return True if two manifests describe an item in the same way.

    The durability of a segment is not compared, because no reader uses it.
    """
    if item is None or (item.objects.files, item.objects.is_lost) != (other.objects.files, other.objects.is_lost):
        return False
    return isinstance(item.row, SegmentRow) or item.objects.is_durable == other.objects.is_durable
