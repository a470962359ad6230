"""Tensors and bodies of records come back, whatever they share, also what is left after a kill at any byte."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support import campaign
from tests.support.bare_log import BareLog, boundary, whole
from tests.support.faults import failing
from tranlogs.base.config import OUT_OF_LINE_BYTES_MIN
from tranlogs.base.errors import LogUnavailable, UnencodableState
from tranlogs.base.types import Array, Piece, dense
from tranlogs.encoding import tree
from tranlogs.encoding.tree import Fixed
from tranlogs.log.layout import NO_TENSORS, Payload
from tranlogs.log.reader import Record, SegmentReader
from tranlogs.log.record_body import BASE, BodyEncoder, EncodedContent, PackedBody, merge_bodies, resolve, unpack_body
from tranlogs.log.record_format import HEAD, RecordKind
from tranlogs.log.scanner import scan
from tranlogs.log.writer import WriteAheadLog
from tranlogs.training import join_python, split_python


def test_unchanged_parts_and_arrays_of_boundaries_are_stored_once_a_segment(bare: BareLog) -> None:
    big = np.random.default_rng(0).standard_normal(20_000)
    log = bare.open()
    boundary(log, 0, {"ema#2": big, "n": 0, "words#0": ["a constant"] * 500})
    before = log.bytes_written
    for n in range(1, 6):
        boundary(log, 0, {"ema#2": big, "n": n, "words#0": ["a constant"] * 500})
    assert log.bytes_written - before < 5 * 512
    log.roll()
    boundary(log, 0, {"ema#2": big + 1, "n": 6, "words#0": []})
    boundary(log, 0, {"ema#2": big + 1, "n": 6})
    log.close()
    bodies = [body for _, _, _, body in bare.contents()]
    assert [body["n"] for body in bodies] == [*range(7), 6]
    assert [len(body.get("words#0", "-")) for body in bodies] == [500] * 6 + [0, 1]
    assert all(np.array_equal(body["ema#2"], big + (body["n"] == 6)) for body in bodies)


def test_decoding_may_start_where_everything_is_defined_again(bare: BareLog) -> None:
    big = np.random.default_rng(0).standard_normal(20_000)
    log = bare.open()
    for step in range(1, 7):
        if step == 4:
            log.forget_definitions()
        log.append(Payload.of([("w", dense(np.full(5, step)))]), EncodedContent(RecordKind.STEP, step, whole(log, {"lr": 1})))
        boundary(log, step, {"ema": big, "step": step})
    log.close()
    links = [link for link in bare.links() if link.step >= 4]
    path = links[0].segment.path
    with path.open("r+b") as file:  # nothing before them is needed
        file.seek(HEAD.size)
        file.write(b"\xa5" * (links[0].location.offset - HEAD.size))
    with SegmentReader(path) as reader:
        entries = [reader.decode(link.location) for link in links]
        bodies = [entry.boundary() if entry.kind.is_boundary else entry.body() for entry in entries]
        values = [entry.read_all().view(np.int64).tolist() for entry in entries if entry.kind == RecordKind.STEP]
    assert [body["step"] for body in bodies[1::2]] == [4, 5, 6]
    assert all(np.array_equal(body["ema"], big) for body in bodies[1::2])
    assert bodies[0::2] == [{"lr": 1}] * 3
    assert values == [[step] * 5 for step in (4, 5, 6)]


def test_of_a_tensor_in_ranges_each_range_is_read_alone(bare: BareLog) -> None:
    """The ranges that a rank and its copies have need not be the whole tensor."""
    numbers = np.arange(6, dtype=np.float32)
    ranges = [
        Array("float32", (3,), dense(numbers[at : at + 3]).data, whole=(9,), piece=Piece("flat", (at,), (3,))) for at in (0, 3)
    ]
    log = bare.open()
    payload = Payload.of([("grad/w", one) for one in ranges])
    log.append(payload, EncodedContent(RecordKind.UNIT, 1, whole(log, {}) | log.encoder.parts({}, None)))
    log.close()
    [link] = bare.links()
    with SegmentReader(link.segment.path) as reader:
        entry = reader.decode(link.location)
        found = [entry.read_slot(i) for i in entry.layout.index["grad/w"]]
        first = entry.read("grad/w")
    assert [one.data.view(np.float32).tolist() for one in found if one is not None] == [[0, 1, 2], [3, 4, 5]]
    assert first is not None
    assert first.data.tobytes() == ranges[0].data.tobytes()


LARGE = [np.random.default_rng(i).integers(0, 256, OUT_OF_LINE_BYTES_MIN + i, np.uint8) for i in range(3)]


LARGE += [np.zeros(OUT_OF_LINE_BYTES_MIN, np.uint8)]


FIXED = [Fixed(value) for value in ({"constant": ["x"] * 100}, 7, LARGE[0])]


values = st.one_of(
    st.integers(-3, 3),
    st.sampled_from([*LARGE, *FIXED]),
    st.lists(st.integers(0, 2), min_size=100, max_size=104),
    st.builds(
        lambda value, n: {"kept": Fixed({"deep": Fixed(value)}), "n": n},
        st.sampled_from([*LARGE, 1, "text", *FIXED]),
        st.integers(0, 1),
    ),
    st.dictionaries(st.sampled_from("abc"), st.sampled_from([*LARGE, 1, "text"]), max_size=3),
)


bodies = st.dictionaries(st.sampled_from(["ema", "loop", "data"]), values, max_size=3)


changes = st.sampled_from(["draw", "draw", "draw all", "epoch", "array", "nothing", "roll", "checkpoint", "fault"])


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
            "position": {"loader": {"taken": self.step, "head": self.head, "worker": [Fixed(self.epoch // 2)]}},
            "tracked": {"average": Fixed({"values": self.array, "n": self.step // 3}), "rate": Fixed(1 / (self.epoch + 1))},
            "constant": "x" * 300,
        }
        return body if self.step % 4 else body | {"sometimes": Fixed(self.epoch)}


def comparable(value: Any) -> Any:
    if isinstance(value, Fixed):
        return comparable(value.value)
    if isinstance(value, np.ndarray):
        return value.dtype.name, value.tobytes()
    if isinstance(value, dict):
        return {key: comparable(item) for key, item in value.items()}
    return type(value)(map(comparable, value)) if isinstance(value, (list, tuple)) else value


def content(entry: Record) -> tuple[RecordKind, Any, Any]:
    """Kind, body of the step and body of the boundary."""
    body = None if entry.kind == RecordKind.BOUNDARY else comparable(entry.body())
    return entry.kind, body, comparable(entry.boundary()) if entry.kind.is_boundary else None


def append(log: WriteAheadLog, step: int, kind: RecordKind, body: Any, parts: dict[str, Any]) -> tuple[RecordKind, Any, Any]:
    """Append a record; return what must be read of it."""
    encoded = {} if kind == RecordKind.BOUNDARY else log.encoder.whole(body, None)
    if kind.is_boundary:
        encoded |= log.encoder.parts(parts, None)
    log.append(NO_TENSORS, EncodedContent(kind, step, encoded))
    return kind, comparable(body) if "" in encoded else None, comparable(parts) if kind.is_boundary else None


@given(st.lists(st.tuples(changes, bodies, values | st.none()), min_size=1, max_size=25), st.floats(0, 1))
@settings(max_examples=campaign.examples(40), deadline=None)
def test_records_are_read_as_they_were_written(
    tmp_path_factory: pytest.TempPathFactory, drawn: list[tuple[str, dict[str, Any], Any]], killed_at: float
) -> None:
    """Over rolls, checkpoints and records that fail; and behind a kill at any byte, of the last segment."""
    bare, loop, written, states = BareLog(tmp_path_factory.mktemp("log")), Loop(), list[Any](), list[Any]()
    log = bare.open()
    for what, more, step_body in [*drawn, ("nothing", {}, 1)]:
        loop.step += 1
        kind = RecordKind.UNIT if step_body is not None else RecordKind.BOUNDARY
        if kind == RecordKind.BOUNDARY:
            written.append(append(log, loop.step, RecordKind.STEP, {"lr": loop.step % 2}, {}))
        if what == "fault":  # what a dropped record would have defined is defined by the next one
            with failing("log.before_commit=eio@1"), pytest.raises(LogUnavailable):
                append(log, loop.step, kind, step_body, {**loop.body(), **more, "lost": LARGE[1]})
        written.append(append(log, loop.step, kind, step_body, {**loop.body(), **more}))
        states.append(loop.generator.getstate())
        loop.change(what)
        if what == "roll" and loop.step <= len(drawn):
            log.roll()
        elif what == "checkpoint":
            log.forget_definitions()
    assert log._segment is not None
    path, segment_id = log._segment.path, log._segment.segment_id
    log.close()
    bare.close()
    entries = list[Record]()
    for link in bare.links():
        with SegmentReader(link.segment.path) as reader:
            entries.append(entry := reader.decode(link.location))
            assert content(entry) == written[len(entries) - 1]
            if entry.kind.is_boundary:
                assert join_python(entry.boundary()["rng"]["python"]) == states[entry.step - 1]
    assert len(entries) == len(written)

    places, raw = scan(path, segment_id), bytearray(path.read_bytes())
    cut = int(killed_at * places[-1].end)
    left = [location for location in places if location.end <= cut]
    if len(left) < len(places):
        raw[places[len(left)].offset : places[len(left)].payload_offset] = bytes(64)  # a head is written last
    path.write_bytes(raw[:cut].ljust(len(raw), b"\0"))
    assert scan(path, segment_id) == left
    with SegmentReader(path) as reader:
        for location in left[1:]:
            assert content(reader.decode(location)) == written[location.head.sequence - 1]


def test_what_cannot_be_stored_is_named_with_its_path() -> None:
    for value in (lambda: 1, Fixed({"f": lambda: 1})):
        with pytest.raises(UnencodableState, match=r"schedule.*function"):
            BodyEncoder().parts({"schedule": value}, None)


@pytest.mark.parametrize(
    "packed",
    [
        [],
        {False: 64},
        {BASE: b""},
        {"a": 0},
        {"a": "text"},
        {"a": [b""]},
        {"a": [1, 2, 3]},
        {"a": [1, 2, True, 0]},
        {"a": [1 << 64, 2, 3, 0]},
    ],
)
def test_malformed_bodies_are_refused(packed: object) -> None:
    with pytest.raises(tree.MalformedTree):
        unpack_body(tree.encode(packed))


@pytest.mark.parametrize("there", [{}, {"a": 32}, {"a": None}])
def test_parts_that_do_not_fit_together_are_refused(there: PackedBody) -> None:
    with pytest.raises(ValueError, match="the part 'a' is missing"):
        resolve("a", 64, lambda _: there)
    with pytest.raises(ValueError, match="does not have all its parts"):
        merge_bodies({BASE: 64}, {BASE: 32})
