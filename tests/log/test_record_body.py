"""Bodies: any sequence of them is read back, whatever parts and arrays its records share."""

from __future__ import annotations

import contextlib
import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support import campaign
from tranlogs.base.config import OUT_OF_LINE_BYTES_MIN
from tranlogs.base.errors import UnencodableState
from tranlogs.base.types import ITEMSIZE, AnyArray, Array
from tranlogs.encoding import tree
from tranlogs.encoding.compression import Codec, decompress
from tranlogs.log.record_body import WHOLE, BodyEncoder, EncodedBody, PartsWriter, encode_parts, merge_part, unpack_parts


class Segment:
    """A segment without a file: records at offsets, and the bytes of the arrays between them."""

    def __init__(self) -> None:
        self.encoder, self.parts = BodyEncoder(), PartsWriter()
        self.packed: dict[int, bytes] = {}
        self.shared: dict[int, int] = {}
        self.arrays: dict[int, bytes] = {}
        self.end = 64
        self.stored = 0

    def write(self, body: EncodedBody, *, is_committed: bool = True) -> int:
        record, self.end = self.end, self.end + 64
        body_at = self.parts.shared_body(body)
        if body_at:
            self.shared[record] = body_at
            return record
        placed = self.parts.write(body, record, self.end)
        if is_committed:
            at = self.end
            for buffer in placed.buffers:
                self.arrays[at] = buffer.tobytes()
                at += buffer.nbytes
            assert at == placed.end
            self.end = (placed.end + 63) // 64 * 64
            self.packed[record] = tree.encode(placed.packed)
            self.stored += len(self.packed[record]) + sum(buffer.nbytes for buffer in placed.buffers)
            self.parts.written(placed)
        return record

    def read(self, record: int) -> dict[str, Any]:
        record = self.shared.get(record, record)
        found = {}
        for name, part in unpack_parts(self.packed[record]).items():
            full = unpack_parts(self.packed[part[0]])[name] if part[0] else None
            assert full is None or full[0] == 0, "a part in full never refers to another one"
            blob, rows = merge_part(part, full)

            def array(index: int, layout: AnyArray, rows: Any = rows) -> AnyArray:
                assert isinstance(layout, Array)
                _, offset, nbytes, _, codec = rows[index]
                out = np.empty(math.prod(layout.shape) * ITEMSIZE[layout.dtype], np.uint8)
                stored = self.arrays[offset] if nbytes else b""
                decompress(codec, np.frombuffer(stored, np.uint8)[:nbytes], out)
                return Array(layout.dtype, layout.shape, out, layout.strides, layout.is_tensor)

            found[name] = tree.decode(blob, array)
        return found


def same(first: Any, second: Any) -> bool:
    if isinstance(second, tree.Fixed):
        second = second.value
    if isinstance(first, np.ndarray) or isinstance(second, np.ndarray):
        return bool(np.array_equal(first, second))
    if isinstance(first, dict):
        return first.keys() == second.keys() and all(same(first[key], second[key]) for key in first)
    if isinstance(first, list):
        return len(first) == len(second) and all(map(same, first, second))
    return bool(first == second)


LARGE = [np.random.default_rng(i).integers(0, 256, OUT_OF_LINE_BYTES_MIN + i, np.uint8) for i in range(3)]
LARGE += [np.zeros(OUT_OF_LINE_BYTES_MIN, np.uint8)]
FIXED = [tree.Fixed(value) for value in ({"constant": ["x"] * 100}, 7, LARGE[0])]
values = st.one_of(
    st.integers(-3, 3),
    st.sampled_from(LARGE),
    st.sampled_from(FIXED),
    st.lists(st.integers(0, 2), min_size=100, max_size=104),  # often of one length: stored as differences
    st.dictionaries(st.sampled_from("abc"), st.sampled_from([*LARGE, 1, "text"]), max_size=3),
)
bodies = st.dictionaries(st.sampled_from(["rng", "loop", "ema", "data"]), values, max_size=4)


@given(st.lists(st.tuples(bodies, st.booleans(), st.integers(0, 9)), min_size=1, max_size=25))
@settings(max_examples=campaign.examples(200), deadline=None)
def test_any_sequence_of_bodies_is_read_back(sequence: list[tuple[dict[str, Any], bool, int]]) -> None:
    """Some are of boundaries, some of steps, some are dropped before they are written, and now and then all is defined anew."""
    segment, written = Segment(), []
    for body, is_boundary, chance in sequence:
        if chance == 9:
            segment.parts = PartsWriter()
        if not is_boundary:
            body = {name: value.value if isinstance(value, tree.Fixed) else value for name, value in body.items()}
        encoded = segment.encoder.parts(body, None) if is_boundary else segment.encoder.whole(body, None)
        is_committed = chance != 8
        record = segment.write(encoded, is_committed=is_committed)
        if is_committed:
            written.append((record, body if is_boundary else {WHOLE: body}))
    for record, body in written:
        assert same(segment.read(record), body)


@given(st.lists(bodies, min_size=2, max_size=6), st.data())
@settings(max_examples=campaign.examples(200), deadline=None)
def test_damaged_parts_are_refused_or_are_parts(sequence: list[dict[str, Any]], data: st.DataObject) -> None:
    segment = Segment()
    records = [segment.write(segment.encoder.parts(body, None)) for body in sequence]
    raw = bytearray(segment.packed[data.draw(st.sampled_from(records))])
    raw[data.draw(st.integers(0, len(raw) - 1))] ^= data.draw(st.integers(1, 255))
    with contextlib.suppress(ValueError):
        for name, part in unpack_parts(bytes(raw)).items():
            assert isinstance(name, str)
            other = unpack_parts(segment.packed[records[0]]).get(name)
            merge_part(part, other if part[0] else None)


def test_an_unchanged_part_is_a_reference() -> None:
    segment = Segment()
    body = {"words": ["constant"] * 1000, "array": LARGE[0], "n": 0}
    first = segment.write(segment.encoder.parts(body, None))
    before = segment.stored
    second = segment.write(segment.encoder.parts({**body, "n": 1}, None))
    assert segment.stored - before < 200
    packed = unpack_parts(segment.packed[second])
    assert packed["words"] == packed["array"] == (first, None, None)


def test_a_fixed_value_that_is_kept_is_encoded_once(monkeypatch: pytest.MonkeyPatch) -> None:
    encoded = []
    encode = tree.encode

    def counted(value: Any, **options: Any) -> bytes:
        encoded.append(options["path"])
        return encode(value, **options)

    monkeypatch.setattr(tree, "encode", counted)
    encoder, kept = BodyEncoder(), tree.Fixed({"constant": LARGE[0]})
    for n in range(5):
        parts = encoder.parts({"data": kept, "n": n}, None)
        assert parts["data"].arrays
    assert encoded.count("data") == 1
    again = encoder.parts({"data": tree.Fixed({"constant": 1})}, None)
    assert tree.decode(again["data"].blob) == {"constant": 1}


def test_a_part_of_the_same_length_is_a_difference() -> None:
    segment = Segment()
    state = {"state": np.random.default_rng(0).bytes(3000), "position": 1}
    first = segment.write(segment.encoder.parts({"rng": state}, None))
    second = segment.write(segment.encoder.parts({"rng": {**state, "position": 2}}, None))
    third = segment.write(segment.encoder.parts({"rng": {**state, "position": 3}}, None))
    for record, position in ((second, 2), (third, 3)):
        offset, content, rows = unpack_parts(segment.packed[record])["rng"]
        assert (offset, rows) == (first, None)
        assert isinstance(content, tuple)
        assert len(content[0]) < 100
        assert segment.read(record) == {"rng": {**state, "position": position}}


def test_an_array_that_comes_again_is_stored_once_though_its_part_changed() -> None:
    segment = Segment()
    segment.write(segment.encoder.parts({"ema": {"order": LARGE[1], "n": 1}}, None))
    before = len(segment.arrays)
    record = segment.write(segment.encoder.parts({"ema": {"order": LARGE[1], "n": "two"}}, None))
    assert len(segment.arrays) == before
    assert same(segment.read(record), {"ema": {"order": LARGE[1], "n": "two"}})


def test_arrays_that_move_within_a_body_are_stored_once() -> None:
    """A history gives up its oldest array for a new one; so does the body of a step, which has one part."""
    segment, rng = Segment(), np.random.default_rng(0)
    history = [rng.integers(0, 256, OUT_OF_LINE_BYTES_MIN, np.uint8) for _ in range(10)]
    written = []
    for _ in range(5):
        history = [*history[1:], rng.integers(0, 256, OUT_OF_LINE_BYTES_MIN, np.uint8)]
        body = {"old_dirs": history, "latest": history[-1]}
        written.append((segment.write(segment.encoder.whole(body, None)), body))
    assert len(segment.arrays) == 10 + 4
    for record, body in written:
        assert same(segment.read(record)[WHOLE], body)


def test_arrays_of_a_body_are_compressed_where_it_pays() -> None:
    segment = Segment()
    record = segment.write(segment.encoder.whole({"zeros": LARGE[3], "noise": LARGE[0]}, None))
    rows = unpack_parts(segment.packed[record])[WHOLE][2]
    assert [(row[2], row[4]) for row in rows] == [(0, Codec.ZERO), (OUT_OF_LINE_BYTES_MIN, Codec.RAW)]
    assert same(segment.read(record)[WHOLE], {"zeros": LARGE[3], "noise": LARGE[0]})


def test_more_bodies_than_are_remembered_are_stored_again_and_read_back() -> None:
    segment = Segment()
    records = [(segment.write(segment.encoder.whole({"n": n % 100}, None)), n % 100) for n in range(400)]
    assert all(segment.read(record) == {WHOLE: {"n": n}} for record, n in records)


def test_a_body_with_large_arrays_is_shared_with_none() -> None:
    segment = Segment()
    records = [segment.write(segment.encoder.whole({"a": array}, None)) for array in LARGE[:3]]
    assert segment.shared == {}
    assert all(same(segment.read(record)[WHOLE], {"a": array}) for record, array in zip(records, LARGE, strict=False))


def test_what_cannot_be_stored_is_named_with_its_path() -> None:
    with pytest.raises(UnencodableState, match=r"schedule.*function"):
        BodyEncoder().parts({"schedule": lambda: 1}, None)
    with pytest.raises(UnencodableState, match=r"data.*function"):
        BodyEncoder().parts({"data": tree.Fixed({"f": lambda: 1})}, None)


def test_parts_to_compare_with_are_those_that_are_stored() -> None:
    body = {"rng": [1, 2], "array": LARGE[0], "fixed": 3}
    stored = BodyEncoder().parts(body, None)
    assert encode_parts(body, None) == {name: part.blob for name, part in stored.items()}


@pytest.mark.parametrize(
    "packed",
    [
        [],
        {"a": (0, None, [])},
        {"a": (0, b"", None)},
        {"a": (-1, b"", [])},
        {"a": (0, "text", [])},
        {1: (0, b"", [])},
        {"a": (0, b"")},
        {"a": [0, b"", []]},
        {"a": (0, b"", [("x", 1, 2, 3)])},
        {"a": (0, b"", [("x", -1, 2, 3, 0)])},
        {"a": (0, b"", [(1, 1, 2, 3, 0)])},
        {"a": (64, (b"", b""), None)},
        {"a": (64, ("text",), None)},
        {"a": (True, b"", [])},
        {"a": (0, b"", [("x", 1 << 64, 2, 3, 0)])},
    ],
)
def test_malformed_parts_are_refused(packed: object) -> None:
    with pytest.raises(tree.MalformedTree):
        unpack_parts(tree.encode(packed))


@pytest.mark.parametrize(
    ("part", "full"),
    [
        ((64, None, None), (32, None, None)),
        ((64, None, None), (32, (b"x",), None)),
        ((64, None, None), (32, b"x", None)),
        ((64, (b"\xff\xff",), None), (0, b"full", [])),
    ],
)
def test_parts_that_do_not_fit_together_are_refused(part: Any, full: Any) -> None:
    with pytest.raises(ValueError, match=r"."):
        merge_part(part, full)
