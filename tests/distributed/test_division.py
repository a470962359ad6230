"""Which range of the gradients each rank logs, and what it costs."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tests.cli.conftest import Cli
from tranlogs.base.types import Array
from tranlogs_torch.ddp.gradient_ranges import digest, portions
from tranlogs_torch.tensors.arrays import from_array, to_array


def gradients() -> list[tuple[str, torch.Tensor]]:
    """Of all kinds."""
    torch.manual_seed(0)
    sparse = torch.sparse_coo_tensor(torch.tensor([[1, 3]]), torch.randn(2, 4), (6, 4), check_invariants=True)
    return [
        ("row", torch.randn(7, 5)),
        ("last", torch.randn(2, 3, 4, 5).to(memory_format=torch.channels_last)),
        ("transposed", torch.randn(6, 3).t()),
        ("empty", torch.zeros(0, 4)),
        ("scalar", torch.randn(())),
        ("sparse", sparse),
        ("half", torch.randn(9).to(torch.bfloat16)),
        ("expanded", torch.randn(3, 1).expand(3, 4)),
        ("one", torch.randn(1, 8)),
    ]


@pytest.mark.parametrize("world", [1, 2, 3, 4, 7, 50])
def test_portions_of_all_ranks_make_every_gradient_whole(world: int) -> None:
    named = gradients()
    parts = [portions(named, rank, world) for rank in range(world)]
    for name, gradient in named:
        found = [portion for part in parts for portion in part if portion.name == name]
        if gradient.is_sparse or gradient.numel() == 0:
            assert len(found) == 1
            assert found[0].tensor is gradient
            continue
        whole = to_array(gradient)
        assert isinstance(whole, Array)
        at, data = 0, []
        for portion in found:
            content = portion.placed(to_array(portion.tensor))
            assert isinstance(content, Array)
            assert content.piece is not None
            assert content.piece.offset == (at,)
            assert (content.whole, content.strides) == (whole.shape, whole.strides)
            at += content.piece.length[0]
            data.append(content.data)
        joined = from_array(Array(whole.dtype, whole.shape, np.concatenate(data), whole.strides))
        assert joined.stride() == from_array(whole).stride()
        assert torch.equal(joined, gradient)


def test_shares_are_equal_whatever_the_parameters_are() -> None:
    chance = random.Random(3)
    named = [(str(i), torch.zeros(chance.choice([1, 10, 1000, 40_000]))) for i in range(60)]
    sizes = [sum(portion.tensor.numel() for portion in portions(named, rank, 5)) for rank in range(5)]
    assert max(sizes) - min(sizes) <= 1
    assert sum(sizes) == sum(gradient.numel() for _, gradient in named)


def test_digest_tells_values_names_and_layouts_apart() -> None:
    values = torch.arange(12.0).reshape(3, 4)
    found = {
        digest([("a", values)]),
        digest([("b", values)]),
        digest([("a", values.reshape(4, 3))]),
        digest([("a", values.t().contiguous().t())]),
        digest([("a", values + 1)]),
        digest([("a", values.double())]),
    }
    assert len(found) == 6
    assert digest([("a", values)]) == digest([("a", values.clone())])


def test_each_rank_logs_its_share_of_the_bytes(divided: Path, cli: Cli) -> None:
    ranks: list[Any] = cli("log", divided, "--limit", "0", "--json").json["ranks"]
    dense = [sum(r["dense_bytes"] for r in rank["records"] if r["kind"] == "gradients") for rank in ranks]
    parameters = 40 * 5 + 5 + 40 * 40 + 40 + 8 * 40 + 40 + 2 * 40
    assert sum(dense) == parameters * 4 * 48
    assert max(dense) - min(dense) <= 48 * 8
