"""Plain values come back as they were, whatever is refused is refused by its path, and no bytes can do harm."""

from __future__ import annotations

import datetime
import math
import tracemalloc
from collections import Counter, OrderedDict, deque
from typing import Any

import msgpack
import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst

from tests.support import campaign
from tranlogs.base.config import TREE_DEPTH_MAX
from tranlogs.base.errors import UnencodableState
from tranlogs.base.types import ITEMSIZE, AnyArray, Array, Extension, SparseArray, dense
from tranlogs.encoding import tree

NUMPY_DTYPES = sorted(name for name in ITEMSIZE if name in np.sctypeDict)


def same(a: Any, b: Any) -> bool:
    """Equal in type and bits: -0.0 differs from 0.0, NaN payloads count."""
    if type(a) is not type(b):
        return False
    if isinstance(a, float):
        return np.float64(a).tobytes() == np.float64(b).tobytes()
    if isinstance(a, complex):
        return np.complex128(a).tobytes() == np.complex128(b).tobytes()
    if isinstance(a, (list, tuple)):
        return len(a) == len(b) and all(map(same, a, b))
    if isinstance(a, (set, frozenset)):
        return sorted(map(tree.encode, a)) == sorted(map(tree.encode, b))
    if isinstance(a, dict):
        return same(list(a), list(b)) and same(list(a.values()), list(b.values()))
    if isinstance(a, np.ndarray):
        return (a.dtype, a.shape, a.tobytes()) == (b.dtype, b.shape, b.tobytes())
    if isinstance(a, np.generic):
        return (a.dtype, a.tobytes()) == (b.dtype, b.tobytes())
    if isinstance(a, Array):
        return (a.dtype, a.shape, a.strides, a.is_tensor, a.data.tobytes()) == (
            b.dtype,
            b.shape,
            b.strides,
            b.is_tensor,
            b.data.tobytes(),
        )
    if isinstance(a, SparseArray):
        return (
            (a.shape, a.is_coalesced) == (b.shape, b.is_coalesced) and same(a.indices, b.indices) and same(a.values, b.values)
        )
    if isinstance(a, Extension):
        return a.tag == b.tag and same(a.value, b.value)
    return bool(a == b)


@st.composite
def tensors(draw: st.DrawFn) -> Array:
    dtype = draw(st.sampled_from(sorted(ITEMSIZE)))
    shape = tuple(draw(st.lists(st.integers(0, 4), max_size=4)))
    nbytes = math.prod(shape) * ITEMSIZE[dtype]
    strides = None
    if draw(st.booleans()):  # a permuted layout
        order, step = draw(st.permutations(range(len(shape)))), 1
        placed = [0] * len(shape)
        for dim in order:
            placed[dim] = step
            step *= shape[dim]
        strides = tuple(placed)
    data = np.frombuffer(draw(st.binary(min_size=nbytes, max_size=nbytes)), np.uint8)
    return Array(dtype, shape, data, strides, True)


@st.composite
def sparse(draw: st.DrawFn) -> SparseArray:
    count, rows, width = draw(st.integers(0, 5)), draw(st.integers(1, 9)), draw(st.integers(0, 3))
    indices = np.array(draw(st.lists(st.integers(0, rows - 1), min_size=count, max_size=count)), np.int64).reshape(1, count)
    values = draw(npst.arrays(np.float32, (count, width)))
    parts = [Array(a.dtype, a.shape, a.data) for a in (dense(indices), dense(values))]
    return SparseArray((rows, width), parts[0], parts[1], draw(st.booleans()))


hashables = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.complex_numbers() | st.text() | st.binary(),
    lambda inner: st.tuples(inner, inner) | st.frozensets(inner, max_size=3),
    max_leaves=5,
)
shapes = npst.array_shapes(min_dims=0, min_side=0, max_side=4)
leaves = (
    hashables
    | st.sets(hashables, max_size=4)
    | st.integers(-(1 << 200), 1 << 200)
    | st.sampled_from(NUMPY_DTYPES).flatmap(lambda name: npst.arrays(name, shapes))
    | st.sampled_from(NUMPY_DTYPES).flatmap(lambda name: npst.arrays(name, ()).map(lambda array: array[()]))
    | tensors()
    | sparse()
)
values = st.recursive(
    leaves,
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.lists(inner, max_size=4).map(tuple)
        | st.dictionaries(hashables, inner, max_size=4)
        | st.dictionaries(st.integers() | st.text(), inner, max_size=4).map(OrderedDict)
        | st.dictionaries(st.text(), st.integers(), max_size=4).map(Counter)
        | st.builds(Extension, st.text(), inner)
    ),
    max_leaves=8,
)


@given(values)
@settings(max_examples=campaign.examples(100))
@example(float("nan"))
@example([-0.0, math.inf, -math.inf, 5e-324, complex(math.nan, -0.0)])
@example([(1 << 63) - 1, 1 << 63, -(1 << 63), -(1 << 63) - 1, 255, -256, 1 << 4096])
@example({1: "int", "1": "str", b"1": "bytes", 1.5: None, (1, 2): [], None: {}, False: True})
@example("\ud800 lone surrogates \udfff")
@example([np.array(3.5, np.float16), np.zeros((0, 3), np.bool_), np.array([True])])
def test_every_value_comes_back_as_it_was(value: Any) -> None:
    blob = tree.encode(value)
    assert same(tree.decode(blob), value)
    assert blob == tree.encode(value)
    assert same(tree.decode(tree.encode([tree.Fixed(value)])), [value])
    far: list[AnyArray] = []
    blob = tree.encode(value, out_of_line=far, out_of_line_bytes_min=8)
    assert all(array.nbytes >= 8 for array in far)
    assert same(tree.decode(blob, lambda index, _: far[index]), value)


def test_order_of_dicts_is_kept_and_order_of_sets_does_not_matter() -> None:
    assert list(tree.decode(tree.encode({"b": 1, "a": 2}))) == ["b", "a"]
    assert tree.encode({"x", "y", "z"}) == tree.encode({"z", "x", "y"})


class Opaque:
    """Nothing that could be stored."""


class Words(str):
    """A subclass could carry behaviour."""

    __slots__ = ()


@pytest.mark.parametrize(
    ("value", "path"),
    [
        ({"loader": {"x": Opaque()}}, "track['loader']['x']"),
        ({Words("key"): 1}, "track.keys()"),
        ({"s": {Words("s")}}, "track['s']{}"),
        (deque([1]), "track"),
        ([memoryview(b"x")], "track[0]"),
        ((msgpack.ExtType(1, b"x"),), "track[0]"),
        (datetime.datetime(2024, 1, 1), "track"),
        (np.array([Opaque()]), "track (dtype object)"),
        (np.array([1], ">i4"), "track (dtype >i4)"),
        (np.datetime64("2024-01-01"), "track (dtype datetime64[D])"),
        (Extension("tag", Opaque()), "track"),
    ],
)
def test_what_cannot_be_stored_is_refused_by_its_path(value: Any, path: str) -> None:
    with pytest.raises(UnencodableState) as caught:
        tree.encode(value, path="track")
    assert caught.value.path.startswith(path)


def nested(wrap: Any, depth: int) -> Any:
    value: Any = 0
    for _ in range(depth):
        value = wrap(value)
    return value


@pytest.mark.parametrize(
    "wrap",
    [lambda v: [v], lambda v: (v,), lambda v: {"k": v}, lambda v: frozenset([v]), lambda v: Extension("t", v)],
    ids=["list", "tuple", "dict", "frozenset", "extension"],
)
def test_what_can_be_encoded_can_be_decoded_at_every_depth(wrap: Any) -> None:
    deepest = nested(wrap, TREE_DEPTH_MAX)
    assert same(tree.decode(tree.encode(deepest)), deepest)
    with pytest.raises(UnencodableState, match="nested deeper"):
        tree.encode(nested(wrap, TREE_DEPTH_MAX + 1))


def test_a_cycle_is_refused() -> None:
    loop: list[Any] = []
    loop.append(loop)
    with pytest.raises(UnencodableState, match=r"^state\[0\] contains itself$"):
        tree.encode(loop)


@given(values, st.data())
@settings(max_examples=campaign.examples(100))
def test_damaged_bytes_are_a_tree_or_malformed(value: Any, data: st.DataObject) -> None:
    blob = bytearray(tree.encode(value))
    for _ in range(data.draw(st.integers(1, 4))):
        blob[data.draw(st.integers(0, len(blob) - 1))] = data.draw(st.integers(0, 255))
    cut = data.draw(st.integers(0, len(blob)))
    for damaged in (bytes(blob), bytes(blob[:cut]), bytes(blob) + b"\xc0"):
        try:
            tree.decode(damaged, lambda index, layout: layout)
        except tree.MalformedTree:
            continue


def extension(code: int, data: bytes) -> bytes:
    return bytes(msgpack.packb(msgpack.ExtType(code, data)))


def header(dtype: str, shape: tuple[int, ...], strides: tuple[int, ...] | None) -> bytes:
    return tree.array_header(dtype, shape, strides, False)


@pytest.mark.parametrize(
    "blob",
    [
        b"\xdd\xff\xff\xff\xff\xc0",
        b"\xdf\xff\xff\xff\x7f" + b"\xc0" * 100,
        b"\xdb\xff\xff\xff\xff",
        b"\xc9\xff\xff\xff\xff\x06",
        extension(9, header("float64", (1 << 40,), None)),
        extension(9, header("uint8", (4,), (1 << 40,)) + b"abcd"),
        extension(9, header("uint8", (2, 2), (1, 1)) + b"abcd"),
        extension(10, header("uint8", (4,), None) + b"\0\0\0\0"),
        extension(8, b"\x06object12345678"),
        extension(2, b"\x91\x90"),
        extension(11, b"\x94\xc0\xc3\x01\x02"),
        extension(12, b"\x92\x01\x02"),
        extension(1, b"\x01"),
        extension(99, b"data"),
        b"\x91" * 5000,
        b"",
    ],
    ids=lambda blob: repr(blob[:12]),
)
def test_hostile_bytes_are_malformed_and_take_no_memory(blob: bytes) -> None:
    tracemalloc.start()
    try:
        with pytest.raises(tree.MalformedTree):
            tree.decode(blob)
        assert tracemalloc.get_traced_memory()[1] < 4 << 20
    finally:
        tracemalloc.stop()


def test_an_array_out_of_line_must_have_the_layout_that_the_tree_says() -> None:
    far: list[AnyArray] = []
    blob = tree.encode(np.zeros(4), out_of_line=far, out_of_line_bytes_min=1)
    with pytest.raises(tree.MalformedTree, match="out of line"):
        tree.decode(blob, lambda index, layout: dense(np.zeros(5)))


@pytest.mark.parametrize("array", [np.zeros(3), np.zeros((2, 3), np.float32).T, np.zeros((), np.int64), np.zeros(2, bool)])
def test_a_decoded_array_can_be_written_to(array: np.ndarray[Any, Any]) -> None:
    """It becomes a part of the user's state, which goes on to count in it."""
    found = tree.decode(tree.encode({"counts": array}))["counts"]
    found[...] = 1
    assert np.array_equal(found, np.ones_like(array))
