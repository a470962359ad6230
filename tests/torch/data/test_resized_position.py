"""The rest of an epoch, divided among another number of processes."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, DistributedSampler, RandomSampler, TensorDataset

from tranlogs_torch.data.resized_position import division_of, redivided, rest_of


def loader_of(samples: int, world: int, rank: int, batch: int, **options: Any) -> DataLoader[Any]:
    data = TensorDataset(torch.arange(samples))
    sampler: DistributedSampler[Any] = DistributedSampler(data, world, rank, seed=3, **options)
    sampler.set_epoch(2)
    return DataLoader(data, batch, sampler=sampler)


def position(loader: DataLoader[Any], batch: int, world: int, **more: Any) -> dict[str, Any]:
    """As a LoaderPosition records it."""
    return {
        "batch": batch,
        "world": world,
        "division": division_of(loader.batch_sampler),
        "rest": None,
        "index": {"drawn": batch, "seen": batch, "ahead": [], "order": 1},
        "sizes": {"samples": len(loader.dataset), "batch_size": loader.batch_size},
        **more,
    }


def consumed(world: int, batches: int, batch: int, samples: int) -> list[int]:
    return [
        i
        for rank in range(world)
        for part in list(loader_of(samples, world, rank, batch).batch_sampler)[:batches]
        for i in part
    ]


@pytest.mark.parametrize(("before", "now", "batch"), [(4, 2, 3), (4, 1, 3), (1, 3, 3), (3, 4, 5), (2, 3, 1), (4, 2, 7)])
def test_each_sample_comes_once(before: int, now: int, batch: int) -> None:
    samples, done = 240, 5
    seen = consumed(before, done, 3, samples)
    used = len(seen)
    state = position(loader_of(samples, before, 0, 3), done, before)
    for rank in range(now):
        loader = loader_of(samples, now, rank, batch)
        found, told = redivided(state, loader, loader.batch_sampler, now)
        assert f"the {samples - used} samples of the epoch" in told
        assert found["rest"] == (found["batch"], used)
        parts = list(rest_of(loader.batch_sampler, found["rest"]))
        assert all(len(part) == batch for part in parts[:-1])
        seen += [i for part in parts for i in part]
    assert set(seen) == set(range(samples))
    assert len(seen) - samples < now  # so that all have as many


def test_a_rest_is_divided_again() -> None:
    state = position(loader_of(240, 4, 0, 5), 4, 4)
    loader = loader_of(240, 2, 1, 5)
    once, _ = redivided(state, loader, loader.batch_sampler, 2)
    assert once["rest"] == (8, 80)
    later = position(loader, 11, 2, rest=once["rest"])
    loader = loader_of(240, 3, 1, 5)
    twice, _ = redivided(later, loader, loader.batch_sampler, 3)
    assert twice["rest"] == (7, 110)


def test_an_epoch_that_is_over_has_no_rest() -> None:
    state = position(loader_of(10, 4, 0, 3), 1, 4)  # 12 of the 10 samples: two came twice
    loader = loader_of(10, 2, 0, 3)
    found, told = redivided(state, loader, loader.batch_sampler, 2)
    assert "the 0 samples of the epoch" in told
    assert list(rest_of(loader.batch_sampler, found["rest"])) == []


def test_the_start_of_an_epoch_needs_nothing() -> None:
    loader = loader_of(240, 2, 0, 5)
    state = position(loader_of(240, 4, 0, 5), 0, 4)
    assert redivided(state, loader, loader.batch_sampler, 2) == (state, "")


@pytest.mark.parametrize("what", ["seed", "samples", "kind"])
def test_another_order_goes_on_at_the_same_part(what: str) -> None:
    state = position(loader_of(240, 4, 0, 5), 4, 4)
    loader = loader_of(241 if what == "samples" else 240, 2, 0, 5)
    if what == "seed":
        loader.sampler.seed = 4  # type: ignore[attr-defined]
    if what == "kind":
        loader = DataLoader(loader.dataset, 5, sampler=RandomSampler(loader.dataset))  # type: ignore[arg-type]
    found, told = redivided(state, loader, loader.batch_sampler, 2)
    assert (found["batch"], found["rest"], found["index"]["seen"]) == (8, None, 8)
    assert "some of its samples may be used twice or not at all" in told
