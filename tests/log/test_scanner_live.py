"""A segment is scanned while it is written: what is found is the log up to some entry, without holes."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.support.toy import ToyTrainer, open_toy
from tranlogs.base.config import MIB, JournalConfig
from tranlogs.log.scanner import scan
from tranlogs.log.segment_file import parse_segment_name


def _segment(trainer: ToyTrainer) -> tuple[Path, int]:
    (path,) = (path for path in trainer.journal.paths.log.glob("*.seg") if _id(path) and scan(path, _id(path)))
    return path, _id(path)


def _id(path: Path) -> int:
    named = parse_segment_name(path.name)
    assert named is not None
    return named[1]


@pytest.mark.parametrize("steps_a_read", [1, 7, 40])
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
