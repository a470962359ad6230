"""Tensors and bodies of records come back, whatever they share, also what is left after a kill at any byte."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support import campaign
from tests.support.bare_log import BareLog, boundary, only_entry, whole
from tests.support.faults import failing
from tranlogs.base.config import OUT_OF_LINE_BYTES_MIN, PAYLOAD_THREAD_BYTES_MIN
from tranlogs.base.errors import LogUnavailable, UnencodableState
from tranlogs.base.types import Array, Piece, SparseArray, TensorSpec, dense
from tranlogs.encoding import tree
from tranlogs.encoding.tree import Fixed
from tranlogs.log.layout import NO_TENSORS, PIECE_BYTES_MAX, SEPARATE_PIECE_BYTES_MIN, Payload
from tranlogs.log.reader import Record, SegmentReader
from tranlogs.log.record_body import BASE, BodyEncoder, EncodedContent, PackedBody, merge_bodies, merge_part, unpack_body
from tranlogs.log.record_format import HEAD, RecordKind
from tranlogs.log.scanner import scan
from tranlogs.log.writer import WriteAheadLog
from tranlogs.training import join_python, split_python


def test_many_tiny_tensors_share_a_layout_and_pieces(bare: BareLog) -> None:
    log = bare.open()
    tensors = [(f"w{i}", dense(np.full(i % 700, i + 1, np.float32))) for i in range(2000)]
    for step in (1, 2):
        log.append(Payload.of(tensors), EncodedContent(RecordKind.STEP, step, whole(log, {})))
    log.close()
    for _, _, found, _ in bare.contents():
        assert found == {name: array.data.tobytes() for name, array in tensors}
    first, second = bare.links()
    nbytes = sum(array.nbytes for _, array in tensors)
    assert first.location.head.description_bytes > 10 * len(tensors)
    # Layouts are stored once a segment. A sum and, where it shrinks, a length and a codec are what a piece adds.
    assert second.location.head.description_bytes < 300 + 13 * (2 * nbytes // PIECE_BYTES_MAX + 1)


@pytest.mark.parametrize(
    "nbytes",
    [
        SEPARATE_PIECE_BYTES_MIN - 1,
        SEPARATE_PIECE_BYTES_MIN,
        PIECE_BYTES_MAX - 1,
        PIECE_BYTES_MAX,
        PIECE_BYTES_MAX + 1,
        3 * PIECE_BYTES_MAX + 5,
        PAYLOAD_THREAD_BYTES_MIN - 8,
        PAYLOAD_THREAD_BYTES_MIN - 7,
    ],
)
def test_sizes_around_the_limits_come_back(bare: BareLog, nbytes: int) -> None:
    data = np.random.default_rng(nbytes).integers(0, 256, nbytes, np.uint8)
    log = bare.open()
    log.append(
        Payload.of([("a", dense(data)), ("b", dense(data[:7])), ("c", dense(data))]),
        EncodedContent(RecordKind.STEP, 1, whole(log, {})),
    )
    log.append(Payload.of([("a", dense(data)), ("b", dense(data[:7]))]), EncodedContent(RecordKind.STEP, 2, whole(log, {})))
    log.close()
    assert [tensors for _, _, tensors, _ in bare.contents()] == [
        {"a": data.tobytes(), "b": data[:7].tobytes(), "c": data.tobytes()},
        {"a": data.tobytes(), "b": data[:7].tobytes()},
    ]


def test_a_tensor_of_many_pieces_comes_back_whole_and_in_ranges(bare: BareLog) -> None:
    values = np.random.default_rng(0).standard_normal((555, 666))
    permuted = Array("float64", (666, 555), dense(values).data, (1, 666))
    log = bare.open()
    log.append(Payload.of([("w", dense(values)), ("p", permuted)]), EncodedContent(RecordKind.STEP, 1, whole(log, {})))
    log.close()
    reader, entry = only_entry(bare)
    with reader:
        assert len(entry.describe_pieces()) == 6
        part, other = entry.read("w"), entry.read("p")
        assert entry.read_all().tobytes() == 2 * values.tobytes()
        out = np.empty(3000, np.uint8)
        entry.read_range(PIECE_BYTES_MAX - 1500, out, "w")
        assert out.tobytes() == values.tobytes()[PIECE_BYTES_MAX - 1500 : PIECE_BYTES_MAX + 1500]
    assert isinstance(part, Array)
    assert isinstance(other, Array)
    assert (part.shape, part.data.tobytes()) == ((555, 666), values.tobytes())
    assert (other.shape, other.strides, other.data.tobytes()) == ((666, 555), (1, 666), values.tobytes())


def test_several_ranges_of_a_tensor_are_joined(bare: BareLog) -> None:
    """As a rank has them that holds several shares of one tensor."""
    values = np.arange(40, dtype=np.float32)
    log = bare.open()
    tensors = []
    for start, end in ((0, 13), (13, 14), (14, 40)):
        array = dense(values[start:end])
        array.whole, array.piece = (5, 8), Piece("flat", (start,), (end - start,))
        tensors += [("w", array), (f"between{start}", dense(np.ones(3)))]
    log.append(Payload.of(tensors), EncodedContent(RecordKind.STEP, 1, whole(log, {})))
    log.close()
    reader, entry = only_entry(bare)
    with reader:
        found = entry.read("w")
    assert isinstance(found, Array)
    assert (found.shape, found.piece, found.data.tobytes()) == ((5, 8), None, values.tobytes())


def test_layouts_pieces_and_sparse_tensors_come_back(bare: BareLog) -> None:
    rng = np.random.default_rng(0)
    permuted = Array("float32", (4, 6), dense(rng.standard_normal((6, 4)).astype(np.float32)).data, (1, 4))
    scalar = Array("bfloat16", (), dense(np.array(3, np.uint16)).data)
    empty = Array("complex64", (0, 5), np.empty(0, np.uint8), (5, 1))
    piece = Piece("box", (2, 0), (2, 3))
    box = Array("float64", (2, 3), dense(rng.standard_normal((2, 3))).data, whole=(8, 3), piece=piece)
    indices = Array("int64", (1, 4), dense(np.array([[3, 1, 1, 0]])).data)
    sparse = SparseArray((5, 2), indices, Array("float32", (4, 2), dense(np.arange(8, dtype=np.float32)).data), False)
    log = bare.open()
    payload = Payload.of([("permuted", permuted), ("scalar", scalar), ("empty", empty), ("sparse", sparse), ("box", box)])
    writer = log.begin(payload)
    log.commit(writer, EncodedContent(RecordKind.STEP, 1, whole(log, {"far": np.arange(5000)}), b"digests", {"loss": 0.5}))
    log.close()
    reader, entry = only_entry(bare)
    with reader:
        for name, made in (("permuted", permuted), ("scalar", scalar), ("empty", empty)):
            found = entry.read(name)
            assert isinstance(found, Array)
            assert (found.dtype, found.shape, found.strides) == (made.dtype, made.shape, made.strides)
            assert found.data.tobytes() == made.data.tobytes()
        again = entry.read("sparse")
        assert isinstance(again, SparseArray)
        assert (again.shape, again.is_coalesced) == ((5, 2), False)
        assert again.indices.data.tobytes() == indices.data.tobytes()
        assert again.values.data.tobytes() == sparse.values.data.tobytes()
        assert entry.layout.tensors[4] == TensorSpec("box", "float64", (8, 3), None, piece)
        part = entry.read("box")
        assert isinstance(part, Array)
        assert (part.shape, part.whole, part.piece) == ((2, 3), (8, 3), piece)
        assert part.data.tobytes() == box.data.tobytes()
        assert np.array_equal(entry.body()["far"], np.arange(5000))
        assert (entry.digests, entry.scalars) == (b"digests", {"loss": 0.5})


def test_unchanged_parts_and_arrays_of_boundaries_are_stored_once_a_segment(bare: BareLog) -> None:
    big = np.random.default_rng(0).standard_normal(20_000)
    log = bare.open()
    boundary(log, 0, {"ema": big, "n": 0, "words": ["a constant"] * 500})
    before = log.bytes_written
    for n in range(1, 6):
        boundary(log, 0, {"ema": big, "n": n, "words": ["a constant"] * 500})
    assert log.bytes_written - before < 5 * 512
    log.roll()
    boundary(log, 0, {"ema": big + 1, "n": 6, "words": []})
    boundary(log, 0, {"ema": big + 1, "n": 6})
    log.close()
    bodies = [body for _, _, _, body in bare.contents()]
    assert [body["n"] for body in bodies] == [*range(7), 6]
    assert [len(body.get("words", "-")) for body in bodies] == [500] * 6 + [0, 1]
    assert all(np.array_equal(body["ema"], big + (body["n"] == 6)) for body in bodies)


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


def test_a_record_that_failed_does_not_spoil_what_later_ones_refer_to(bare: BareLog) -> None:
    big = np.random.default_rng(0).standard_normal(20_000)
    log = bare.open()
    with failing("log.before_commit=eio@1"), pytest.raises(LogUnavailable):
        boundary(log, 0, {"ema": big, "x": 1}, new=big)
    for x in (2, 3):
        boundary(log, 0, {"ema": big, "x": x}, new=big)
    log.close()
    for (_, _, tensors, body), x in zip(bare.contents(), (2, 3), strict=True):
        assert (tensors, body["x"], body["ema"].tobytes()) == ({"new": big.tobytes()}, x, big.tobytes())


def test_what_cannot_be_stored_is_named_with_its_path() -> None:
    for value in (lambda: 1, Fixed({"f": lambda: 1})):
        with pytest.raises(UnencodableState, match=r"schedule.*function"):
            BodyEncoder().parts({"schedule": value}, None)


@pytest.mark.parametrize(
    "packed",
    [
        [],
        {1: b""},
        {False: 64},
        {BASE: 0},
        {BASE: b""},
        {"a": 0},
        {"a": -64},
        {"a": True},
        {"a": "text"},
        {"a": (b"", [])},
        {"a": [b""]},
        {"a": [b"", [], []]},
        {"a": [None, []]},
        {"a": [b"", None]},
        {"a": [b"", [[1, 2, 3]]]},
        {"a": [b"", [[-1, 2, 3, 0]]]},
        {"a": [b"", [["x", 2, 3, 0]]]},
        {"a": [b"", [[1, 2, True, 0]]]},
        {"a": [b"", [[1 << 64, 2, 3, 0]]]},
    ],
)
def test_malformed_bodies_are_refused(packed: object) -> None:
    with pytest.raises(tree.MalformedTree):
        unpack_body(tree.encode(packed))


@pytest.mark.parametrize(
    ("part", "there"),
    [
        (64, {}),
        (64, {"a": 32}),
        (64, {"a": None}),
        ([b"", 64], {"a": b""}),
        ([64, []], {"a": 32}),
        ([64, 64], {"a": [b"", 32]}),
    ],
)
def test_parts_that_do_not_fit_together_are_refused(part: Any, there: PackedBody) -> None:
    with pytest.raises(ValueError, match="does not hold the part 'a'"):
        merge_part("a", part, lambda _: there)
    with pytest.raises(ValueError, match="does not have all its parts"):
        merge_bodies({BASE: 64}, {BASE: 32})
