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
from tranlogs.log.record_body import (
    BASE,
    WHOLE,
    BodyEncoder,
    EncodedBody,
    PackedBody,
    PartsWriter,
    merge_bodies,
    merge_part,
    unpack_body,
)


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
        is_boundary = body.keys() != {WHOLE}
        if body_at := self.parts.shared_body(body):
            self.shared[record] = body_at
            body = {name: part for name, part in body.items() if name != WHOLE}
        placed = self.parts.write(body, record, self.end, is_boundary=is_boundary)
        if is_committed:
            at = self.end
            for buffer in placed.buffers:
                self.arrays[at] = buffer.tobytes()
                at += buffer.nbytes
            assert at == placed.end
            self.end = (placed.end + 63) // 64 * 64
            self.packed[record] = tree.encode(placed.packed)
            self.stored += len(self.packed[record]) + sum(buffer.nbytes for buffer in placed.buffers)
            self.parts.written(placed, record)
        return record

    def body_at(self, record: int) -> PackedBody:
        return unpack_body(self.packed[record])

    def read(self, record: int) -> dict[str, Any]:
        body = self.body_at(record)
        if BASE in body:
            body = merge_bodies(body, self.body_at(body[BASE]))
        if record in self.shared:
            body[WHOLE] = self.body_at(self.shared[record])[WHOLE]
        return {name: self._decode(name, body) for name in body if "/" not in name}

    def _decode(self, name: str, body: PackedBody) -> Any:
        blob, rows = merge_part(name, body[name], self.body_at)

        def array(index: int, layout: AnyArray) -> AnyArray:
            assert isinstance(layout, Array)
            offset, nbytes, _, codec = rows[index]
            out = np.empty(math.prod(layout.shape) * ITEMSIZE[layout.dtype], np.uint8)
            stored = self.arrays[offset] if nbytes else b""
            decompress(codec, np.frombuffer(stored, np.uint8)[:nbytes], out)
            return Array(layout.dtype, layout.shape, out, layout.strides, layout.is_tensor)

        return tree.decode(blob, array, parts=lambda index: self._decode(f"{name}/{index}", body))


def same(first: Any, second: Any) -> bool:
    while isinstance(second, tree.Fixed):
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


def with_names(body: dict[str, Any]) -> dict[str, Any]:
    return {name: value.named(name) if isinstance(value, Below) else value for name, value in body.items()}


LARGE = [np.random.default_rng(i).integers(0, 256, OUT_OF_LINE_BYTES_MIN + i, np.uint8) for i in range(3)]
LARGE += [np.zeros(OUT_OF_LINE_BYTES_MIN, np.uint8)]


class Below(dict[str, Any]):
    """A value in which another one is a part of its own."""

    def __init__(self, value: Any) -> None:
        super().__init__(kept=value, n=1)

    def named(self, name: str) -> dict[str, Any]:
        return {"kept": tree.Fixed({"deep": tree.Fixed(self["kept"], f"{name}/kept/deep")}, f"{name}/kept"), "n": 1}

    @property
    def plain(self) -> dict[str, Any]:
        return {"kept": {"deep": self["kept"]}, "n": 1}


FIXED = [tree.Fixed(value) for value in ({"constant": ["x"] * 100}, 7, LARGE[0])]
values = st.one_of(
    st.integers(-3, 3),
    st.sampled_from(LARGE),
    st.sampled_from(FIXED),
    st.lists(st.integers(0, 2), min_size=100, max_size=104),
    st.builds(
        lambda value, n: {"kept": tree.Fixed({"deep": tree.Fixed(value)}), "n": n},
        st.sampled_from([*LARGE, 1, "text", *FIXED]),
        st.integers(0, 1),
    ),
    st.dictionaries(st.sampled_from("abc"), st.sampled_from([*LARGE, 1, "text"]), max_size=3),
)
bodies = st.dictionaries(st.sampled_from(["rng", "loop", "ema", "data"]), values, max_size=4)


@given(st.lists(st.tuples(bodies, st.none() | values, st.integers(0, 9)), min_size=1, max_size=25))
@settings(max_examples=campaign.examples(200), deadline=None)
def test_any_sequence_of_bodies_is_read_back(sequence: list[tuple[dict[str, Any], Any, int]]) -> None:
    """Some are of boundaries, some of steps, some of both; some are dropped before they are written, and now and then all is
    defined anew.
    """
    segment, written = Segment(), []
    for body, step, chance in sequence:
        if chance == 9:
            segment.parts = PartsWriter()
        encoded = {} if step is None else segment.encoder.whole(step, None)
        content = {} if step is None else {WHOLE: step}
        if step is None or chance % 2:
            encoded |= segment.encoder.parts(body, None)
            content |= body
        is_committed = chance != 8
        record = segment.write(encoded, is_committed=is_committed)
        if is_committed:
            written.append((record, content))
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
        body = merge_bodies(unpack_body(bytes(raw)), segment.body_at(records[0]))
        for name, part in body.items():
            assert isinstance(name, str)
            blob, rows = merge_part(name, part, lambda _: segment.body_at(records[0]))
            assert isinstance(blob, bytes)
            assert all(len(row) == 4 for row in rows)


def test_a_boundary_has_only_what_has_changed() -> None:
    segment = Segment()
    body = {"words": ["constant"] * 1000, "array": LARGE[0], "n": 0, "m": 0}
    first = segment.write(segment.encoder.parts(body, None))
    before = segment.stored
    second = segment.write(segment.encoder.parts({**body, "n": 1}, None))
    assert segment.body_at(second) == {BASE: first, "n": tree.encode(1)}
    third = segment.write(segment.encoder.parts({**body, "n": 1, "m": 1}, None))
    assert segment.body_at(third) == {BASE: first, "n": second, "m": tree.encode(1)}
    fourth = segment.write(segment.encoder.parts({"n": 0, "array": LARGE[0]}, None))
    assert segment.body_at(fourth) == {BASE: first, "n": tree.encode(0), "words": None, "m": None}
    assert segment.stored - before < 100


def test_a_boundary_that_has_little_in_common_with_the_first_one_becomes_what_later_ones_refer_to() -> None:
    segment, encoder = Segment(), BodyEncoder()
    names = [str(number) for number in range(12)]
    segment.write(encoder.parts(dict.fromkeys(names, 0), None))
    changed = dict.fromkeys(names, 0)
    for number, name in enumerate(names, 1):  # one more of them differs from the first boundary in each
        changed[name] = 1
        record = segment.write(encoder.parts(changed, None))
        assert (BASE in segment.body_at(record)) == (number != 10), number
    assert segment.body_at(record)[BASE] not in (64, record)
    assert segment.read(record) == changed


def test_an_array_and_the_tree_around_it_change_apart() -> None:
    segment = Segment()
    first = segment.write(segment.encoder.parts({"ema": {"order": LARGE[1], "n": 1}}, None))
    second = segment.write(segment.encoder.parts({"ema": {"order": LARGE[1], "n": 2}}, None))
    assert segment.body_at(second)["ema"][1] == first
    third = segment.write(segment.encoder.parts({"ema": {"order": LARGE[1] ^ 1, "n": 2}}, None))
    assert segment.body_at(third)["ema"][0] == second
    fourth = segment.write(segment.encoder.parts({"ema": {"order": LARGE[1] ^ 1, "n": 2}}, None))
    assert segment.body_at(fourth) == {BASE: first, "ema": [second, third]}
    assert same(segment.read(fourth), {"ema": {"order": LARGE[1] ^ 1, "n": 2}})


def test_a_value_below_that_changes_is_stored_alone() -> None:
    segment, kept = Segment(), "x" * 5000
    records = []
    for n in range(3):
        body = {"data": {"head": tree.Fixed([kept]), "at": tree.Fixed(n), "n": n // 2}}
        records.append(segment.write(segment.encoder.parts(body, None)))
        assert segment.read(records[-1]) == {"data": {"head": [kept], "at": n, "n": n // 2}}
    assert segment.body_at(records[0]).keys() == {"data", "data/0", "data/1"}
    assert segment.body_at(records[1]).keys() == {BASE, "data/1"}
    assert segment.body_at(records[2]).keys() == {BASE, "data", "data/1"}


def test_the_name_of_a_value_below_is_taken_by_no_other_part() -> None:
    with pytest.raises(AssertionError, match="slash"):
        BodyEncoder().parts({"a": [tree.Fixed(1)], "a/0": 2}, None)


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
    rows = segment.body_at(record)[WHOLE][1]
    assert [(row[1], row[3]) for row in rows] == [(0, Codec.ZERO), (OUT_OF_LINE_BYTES_MIN, Codec.RAW)]
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


def test_a_boundary_that_refers_to_one_without_all_its_parts_is_refused() -> None:
    with pytest.raises(ValueError, match="does not have all its parts"):
        merge_bodies({BASE: 64}, {BASE: 32})
