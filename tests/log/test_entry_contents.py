"""Tensors and bodies of entries come back, whole and in ranges, however they are divided or share definitions."""

from __future__ import annotations

import numpy as np
import pytest

from tests.log.entries import boundary, only_entry, whole
from tests.support.bare_log import BareLog
from tranlogs.base.config import PAYLOAD_THREAD_BYTES_MIN
from tranlogs.base.types import Array, Piece, SparseArray, TensorSpec, dense
from tranlogs.log.layout import PIECE_BYTES_MAX, SEPARATE_PIECE_BYTES_MIN, Payload
from tranlogs.log.reader import SegmentReader
from tranlogs.log.record_format import HEAD, EntryKind


def test_many_tiny_tensors_share_a_layout_and_pieces(bare: BareLog) -> None:
    log = bare.open()
    tensors = [(f"w{i}", dense(np.full(i % 700, i + 1, np.float32))) for i in range(2000)]
    for step in (1, 2):
        log.append(EntryKind.STEP, step, Payload.of(tensors), whole(log, {}))
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
    log.append(EntryKind.STEP, 1, Payload.of([("a", dense(data)), ("b", dense(data[:7])), ("c", dense(data))]), whole(log, {}))
    log.append(EntryKind.STEP, 2, Payload.of([("a", dense(data)), ("b", dense(data[:7]))]), whole(log, {}))
    log.close()
    assert [tensors for _, _, tensors, _ in bare.contents()] == [
        {"a": data.tobytes(), "b": data[:7].tobytes(), "c": data.tobytes()},
        {"a": data.tobytes(), "b": data[:7].tobytes()},
    ]


def test_a_tensor_of_many_pieces_comes_back_whole_and_in_ranges(bare: BareLog) -> None:
    values = np.random.default_rng(0).standard_normal((555, 666))
    permuted = Array("float64", (666, 555), dense(values).data, (1, 666))
    log = bare.open()
    log.append(EntryKind.STEP, 1, Payload.of([("w", dense(values)), ("p", permuted)]), whole(log, {}))
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
    log.append(EntryKind.STEP, 1, Payload.of(tensors), whole(log, {}))
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
    log.commit(writer, EntryKind.STEP, 1, whole(log, {"far": np.arange(5000)}), b"digests", {"loss": 0.5})
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
        log.append(EntryKind.STEP, step, Payload.of([("w", dense(np.full(5, step)))]), whole(log, {"lr": 1}))
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
        values = [entry.read_all().view(np.int64).tolist() for entry in entries if entry.kind == EntryKind.STEP]
    assert [body["step"] for body in bodies[1::2]] == [4, 5, 6]
    assert all(np.array_equal(body["ema"], big) for body in bodies[1::2])
    assert bodies[0::2] == [{"lr": 1}] * 3
    assert values == [[step] * 5 for step in (4, 5, 6)]
