"""Long lists of numbers of a loop: equal to the bit after any change, and cheap where they only grow."""

from __future__ import annotations

import math
import struct
from collections.abc import Iterator
from typing import Any
from unittest.mock import patch

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support import campaign
from tranlogs.base.types import Extension
from tranlogs.encoding import tree
from tranlogs.rehearsal.compare_runs import find_difference
from tranlogs.training.loop_state import number_lists
from tranlogs.training.loop_state.number_lists import BLOCK, NumberLists, as_list, restore_numbers

NAN = struct.unpack("<d", struct.pack("<Q", 0x7FF8000000000123))[0]  # with a payload
FLOATS = st.floats(width=64) | st.sampled_from([0.0, -0.0, NAN, math.inf])
INTS = st.integers(-(1 << 63), (1 << 63) - 1)


def restored(stored: tuple[Any, ...]) -> list[Any]:
    """The list that a record gives."""
    far: list[Any] = []
    blob = tree.encode(stored, out_of_line=far)
    found = tree.decode(blob, lambda index, like: far[index])
    assert found[0] == "numbers"
    return restore_numbers(*found[1:])


def bits(values: list[Any]) -> list[tuple[type, bytes]]:
    """Types and bits: -0.0 is not 0.0, and a NaN has a payload."""
    return [(type(value), struct.pack("<d" if type(value) is float else "<q", value)) for value in values]


@pytest.fixture(params=["memory", "items"], autouse=True)
def way(request: pytest.FixtureRequest) -> Iterator[None]:
    """Both ways to recognise a list: by the memory of CPython's lists, and item by item."""
    with patch.object(number_lists, "is_memory_telling", lambda: request.param == "memory"):
        yield


CHANGES: dict[str, Any] = {
    "append": lambda values, x: values.append(x),
    "many": lambda values, x: values.extend([x] * (BLOCK * 17 + 3)),
    "set": lambda values, x: values.__setitem__(len(values) // 2, x),
    "first": lambda values, x: values.__setitem__(0, x),
    "insert": lambda values, x: values.insert(3, x),
    "pop": lambda values, x: values.pop(),
    "pop first": lambda values, x: values.pop(0),
    "reverse": lambda values, x: values.reverse(),
    "shorter": lambda values, x: values.__delitem__(slice(BLOCK + 1, None)),
    "nothing": lambda values, x: None,
}


@pytest.mark.parametrize("kind", [FLOATS, INTS], ids=["float", "int"])
@given(st.data())
@settings(max_examples=campaign.examples(40), deadline=None)
def test_list_comes_back_to_the_bit_whatever_is_done_to_it(kind: st.SearchStrategy[Any], data: st.DataObject) -> None:
    values = [data.draw(kind) for _ in range(3)] * 400
    lists = NumberLists()
    for _ in range(data.draw(st.integers(1, 6))):
        stored = lists.store(values)
        lists.end_boundary()
        assert stored is not None
        assert bits(restored(stored)) == bits(values)
        CHANGES[data.draw(st.sampled_from(sorted(CHANGES)))](values, data.draw(kind))
        if len(values) < BLOCK:
            values += [values[0]] * BLOCK


@pytest.mark.parametrize(
    "item", [True, 1, 1 << 63, None, "1", (1.0,)], ids=["bool", "int among floats", "too large", "none", "text", "tuple"]
)
def test_list_of_anything_else_is_stored_item_by_item(item: Any) -> None:
    lists = NumberLists()
    values: list[Any] = [0 if item == 1 << 63 else 0.5] * BLOCK
    assert lists.store(values) is not None
    values.append(item)
    assert lists.store(values) is None
    del values[-1]
    assert lists.store(values) is not None
    assert lists.store(values[:-1]) is None, "a short one, too"


def test_a_boundary_has_few_blocks_and_few_bytes_of_its_own_however_long_the_list_is() -> None:
    lists, values, seen, written = NumberLists(), [0.5] * BLOCK, set[bytes](), 0
    for number in range(BLOCK * 20):
        values.append(float(number))
        stored = lists.store(values)
        assert stored is not None
        *_, blocks, recent, last = stored
        assert len(blocks) < 32
        assert len(last) < 256
        for part in (*(block.tobytes() for block in blocks), recent.value):
            written += 0 if part in seen else len(part)
            seen.add(part)
        written += len(last)
    assert written / (BLOCK * 20) < 250, "bytes for each number"


@pytest.mark.parametrize(
    ("count", "blocks", "text"),
    [(BLOCK * 2 + 1, 0, "40 numbers in a list of 513"), (3, 1, "296 numbers in a list of 3")],
)
def test_damaged_count_is_refused(count: int, blocks: int, text: str) -> None:
    stored = NumberLists().store([0.5] * (BLOCK + 40))
    assert stored is not None
    with pytest.raises(ValueError, match=text):
        restore_numbers("float", count, stored[3][:blocks], *stored[4:])
    with pytest.raises(ValueError, match="a block of float64 in a list of int"):
        restore_numbers("int", BLOCK + 40, *stored[3:])


def test_stored_lists_are_compared_item_by_item() -> None:
    values = [0.5] * 1500
    first = NumberLists().store(values)
    values[1030] = 1.5
    second = NumberLists().store(values)
    assert find_difference({"curve": first}, {"curve": second}, "state") == ("state.curve[1030]", "1.5 instead of 0.5")
    assert as_list(Extension("numbers", second)) == values
    assert as_list(("numbers", "float", 3, [], b"")) == ("numbers", "float", 3, [], b""), "a tuple of the script's own"
