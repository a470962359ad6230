"""What the store has of one journal: the newest manifest in the store, and after it the catalog's rows.

The manifest in the store is what counts. The catalog's rows follow it, so that `status`, the monitor's values and recovery know
of the store without asking it.
"""

from __future__ import annotations

import logging
import os
import secrets
import socket
from collections.abc import Collection, Iterable, Sequence
from dataclasses import replace
from typing import Any

from ...base.clock import Clock
from ...base.config import CATALOG_SECONDS
from ...base.errors import CorruptCatalog, LogUnavailable, RunInUse, StoreRefused
from ...base.failpoints import hit
from ...catalog import (
    CheckpointRow,
    CommonRow,
    FollowedCatalog,
    RunRow,
    SegmentRow,
    ShippedRow,
    StoreRow,
    Tables,
    TimelineRow,
    Watermarks,
)
from ...journal.opening import JournalPaths
from ...journal.process.writer_lock import OwnerLock
from ...stores import Store
from ..sending.plan import Look, look_of, reach_of
from .ancestry import own_past
from .census import Census
from .durability import Durability
from .manifest import Manifest, Shipped, manifest_names, publish, read_first_sound, writer_of
from .manifest_history import Published

_log = logging.getLogger(__name__)

_SEAL_LEASE_SECONDS = 60.0  # a request to seal lapses where nobody renews it


class Ledger:
    """See the module. One thread calls it, but for `writer` and `is_attached`.

    Attributes:
        writer: this journal's name in the store.
        is_attached: whether the store was looked at, and this journal may write there.
        shipped: what the newest manifest names, and what is known of it since.
        marks: archived and persisted.
    """

    def __init__(self, paths: JournalPaths, store: Store, place: str, clock: Clock, *, takes_over: bool) -> None:
        self._paths, self._store, self._place, self._clock, self._takes_over = paths, store, place, clock, takes_over
        self._catalog = FollowedCatalog(paths.folder, writable=True)
        self.writer, self.is_attached, self.marks = "", False, (0, 0)
        self.shipped: dict[str, Shipped] = {}
        self._left: list[Shipped] = []  # of no use any more, and deleted when the durable manifest does not name them either
        self._published = Published(store, place, clock)
        self._shared = 0  # the step up to which the store was found to hold this journal's past
        self._number = self._known = 0  # of the newest manifest that was tried, or is known to be there
        self._written: dict[str, ShippedRow] = {}  # rows of the catalog
        self._row: StoreRow | None = None
        self._attached_to = 0  # which of its files
        self._whereabouts = f"{socket.gethostname()}:{os.path.realpath(paths.folder)}"
        self._lock: OwnerLock | None = None
        self._sealing_until = 0.0
        self._durability = Durability(store, clock)
        self._census = Census(store, place, clock)

    def close(self) -> None:
        """Let go of the catalog and of the journal."""
        self._catalog.close()
        if self._lock is not None:
            self._lock.release()
            self._lock = None

    def look(self) -> Look:
        """What the catalog lists now."""
        catalog = self._catalog.current()
        if self._catalog.opened != self._attached_to:  # another file: it knows nothing of the store yet
            self.is_attached = False

        def read(tables: Tables) -> Look:
            checkpoints = [row for row in tables.rows("checkpoint/", CheckpointRow) if row.state == "published"]
            common = tables.get("common", CommonRow)
            return Look(
                tables.rows("segment/", SegmentRow),
                checkpoints,
                tables.rows("timeline/", TimelineRow),
                1 if common is None else common.world,
            )

        found: Look = catalog.read(read)
        return found

    # The store.

    def attach(self) -> None:
        """Look at what the store has of this journal, once.

        Raises:
            StoreRefused: it holds another run, or another machine goes on with this one, or another process ships it.
            StoreUnavailable: it does not answer.
        """
        if self.is_attached:
            return
        self._take_lock()
        catalog = self._catalog.current()
        run = catalog.run()
        if run is None:
            raise CorruptCatalog(catalog.path, "the run's row is missing")
        row: StoreRow | None = catalog.read(lambda tables: tables.get("store", StoreRow))
        row = replace(row, url=self._store.url) if row is not None and self._is_there(row) and row.writer else None
        if row is not None and row.host and row.host != self._whereabouts:  # the folder was copied, or moved
            row = replace(row, writer=secrets.token_hex(8))
        names = manifest_names(self._store, self._place)  # first: what is published from here on is somebody else's
        found, name, notes = read_first_sound(self._store, names)
        for note in notes:
            _log.warning("%s: %s; an older manifest is used", self._paths.folder, note)
        if not self._takes_over:
            self._demand_newest(found, names, row)
        if found is not None and not found.checkpoints:
            found = None  # nothing comes back from it: whoever wrote it did not come far
        if found is not None:
            self._demand_ours(found, run, row)
        self.writer = row.writer if row is not None else secrets.token_hex(8)
        known = {one.name: one for one in catalog.read(lambda tables: tables.rows("shipped/", ShippedRow))}
        self.shipped, self._left, self._shared = {}, [], 0
        self._published = Published(self._store, self._place, self._clock)
        if found is not None:
            self._published.begin(found, name, names)
            self.shipped = own_past(found.shipped, self.look(), known, self._paths.log)
            self._leave(found, row)
        self._number = self._known = max((writer_of(name)[0] for name in names), default=0)
        row = row or StoreRow(self._store.url, self.writer)
        number = max(row.number, 0 if found is None else found.number)
        self._row = replace(row, number=number, problem="", host=self._whereabouts)
        self._written = known
        with catalog.transaction() as tables:
            tables.put("store", self._row)
        self._census.spares_all, self._census.spares_others = bool(notes), found is None
        self._drop_missing(self._census.take(self.shipped, self.writer, self._needed()))
        self.is_attached, self._attached_to = True, self._catalog.opened
        count = sum(len(one.names()) for one in self.shipped.values())
        where = f"{self._store.url}/{self._place}"
        _log.info("%s: is shipped to %s from now on (%d objects are there)", self._paths.folder, where, count)

    def _leave(self, found: Manifest, row: StoreRow | None) -> None:
        """What is of no use to this journal: another past of the run, and what only an older manifest names.

        Raises:
            StoreRefused: that past leads further than this journal, which does not know of it.
        """
        left = [one for name, one in found.shipped.items() if name not in self.shipped]
        look = self.look()
        shared, where = replace(found, shipped=self.shipped), f"{self._store.url}/{self._place}"
        self._shared = reach_of(shared, look)
        step, own = reach_of(found, look_of(found)), self._own(look)
        if step > max(own, reach_of(shared, look_of(found))):
            if not self._takes_over and (row is None or row.number != found.number):
                raise StoreRefused(
                    where,
                    f"it has another past of this run, up to step {step}, and this folder has come to "
                    f"{own}: was it restored from a backup? To go on from that past, move the folder away and "
                    "pull; to go on from here all the same, --take-over",
                )
            _log.warning(
                "%s: another past of this run in %s, up to step %d, does not count any more, and will be deleted",
                self._paths.folder,
                where,
                step,
            )
            left = []  # that is up to the census
        durable = self._published.durable
        if durable is not None and durable is not found:
            older = [one for name, one in durable.shipped.items() if not _is_same(found.shipped.get(name), one)]
            left += [self._durability.asked(one) for one in older]
        self._left = left

    def _take_lock(self) -> None:
        try:
            self._lock = self._lock or OwnerLock(self._paths.folder, "shipper")
        except RunInUse as error:
            raise StoreRefused(
                self._store.url, f"process {error.pid} on {error.host} ships {self._paths.folder} there"
            ) from None

    def _demand_newest(self, found: Manifest | None, names: Sequence[str], row: StoreRow | None) -> None:
        """Check that what was read is the newest, and not what is left where a store was: nobody's place is taken unseen.

        Raises:
            StoreRefused: it is not.
        """
        where, seen = f"{self._store.url}/{self._place}", max(found.number if found else 0, row.number if row else 0)
        if row is not None and row.number and not names:
            raise StoreRefused(
                where,
                f"manifest {row.number} of this run was there, and now there is nothing: is it the right "
                "address, is its disk mounted? To begin there anew, --take-over",
            )
        newer = [number for number, writer in map(writer_of, names) if number > seen and (row is None or writer != row.writer)]
        if newer:
            raise StoreRefused(
                where,
                f"manifest {max(newer)} of another copy of this run is there, and cannot be read, or not "
                "yet; to go on from here all the same, --take-over",
            )

    def _demand_ours(self, found: Manifest, run: RunRow, row: StoreRow | None) -> None:
        where = f"{self._store.url}/{self._place}"
        if found.run.run_id != run.run_id:
            raise StoreRefused(
                where, f"another run lies there ({found.run.run_id[:8]}, this one is {run.run_id[:8]}); give another address"
            )
        if not self._is_own(found, row) and not self._takes_over:
            raise StoreRefused(
                where,
                f"another copy of this run, on host {found.host}, was shipped there since (manifest "
                f"{found.number}). Stop it, or give another address; to go on from what it shipped, pull that; "
                "to go on from here all the same, --take-over",
            )

    def _is_there(self, row: StoreRow) -> bool:
        """Whether it is of this store: what is asked of it (?replication=2) makes it no other."""
        return row.url.partition("?")[0] == self._store.url.partition("?")[0]

    def _is_own(self, found: Manifest, row: StoreRow | None) -> bool:
        """Whether what the store has is this journal's own past: it wrote it, or was pulled from it, or lost its catalog."""
        if row is None:
            return found.host == socket.gethostname()
        return found.writer == row.writer or found.number <= row.number

    def is_stale(self, look: Look) -> bool:
        """Whether the newest manifest does not say what is known now."""
        newest = self._published.newest
        if newest is None:
            return bool(self.shipped)
        return (
            newest.shipped.keys() != self.shipped.keys()
            or newest.timelines != tuple(look.timelines)
            or any(not _is_same(newest.shipped[name], one) for name, one in self.shipped.items())
        )

    def publish(self, look: Look, arrived: Sequence[Shipped], gone: Iterable[str]) -> None:
        """A new manifest: with what has arrived, without what goes.

        Raises:
            StoreUnavailable: it could not be written; what had arrived is not lost, and the next one has it.
            StoreRefused: another machine has published one meanwhile.
        """
        replaced = [self.shipped[one.objects.name] for one in arrived if one.objects.name in self.shipped]
        self.shipped |= {one.objects.name: one for one in arrived}
        self._left += replaced
        gone = [name for name in gone if name in self.shipped]
        shipped = {name: one for name, one in self.shipped.items() if name not in gone}
        run = self._catalog.current().run()
        assert run is not None
        self._number += 1  # an attempt that fails may be there all the same
        manifest = Manifest(
            self._number, self.writer, socket.gethostname(), self._clock.now(), run, tuple(look.timelines), shipped
        )
        self._demand_alone(manifest_names(self._store, self._place))
        name = publish(self._store, self._place, manifest)  # commit point
        names = manifest_names(self._store, self._place)
        try:
            self._demand_alone(names)
        except StoreRefused:
            self._store.delete(name)
            raise
        self._known = self._number
        if self._published.name and self._published.name not in names:  # the one before it is gone: who knows what else
            self._census.hurry()
        self._left += [self.shipped[item] for item in gone]
        self.shipped = dict(shipped)
        self._published.accept(manifest, name, names)
        self._sweep()

    def _sweep(self) -> None:
        """Delete what is of no use, unless it is what recovery needs should the store lose its memory now."""
        needed = self._published.durable_objects().union(*(one.names() for one in self.shipped.values()))
        for one in list(self._left):
            if needed.isdisjoint(one.names()):
                for name in one.names():
                    self._store.delete(name)
                self._left.remove(one)

    def _needed(self, under_way: Collection[str] = ()) -> set[str]:
        """Objects that the census must not take for nobody's."""
        return self._published.objects().union(under_way, *(one.names() for one in self._left))

    def _demand_alone(self, names: Sequence[str]) -> None:
        """Check that nobody else has published since this journal did, or was attached.

        Raises:
            StoreRefused: somebody has.
        """
        others = [number for number, writer in map(writer_of, names) if writer != self.writer and number > self._known]
        if others:
            self.is_attached = False
            raise StoreRefused(
                f"{self._store.url}/{self._place}",
                f"another copy of this run was shipped there meanwhile (manifest {max(others)})",
            )

    def look_after(self, look: Look, persist_seconds: float, under_way: Collection[str]) -> None:
        """Ask what is durable by now, what was lost, and once an hour whether everything is still there."""
        found = self._durability.look(self.shipped, persist_seconds)
        for name in found.lost:
            self.shipped.pop(name, None)
        self.shipped |= found.changed
        if found.lost or found.away:
            names = ", ".join([*found.lost, *found.away])
            _log.warning("%s: the store has lost %s; what is still here is sent again", self._paths.folder, names)
            self.write_marks(look)  # at once: a store that loses objects may take no manifest either
        if found.error is not None:
            raise found.error
        is_manifest_lost = self._published.look(persist_seconds)
        self._sweep()
        if self._census.is_due():
            self._drop_missing(self._census.take(self.shipped, self.writer, self._needed(under_way)))
            is_manifest_lost |= self._published.is_gone(manifest_names(self._store, self._place))
        if is_manifest_lost:
            _log.warning("%s: the newest manifest is lost in the store; another one is written", self._paths.folder)
        if is_manifest_lost or self.is_stale(look):
            self.publish(look, (), ())

    def _drop_missing(self, missing: Sequence[str]) -> None:
        for name in missing:
            _log.warning(
                "%s: the store does not have %s any more; it is sent again if it is still here", self._paths.folder, name
            )
            self.shipped.pop(name, None)

    def thin(self, look: Look) -> list[SegmentRow | CheckpointRow]:
        """What is to be sent again, since fewer machines hold it than should."""
        wanted = self._durability.due_again(self.shipped)
        rows: dict[str, Any] = {row.file: row for row in look.segments if row.state == "sealed"}
        rows |= {row.name: row for row in look.checkpoints}
        return [rows[name] for name in wanted if name in rows]

    # The catalog.

    def ask_for_seals(self, lag_seconds: float) -> None:
        """Ask the trainer to seal segments that are so old; the request lapses unless it is renewed."""
        now = self._clock.now()
        if now < self._sealing_until - _SEAL_LEASE_SECONDS / 2:
            return
        with self._catalog.current().transaction() as tables:
            tables.put_request("seal", {"age_seconds": lag_seconds, "until": now + _SEAL_LEASE_SECONDS})
        self._sealing_until = now + _SEAL_LEASE_SECONDS

    def write_marks(self, look: Look) -> None:
        """Bring the catalog up to what the store has."""
        rows = {name: one.objects for name, one in self.shipped.items()}
        assert self._row is not None
        newest = self._published.newest
        number = max(self._row.number, 0 if newest is None else newest.number)
        row = replace(
            self._row,
            number=number,
            objects_bytes=sum(one.nbytes for one in self.shipped.values()),
            under_replicated=self._durability.thin_count,
        )
        own = self._own(look)  # what lies behind it is another past
        archived, persisted = min(self._archived(look), own), min(self._persisted(look), own)
        if rows == self._written and (archived, persisted) == self.marks and row == self._row:
            return
        hit("ship.marks")
        with self._catalog.current().transaction() as tables:
            if tables.rows("timeline/", TimelineRow) != list(look.timelines):
                return  # a rewind has begun meanwhile: the next turn sees it
            marks = tables.get("watermarks", Watermarks) or Watermarks()
            tables.put(
                "watermarks",
                replace(  # of a trainer that died the catalog may not know how far it had come
                    marks,
                    committed=max(marks.committed, archived),
                    synced=max(marks.synced, persisted),
                    archived=archived,
                    persisted=persisted,
                ),
            )
            for name in self._written.keys() - rows.keys():
                tables.delete(f"shipped/{name}")
            for name, one in rows.items():
                if self._written.get(name) != one:
                    tables.put(f"shipped/{name}", one)
            self._row = replace(row, at=self._clock.now())
            tables.put("store", self._row)
        self._written, self.marks = rows, (archived, persisted)

    def _own(self, look: Look) -> int:
        """How far the journal has come; of one that died, or was rebuilt, its catalog alone may not know it."""
        return max(look.step, self._catalog.current().watermarks().committed, self._shared)

    def _archived(self, look: Look) -> int:
        newest = self._published.newest
        if newest is None:
            return 0
        there = {name: self.shipped[name] for name in newest.shipped if name in self.shipped}
        return reach_of(replace(newest, shipped=there), look)

    def _persisted(self, look: Look) -> int:
        """What recovery comes to from the durable manifest and what is durable of all that it names."""
        manifest = self._published.durable
        if manifest is None:
            return 0
        durable = {name for one in (*self.shipped.values(), *self._left) if one.objects.is_durable for name in one.names()}
        there = {name: one for name, one in manifest.shipped.items() if durable.issuperset(one.names())}
        return reach_of(replace(manifest, shipped=there), look)

    def write_problem(self, problem: str) -> None:
        """Say in the catalog why shipping does not go on, or that it does."""
        try:
            if self._row is None or self._row.problem != problem:
                catalog = self._catalog.current()
                row = catalog.read(lambda tables: tables.get("store", StoreRow))
                if row is None or not self._is_there(row):
                    row = StoreRow(self._store.url, "", host=self._whereabouts)
                self._row = replace(row, problem=problem)
                with catalog.transaction() as tables:
                    tables.put("store", self._row)
        except (CorruptCatalog, LogUnavailable, OSError) as error:
            _log.debug("the store's problem could not be written down: %s", error)


def _is_same(one: Shipped | None, other: Shipped) -> bool:
    """Whether two manifests say the same of an item, but for whether a segment is durable, which nobody asks a manifest for."""
    if one is None or (one.objects.files, one.objects.is_lost) != (other.objects.files, other.objects.is_lost):
        return False
    return isinstance(one.row, SegmentRow) or one.objects.is_durable == other.objects.is_durable


assert CATALOG_SECONDS < _SEAL_LEASE_SECONDS, "a trainer must see a request before it lapses"
