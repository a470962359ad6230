"""A write-ahead log without a journal around it, and all that its files hold."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from tranlogs.base.clock import Clock
from tranlogs.base.config import MIB, JournalConfig
from tranlogs.base.types import Array, dense
from tranlogs.catalog import Catalog
from tranlogs.log.layout import Payload
from tranlogs.log.reader import SegmentReader
from tranlogs.log.record_body import EncodedBody, EncodedContent
from tranlogs.log.record_format import Position, RecordKind
from tranlogs.log.writer import Tensor, WriteAheadLog
from tranlogs.recovery.history import Link
from tranlogs.recovery.journal_facts import read_facts

from .clock import FakeClock

DESCRIBE: dict[str, Any] = {
    "run_id": "bare",
    "rank": 0,
    "created_at": 0.0,
    "framework": "toy",
    "environment": {},
    "parent": 0,
    "fork_sequence": 0,
    "fork_step": 0,
}


@dataclass(slots=True)
class BareLog:
    """A folder as a journal has it. `open` gives a log, `contents` what a reader finds.

    Attributes:
        folder: of the journal.
        config: of the logs that are opened.
        clock: stands still.
    """

    folder: Path
    config: JournalConfig = field(default_factory=lambda: JournalConfig(durability="process", segment_bytes=MIB))
    clock: Clock = field(default_factory=FakeClock)
    catalog: Catalog | None = None

    def open(self, position: Position | None = None, **options: Any) -> WriteAheadLog:
        """A log that goes on after `position`."""
        (self.folder / "log").mkdir(parents=True, exist_ok=True)
        (self.folder / "checkpoints").mkdir(exist_ok=True)
        if self.catalog is None:
            self.catalog = Catalog.open(self.folder, writable=True)
        folder, position = self.folder / "log", position or Position()
        return WriteAheadLog(folder, self.catalog, self.config, self.clock, position, DESCRIBE, **options)

    def close(self) -> None:
        """Close the catalog."""
        if self.catalog is not None:
            self.catalog.close()
            self.catalog = None

    def links(self) -> list[Link]:
        """The entries of the first unbroken run, oldest first."""
        history = read_facts(self.folder).build_history()
        return list(history.runs[0]) if history.runs else []

    def contents(self) -> list[tuple[RecordKind, int, dict[str, bytes | None], Any]]:
        """Kind, step, tensors and body of every entry of the first unbroken run; a step that ends its unit counts as two."""
        found: list[tuple[RecordKind, int, dict[str, bytes | None], Any]] = []
        readers: dict[Path, SegmentReader] = {}
        try:
            for link in self.links():
                path = link.segment.path
                reader = readers.get(path) or readers.setdefault(path, SegmentReader(path))
                entry = reader.decode(link.location)
                tensors: dict[str, bytes | None] = {}
                for name in entry.tensor_names():
                    content = entry.read(name)
                    assert content is None or isinstance(content, Array)
                    tensors[name] = None if content is None else content.data.tobytes()
                if entry.kind != RecordKind.BOUNDARY:
                    kind = RecordKind.STEP if entry.kind == RecordKind.UNIT else entry.kind
                    found.append((kind, entry.step, tensors, entry.body()))
                if entry.kind.is_boundary:
                    tensors = tensors if entry.kind == RecordKind.BOUNDARY else {}
                    found.append((RecordKind.BOUNDARY, entry.step, tensors, entry.boundary()))
        finally:
            for reader in readers.values():
                reader.close()
        return found


def append_step(log: WriteAheadLog, step: int, size: int = 100) -> list[Tensor]:
    """Log a step with two tensors made from its number, and commit it."""
    rng = np.random.default_rng(step)
    tensors: list[Tensor] = [("w", dense(rng.standard_normal(size))), ("none", None)]
    log.append(Payload.of(tensors), EncodedContent(RecordKind.STEP, step, log.encoder.whole({"lr": step / 7}, None)))
    boundary(log, step, {"rng": rng.bit_generator.state})
    return tensors


def expected_step(step: int, size: int = 100) -> list[tuple[RecordKind, int, dict[str, bytes | None], Any]]:
    """What `BareLog.contents` has for a step of `append_step`."""
    rng = np.random.default_rng(step)
    values = rng.standard_normal(size).tobytes()
    return [
        (RecordKind.STEP, step, {"w": values, "none": None}, {"lr": step / 7}),
        (RecordKind.BOUNDARY, step, {}, {"rng": rng.bit_generator.state}),
    ]


def expected(steps: range, size: int = 100) -> list[object]:
    return [entry for step in steps for entry in expected_step(step, size)]


def whole(log: WriteAheadLog, body: Any) -> EncodedBody:
    return log.encoder.whole(body, None)


def boundary(log: WriteAheadLog, step: int, body: dict[str, Any], **tensors: Any) -> None:
    payload = Payload.of((name, dense(values)) for name, values in tensors.items())
    log.append(payload, EncodedContent(RecordKind.BOUNDARY, step, log.encoder.parts(body, None)))
