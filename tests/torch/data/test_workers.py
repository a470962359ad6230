"""Loaders with workers go on at the exact next batch, and what their workers draw is named."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest
from torch.utils.data import (
    DataLoader,
)

from tests.support import campaign
from tests.torch.data.test_data import Shuffling, training
from tests.torch.lab import Attempt, in_child, prove_exact, uninterrupted
from tests.torch.sources import SOURCES

WITH_WORKERS = (
    "shuffled",
    "one by one",
    "generator of its own",
    "eager draws",
    "lazy draws",
    "stream",
    "unloggable indices",
    "counter with state",
    "batch sampler of one's own",
)


@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    ("name", "persistent"),
    [
        *((name, True) for name in WITH_WORKERS),
        ("stream", False),
        *(campaign.in_soak(name, False) for name in WITH_WORKERS if name != "stream"),
    ],
)
def test_next_batch_is_the_exact_one_with_workers(name: str, persistent: bool, tmp_path: Path) -> None:
    script = partial(training, make=SOURCES[name], num_workers=2, persistent_workers=persistent)
    is_exact = True if name == "stream" and not persistent else None  # numbers drawn in workers are not brought back
    prove_exact(script, tmp_path / "run", (6, 9), is_exact=is_exact, checkpoint_every=1000)


@pytest.mark.parametrize("workers", [(2, 0), (0, 2)])
def test_number_of_workers_may_change(workers: tuple[int, int], tmp_path: Path) -> None:
    """A sampler that draws when it is asked for an iterator is asked twice with workers: as often as before the crash."""
    before, after = (partial(training, make=SOURCES["eager draws"], num_workers=n) for n in workers)
    right, last = uninterrupted(before), Attempt(tmp_path / "run")
    assert in_child(lambda: before(Attempt(tmp_path / "run", 18))) < 0
    after(last)
    assert min(last.seen) == 17
    assert [last.seen[n] for n in range(17, 24)] == [right.seen[n] for n in range(17, 24)]  # the rest of the epoch


def test_stream_that_shuffles_in_a_worker_comes_back(tmp_path: Path) -> None:
    """The worker has random numbers to itself."""
    prove_exact(partial(training, make=lambda **o: DataLoader(Shuffling(), 4, num_workers=1, **o)), tmp_path / "run", (6, 9))


def test_random_numbers_in_workers_are_spoken_of(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    run = tmp_path / "run"
    script = partial(training, make=SOURCES["shuffled"], num_workers=2)
    in_child(lambda: script(Attempt(run, 6)))
    last = Attempt(run)
    script(last)
    assert "workers" in caplog.text
    assert any("workers" in note for note in last.kept["optimizer"].report.notes)
    assert last.kept["optimizer"].report.exact is None


@pytest.mark.sampled(1)
@pytest.mark.parametrize("die_at", [13, 20])
def test_persistent_workers_that_draw_are_named_between_epochs_too(die_at: int, tmp_path: Path) -> None:
    script = partial(training, make=SOURCES["shuffled"], num_workers=2, persistent_workers=True)
    assert in_child(lambda: script(Attempt(tmp_path / "run", die_at))) < 0
    last = Attempt(tmp_path / "run")
    script(last)
    assert last.reports[0].exact is None
    assert any("random numbers drawn inside DataLoader workers" in note for note in last.reports[0].notes)
