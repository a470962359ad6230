"""Digests of tensors: the same numbers as a reference in numpy, however the work is divided; any change of a word is seen."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support import campaign
from tranlogs.base.types import Array
from tranlogs_torch.device.digests import LENGTH, ROW_BYTES, ROW_WORDS, DeviceDigests, columns, rows
from tranlogs_torch.tensors.arrays import to_array

DTYPES = [torch.float32, torch.bfloat16, torch.float16, torch.float64, torch.uint8, torch.int64, torch.complex64, torch.bool]


def reference(tensor: torch.Tensor) -> int:
    """As the docstring of the module says it, one word after the other."""
    array = to_array(tensor)
    assert isinstance(array, Array)
    data = array.data.tobytes()
    padded = np.frombuffer(data + bytes(-len(data) % ROW_BYTES), "<i4")
    total = LENGTH * len(data)
    for j, b in enumerate(rows(len(padded) // ROW_WORDS)):
        row = padded[j * ROW_WORDS : (j + 1) * ROW_WORDS]
        total += int(b) * sum(int(a) * int(w) for a, w in zip(columns(), row, strict=True))
    return total % 2**64


def noise(shape: tuple[int, ...], dtype: torch.dtype, seed: int) -> torch.Tensor:
    """Any bytes at all (but a bool is 0 or 1)."""
    count = torch.Size(shape).numel() * dtype.itemsize
    raw = torch.from_numpy(np.random.default_rng(seed).integers(0, 2 if dtype is torch.bool else 256, count, np.uint8))
    return raw.view(dtype).view(shape) if count else torch.empty(shape, dtype=dtype)


shapes = st.one_of(
    st.tuples(st.integers(0, 700)),
    st.tuples(st.integers(0, 40), st.integers(1, 40)),
    st.just(()),
    st.tuples(st.integers(1, 4), st.integers(1, 9), st.integers(1, 9)),
)
layouts = st.sampled_from(["plain", "transposed", "gaps", "shifted"])


@settings(max_examples=campaign.examples(120), deadline=None)
@given(
    st.lists(st.tuples(shapes, st.sampled_from(DTYPES), layouts), min_size=1, max_size=9),
    st.integers(0, 99),
    st.sampled_from([1024, 2048, 1 << 20]),
    st.sampled_from([1, 1500, 1 << 20]),
)
def test_equals_the_reference(
    kinds: list[tuple[tuple[int, ...], torch.dtype, str]], seed: int, window: int, direct: int
) -> None:
    tensors = []
    for k, (shape, dtype, layout) in enumerate(kinds):
        tensor = noise(shape, dtype, seed + k)
        if layout == "transposed":
            tensor = tensor.permute(tuple(reversed(range(tensor.dim()))))
        elif layout == "gaps" and tensor.dim():
            tensor = tensor[..., ::2]
        elif layout == "shifted" and tensor.numel():
            tensor = torch.cat([tensor.reshape(-1)[:1], tensor.reshape(-1)])[1:].view(shape)  # begins within a word
        tensors.append(tensor)
    machine = DeviceDigests(window, direct)
    wanted = [reference(tensor) for tensor in tensors]
    assert machine.digests(tensors).tolist() == wanted
    assert machine.digests(tensors).tolist() == wanted  # with what was kept


@settings(max_examples=campaign.examples(60), deadline=None)
@given(st.integers(1, 3000), st.data())
def test_every_change_of_one_word_is_seen(count: int, data: st.DataObject) -> None:
    tensor = noise((count,), torch.int32, count)
    machine = DeviceDigests(2048, 1500)
    before = machine.digests([tensor])
    at = data.draw(st.integers(0, count - 1))
    tensor[at] ^= data.draw(st.integers(-(2**31), 2**31 - 1).filter(bool))
    assert machine.digests([tensor]) != before


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("count", [2, 256, 4096])
def test_flipped_signs_do_not_cancel(dtype: torch.dtype, count: int) -> None:
    tensor = torch.ones(count, dtype=dtype)
    machine = DeviceDigests()
    before = machine.digests([tensor])
    tensor.neg_()
    assert machine.digests([tensor]) != before


def test_values_that_change_places_are_seen() -> None:
    tensor = torch.arange(4096.0)
    machine = DeviceDigests()
    before = machine.digests([tensor])
    assert machine.digests([tensor.roll(1)]) != before
    assert machine.digests([tensor.view(4, 1024).flip(0).reshape(-1)]) != before


def test_memory_that_was_exchanged_is_read_anew() -> None:
    parameter = torch.nn.Parameter(torch.zeros(1 << 19))
    machine = DeviceDigests(direct_bytes=1024)
    machine.digests([parameter])
    parameter.data = torch.ones(1 << 19)
    assert machine.digests([parameter]) == DeviceDigests().digests([parameter])


def test_threads_and_division_do_not_matter() -> None:
    tensors = [noise((513, 777), torch.float32, 1), noise((65537,), torch.bfloat16, 2), noise((3,), torch.uint8, 3)]
    threads = torch.get_num_threads()
    try:
        found = []
        for count in (1, 2, 4):
            torch.set_num_threads(count)
            found += [DeviceDigests(w, d).digests(tensors).tolist() for w in (4096, 1 << 22) for d in (2048, 1 << 22)]
    finally:
        torch.set_num_threads(threads)
    assert all(one == found[0] for one in found)


def test_nothing_gives_no_digests() -> None:
    assert DeviceDigests().digests([torch.empty(0)]).tolist() == [0]
    assert DeviceDigests().digests([]).tolist() == []
