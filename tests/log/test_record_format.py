"""Heads, descriptions, layouts: what was packed comes back, what was changed is refused, pieces cover a payload."""

from __future__ import annotations

import struct

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support import campaign
from tests.support.record_rows import packed_head
from tranlogs.base.config import META_BYTES_MAX
from tranlogs.base.types import ITEMSIZE, TensorSpec
from tranlogs.encoding import tree
from tranlogs.log.layout import (
    PIECE_BYTES_MAX,
    SEPARATE_PIECE_BYTES_MIN,
    Layout,
    cut_pieces,
    pack_layout,
    unpack_layout,
)
from tranlogs.log.record_format import (
    HEAD,
    Description,
    RecordKind,
    checksum_of,
    pack_description,
    unpack_description,
    unpack_head,
)

U64 = st.integers(0, (1 << 64) - 1)


sections = st.binary(max_size=40)


@pytest.mark.parametrize("byte", range(HEAD.size))
def test_a_head_with_any_byte_changed_is_no_head(byte: int) -> None:
    raw = bytearray(packed_head(1, 2, 3, RecordKind.STEP, 100, b"description", 4))
    raw[byte] ^= 0x40
    assert unpack_head(raw) is None


def resealed(raw: bytes) -> bytes:
    """A head whose checksum holds again, as a damaged writer would make it."""
    checksum = checksum_of(raw[:4] + bytes(4) + raw[8:]) & 0xFFFFFFFF
    return raw[:4] + checksum.to_bytes(4, "little") + raw[8:]


def test_a_description_longer_than_any_is_no_head_though_its_checksum_holds() -> None:
    raw = bytearray(packed_head(1, 2, 3, RecordKind.STEP, 0, b"", 4))
    struct.pack_into("<I", raw, 36, META_BYTES_MAX)
    assert unpack_head(resealed(bytes(raw))) is not None
    struct.pack_into("<I", raw, 36, META_BYTES_MAX + 1)
    assert unpack_head(resealed(bytes(raw))) is None


@given(U64, U64, U64, st.lists(sections, min_size=8, max_size=8))
def test_a_description_comes_back(layout_at: int, body_at: int, raw_bytes: int, parts: list[bytes]) -> None:
    found = unpack_description(pack_description(Description(layout_at, body_at, raw_bytes, *parts)))
    assert found == (layout_at, body_at, raw_bytes, *parts)
    data = pack_description(Description(layout_at, body_at, raw_bytes, *parts))
    for other in (data[:-1], data + b"\0"):
        with pytest.raises(ValueError, match=r"its sections have|a description has at least"):
            unpack_description(other)


sizes_of_tensors = st.lists(
    st.one_of(
        st.integers(0, 100),
        st.integers(SEPARATE_PIECE_BYTES_MIN - 2, SEPARATE_PIECE_BYTES_MIN + 2),
        st.integers(PIECE_BYTES_MAX - 2, PIECE_BYTES_MAX + 2),
        st.integers(0, 4 * PIECE_BYTES_MAX),
    ),
    max_size=30,
)


@st.composite
def specs(draw: st.DrawFn) -> TensorSpec:
    shape = tuple(draw(st.lists(st.integers(0, 9), max_size=4)))
    strides = None
    if shape and 0 not in shape and draw(st.booleans()):  # the dimensions in another order
        made, step = [0] * len(shape), 1
        for dim in draw(st.permutations(range(len(shape)))):
            made[dim], step = step, step * shape[dim]
        strides = tuple(made)
    return TensorSpec(draw(st.text(max_size=8)), draw(st.sampled_from(sorted(ITEMSIZE))), shape, strides)


@given(st.lists(specs(), max_size=12))
def test_a_layout_comes_back_and_is_equal(tensors: list[TensorSpec]) -> None:
    made = Layout(tensors)
    again = unpack_layout(pack_layout(made))
    assert again == made
    assert hash(again) == hash(made)
    assert again.tensors == tuple(tensors)


@pytest.mark.parametrize(
    "packed",
    [
        None,
        ("w", "float33", (1,), None, None),
        (2, "float32", (1,), None, None),
        ("w", "float32", 5, None, None),
        ("w", "float32", (2, 2), (1, 1), None),
        ("w", "float32", (2,), (1 << 40,), None),
        ("w", "float32", (2,), None, ("box", (0,), ("x",))),
        ("w", "float32", (8, 4), (1, 8), ("box", (4, 0), (4, 4))),
        ("w", "float32", (1 << 47,), None, None),
    ],
)
def test_a_malformed_tensor_description_is_refused(packed: object) -> None:
    with pytest.raises(tree.MalformedTree, match="damaged description of a tensor"):
        unpack_layout(tree.encode([packed]))
    for data in (b"", b"\xff", tree.encode({}), tree.encode("layout"), tree.encode(3)):
        with pytest.raises(tree.MalformedTree):
            unpack_layout(data)


@given(st.lists(specs(), max_size=5), st.data())
@settings(max_examples=campaign.examples(100))
def test_a_damaged_layout_is_refused_or_is_a_layout(tensors: list[TensorSpec], data: st.DataObject) -> None:
    raw = bytearray(pack_layout(Layout(tensors)))
    raw[data.draw(st.integers(0, len(raw) - 1))] ^= data.draw(st.integers(1, 255))
    try:
        found = unpack_layout(bytes(raw))
    except tree.MalformedTree:
        return
    assert found.nbytes == sum(spec.nbytes for spec in found.tensors) >= 0


@given(sizes_of_tensors)
@settings(max_examples=campaign.examples(100))
def test_pieces_cover_the_payload_exactly(sizes: list[int]) -> None:
    ends = cut_pieces(sizes)
    assert ends == sorted(set(ends))
    assert (ends[-1] if ends else 0) == sum(sizes)
    lengths = np.diff([0, *ends])
    assert all(0 < length <= PIECE_BYTES_MAX for length in lengths)
    start = 0
    for size in sizes:
        if size >= SEPARATE_PIECE_BYTES_MIN:  # it shares no piece
            assert start == 0 or start in ends
            assert start + size in ends
        start += size
