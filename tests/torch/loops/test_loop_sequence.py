"""Several loops in one run: each counts from 0, finished ones yield nothing after a crash, and the next goes on."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from tests.support.campaign import few
from tests.torch.lab import Attempt, differences, in_child, prove_exact, uninterrupted
from tests.torch.nets import seed
from tranlogs.base.errors import UsageError

Body = Callable[[torch.Tensor], None]


def begin(attempt: Attempt) -> tuple[Any, Any, Any, Body]:
    seed()
    model = torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.Dropout(0.5), torch.nn.Linear(3, 1))
    loader = torch.utils.data.DataLoader(torch.randn(12, 4), batch_size=4, shuffle=True)
    optimizer = attempt.wrap(torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9), model)
    attempt.start(optimizer, loader=loader)
    attempt.keep(model=model, optimizer=optimizer)

    def train(batch: torch.Tensor) -> None:
        model(batch).square().sum().backward()
        attempt.tick()
        optimizer.step()
        optimizer.zero_grad()

    return model, loader, optimizer, train


def train_epochs(optimizer: Any, loader: Any, train: Body, count: int) -> Iterator[int]:
    for epoch in optimizer.epochs(count, loader):
        for batch in epoch:
            train(batch)
        yield int(epoch)


def change(attempt: Attempt, model: Any, optimizer: Any) -> None:
    """Change all that code between two loops can change."""
    attempt.tick()
    optimizer.param_groups[0]["lr"] *= 0.5
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(0.75)
    optimizer.state.clear()
    torch.rand(3)
    attempt.tick()


def two_phases(attempt: Attempt) -> None:
    """Ticks: 3 of each epoch, 2 between (7, 8), 3 of each epoch of the second loop, 1 at the end (15)."""
    model, loader, optimizer, train = begin(attempt)
    assert list(train_epochs(optimizer, loader, train, 2)) in ([0, 1], [1], [])
    change(attempt, model, optimizer)
    assert list(train_epochs(optimizer, loader, train, 2)) in ([0, 1], [1])
    attempt.tick()
    optimizer.close()


def mixed(attempt: Attempt) -> None:
    """A loop that is left in the middle of an epoch, then turns, then epochs in stages, then a number of batches."""
    model, loader, optimizer, train = begin(attempt)
    for i, batch in optimizer.batches(loader, 100, enumerate=True):
        train(batch)
        if i == 3:
            break
    change(attempt, model, optimizer)
    for turn in optimizer.steps(2, stateless=True):
        train(torch.full((2, 4), float(turn)) + torch.rand(2, 4))
    for stage in range(2):
        for epoch in optimizer.epochs(3, loader):
            for batch in epoch:
                train(batch)
            if epoch == stage:
                break
        optimizer.param_groups[0]["lr"] *= 0.5
    for batch in optimizer.batches(loader, 4):
        train(batch)
    attempt.tick()
    optimizer.close()


def left_by_chance(attempt: Attempt, *, leaves: bool) -> None:
    """The first loop is left at a batch that only this process knows of; ticks: 2, 1 between, 3."""
    _, loader, optimizer, train = begin(attempt)
    for i, batch in optimizer.batches(loader, 9, enumerate=True):
        train(batch)
        if i == 1 and leaves:
            break
    attempt.tick()
    optimizer.param_groups[0]["lr"] = 0.05
    for batch in optimizer.batches(loader, 3):
        train(batch)
    optimizer.close()


def test_a_loop_that_had_been_left_ends_where_the_log_has_the_next_one(tmp_path: Path) -> None:
    """The unit that is computed again begins in the first loop and ends in the second; the script leaves the first no more."""
    right = uninterrupted(partial(left_by_chance, leaves=True))
    assert in_child(partial(left_by_chance, Attempt(tmp_path / "run", 4), leaves=True)) == -signal.SIGKILL
    last = Attempt(tmp_path / "run")
    left_by_chance(last, leaves=False)
    assert not differences(last.outcome(), right.outcome())
    report = last.final_report()
    assert report.exact is False
    assert any("was computed again, and" in note for note in report.notes)


SEQUENCES = {"two phases": two_phases, "of different kinds": mixed}


@pytest.mark.crash
@pytest.mark.parametrize(
    ("name", "die_at"),
    [
        ("two phases", (6, 3, 2)),
        ("two phases", (8, 9)),
        ("of different kinds", (4, 5, 3, 4, 9)),
    ],
)
def test_loops_and_the_code_between_them_come_back(name: str, die_at: tuple[int, ...], tmp_path: Path) -> None:
    prove_exact(SEQUENCES[name], tmp_path / "run", die_at[: few(len(die_at))])


def test_report_counts_in_the_loop_that_runs(tmp_path: Path) -> None:
    run = tmp_path / "run"
    assert in_child(partial(two_phases, Attempt(run, 14))) == -signal.SIGKILL
    last = Attempt(run)
    two_phases(last)
    report = last.reports[0]
    assert (report.loop, report.epoch, report.batch) in [(2, 1, 3), (2, 1, 4)]
    assert "(loop 2, epoch 2, after " in str(report)


def two_loops(attempt: Attempt, last: int) -> list[int]:
    """Train two epochs, then `last` ones; return those of the second loop that were trained here."""
    _, loader, optimizer, train = begin(attempt)
    list(train_epochs(optimizer, loader, train, 2))
    found = list(train_epochs(optimizer, loader, train, last))
    optimizer.close()
    return found


def test_finished_run_trains_nothing_and_a_longer_last_loop_goes_on(tmp_path: Path) -> None:
    assert two_loops(Attempt(tmp_path / "run"), 2) == [0, 1]
    assert two_loops(Attempt(tmp_path / "run"), 2) == []
    assert two_loops(Attempt(tmp_path / "run"), 4) == [2, 3]


@pytest.mark.parametrize(("die_at", "last"), [(10, "in which the run stood"), (15, "which is finished, too")])
def test_step_between_two_loops_is_refused_after_a_crash_in_the_second_or_behind(
    tmp_path: Path, die_at: int, last: str
) -> None:
    """It was taken before the crash, too."""

    def warmed_up(attempt: Attempt) -> None:
        _, loader, optimizer, train = begin(attempt)
        list(train_epochs(optimizer, loader, train, 2))
        train(torch.ones(2, 4))
        list(train_epochs(optimizer, loader, train, 2))
        train(torch.ones(2, 4))
        list(train_epochs(optimizer, loader, train, 2))
        optimizer.close()

    assert in_child(partial(warmed_up, Attempt(tmp_path / "run", die_at))) == -signal.SIGKILL
    again = Attempt(tmp_path / "run")
    with pytest.raises(UsageError, match=rf"before loop 2, {last}. It was taken before the crash"):
        warmed_up(again)
    again.kept["optimizer"].close()


def test_script_that_does_not_come_to_the_loop_in_which_the_run_stood_is_warned(tmp_path: Path) -> None:
    assert in_child(partial(two_phases, Attempt(tmp_path / "run", 12))) == -signal.SIGKILL
    attempt = Attempt(tmp_path / "run")
    _, loader, optimizer, train = begin(attempt)
    assert list(train_epochs(optimizer, loader, train, 2)) == []
    optimizer.close()
    assert any("ended before it entered loop 2 of the run" in note for note in optimizer.report.notes)
    assert optimizer.report.exact is False


def left_early(attempt: Attempt, *, limit: int, kind: str, sets_rate: bool = True) -> tuple[int, list[int]]:
    """Leave the first loop after `limit` batches of the run; return these, and the epochs of the second loop."""
    _, loader, optimizer, train = begin(attempt)
    state = optimizer.remember(count=0) if attempt.run is not None else SimpleNamespace(count=0)
    if kind == "epochs":
        for epoch in optimizer.epochs(4, loader):
            if state.count >= limit:
                break
            for batch in epoch:
                train(batch)
                state.count += 1
                if state.count >= limit:
                    break
    else:
        for batch in optimizer.batches(loader, 12):
            if state.count >= limit:
                break
            train(batch)
            state.count += 1
    if sets_rate:
        optimizer.param_groups[0]["lr"] = 0.05
    epochs = list(train_epochs(optimizer, loader, train, 2))
    optimizer.close()
    return state.count, epochs


@pytest.mark.parametrize(
    ("kind", "sets_rate", "count"),
    [("epochs", False, 5), ("batches", True, 4)],
)
def test_loop_that_is_left_at_once_after_a_crash_goes_on_at_the_newest_boundary_or_with_what_was_changed(
    kind: str, sets_rate: bool, count: int, tmp_path: Path
) -> None:
    """The condition to leave differs from the run before the crash, which stood in the middle of an epoch.

    The next loop trains whole epochs. If the script has changed something before that, it goes on from where it had landed.
    """
    script = partial(left_early, kind=kind, sets_rate=sets_rate)
    assert in_child(partial(script, Attempt(tmp_path / "run", 6), limit=9)) == -signal.SIGKILL
    last = Attempt(tmp_path / "run")
    assert script(last, limit=2) == (count, [0, 1])
    report = last.final_report()
    assert report.exact is None
    text = "step 5 is trained again with what the script has changed" if sets_rate else "no unit is computed again, because"
    assert any(note.startswith(text) for note in report.notes), report.notes
    assert not differences(last.outcome(), uninterrupted(partial(script, limit=count)).outcome())


def test_step_before_a_break_is_committed_when_the_next_loop_begins(tmp_path: Path) -> None:
    """The process dies in the first step of the second loop."""
    script = partial(left_early, limit=5, kind="epochs")
    assert in_child(partial(script, Attempt(tmp_path / "run", 6))) == -signal.SIGKILL
    last = Attempt(tmp_path / "run")
    script(last)
    assert [report.step for report in last.reports] == [4]  # and step 5 is the unit that is computed again
    assert (last.final_report().exact, last.final_report().recheck) == (True, "equal")
    assert not differences(last.outcome(), uninterrupted(script).outcome())
