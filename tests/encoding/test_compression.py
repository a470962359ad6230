"""Codec `auto`: bit-exact for every pattern, never larger, and damaged bytes are refused without taking memory."""

from __future__ import annotations

import struct

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tests.support import campaign
from tranlogs.base.types import Bytes
from tranlogs.encoding.compression import Codec, compress, decompress

SIZES = [0, 1, 3, 4, 7, 63, 64, 255, 256, 257, 4099, 262_144]


def patterns(size: int, seed: int) -> dict[str, Bytes]:
    """Bytes that are, almost are, or only look like what a codec takes, at its sample points."""
    rng = np.random.default_rng(seed)
    noise = rng.integers(0, 256, size, np.uint8)
    zeros = np.zeros(size, np.uint8)
    last, sampled = zeros.copy(), zeros.copy()
    last[-1:] = 1
    sampled[:: max(1, size // 64)] = 255
    high = noise.copy()
    high[: size // 4 * 4].view(np.uint16)[0::2] = 0
    almost_high = high.copy()
    almost_high[size // 4 * 4 - 4 : size // 4 * 4 - 3] = 1
    rows = zeros.copy()
    rows[: size // 50] = noise[: size // 50]
    nans = np.tile(
        np.frombuffer(struct.pack("<IIII", 0xFFC10000, 0x7FF80001, 0x80000000, 0x7F800001), np.uint8), size // 16 + 1
    )
    quiet = np.tile(np.frombuffer(struct.pack("<I", 0xFFC10000), np.uint8), size // 4 + 1)
    return {
        "noise": noise,
        "zeros": zeros,
        "last": last,
        "sampled": sampled,
        "high": high,
        "almost_high": almost_high,
        "rows": rows,
        "nan payloads": nans[:size],
        "bf16 nans": quiet[:size],
        "ones": zeros + 1,
    }


def round_trip(data: Bytes) -> Codec:
    codec, stored = compress(data)
    assert stored.nbytes <= data.nbytes
    out = np.full(data.nbytes, 0xA5, np.uint8)
    decompress(codec, stored, out)
    assert out.tobytes() == data.tobytes()
    return codec


@pytest.mark.parametrize("size", SIZES)
def test_every_pattern_is_bit_exact_and_never_larger(size: int) -> None:
    for name, data in patterns(size, seed=size).items():
        assert round_trip(data) in Codec, name


@given(st.binary(max_size=2000), st.integers(1, 40))
@settings(max_examples=campaign.examples(150))
@example(b"\0" * 255 + b"\1", 1)
@example(b"\0\0\x80\x3f" * 64 + b"\1", 1)
def test_random_bytes_are_bit_exact_and_never_larger(data: bytes, repeats: int) -> None:
    round_trip(np.frombuffer(data * repeats, np.uint8))  # which nobody may write to
    round_trip(np.frombuffer(data * repeats + b"\0", np.uint8)[1:])  # and which is not aligned


@pytest.mark.parametrize(
    ("pattern", "codec"),
    [
        ("noise", Codec.RAW),
        ("zeros", Codec.ZERO),
        ("high", Codec.HIGH16),
        ("almost_high", Codec.RAW),
        ("rows", Codec.NONZERO),
        ("bf16 nans", Codec.HIGH16),
        ("nan payloads", Codec.RAW),
    ],
)
def test_fp32_patterns_get_the_codec_that_fits(pattern: str, codec: Codec) -> None:
    assert round_trip(patterns(262_144, seed=1)[pattern]) is codec


@pytest.mark.parametrize("zeros", [0.75, 0.9, 0.999])
@pytest.mark.parametrize("words", [64, 65, 71, 9_999])
def test_words_that_are_not_zero_are_stored_with_one_bit_for_each_word(zeros: float, words: int) -> None:
    rng = np.random.default_rng(words)
    values = rng.standard_normal(words).astype(np.float32)
    values[rng.permutation(words)[: int(words * zeros)]] = 0
    values[0], values[-1] = -0.0, 1.5  # negative zero is a word that is not zero
    codec, stored = compress(values.view(np.uint8))
    assert codec is Codec.NONZERO
    assert stored.nbytes == 4 * np.count_nonzero(values.view(np.uint32)) + -(-words // 8)
    assert round_trip(values.view(np.uint8)) is codec


def test_bits_that_fit_to_no_word_are_refused() -> None:
    values = np.zeros(68, np.float32)
    values[3] = 1.0
    codec, stored = compress(values.view(np.uint8))
    assert codec is Codec.NONZERO
    damaged = stored.copy()
    damaged[-1], damaged[4] = 0x80, 0  # word 71 of 68 in place of word 3
    with pytest.raises(ValueError, match="expected 68 words, got one with the number 71"):
        decompress(codec, damaged, np.zeros(272, np.uint8))
    with pytest.raises(ValueError, match="expected 13 bytes, got 17"):
        decompress(codec, np.append(np.zeros(4, np.uint8), stored), np.zeros(272, np.uint8))


@given(st.integers(0, 6), st.binary(max_size=400), st.integers(0, 1000))
@settings(max_examples=campaign.examples(200))
def test_any_stored_bytes_fill_the_output_or_are_refused(codec: int, stored: bytes, size: int) -> None:
    out = np.zeros(size, np.uint8)
    try:
        decompress(codec, np.frombuffer(stored, np.uint8), out)
    except ValueError:
        return
    assert codec in set(Codec)
