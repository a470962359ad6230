"""The scanner: finds what was committed by plain reads, and nothing else, also while it is written."""

from __future__ import annotations

import os
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support import campaign
from tests.support.bare_log import BareLog, append_step
from tests.support.toy import ToyTrainer, open_toy
from tranlogs.base.config import MIB, JournalConfig
from tranlogs.base.errors import CorruptRecord
from tranlogs.base.types import dense
from tranlogs.catalog import SegmentRow
from tranlogs.encoding.tree import Fixed
from tranlogs.log import segment_file as files
from tranlogs.log.layout import Payload
from tranlogs.log.reader import Record, SegmentReader
from tranlogs.log.record_body import EncodedContent
from tranlogs.log.record_format import HEAD, Location, RecordKind, checksum_of
from tranlogs.log.scanner import scan
from tranlogs.log.segment_file import parse_segment_name


def only_segment(bare: BareLog) -> tuple[Path, SegmentRow]:
    assert bare.catalog is not None
    (row,) = [row for row in bare.catalog.segments() if row.state != "ready"]
    return bare.folder / "log" / row.file, row


def filled(bare: BareLog, steps: int = 10, size: int = 3000) -> tuple[Path, SegmentRow]:
    log = bare.open()
    for step in range(1, steps + 1):
        append_step(log, step, size)
    log.close()
    return only_segment(bare)


def sequences(found: list[Location]) -> list[int]:
    return [location.head.sequence for location in found]


def test_bytes_of_a_tensor_are_never_taken_for_an_entry(bare: BareLog) -> None:
    """A tensor that holds a whole segment of another run, at all offsets in a block."""
    path, row = filled(bare, steps=5, size=500)
    other = np.fromfile(path, np.uint8)[: row.used_bytes]
    second = BareLog(bare.folder / "second")
    log = second.open()
    tensors = [(f"w{shift}", dense(np.roll(other, shift))) for shift in range(0, 64, 8)]
    log.append(Payload.of(tensors), EncodedContent(RecordKind.STEP, 1, log.encoder.whole({}, None)))
    log.close()
    path, row = only_segment(second)
    assert sequences(scan(path, row.number)) == [0, 1]
    assert sequences(scan(path, row.number, last_sequence=1)) == [0, 1]
    second.close()


def sealed_head(raw: bytes, **changes: tuple[int, str, int]) -> bytes:
    """A head with other fields, (offset, format, value) each, whose checksum holds again."""
    made = bytearray(raw)
    for offset, form, value in changes.values():
        struct.pack_into(form, made, offset, value)
    checksum = checksum_of(bytes(made[:4]) + bytes(4) + bytes(made[8:])) & 0xFFFFFFFF
    made[4:8] = checksum.to_bytes(4, "little")
    return bytes(made)


@pytest.mark.parametrize("count", [1, 3])
def test_a_damaged_head_in_the_middle_hides_no_other(bare: BareLog, count: int) -> None:
    path, row = filled(bare)
    found = scan(path, row.number)
    with path.open("r+b") as file:
        for victim in found[6 : 6 + count]:
            file.seek(victim.offset)
            file.write(b"\xa5" * HEAD.size)
    assert scan(path, row.number) == found[:6] + found[6 + count :]
    assert scan(path, row.number, last_sequence=row.last_sequence) == found[:6] + found[6 + count :]
    assert scan(path, row.number, start=found[6].offset) == found[6 + count :]


def test_an_older_head_behind_the_newest_is_passed_over(bare: BareLog) -> None:
    """A record of this segment whose place was never written again, as a rolled-back disk block has it."""
    path, row = filled(bare)
    found = scan(path, row.number)
    raw = path.read_bytes()[found[3].offset : found[4].end]
    with path.open("r+b") as file:
        file.seek(found[-1].end)
        file.write(raw)
    assert scan(path, row.number) == found


def test_a_scan_starts_where_it_is_told(bare: BareLog) -> None:
    path, row = filled(bare)
    found = scan(path, row.number)
    for i, location in enumerate(found):
        assert scan(path, row.number, start=location.offset) == found[i:]
        assert scan(path, row.number, start=location.offset, last_sequence=row.last_sequence) == found[i:]
    assert scan(path, row.number, start=found[-1].end) == []
    assert scan(path, row.number, start=1 << 40) == []


@given(
    st.lists(
        st.tuples(
            st.sampled_from([RecordKind.STEP, RecordKind.IMAGE, RecordKind.BOUNDARY, RecordKind.UNIT]), st.integers(0, 300)
        ),
        min_size=1,
        max_size=25,
    ),
    st.data(),
)
@settings(max_examples=campaign.examples(60), deadline=None)
def test_random_damage_of_random_records_gives_no_wrong_record_and_no_other_error(
    tmp_path_factory: pytest.TempPathFactory, records: list[tuple[RecordKind, int]], data: st.DataObject
) -> None:
    """What is found and read without CorruptRecord is what was written, whatever happened to the file."""
    path, written = _written(tmp_path_factory.mktemp("random"), records)
    raw = bytearray(path.read_bytes())
    end = written[-1][0].end
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, end - 1))
        kind = data.draw(st.sampled_from(["flip", "zero", "noise", "copy", "cut"]))
        if kind == "flip":
            raw[at % len(raw)] ^= data.draw(st.integers(1, 255))
        elif kind == "cut":
            del raw[max(at, 1) :]
        else:
            start = data.draw(st.integers(0, end - 1)) // 64 * 64
            length = data.draw(st.sampled_from([1, 8, 64, 500]))
            other = {"zero": bytes(length), "noise": b"\xa5" * length, "copy": bytes(raw[start : start + length])}[kind]
            at = at // 64 * 64 if kind == "copy" else at
            raw[at : at + len(other)] = other
    path.write_bytes(raw)
    sound = {location.head: values for location, values in written}
    for last in (None, len(records)):
        locations = scan(path, SEGMENT_ID, last_sequence=last)
        for location in locations:
            assert location.head in sound
            with SegmentReader(path, locations) as reader:
                try:
                    entry = reader.decode(location)
                    values, body = entry.read_all().tobytes(), _bodies(entry)
                except CorruptRecord:
                    continue
            assert (values, body) == sound[location.head]


SEGMENT_ID = 0x1234_5678_9ABC_DEF0


def _written(folder: Path, records: list[tuple[RecordKind, int]]) -> tuple[Path, list[tuple[Location, tuple[bytes, object]]]]:
    """A segment with random records, and what each holds."""
    bare = BareLog(folder)
    log = bare.open()
    contents: list[tuple[bytes, object]] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(files, "new_segment_id", lambda: SEGMENT_ID)
        for sequence, (kind, size) in enumerate(records, 1):
            values = np.random.default_rng(sequence).integers(0, 256, size, np.uint8)
            body: dict[str, Any] = {"n": sequence % 3, "words": ["constant"] * 20}
            step = dict(body) if kind != RecordKind.BOUNDARY else None
            encoded = log.encoder.whole(step, None) if step is not None else {}
            body["data"] = {"head": ["same"] * 20, "sometimes": sequence // 4}
            if kind.is_boundary:
                encoded |= log.encoder.parts({**body, "data": {name: Fixed(one) for name, one in body["data"].items()}}, None)
            log.append(Payload.of([("w", dense(values))]), EncodedContent(kind, sequence, encoded))
            contents.append((values.tobytes(), (step, body if kind.is_boundary else None)))
        assert log._segment is not None
        path, segment_id = log._segment.path, log._segment.segment_id
        log.close()
    bare.close()
    raw = path.read_bytes()
    if segment_id != SEGMENT_ID:  # it was prepared before
        raw = _renamed(raw, scan(path, segment_id), SEGMENT_ID)
        path.write_bytes(raw)
    found = scan(path, SEGMENT_ID)
    first = (b"", None)
    with SegmentReader(path) as reader:
        first = (b"", _bodies(reader.decode(found[0])))
    return path, list(zip(found, [first, *contents], strict=True))


def _bodies(entry: Record) -> tuple[Any, Any]:
    return entry.body(), entry.boundary() if entry.kind.is_boundary else None


def _renamed(raw: bytes, found: list[Location], segment_id: int) -> bytes:
    made = bytearray(raw)
    for location in found:
        at = location.offset
        made[at : at + HEAD.size] = sealed_head(bytes(made[at : at + HEAD.size]), segment_id=(8, "<Q", segment_id))
    return bytes(made)


def _segment(trainer: ToyTrainer) -> tuple[Path, int]:
    (path,) = (path for path in trainer.journal.paths.log.glob("*.seg") if _id(path) and scan(path, _id(path)))
    return path, _id(path)


def _id(path: Path) -> int:
    named = parse_segment_name(path.name)
    assert named is not None
    return named[1]


@pytest.mark.parametrize("steps_a_read", [1, 40])
def test_a_writer_that_overtakes_the_scan_leaves_no_holes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, steps_a_read: int
) -> None:
    config = JournalConfig(durability="process", segment_bytes=32 * MIB)
    trainer = open_toy(tmp_path / "run", sizes=(7, 300, 3000), config=config)
    trainer.recover()
    trainer.train(20)
    path, segment_id = _segment(trainer)
    read, is_writing = os.pread, False

    def pread(fd: int, size: int, offset: int) -> bytes:
        nonlocal is_writing
        if not is_writing and size > 4096 and trainer.journal.step < 400:
            is_writing = True
            data = read(fd, size, offset)
            trainer.train(trainer.journal.step + steps_a_read)  # after this window, before the next
            is_writing = False
            return data
        return read(fd, size, offset)

    monkeypatch.setattr("tranlogs.log.scanner.os.pread", pread)
    found = scan(path, segment_id)
    monkeypatch.undo()
    written = scan(path, segment_id)
    assert len(written) >= len(found) > 20
    numbers = [location.head.sequence for location in found]
    assert numbers == list(range(numbers[0], numbers[0] + len(numbers)))
    assert found == written[: len(found)]
    trainer.journal.close()
