"""Boundaries of any values, over rolls and checkpoints: what is left after a kill at any byte is read as it was written."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support import campaign
from tests.support.bare_log import BareLog
from tranlogs.encoding.tree import Fixed
from tranlogs.log.layout import NO_TENSORS
from tranlogs.log.reader import SegmentReader
from tranlogs.log.record_format import EntryKind
from tranlogs.log.scanner import scan
from tranlogs.log.writer import WriteAheadLog
from tranlogs.training import join_python, split_python


class Loop:
    """Values of a loop: a generator that draws, an epoch, an array that changes at times, a part that comes and goes."""

    def __init__(self) -> None:
        self.step = self.epoch = 0
        self.generator = random.Random(3)
        self.head = Fixed({"opened": split_python(self.generator.getstate()), "epoch": 0})
        self.array = np.arange(500.0)

    def change(self, what: str) -> None:
        """Do something between two boundaries."""
        if what == "draw":
            self.generator.random()
        elif what == "draw all":
            self.generator.randbytes(4 * 624)
        elif what == "epoch":
            self.epoch += 1
            self.head = Fixed({"opened": split_python(self.generator.getstate()), "epoch": self.epoch})
        elif what == "array":
            self.array = self.array + 1

    def body(self) -> dict[str, Any]:
        """What a boundary has of it."""
        body = {
            "rng": {"python": split_python(self.generator.getstate())},
            "data": {"loader": {"taken": self.step, "head": self.head, "worker": [Fixed(self.epoch // 2)]}},
            "tracked": {"average": Fixed({"values": self.array, "n": self.step // 3}), "rate": Fixed(1 / (self.epoch + 1))},
            "constant": "x" * 300,
        }
        return body if self.step % 4 else body | {"sometimes": Fixed(self.epoch)}

    def expected(self) -> Any:
        """What is read of it."""
        return _comparable(self.body())


def _comparable(value: Any) -> Any:
    if isinstance(value, Fixed):
        return _comparable(value.value)
    if isinstance(value, np.ndarray):
        return value.dtype.name, value.tobytes()
    if isinstance(value, dict):
        return {key: _comparable(item) for key, item in value.items()}
    return type(value)(map(_comparable, value)) if isinstance(value, (list, tuple)) else value


def _commit(log: WriteAheadLog, loop: Loop, written: list[Any]) -> None:
    loop.step += 1
    log.append(EntryKind.STEP, loop.step, NO_TENSORS, {})
    log.append(EntryKind.BOUNDARY, loop.step, NO_TENSORS, log.encoder.parts(loop.body(), None))
    written.append((loop.expected(), loop.generator.getstate()))


CHANGES = ["draw", "draw", "draw all", "epoch", "array", "nothing", "roll", "checkpoint"]


@given(st.lists(st.sampled_from(CHANGES), min_size=1, max_size=30), st.floats(0, 1))
@settings(max_examples=campaign.examples(40), deadline=None)
def test_boundaries_are_read_as_they_were_written(
    tmp_path_factory: pytest.TempPathFactory, changes: list[str], killed_at: float
) -> None:
    bare, loop, written = BareLog(tmp_path_factory.mktemp("log")), Loop(), list[Any]()
    log = bare.open()
    for what in changes:
        _commit(log, loop, written)
        loop.change(what)
        if what == "roll":
            log.roll()
        elif what == "checkpoint":
            log.forget_definitions()
    _commit(log, loop, written)
    assert log._segment is not None
    path, segment_id = log._segment.path, log._segment.segment_id
    log.close()
    bare.close()

    found = [body for kind, _, _, body in bare.contents() if kind == EntryKind.BOUNDARY]
    assert [_comparable(body) for body in found] == [body for body, _ in written]
    assert [join_python(body["rng"]["python"]) for body in found] == [state for _, state in written]

    places, raw = scan(path, segment_id), bytearray(path.read_bytes())
    cut = int(killed_at * places[-1].end)
    left = [location for location in places if location.end <= cut]
    if len(left) < len(places):
        raw[places[len(left)].offset : places[len(left)].payload_offset] = bytes(64)  # A head is written last.
    path.write_bytes(raw[:cut].ljust(len(raw), b"\0"))
    assert scan(path, segment_id) == left
    with SegmentReader(path) as reader:
        for location in left:
            if location.head.kind == EntryKind.BOUNDARY:
                assert _comparable(reader.decode(location).boundary()) == written[location.head.step - 1][0]
