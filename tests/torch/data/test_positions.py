"""Parts of a position: the rest of an epoch for another number of processes, and random states that are read when drawn."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

from tranlogs.encoding.tree import decode, encode
from tranlogs_torch.data.loader_iteration import division_of, redivided, rest_of
from tranlogs_torch.data.rng import KeptRng, get_rng, set_rng
from tranlogs_torch.tensors.arrays import adapt, make_array, make_extension


def loader_of(samples: int, world: int, rank: int, batch: int) -> DataLoader[Any]:
    data = TensorDataset(torch.arange(samples))
    sampler: DistributedSampler[Any] = DistributedSampler(data, world, rank, seed=3)
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


@pytest.mark.parametrize(("before", "now", "batch"), [(4, 2, 3), (4, 1, 3), (1, 3, 3), (3, 4, 5), (2, 3, 1), (4, 2, 7)])
def test_each_sample_comes_once(before: int, now: int, batch: int) -> None:
    samples, done = 240, 5
    parts = [list(loader_of(samples, before, rank, 3).batch_sampler)[:done] for rank in range(before)]
    seen = [i for rank in parts for part in rank for i in part]
    used = len(seen)
    state = position(loader_of(samples, before, 0, 3), done, before)
    for rank in range(now):
        loader = loader_of(samples, now, rank, batch)
        found, told = redivided(state, loader, loader.batch_sampler, now)
        assert f"the {samples - used} samples of the epoch" in told
        assert found["rest"] == (found["batch"], used)
        rest = list(rest_of(loader.batch_sampler, found["rest"]))
        assert all(len(part) == batch for part in rest[:-1])
        seen += [i for part in rest for i in part]
    assert set(seen) == set(range(samples))
    assert len(seen) - samples < now  # so that all have as many


def test_a_rest_is_divided_again_and_ends_of_epochs_have_none() -> None:
    state, loader = position(loader_of(240, 4, 0, 5), 4, 4), loader_of(240, 2, 1, 5)
    once, _ = redivided(state, loader, loader.batch_sampler, 2)
    assert once["rest"] == (8, 80)
    later, loader = position(loader, 11, 2, rest=once["rest"]), loader_of(240, 3, 1, 5)
    assert redivided(later, loader, loader.batch_sampler, 3)[0]["rest"] == (7, 110)
    start = position(loader_of(240, 4, 0, 5), 0, 4)
    assert redivided(start, loader, loader.batch_sampler, 3) == (start, "")
    over, loader = position(loader_of(10, 4, 0, 3), 1, 4), loader_of(10, 2, 0, 3)  # 12 of the 10 samples: two came twice
    found, told = redivided(over, loader, loader.batch_sampler, 2)
    assert "the 0 samples of the epoch" in told
    assert list(rest_of(loader.batch_sampler, found["rest"])) == []


# Random states; those of Python and numpy alone are tested in tests/training.


@pytest.fixture
def random_state() -> Iterator[None]:
    state, generator = get_rng(), np.random.get_bit_generator()
    yield
    np.random.set_bit_generator(generator)
    torch.set_rng_state(state["torch"])
    np.random.set_state(state["numpy"])


DRAWS: dict[str, Callable[[], Any]] = {
    "torch": lambda: torch.rand(1),
    "python": random.random,
    "numpy": np.random.rand,
    "a pair of normals, its first": np.random.randn,
    "a pair of normals, its second": np.random.randn,
    "seed of torch": lambda: torch.manual_seed(3),
}


@pytest.mark.usefixtures("random_state")
def test_each_draw_is_noticed_and_nothing_else() -> None:
    kept = KeptRng()
    before = kept.now()
    for name, draw in DRAWS.items():
        assert kept.now() is before, f"before {name}: nobody drew"
        draw()
        after = kept.now()
        assert after is not before, name
        now = np.random.get_state(legacy=True)
        own = after.value["numpy"].value
        assert (own[1].tobytes(), *own[2:]) == (now[1].tobytes(), *now[2:]), name
        before = after


@pytest.mark.usefixtures("random_state")
@pytest.mark.parametrize("kind", ["PCG64", "Philox", "SFC64", "MT19937"])
def test_another_generator_of_numpys_comes_back(kind: str) -> None:
    kept = KeptRng()
    before = kept.now()
    np.random.set_bit_generator(getattr(np.random, kind)(1))
    now = kept.now()
    assert now is not before
    drawn = np.random.rand(3), np.random.randn(3)
    assert kept.now() is not now
    set_rng(decode(encode(now.value, adapt=adapt), make_array=make_array, make_extension=make_extension))
    assert [found.tobytes() for found in (np.random.rand(3), np.random.randn(3))] == [one.tobytes() for one in drawn]
