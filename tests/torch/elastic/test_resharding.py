"""Parts put together: boxes that overlap, that are there twice, that are missing; and how they are read from checkpoints."""

from __future__ import annotations

import itertools
import math
from pathlib import Path

import numpy as np
import pytest
import torch

from tranlogs.base.types import Array, Piece
from tranlogs.checkpoints import Snapshot
from tranlogs.log.record_format import Position
from tranlogs.recovery.group.reshard import choose_owner, write_snapshot
from tranlogs_torch.elastic import transfer_plan
from tranlogs_torch.elastic.former_checkpoint import FormerCheckpoint
from tranlogs_torch.elastic.shard_loading import Target
from tranlogs_torch.elastic.transfer_plan import StoredBox, bundles, pieces
from tranlogs_torch.sharding.overlap import cut
from tranlogs_torch.tensors.arrays import adapt, to_array
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


def checkpoint_of(folder: Path, tensors: dict[str, torch.Tensor], places: dict[str, Place]) -> FormerCheckpoint:
    """Return a former rank's checkpoint with these tensors, of which some are parts."""
    arrays = {f"param/{name}": to_array(tensor) for name, tensor in tensors.items()}
    for name, place in places.items():
        array = arrays[f"param/{name}"]
        assert isinstance(array, Array)
        array.whole, array.piece = place
    snapshot = Snapshot(arrays, {"optimizers": {}, "born": [], "boundary": {"waiting": {}, "buffers": {}}})
    snapshot.encode(adapt)
    write_snapshot(folder, snapshot, Position(1, 1, 1, 1), {"environment": {}})
    return FormerCheckpoint(folder)


@pytest.mark.parametrize("bundle_bytes", [1, 40, 1 << 20])
def test_a_process_reads_what_it_wants_and_no_more(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, bundle_bytes: int) -> None:
    """Rows of before over columns of now; a number without dimensions; a part without elements, on either side."""
    monkeypatch.setattr(transfer_plan, "_BUNDLE_BYTES", bundle_bytes)
    parts = {"a": (WHOLE[:3], (0, 0)), "b": (WHOLE[3:], (3, 0)), "d": (WHOLE[7:], (7, 0))}
    places = {name: Place((7, 5), Piece("box", offset, tuple(part.shape))) for name, (part, offset) in parts.items()}
    tensors = {name: part.contiguous() for name, (part, _) in parts.items()} | {"c": torch.tensor(3.0)}
    columns = torch.full((7, 2), -1.0)
    targets = {name: Target(columns, [((0, 3), columns)]) for name in parts} | {"c": target_at(torch.tensor(-1.0), ())}
    wanted = {f"param/{name}": target.boxes for name, target in targets.items()}
    with checkpoint_of(tmp_path / "former", tensors, places) as checkpoint:
        stored = [StoredBox(*one) for one in checkpoint.describe({}, with_body=True)["tensors"]]
        found = list(bundles(stored, wanted))
        for bundle in found:
            assert len(bundle) == 1 or sum(piece.nbytes for piece in bundle) <= bundle_bytes
            for piece in bundle:
                values = checkpoint.read_piece(piece).view(np.float32).reshape(piece.length)
                targets[piece.box.name.removeprefix("param/")].put(0, piece.offset, torch.from_numpy(values.copy()))
        assert not list(bundles(stored, {"param/a": [((2, 5), (3, 0))]}))
    assert torch.equal(columns, WHOLE[:, 3:])
    assert targets["c"].tensor.item() == 3.0
    assert sum(piece.nbytes for bundle in found for piece in bundle) == 7 * 2 * 4 + 4


@pytest.mark.parametrize("shape", [(7,), (5, 4), (3, 4, 5)])
def test_a_stored_range_is_read_into_rows(tmp_path: Path, shape: tuple[int, ...]) -> None:
    """The parts of FullyShardedDataParallel, of which the boxes lie one after another in the file."""
    size = math.prod(shape)
    whole = torch.arange(float(size), dtype=torch.bfloat16).reshape(shape)
    ranges = [(0, size // 3), (size // 3, size // 3), (size // 3, size)]
    target = target_at(torch.full(shape, -1.0, dtype=torch.bfloat16), (0,) * len(shape))
    for rank, (first, end) in enumerate(ranges):
        place = Place(shape, Piece("flat", (first,), (end - first,)))
        with checkpoint_of(tmp_path / str(rank), {"a": whole.reshape(-1)[first:end]}, {"a": place}) as checkpoint:
            stored = [StoredBox(*one) for one in checkpoint.describe({}, with_body=False)["tensors"]]
            for piece in pieces(stored, {"param/a": target.boxes}):
                values = torch.frombuffer(bytearray(checkpoint.read_piece(piece)), dtype=torch.bfloat16)
                target.put(rank, piece.offset, values.reshape(piece.length))
    assert target.is_whole
    assert torch.equal(target.tensor, whole)


def test_a_journal_is_compacted_by_its_own_process_or_by_one_that_can_read_it() -> None:
    assert [choose_owner(rank, able, 3) for rank, able in enumerate([[0], [1], [1, 2], [0, 1, 2]])] == [0, 1, 2, 0]
    assert choose_owner(3, [1], 2) == 1
