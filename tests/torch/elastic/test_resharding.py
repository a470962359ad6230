"""Parts put together: boxes that overlap, that are there twice, that are missing; and how they are cut for sending."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
import torch

from tranlogs.base.types import Piece
from tranlogs.recovery.group.resharding import _choose_owner
from tranlogs_torch.elastic import transfer_plan
from tranlogs_torch.elastic.resharding import Target
from tranlogs_torch.elastic.transfer_plan import Told, bundles
from tranlogs_torch.sharding.overlap import cut
from tranlogs_torch.tensors.placement import Place

WHOLE = torch.arange(35.0).reshape(7, 5)


def target_at(tensor: torch.Tensor, offset: tuple[int, ...]) -> Target:
    return Target(tensor, [(offset, tensor)])


def put(target: Target, rank: int, rows: tuple[int, int], columns: tuple[int, int] = (0, 5), change: float = 0.0) -> None:
    values = WHOLE[slice(*rows), slice(*columns)] + change
    target.put(rank, (rows[0], columns[0]), values)


def test_rows_over_other_rows() -> None:
    for parts in ([(0, 3), (3, 6), (6, 7)], [(0, 7)], [(0, 2), (2, 4), (4, 6), (6, 7), (7, 7)]):
        target = target_at(torch.full((4, 5), -1.0), (2, 0))
        for rank, rows in enumerate(parts):
            put(target, rank, rows)
        assert torch.equal(target.tensor, WHOLE[2:6])
        assert target.is_whole
        assert target.clash is None


def test_columns_over_rows() -> None:
    target = target_at(torch.full((3, 5), -1.0), (4, 0))
    put(target, 0, (0, 7), (0, 3))
    assert not target.is_whole
    put(target, 1, (0, 7), (3, 5))
    assert torch.equal(target.tensor, WHOLE[4:])
    assert target.is_whole


def test_a_part_that_is_there_twice_must_be_the_same() -> None:
    target = target_at(torch.full((7, 5), -1.0), (0, 0))
    put(target, 0, (0, 4))
    put(target, 1, (4, 7))
    put(target, 2, (0, 4))
    assert target.is_whole
    assert target.clash is None
    put(target, 3, (4, 7), change=1.0)
    assert target.clash == (1, 3)
    assert torch.equal(target.tensor, WHOLE)


def test_numbers_without_dimensions_and_parts_without_elements() -> None:
    number = target_at(torch.tensor(-1.0), ())
    number.put(0, (), torch.tensor(3.0))
    number.put(1, (), torch.tensor(3.0))
    assert (number.tensor.item(), number.is_whole, number.clash) == (3.0, True, None)
    empty = target_at(torch.empty(0, 5), (7, 0))
    put(empty, 0, (0, 7))
    assert empty.is_whole


@pytest.mark.parametrize("shape", [(7,), (5, 4), (3, 4, 5), (2, 3, 2, 2), (1, 1, 6), (4, 0), ()])
def test_a_flat_range_is_dealt_out_in_few_boxes(shape: tuple[int, ...]) -> None:
    """From ranges to ranges, to rows, and back."""
    size = math.prod(shape)
    whole = torch.arange(float(size)).reshape(shape)
    for first, end in itertools.combinations(range(size + 1), 2):
        place = Place(shape, Piece("flat", (first,), (end - first,)))
        found = cut(whole.reshape(-1)[first:end], place)
        assert len(found) <= max(1, 2 * len(shape) - 1)
        assert sum(box.numel() for _, box in found) == end - first
        again = target_at(torch.full(shape, -1.0), (0,) * len(shape))
        for offset, box in found:
            again.put(0, offset, box)
        assert torch.equal(again.tensor.reshape(-1)[first:end], whole.reshape(-1)[first:end])
        held = torch.full((end - first,), -1.0)
        taken = Target(held, cut(held, place))
        taken.put(0, (0,) * len(shape), whole)
        assert taken.is_whole
        assert torch.equal(held, whole.reshape(-1)[first:end])


@pytest.mark.parametrize("bundle_bytes", [1, 40, 1 << 20])
def test_a_process_is_sent_what_it_wants_and_no_more(monkeypatch: pytest.MonkeyPatch, bundle_bytes: int) -> None:
    """Rows of before over columns of now; a number without dimensions; a part without elements, on either side."""
    monkeypatch.setattr(transfer_plan, "_BUNDLE_BYTES", bundle_bytes)
    before = [
        Told("a", "float32", (0, 0), (3, 5), (7, 5), "a"),
        Told("a", "float32", (3, 0), (4, 5), (7, 5), "a"),
        Told("b", "float32", (), (), (), ""),
        Told("c", "float32", (7, 0), (0, 5), (7, 5), "c"),
    ]
    held = {(0, 0): WHOLE[:3], (3, 0): WHOLE[3:], (): torch.tensor(3.0)}
    columns = torch.full((7, 2), -1.0)
    targets = {"a": Target(columns, [((0, 3), columns)]), "b": target_at(torch.tensor(-1.0), ()), "c": Target(columns, [])}
    found = list(bundles(before, {name: target.boxes for name, target in targets.items()}))
    for bundle in found:
        assert len(bundle) == 1 or sum(piece.nbytes for piece in bundle) <= bundle_bytes
        for piece in bundle:
            values = np.frombuffer(piece.cut_from(held[piece.told.offset]), np.float32).reshape(piece.length)
            targets[piece.told.name].put(0, piece.offset, torch.from_numpy(values.copy()))
    assert torch.equal(columns, WHOLE[:, 3:])
    assert targets["a"].is_whole
    assert targets["b"].tensor.item() == 3.0
    assert sum(piece.nbytes for bundle in found for piece in bundle) == 7 * 2 * 4 + 4
    assert not list(bundles(before[:2], {"a": [((2, 5), (3, 0))]}))


def test_a_journal_is_redone_by_its_own_process_or_by_one_that_can_read_it() -> None:
    readers = [[0, 3], [1, 2, 3], [2, 3]]
    assert [_choose_owner(rank, readers, 3) for rank in range(4)] == [0, 1, 2, 0]
    assert _choose_owner(3, [[0], [1, 3]], 2) == 1
