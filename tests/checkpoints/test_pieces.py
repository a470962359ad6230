"""A process may hold one piece of a tensor (a share under DDP, a shard under FSDP): the log and checkpoints say which."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tranlogs.base.config import JournalConfig
from tranlogs.base.types import Array, Piece, dense
from tranlogs.checkpoints import Checkpoint, Snapshot
from tranlogs.journal import Journal
from tranlogs.log.layout import Payload
from tranlogs.log.reader import SegmentReader
from tranlogs.log.scanner import scan
from tranlogs.log.segment_file import parse_segment_name

WHOLE = np.arange(60, dtype=np.float32).reshape(6, 10)
PIECES = {
    "box": (WHOLE[2:5, 4:9], Piece("box", (2, 4), (3, 5))),
    "flat": (WHOLE.reshape(-1)[17:40], Piece("flat", (17,), (23,))),
    "empty": (WHOLE[6:], Piece("box", (6, 0), (0, 10))),
}


def piece(kind: str) -> Array:
    values, where = PIECES[kind]
    array = dense(values)
    array.whole, array.piece = WHOLE.shape, where
    return array


@pytest.mark.parametrize("writer", ["direct", "thread"])
@pytest.mark.parametrize("kind", PIECES)
def test_a_piece_comes_back_from_log_and_checkpoint_with_its_place(tmp_path: Path, kind: str, writer: str) -> None:
    config = JournalConfig(writer=writer)  # type: ignore[arg-type]
    journal = Journal.open(tmp_path / "run", framework="none", config=config)
    journal.commit_step(journal.begin_step(Payload.of([("grad/w", piece(kind))])), {})
    journal.boundary({}, lambda: Snapshot({"param/w": piece(kind)}, {}), checkpoint=True)
    journal.wait_checkpoint()
    (row,) = journal.catalog.checkpoints()
    journal.close()
    with Checkpoint(journal.paths.checkpoints / row.name) as checkpoint:
        assert_same(checkpoint.read("param/w"), kind)
    (path,) = journal.paths.log.glob("*.seg")
    name = parse_segment_name(path.name)
    assert name is not None
    with SegmentReader(path) as reader:
        for location in scan(path, name[1]):
            entry = reader.decode(location)
            if entry.kind.is_step:
                assert_same(entry.read("grad/w"), kind)
                assert_same(entry.read_slot(entry.slots_of("grad/w")[0]), kind)


def assert_same(found: object, kind: str) -> None:
    values, where = PIECES[kind]
    assert isinstance(found, Array)
    assert (found.piece, found.whole, found.shape) == (where, WHOLE.shape, values.shape)
    assert found.data.tobytes() == values.tobytes()


def test_a_piece_must_name_the_whole() -> None:
    with pytest.raises(AssertionError, match="must be given together"):
        Array("float32", (2,), np.zeros(8, np.uint8), piece=Piece("flat", (0,), (2,)))
