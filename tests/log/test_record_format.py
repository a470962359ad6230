"""Heads and descriptions of records: what was packed is found, what was changed is not."""

from __future__ import annotations

import contextlib
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tranlogs.base.config import FORMAT_VERSION, META_BYTES_MAX
from tranlogs.log.record_format import (
    ALIGNMENT,
    FIXED,
    HEAD,
    MAGIC,
    Description,
    EntryKind,
    Location,
    checksum_of,
    digest,
    extent_end,
    pack_description,
    pack_head,
    unpack_description,
    unpack_head,
)

U64 = st.integers(0, (1 << 64) - 1)
kinds = st.sampled_from(list(EntryKind))
sections = st.binary(max_size=40)


@given(U64, U64, U64, kinds, U64, st.binary(max_size=100), U64)
def test_a_head_comes_back(
    segment_id: int, sequence: int, step: int, kind: EntryKind, payload_bytes: int, description: bytes, chain: int
) -> None:
    raw = pack_head(segment_id, sequence, step, kind, payload_bytes, description, chain)
    head = unpack_head(raw)
    assert len(raw) == HEAD.size == ALIGNMENT
    assert head is not None
    assert (head.segment_id, head.sequence, head.step, head.kind) == (segment_id, sequence, step, kind)
    assert (head.payload_bytes, head.description_bytes) == (payload_bytes, len(description))
    assert (head.description_sum, head.version) == (checksum_of(description), FORMAT_VERSION)
    assert (head.chain, head.digest) == (chain, digest(raw))


@given(st.integers(0, 200), st.binary(max_size=200))
def test_a_head_is_found_anywhere_in_a_window(at: int, behind: bytes) -> None:
    raw = pack_head(1, 2, 3, EntryKind.STEP, 5, b"description", 4)
    assert unpack_head(bytes(at) + raw + behind, at) == unpack_head(raw)


@given(st.binary(min_size=HEAD.size, max_size=HEAD.size + 8))
def test_random_bytes_are_no_head(data: bytes) -> None:
    assert unpack_head(MAGIC + data[4:]) is None


@pytest.mark.parametrize("byte", range(HEAD.size))
def test_a_head_with_any_byte_changed_is_no_head(byte: int) -> None:
    raw = bytearray(pack_head(1, 2, 3, EntryKind.STEP, 100, b"description", 4))
    raw[byte] ^= 0x40
    assert unpack_head(raw) is None


@pytest.mark.parametrize("length", [0, 1, HEAD.size - 1])
def test_a_short_head_is_no_head(length: int) -> None:
    raw = pack_head(1, 2, 3, EntryKind.STEP, 100, b"description", 4)
    assert unpack_head(raw[:length]) is None


def resealed(raw: bytes) -> bytes:
    """A head whose checksum holds again, as a damaged writer would make it."""
    checksum = checksum_of(raw[:4] + bytes(4) + raw[8:]) & 0xFFFFFFFF
    return raw[:4] + checksum.to_bytes(4, "little") + raw[8:]


def test_a_description_longer_than_any_is_no_head_though_its_checksum_holds() -> None:
    raw = bytearray(pack_head(1, 2, 3, EntryKind.STEP, 0, b"", 4))
    struct.pack_into("<I", raw, 36, META_BYTES_MAX)
    assert unpack_head(resealed(bytes(raw))) is not None
    struct.pack_into("<I", raw, 36, META_BYTES_MAX + 1)
    assert unpack_head(resealed(bytes(raw))) is None


@given(U64, U64, U64, st.binary(min_size=1, max_size=50))
def test_the_digest_depends_on_everything(sequence: int, chain: int, payload_bytes: int, description: bytes) -> None:
    changed = description[:-1] + bytes([description[-1] ^ 1])
    heads = [
        pack_head(1, sequence, 3, EntryKind.STEP, payload_bytes, description, chain),
        pack_head(2, sequence, 3, EntryKind.STEP, payload_bytes, description, chain),
        pack_head(1, sequence ^ 1, 3, EntryKind.STEP, payload_bytes, description, chain),
        pack_head(1, sequence, 4, EntryKind.STEP, payload_bytes, description, chain),
        pack_head(1, sequence, 3, EntryKind.IMAGE, payload_bytes, description, chain),
        pack_head(1, sequence, 3, EntryKind.STEP, payload_bytes ^ 1, description, chain),
        pack_head(1, sequence, 3, EntryKind.STEP, payload_bytes, changed, chain),
        pack_head(1, sequence, 3, EntryKind.STEP, payload_bytes, description, chain ^ 1),
    ]
    assert len({digest(head) for head in heads}) == len(heads)


@given(st.integers(0, 1 << 50), st.integers(0, 1 << 50), st.integers(0, META_BYTES_MAX))
def test_the_next_record_starts_at_the_next_multiple_of_64(block: int, payload: int, description: int) -> None:
    offset = block * ALIGNMENT
    end = extent_end(offset, payload, description)
    assert end % ALIGNMENT == 0
    assert 0 <= end - (offset + HEAD.size + payload + description) < ALIGNMENT


def test_a_location_says_where_everything_of_a_record_lies() -> None:
    head = unpack_head(pack_head(1, 2, 3, EntryKind.STEP, 100, b"12345", 4))
    assert head is not None
    location = Location(head, 640)
    assert (location.payload_offset, location.description_offset, location.end) == (704, 804, 832)


@given(U64, U64, U64, st.lists(sections, min_size=8, max_size=8))
def test_a_description_comes_back(layout_at: int, body_at: int, raw_bytes: int, parts: list[bytes]) -> None:
    found = unpack_description(pack_description(Description(layout_at, body_at, raw_bytes, *parts)))
    assert found == (layout_at, body_at, raw_bytes, *parts)


@given(st.lists(sections, min_size=8, max_size=8), st.integers(1, 400))
def test_a_description_of_another_length_is_refused(parts: list[bytes], cut: int) -> None:
    data = pack_description(Description(0, 0, 0, *parts))
    with pytest.raises(ValueError, match=r"a description has at least|its sections have"):
        unpack_description(data[: max(0, len(data) - cut)])
    with pytest.raises(ValueError, match="its sections have"):
        unpack_description(data + bytes(cut))


@given(st.binary(max_size=300))
def test_any_bytes_are_a_description_or_are_refused(data: bytes) -> None:
    with contextlib.suppress(ValueError):
        found = unpack_description(data)
        assert FIXED.size + sum(len(part) for part in found[3:]) == len(data)


def test_a_description_that_is_too_long_is_never_written() -> None:
    class Long(bytes):
        def __len__(self) -> int:
            return META_BYTES_MAX + 1

    with pytest.raises(AssertionError, match="a description of"):
        pack_head(1, 2, 3, EntryKind.STEP, 0, Long(), 4)
