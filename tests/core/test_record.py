"""Entry heads: what was packed is found, what was changed is not."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tranlogs.codec import tree
from tranlogs.log.record import HEAD, MAGIC, EntryKind, digest, pack_head, pack_spec, unpack_head, unpack_spec
from tranlogs.types import Piece, TensorSpec

U64 = st.integers(0, (1 << 64) - 1)
kinds = st.sampled_from(list(EntryKind))


@given(U64, U64, U64, kinds, st.binary(max_size=100), U64)
def test_a_head_comes_back(segment_id: int, sequence: int, step: int, kind: EntryKind, payload: bytes, chain: int) -> None:
    raw = pack_head(segment_id, sequence, step, kind, payload, chain)
    head = unpack_head(raw)
    assert len(raw) == HEAD.size
    assert head is not None
    assert (head.segment_id, head.sequence, head.step, head.kind) == (segment_id, sequence, step, kind)
    assert (head.length, head.chain, head.digest) == (len(payload), chain, digest(raw))


@given(st.binary(min_size=HEAD.size, max_size=HEAD.size + 8))
def test_random_bytes_are_no_head(data: bytes) -> None:
    assert unpack_head(MAGIC + data[4:]) is None


@pytest.mark.parametrize("byte", range(HEAD.size))
def test_a_head_with_any_byte_changed_is_no_head(byte: int) -> None:
    raw = bytearray(pack_head(1, 2, 3, EntryKind.STEP, b"payload", 4))
    raw[byte] ^= 0x40
    assert unpack_head(raw) is None


def test_a_short_head_is_no_head() -> None:
    raw = pack_head(1, 2, 3, EntryKind.STEP, b"payload", 4)
    assert unpack_head(raw[:-1]) is None


@given(U64, U64, st.binary(min_size=1, max_size=50))
def test_the_digest_depends_on_everything(sequence: int, chain: int, payload: bytes) -> None:
    heads = [
        pack_head(1, sequence, 3, EntryKind.STEP, payload, chain),
        pack_head(2, sequence, 3, EntryKind.STEP, payload, chain),
        pack_head(1, sequence ^ 1, 3, EntryKind.STEP, payload, chain),
        pack_head(1, sequence, 3, EntryKind.IMAGE, payload, chain),
        pack_head(1, sequence, 3, EntryKind.STEP, payload[:-1] + bytes([payload[-1] ^ 1]), chain),
        pack_head(1, sequence, 3, EntryKind.STEP, payload, chain ^ 1),
    ]
    assert len({digest(head) for head in heads}) == len(heads)


SPECS = [
    TensorSpec("w", "float32", (3, 4)),
    TensorSpec("w", "bfloat16", ()),
    TensorSpec("w", "float32", (3, 4), (1, 3)),
    TensorSpec("w", "float32", (1 << 40, 0), (7, 7)),
    TensorSpec("w", "float32", (8, 4), None, Piece("box", (4, 0), (4, 4))),
    TensorSpec("w", "float32", (8, 4), (1, 4), Piece("box", (4, 0), (4, 4))),
    TensorSpec("w", "float32", (8, 4), (1, 8), Piece("flat", (7,), (9,))),
]


@pytest.mark.parametrize("spec", SPECS)
def test_a_tensor_description_comes_back(spec: TensorSpec) -> None:
    packed = tree.decode(tree.encode(pack_spec(7, spec)))
    assert unpack_spec(packed) == (7, spec)


@pytest.mark.parametrize("packed", [
    None, (), (1, "w", "float33", (1,), None, None), (1, 2, "float32", (1,), None, None),
    (1, "w", "float32", 5, None, None), (1, "w", "float32", (-1,), None, None), (1, "w", "float32", (1.5,), None, None),
    (1, "w", "float32", (2, 2), (1, 1), None), (1, "w", "float32", (2,), (1 << 40,), None),
    (1, "w", "float32", (2,), None, ("box",)), (1, "w", "float32", (2,), None, ("box", (0,), ("x",))),
    (1, "w", "float32", (8, 4), (1, 8), ("box", (4, 0), (4, 4))), ("x", "w", "float32", (1,), None, None),
])  # fmt: skip
def test_a_malformed_tensor_description_is_refused(packed: object) -> None:
    with pytest.raises(tree.MalformedTree, match="a tensor description"):
        unpack_spec(packed)
