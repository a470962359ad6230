"""The manifest: it names the objects of a store that make up a journal. An object that it does not name does not count.

    RUN/rank0/manifests/0000000012-5f0c….json      the newest intact one is valid; the name holds its number and its writer
    RUN/rank0/objects/…                            parts of segments and checkpoints, each under a name that is used once

Each manifest is an object of its own and is never changed. Two writers of one journal (an old machine that is thought dead, and
the new one) detect each other by their manifests: a writer whose own manifest is not the newest stops.
"""

from __future__ import annotations

import io
import secrets
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any, TypeVar

from ..base.config import FORMAT_VERSION
from ..base.errors import CorruptObject, StoreUnavailable, UnknownFormat
from ..base.failpoints import hit
from ..catalog import CheckpointRow, RunRow, SegmentRow, ShippedRow, TimelineRow
from ..checkpoints.folder import open_manifest, seal_manifest
from ..journal import JournalPaths
from ..stores import Store

MANIFESTS, OBJECTS = "manifests", "objects"
KEPT = 4  # number of manifests that are kept, in case the newest cannot be read

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class ShippedItem:
    """A segment or a checkpoint in the store: its catalog row, and its objects."""

    row: SegmentRow | CheckpointRow
    objects: ShippedRow

    @property
    def name(self) -> str:
        """The name of the segment's file or of the checkpoint's folder."""
        return self.objects.name

    @property
    def nbytes(self) -> int:
        """The size of its objects."""
        return sum(nbytes for _, nbytes, _ in self.parts())

    def names(self) -> list[str]:
        """Return the names of its objects."""
        return [name for name, _, _ in self.parts()]

    def parts(self) -> list[list[Any]]:
        """Return [name, bytes, digest] of its objects."""
        return [part for parts in self.objects.files.values() for part in parts]


@dataclass(frozen=True, slots=True)
class Manifest:
    """A manifest: the segments and checkpoints of a journal that a store holds.

    Attributes:
        number: the number of the manifest. A newer one has a higher number.
        writer: name of the writer, 16 hex digits.
        host: the writer's machine.
        at: the time of writing, in seconds since 1970.
        run: the journal's run.
        timelines: all timelines of the run.
        shipped: segments and checkpoints by name.
    """

    number: int
    writer: str
    host: str
    at: float
    run: RunRow
    timelines: tuple[TimelineRow, ...]
    shipped: dict[str, ShippedItem]

    @property
    def segments(self) -> list[ShippedItem]:
        """The segments, in the order of the log."""
        found = [item for item in self.shipped.values() if isinstance(item.row, SegmentRow)]
        return sorted(found, key=lambda item: (item.row.base_sequence, item.row.ordinal))  # type: ignore[union-attr]

    @property
    def checkpoints(self) -> list[ShippedItem]:
        """The checkpoints, oldest first."""
        found = [item for item in self.shipped.values() if isinstance(item.row, CheckpointRow)]
        return sorted(found, key=lambda item: (item.row.timeline, item.row.sequence))  # type: ignore[union-attr]

    def pack(self) -> bytes:
        """Return the content of the manifest's object."""
        return seal_manifest(
            {
                "format": FORMAT_VERSION,
                "number": self.number,
                "writer": self.writer,
                "host": self.host,
                "at": self.at,
                "run": asdict(self.run),
                "timelines": [asdict(row) for row in self.timelines],
                "segments": [[asdict(item.row), asdict(item.objects)] for item in self.segments],
                "checkpoints": [[asdict(item.row), asdict(item.objects)] for item in self.checkpoints],
            }
        )

    @classmethod
    def unpack(cls, raw: bytes, name: str) -> Manifest:
        """Parse the content of a manifest's object.

        Raises:
            CorruptObject: the manifest is damaged.
            UnknownFormat: a newer version wrote the manifest.
        """
        try:
            content = open_manifest(raw)
            if content["format"] != FORMAT_VERSION:
                raise UnknownFormat(name, content["format"], FORMAT_VERSION)
            shipped = [ShippedItem(_row(SegmentRow, row), _row(ShippedRow, objects)) for row, objects in content["segments"]]
            shipped += [
                ShippedItem(_row(CheckpointRow, row), _row(ShippedRow, objects)) for row, objects in content["checkpoints"]
            ]
            return cls(
                int(content["number"]),
                str(content["writer"]),
                str(content["host"]),
                float(content["at"]),
                _row(RunRow, content["run"]),
                tuple(_row(TimelineRow, row) for row in content["timelines"]),
                {item.name: item for item in shipped},
            )
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise CorruptObject(name, f"the manifest is damaged ({error})") from None


def _row(kind: type[T], content: dict[str, Any]) -> T:
    known = {field.name for field in fields(kind)}  # type: ignore[arg-type]
    return kind(**{name: value for name, value in content.items() if name in known})


def journal_prefix(paths: JournalPaths) -> str:
    """Return a journal's place in a store: the name of the run's folder, and the name of the journal's folder."""
    folder = paths.folder.absolute()
    return f"{folder.parent.name}/{folder.name}"


def manifest_names(store: Store, prefix: str) -> list[str]:
    """Return the names of a journal's manifests, newest first."""
    return sorted(store.names(f"{prefix}/{MANIFESTS}"), reverse=True)


def read_manifest(store: Store, name: str) -> Manifest:
    """Read a manifest.

    Raises:
        CorruptObject: the manifest is damaged, missing or incomplete.
        StoreUnavailable: the store does not answer.
        UnknownFormat: a newer version wrote the manifest.
    """
    raw = io.BytesIO()
    store.get(name, raw)
    return Manifest.unpack(raw.getvalue(), name)


def read_first_sound(store: Store, names: Sequence[str]) -> tuple[Manifest | None, str, list[str]]:
    """Read manifests in the order given until one is intact.

    Returns:
        The manifest (None if none is intact), its name, and a sentence for each damaged one before it.

    Raises:
        StoreUnavailable: the store does not answer.
        UnknownFormat: a newer version wrote one.
    """
    notes: list[str] = []
    for name in names:
        try:
            return read_manifest(store, name), name, notes
        except CorruptObject as error:
            notes.append(str(error))
    return None, "", notes


def read_newest(store: Store, prefix: str) -> tuple[Manifest | None, list[str]]:
    """Return the newest intact manifest of a journal, and a sentence for each newer one that is damaged.

    Raises:
        StoreUnavailable: the store does not answer.
        UnknownFormat: a newer version wrote it.
    """
    manifest, _, notes = read_first_sound(store, manifest_names(store, prefix))
    return manifest, notes


def publish(store: Store, prefix: str, manifest: Manifest) -> str:
    """Write a manifest, which is the commit point in the store; return its name.

    Raises:
        StoreUnavailable: the manifest could not be written, or the store does not hold it in full.
    """
    name = f"{prefix}/{MANIFESTS}/{manifest.number:010d}-{manifest.writer}{secrets.token_hex(4)}.json"
    raw = manifest.pack()
    hit("ship.manifest")
    store.put(name, io.BytesIO(raw), len(raw))
    status = store.stat(name)
    if status is None or not status.is_complete or status.nbytes != len(raw):
        raise StoreUnavailable(store.url, f"{name} was written, but the store does not hold it in full ({status})")
    hit("ship.published")
    return name


def parse_manifest_name(name: str) -> tuple[int, str]:
    """Return the number and the writer that a manifest's name contains."""
    number, _, rest = name.rpartition("/")[2].partition("-")
    return (int(number) if number.isdigit() else 0), rest[:16]
