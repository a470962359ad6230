"""Layouts: a tensor list comes back, its pieces cover the payload exactly, absent and sparse tensors take what they need."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support import campaign
from tranlogs.base.types import ITEMSIZE, Array, Piece, SparseArray, TensorSpec, dense
from tranlogs.encoding import tree
from tranlogs.log.layout import (
    PIECE_BYTES_MAX,
    SEPARATE_PIECE_BYTES_MIN,
    Layout,
    Payload,
    SparseForm,
    cut_pieces,
    pack_layout,
    spec_of,
    unpack_layout,
)

SPECS = [
    TensorSpec("w", "float32", (3, 4)),
    TensorSpec("w", "bfloat16", ()),
    TensorSpec("w", "float32", (3, 4), (1, 3)),
    TensorSpec("w", "float32", (1 << 40, 0), (7, 7)),
    TensorSpec("w", "float32", (8, 4), None, Piece("box", (4, 0), (4, 4))),
    TensorSpec("w", "float32", (8, 4), (1, 4), Piece("box", (4, 0), (4, 4))),
    TensorSpec("w", "float32", (8, 4), (1, 8), Piece("flat", (7,), (9,))),
]
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


@pytest.mark.parametrize("spec", SPECS)
def test_a_tensor_description_comes_back(spec: TensorSpec) -> None:
    assert unpack_layout(pack_layout(Layout([spec]))).tensors == (spec,)


@pytest.mark.parametrize(
    "packed",
    [
        None,
        (),
        ("w", "float33", (1,), None, None),
        (2, "float32", (1,), None, None),
        ("w", "float32", 5, None, None),
        ("w", "float32", (-1,), None, None),
        ("w", "float32", (1.5,), None, None),
        ("w", "float32", (2, 2), (1, 1), None),
        ("w", "float32", (2,), (1 << 40,), None),
        ("w", "float32", (2,), None, ("box",)),
        ("w", "float32", (2,), None, ("box", (0,), ("x",))),
        ("w", "float32", (8, 4), (1, 8), ("box", (4, 0), (4, 4))),
        ("w", "float32", (1,), None),
        ("w", "float32", (1 << 47,), None, None),
        ("w", "float32", (True,), None, None),
    ],
)
def test_a_malformed_tensor_description_is_refused(packed: object) -> None:
    with pytest.raises(tree.MalformedTree, match="damaged description of a tensor"):
        unpack_layout(tree.encode([packed]))


@pytest.mark.parametrize("data", [b"", b"\xff", tree.encode({}), tree.encode("layout"), tree.encode(3)])
def test_what_is_no_list_is_no_layout(data: bytes) -> None:
    with pytest.raises(tree.MalformedTree):
        unpack_layout(data)


@given(st.lists(specs(), max_size=5), st.data())
@settings(max_examples=campaign.examples(200))
def test_a_damaged_layout_is_refused_or_is_a_layout(tensors: list[TensorSpec], data: st.DataObject) -> None:
    raw = bytearray(pack_layout(Layout(tensors)))
    raw[data.draw(st.integers(0, len(raw) - 1))] ^= data.draw(st.integers(1, 255))
    try:
        found = unpack_layout(bytes(raw))
    except tree.MalformedTree:
        return
    assert found.nbytes == sum(spec.nbytes for spec in found.tensors) >= 0


@given(sizes_of_tensors)
@settings(max_examples=campaign.examples(300))
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


@given(sizes_of_tensors)
def test_small_tensors_share_pieces(sizes: list[int]) -> None:
    """Not more pieces than the rule demands: a large payload has no more sums than it must."""
    large = [size for size in sizes if size >= SEPARATE_PIECE_BYTES_MIN]
    small = sum(size for size in sizes if size < SEPARATE_PIECE_BYTES_MIN)
    most = sum(math.ceil(size / PIECE_BYTES_MAX) for size in large) + len(large) + 1 + small // (PIECE_BYTES_MAX // 2) + 1
    assert len(cut_pieces(sizes)) <= most


@given(st.lists(st.integers(0, 400_000), min_size=1, max_size=12), st.data())
def test_absent_tensors_take_no_bytes(sizes: list[int], data: st.DataObject) -> None:
    layout = Layout([TensorSpec(f"w{i}", "uint8", (size,)) for i, size in enumerate(sizes)])
    absent = frozenset(data.draw(st.sets(st.integers(0, len(sizes) - 1))))
    left = [0 if i in absent else size for i, size in enumerate(sizes)]
    assert layout.sizes_in(absent, {}) == left
    assert layout.pieces(absent, {}) == cut_pieces(left)
    assert layout.pieces(frozenset(), {}) == cut_pieces(sizes)


@given(st.integers(0, 5), st.integers(0, 3), st.integers(0, 50))
def test_sparse_tensors_take_their_indices_and_values(dims: int, more: int, nnz: int) -> None:
    spec = TensorSpec("w", "float32", (7,) * dims + (3,) * more)
    layout, form = Layout([TensorSpec("a", "float32", (10,)), spec]), SparseForm(dims, nnz, False)
    indices, values = dims * nnz * 8, nnz * 3**more * 4
    assert layout.sparse_sizes(1, form) == (indices, values)
    assert layout.sizes_in(frozenset(), {1: form}) == [40, indices + values]


def test_a_payload_of_arrays_is_views_of_their_memory() -> None:
    values = np.arange(10.0)
    piece = Array("float32", (2,), np.zeros(8, np.uint8), whole=(8,), piece=Piece("flat", (3,), (2,)))
    indices = dense(np.arange(4).reshape(1, 4))
    sparse = SparseArray((9, 2), indices, dense(np.ones((4, 2), np.float32)), True)
    payload = Payload.of([("w", dense(values)), ("none", None), ("piece", piece), ("s", sparse), ("w", dense(values[:0]))])
    assert np.shares_memory(payload.buffers[0], values)
    assert payload.absent == {1}
    assert dict(payload.sparse) == {3: SparseForm(1, 4, True)}
    assert payload.nbytes == sum(payload.layout.sizes_in(payload.absent, payload.sparse)) == 80 + 8 + 32 + 32
    assert all(buffer.nbytes for buffer in payload.buffers)
    assert payload.layout.tensors[2] == spec_of("piece", piece)
    assert payload.layout.index == {"w": [0, 4], "none": [1], "piece": [2], "s": [3]}


def test_where_tensors_start_in_a_whole_payload() -> None:
    layout = Layout([TensorSpec("a", "float32", (3,)), TensorSpec("b", "uint8", ()), TensorSpec("c", "int64", (2, 2))])
    assert (layout.starts, layout.nbytes, len(layout)) == ([0, 12, 13], 45, 3)
    assert Layout(()).starts == []
