"""The manifest: it names the objects of a store that make up a journal. An object that it does not name does not count.

    RUN/rank0/manifests/0000000012-5f0c….json      the newest intact one is valid; the name holds its number and its writer
    RUN/rank0/objects/…                            parts of segments and checkpoints, each under a name that is used once
    shipped.json                                   in the folder of the journal: what it knows of the newest manifest

Each manifest is an object of its own and is never changed. Two writers of one journal (an old machine that is thought dead, and
the new one) detect each other by their manifests: a writer whose own manifest is not the newest stops.
"""

from __future__ import annotations

import io
import secrets
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, TypeVar

from ..base.atomic_files import publishing
from ..base.clock import Clock
from ..base.config import FORMAT_VERSION
from ..base.errors import CorruptObject, StoreUnavailable, UnknownFormat
from ..base.failpoints import hit
from ..catalog import CheckpointRow, RunRow, SegmentRow, TimelineRow
from ..checkpoints.folder import open_manifest, seal_manifest
from ..journal import JournalPaths
from ..stores import Content, ObjectStatus, Store

MANIFESTS, OBJECTS = "manifests", "objects"
LOCAL_NAME = "shipped.json"  # in the folder of a journal
KEPT = 4  # number of manifests that are kept, in case the newest cannot be read

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class ShippedItem:
    """A segment or a checkpoint in the store. Digests are 16 hex digits.

    Another segment continues a segment at its last record or, after a crash, at its newest boundary.

    Attributes:
        files: its objects in the store, by file; each is [name, bytes, xxh3_128 in hex].
        boundary_step: the step of the newest boundary in a segment.
        boundary_chain: the digest of that boundary.
        base_chain: the digest of the record before a segment's first one.
        end_sequence: the sequence number of a segment's last record.
        end_chain: the digest of that record.
        is_durable: True if the store calls all objects durable.
        is_lost: True if the store does not hold the objects any more, or not at present. The item does not count then.
    """

    row: SegmentRow | CheckpointRow
    files: dict[str, list[list[Any]]]
    boundary_step: int = 0
    boundary_sequence: int = 0
    boundary_chain: str = ""
    base_chain: str = ""
    end_sequence: int = 0
    end_chain: str = ""
    is_durable: bool = False
    at: float = 0.0
    is_lost: bool = False

    @property
    def name(self) -> str:
        """The name of the segment's file or of the checkpoint's folder."""
        return name_of(self.row)

    @property
    def nbytes(self) -> int:
        """The size of its objects."""
        return sum(nbytes for _, nbytes, _ in self.parts())

    def names(self) -> list[str]:
        """Return the names of its objects."""
        return [name for name, _, _ in self.parts()]

    def parts(self) -> list[list[Any]]:
        """Return [name, bytes, digest] of its objects."""
        return [part for parts in self.files.values() for part in parts]

    def pack(self) -> list[dict[str, Any]]:
        """Return the row and the objects as a manifest holds them."""
        content = asdict(self)
        return [content.pop("row"), {"name": self.name, **content}]


def name_of(row: SegmentRow | CheckpointRow) -> str:
    """Return the name of a segment or a checkpoint in a manifest."""
    return row.file if isinstance(row, SegmentRow) else row.name


@dataclass(frozen=True, slots=True)
class Manifest:
    """A manifest: the segments and checkpoints of a journal that a store holds, by name, and all timelines of the run.

    A newer manifest has a higher number. `writer` (16 hex digits) wrote it on `host`, at the time `at` in seconds since 1970.
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
                "segments": [item.pack() for item in self.segments],
                "checkpoints": [item.pack() for item in self.checkpoints],
            }
        )

    @classmethod
    def unpack(cls, raw: bytes, name: str) -> Manifest:
        """Parse the content of a manifest's object, or raise CorruptObject or UnknownFormat."""
        try:
            content = open_manifest(raw)
            if content["format"] != FORMAT_VERSION:
                raise UnknownFormat(name, content["format"], FORMAT_VERSION)
            shipped = [_row(ShippedItem, {**item, "row": _row(SegmentRow, row)}) for row, item in content["segments"]]
            shipped += [_row(ShippedItem, {**item, "row": _row(CheckpointRow, row)}) for row, item in content["checkpoints"]]
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

    Return it (None if none is intact), its name, and a sentence for each damaged one before it.
    """
    notes: list[str] = []
    for name in names:
        try:
            return read_manifest(store, name), name, notes
        except CorruptObject as error:
            notes.append(str(error))
    return None, "", notes


def read_newest(store: Store, prefix: str) -> tuple[Manifest | None, list[str]]:
    """Return the newest intact manifest of a journal, and a sentence for each newer one that is damaged."""
    manifest, _, notes = read_first_sound(store, manifest_names(store, prefix))
    return manifest, notes


def read_local(folder: Path) -> dict[str, ShippedItem]:
    """Return the items that a journal's copy of its manifest names; {} if there is none that can be read."""
    try:
        return Manifest.unpack((folder / LOCAL_NAME).read_bytes(), LOCAL_NAME).shipped
    except (CorruptObject, UnknownFormat, OSError):
        return {}


def write_local(folder: Path, manifest: Manifest) -> None:
    """Write a journal's copy of its manifest, from which it knows its items in the store also when they are pruned here.

    Raises:
        OSError: the disk is full or fails.
    """
    with publishing(folder / LOCAL_NAME) as temporary:
        temporary.write_bytes(manifest.pack())


def publish(store: Store, prefix: str, manifest: Manifest) -> str:
    """Write a manifest, which is the commit point in the store; return its name.

    Raises:
        StoreUnavailable: the manifest could not be written, or the store does not hold it in full.
    """
    name = f"{prefix}/{MANIFESTS}/{manifest.number:010d}-{manifest.writer}{secrets.token_hex(4)}.json"
    raw = manifest.pack()
    hit("ship.manifest")
    store.put(name, Content.of(raw))
    status = store.stat(name)
    if status is None or not status.is_complete or status.nbytes != len(raw):
        raise StoreUnavailable(store.url, f"{name} was written, but the store does not hold it in full ({status})")
    hit("ship.published")
    return name


def parse_manifest_name(name: str) -> tuple[int, str]:
    """Return the number and the writer that a manifest's name contains."""
    number, _, rest = name.rpartition("/")[2].partition("-")
    return (int(number) if number.isdigit() else 0), rest[:16]


def is_durable(status: ObjectStatus | None) -> bool:
    """Return True if a store calls an object complete and durable."""
    return status is not None and status.is_complete and status.is_durable


class ManifestHistory:
    """The recent manifests of one journal in its store.

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
        """Start from a manifest that was read. `names` are the manifests in the store, newest first."""
        self._recent, self._since = [(name, found)], self._clock.now()
        self._durable_name, self.durable = "", None
        for each in names[names.index(name) :]:
            if is_durable(self._store.stat(each)):
                try:
                    self.durable = found if each == name else read_manifest(self._store, each)
                except CorruptObject:
                    continue
                self._durable_name = each
                return

    def add(self, manifest: Manifest, name: str, names: Sequence[str]) -> None:
        """Add a manifest that was published, and delete the oldest of those that are in the store now (`names`)."""
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
        """
        for i, (name, manifest) in enumerate(self._recent):
            if name == self._durable_name:
                break
            status = self._store.stat(name)
            if is_durable(status):
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
        found = self.durable_objects()
        return found.union(*(item.names() for _, manifest in self._recent for item in manifest.shipped.values()))

    def durable_objects(self) -> set[str]:
        """Return the objects that the durable manifest names."""
        return set() if self.durable is None else {name for item in self.durable.shipped.values() for name in item.names()}
