"""Parts put together: boxes that overlap, that are there twice, that are missing; and how they are read from checkpoints."""

from __future__ import annotations

import itertools
import math
from pathlib import Path

import pytest
import torch

from tranlogs.base.types import Array, Piece
from tranlogs.checkpoints import Snapshot
from tranlogs.log.record_format import Position
from tranlogs.recovery.group.reshard import write_snapshot
from tranlogs_torch.elastic.former_checkpoint import FormerCheckpoint
from tranlogs_torch.elastic.shard_loading import Target
from tranlogs_torch.elastic.transfer_plan import StoredBox, cut, pieces
from tranlogs_torch.tensors.arrays import Place, adapt, to_array

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
