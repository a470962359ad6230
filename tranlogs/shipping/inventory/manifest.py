"""The manifest: which objects of a store make up a journal. What it does not name does not count.

    RUN/rank0/manifests/0000000012-5f0c….json      the newest sound one holds: number, then the writer's name
    RUN/rank0/objects/…                            parts of segments and checkpoints, each under a name used once

Each manifest is an object of its own and is never changed. Two writers of one journal (an old machine that is thought dead, and
the new one) see each other by it: whose own manifest is not the newest stops.
"""

from __future__ import annotations

import io
import secrets
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any, TypeVar

from ...base.config import FORMAT_VERSION
from ...base.errors import CorruptObject, StoreUnavailable, UnknownFormat
from ...base.failpoints import hit
from ...catalog import CheckpointRow, RunRow, SegmentRow, ShippedRow, TimelineRow
from ...checkpoints.folder import open_manifest, seal_manifest
from ...journal.opening import JournalPaths
from ...stores import Store

MANIFESTS, OBJECTS = "manifests", "objects"
KEPT = 4  # older manifests, in case that the newest cannot be read

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Shipped:
    """A segment or a checkpoint in the store."""

    row: SegmentRow | CheckpointRow
    objects: ShippedRow

    @property
    def nbytes(self) -> int:
        return sum(part[1] for parts in self.objects.files.values() for part in parts)

    def names(self) -> list[str]:
        """Of its objects."""
        return [part[0] for parts in self.objects.files.values() for part in parts]


@dataclass(frozen=True, slots=True)
class Manifest:
    """See the module.

    Attributes:
        number: of this manifest; a newer one has a higher number.
        writer: who wrote it, 16 hex digits.
        host: on which machine.
        at: when, in seconds since 1970.
        run: the journal's run.
        timelines: all of them.
        shipped: segments and checkpoints by name.
    """

    number: int
    writer: str
    host: str
    at: float
    run: RunRow
    timelines: tuple[TimelineRow, ...]
    shipped: dict[str, Shipped]

    @property
    def segments(self) -> list[Shipped]:
        """In the order of the log."""
        found = [one for one in self.shipped.values() if isinstance(one.row, SegmentRow)]
        return sorted(found, key=lambda one: (one.row.base_sequence, one.row.ordinal))  # type: ignore[union-attr]

    @property
    def checkpoints(self) -> list[Shipped]:
        """Oldest first."""
        found = [one for one in self.shipped.values() if isinstance(one.row, CheckpointRow)]
        return sorted(found, key=lambda one: (one.row.timeline, one.row.sequence))  # type: ignore[union-attr]

    def packed(self) -> bytes:
        """As an object."""
        return seal_manifest(
            {
                "format": FORMAT_VERSION,
                "number": self.number,
                "writer": self.writer,
                "host": self.host,
                "at": self.at,
                "run": asdict(self.run),
                "timelines": [asdict(row) for row in self.timelines],
                "segments": [[asdict(one.row), asdict(one.objects)] for one in self.segments],
                "checkpoints": [[asdict(one.row), asdict(one.objects)] for one in self.checkpoints],
            }
        )

    @classmethod
    def unpacked(cls, raw: bytes, name: str) -> Manifest:
        """The inverse.

        Raises:
            CorruptObject: it is damaged.
            UnknownFormat: a newer version wrote it.
        """
        try:
            content = open_manifest(raw)
            if content["format"] != FORMAT_VERSION:
                raise UnknownFormat(name, content["format"], FORMAT_VERSION)
            shipped = [Shipped(_row(SegmentRow, row), _row(ShippedRow, objects)) for row, objects in content["segments"]]
            shipped += [Shipped(_row(CheckpointRow, row), _row(ShippedRow, objects)) for row, objects in content["checkpoints"]]
            return cls(
                int(content["number"]),
                str(content["writer"]),
                str(content["host"]),
                float(content["at"]),
                _row(RunRow, content["run"]),
                tuple(_row(TimelineRow, row) for row in content["timelines"]),
                {one.objects.name: one for one in shipped},
            )
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise CorruptObject(name, f"the manifest is damaged ({error})") from None


def _row(kind: type[T], content: dict[str, Any]) -> T:
    known = {field.name for field in fields(kind)}  # type: ignore[arg-type]
    return kind(**{name: value for name, value in content.items() if name in known})


def place_of(paths: JournalPaths) -> str:
    """Where a journal lies in a store: below the name of its run's folder."""
    folder = paths.folder.absolute()
    return f"{folder.parent.name}/{folder.name}"


def manifest_names(store: Store, place: str) -> list[str]:
    """The manifests of a journal, newest first."""
    return sorted(store.names(f"{place}/{MANIFESTS}"), reverse=True)


def read_manifest(store: Store, name: str) -> Manifest:
    """A manifest.

    Raises:
        CorruptObject: it is damaged, or gone, or not written to its end.
        StoreUnavailable: the store does not answer.
        UnknownFormat: a newer version wrote it.
    """
    raw = io.BytesIO()
    store.get(name, raw)
    return Manifest.unpacked(raw.getvalue(), name)


def read_first_sound(store: Store, names: Sequence[str]) -> tuple[Manifest | None, str, list[str]]:
    """The first of some manifests that can be read, its name, and a sentence for each before it; for its errors see
    `read_manifest`."""
    notes: list[str] = []
    for name in names:
        try:
            return read_manifest(store, name), name, notes
        except CorruptObject as error:
            notes.append(str(error))
    return None, "", notes


def read_newest(store: Store, place: str) -> tuple[Manifest | None, list[str]]:
    """The newest sound manifest of the journal at `place`, and a sentence for each newer one that is damaged.

    Raises:
        StoreUnavailable: the store does not answer.
        UnknownFormat: a newer version wrote it.
    """
    manifest, _, notes = read_first_sound(store, manifest_names(store, place))
    return manifest, notes


def publish(store: Store, place: str, manifest: Manifest) -> str:
    """Write a manifest (commit point in the store); gives its name.

    Raises:
        StoreUnavailable: it could not be written, or not be found again.
    """
    name = f"{place}/{MANIFESTS}/{manifest.number:010d}-{manifest.writer}{secrets.token_hex(4)}.json"
    raw = manifest.packed()
    hit("ship.manifest")
    store.put(name, io.BytesIO(raw), len(raw))
    status = store.stat(name)
    if status is None or not status.is_complete or status.nbytes != len(raw):
        raise StoreUnavailable(store.url, f"{name} was written, and is not there as it was written ({status})")
    hit("ship.published")
    return name


def writer_of(name: str) -> tuple[int, str]:
    """Number and writer that a manifest's name tells."""
    number, _, rest = name.rpartition("/")[2].partition("-")
    return (int(number) if number.isdigit() else 0), rest[:16]
