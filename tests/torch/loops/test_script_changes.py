"""What the script changes between `recover()` and its loop holds: training goes on with it from where recovery has landed."""

from __future__ import annotations

import functools
import shutil
import signal
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from tests.support.campaign import is_soak
from tests.support.verify import verify_run
from tests.torch import scripts
from tests.torch.lab import Attempt, differences, in_child
from tranlogs.base import failpoints
from tranlogs.verify import Problem

pytestmark = pytest.mark.crash

KILLED_AT = 9
STEP = 8  # that was the last before the crash: the recheck lands before it

Change = Callable[[SimpleNamespace], None]


def make_lambda(optimizer: Any) -> Any:
    return torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1.0 if step < STEP else 0.1)


def make_stepped(optimizer: Any) -> Any:
    return torch.optim.lr_scheduler.StepLR(optimizer, STEP, 0.1)


def script(attempt: Attempt, *, change: Change | None = None, make: Callable[[Any], Any] = make_lambda) -> None:
    """A loop with a scheduler, remembered attributes, a tracked generator and batch normalization.

    Without TranLogs the change is made before the turn that recovery lands at.
    """
    model, optimizer, loader = scripts.begin(attempt)
    scheduler = make(optimizer)
    generator = torch.Generator().manual_seed(3)
    state = optimizer.remember(phase=1.0, turn=0)
    attempt.start(optimizer, scheduler=scheduler, generator=generator)
    all_of_it = SimpleNamespace(model=model, optimizer=optimizer, scheduler=scheduler, generator=generator, state=state)
    if change is not None and attempt.run is not None:
        change(all_of_it)
    rates: list[float] = []
    for batch in optimizer.batches(loader, until=scripts.TURNS):
        if change is not None and attempt.run is None and len(rates) == STEP - 1:
            change(all_of_it)
        rates.append(optimizer.param_groups[0]["lr"])
        optimizer.zero_grad()
        (scripts.loss(model, batch) * state.phase + torch.rand(1, generator=generator).item()).backward()
        attempt.tick()
        optimizer.step()
        scheduler.step()
        state.turn += 1
    attempt.keep(model=model, optimizer=optimizer, scheduler=scheduler, generator=generator, rates=rates, state=vars(state))
    optimizer.close()


def set_phase(it: SimpleNamespace) -> None:
    it.state.phase = 5.0


def set_base_rates(it: SimpleNamespace) -> None:
    it.scheduler.base_lrs = [0.003]


def set_buffer(it: SimpleNamespace) -> None:
    it.model[1].running_mean.fill_(7.0)


def freeze(it: SimpleNamespace) -> None:
    it.model[1].eval()
    it.model[0].weight.requires_grad_(False)


def set_many(it: SimpleNamespace) -> None:
    for change in (set_phase, set_base_rates, set_buffer, freeze):
        change(it)
    it.optimizer.param_groups[0]["weight_decay"] = 0.5


def halve_rate(it: SimpleNamespace) -> None:
    it.optimizer.param_groups[0]["lr"] *= 0.5


def set_nothing(it: SimpleNamespace) -> None:
    """Change nothing."""


def draw(it: SimpleNamespace) -> None:
    torch.rand(1, generator=it.generator)


def write_row(it: SimpleNamespace) -> None:
    with torch.no_grad():
        it.model[0].weight[0].zero_()


def write_past_the_counter(it: SimpleNamespace) -> None:
    it.model[4].weight.data[0, 3] = 0.5


def add_group(it: SimpleNamespace) -> None:
    it.optimizer.add_param_group({"params": [torch.nn.Parameter(torch.ones(2))], "lr": 0.01})


def write_moment(it: SimpleNamespace) -> None:
    next(iter(it.optimizer.state.values()))["exp_avg"].data[0] = 1.0


# What a script changes, and how it is named.
CHANGES: dict[str, tuple[Change, list[str]]] = {
    "modes": (freeze, ["training mode of module 1", "requires_grad of 0.weight"]),
    "all together": (set_many, ["weight_decay of parameter group 0", "state.phase", "base_lrs", "buffer 1.running_mean"]),
    "a rate": (halve_rate, ["lr of parameter group 0 of optimizer 'main'"]),
    "a group": (add_group, ["the number of parameter groups of optimizer 'main'"]),
    "a generator": (draw, ["the tracked 'generator'"]),
    "a row": (write_row, ["weight 0.weight"]),
    "one weight": (write_past_the_counter, ["weight 4.weight"]),
    "some moments": (write_moment, ["the state of optimizer 'main'"]),
}


@pytest.fixture(scope="module")
def killed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that was killed after a scheduler had lowered the rate in its last step."""
    run = tmp_path_factory.mktemp("killed") / "run"
    assert in_child(lambda: script(Attempt(run, KILLED_AT), make=make_stepped)) == -signal.SIGKILL
    return run


@pytest.fixture
def run(killed: Path, tmp_path: Path) -> Path:
    """A copy of that run."""
    shutil.copytree(killed, tmp_path / "run")
    return tmp_path / "run"


stepped = partial(script, make=make_stepped)


def die(run: Path, at: int, change: Change | None = None) -> None:
    assert in_child(lambda: stepped(Attempt(run, at), change=change)) == -signal.SIGKILL


def finish(run: Path, change: Change | None = None) -> Attempt:
    attempt = Attempt(run)
    stepped(attempt, change=change)
    assert [finding for finding in verify_run(run) if isinstance(finding, Problem)] == []
    return attempt


@functools.cache
def changed(change: Change) -> Attempt:
    """A run without TranLogs in which the change is made before the turn that recovery lands at."""
    attempt = Attempt()
    stepped(attempt, change=change)
    return attempt


def demand_same(found: Attempt, wanted: Attempt) -> None:
    rates = found.kept["rates"]
    assert rates == wanted.kept["rates"][-len(rates) :]
    assert [path for path in differences(found.outcome(), wanted.outcome()) if not path.startswith("['rates']")] == []


@pytest.mark.parametrize("what", CHANGES)
def test_it_stands_and_the_newest_unit_is_trained_again_with_it(what: str, run: Path) -> None:
    change, named = CHANGES[what]
    found = finish(run, change)
    report = found.final_report()
    assert (report.recheck, report.exact, report.step) == ("", None, STEP - 1), report
    assert any(note.startswith(f"step {STEP} is trained again with what the script has changed") for note in report.notes)
    for name in named:
        assert any(name in note and "was changed between recover()" in note for note in report.notes), report.notes
    demand_same(found, changed(change))


@pytest.mark.parametrize(
    ("at", "landed", "again"),
    [
        (1, STEP - 1, True),
        (1, STEP - 1, False),
        (2, STEP, False),
        (3, STEP, True),
        (4, STEP + 1, False),
    ],
)
def test_a_crash_after_a_change_loses_nothing_more(at: int, landed: int, again: bool, run: Path) -> None:
    """The second process dies in the first units of the new timeline; the third makes the same change again, or does not."""
    change = CHANGES["all together"][0]
    die(run, at, change)
    found = finish(run, change if again else None)
    report = found.final_report()
    assert report.step == landed, report
    if at == 1 and not again:  # nothing of the new timeline was trained: the log is as the first process has left it
        assert (report.recheck, report.exact) == ("equal", True), report
        return
    is_proven = at > 2
    assert (report.recheck, report.exact) == (("equal", True) if is_proven else ("", None)), report
    demand_same(found, changed(change))


def test_a_script_that_changes_something_anew_at_each_start_makes_progress(run: Path) -> None:
    """Each process finishes one unit, and the next one does not train it again."""
    steps = []
    for _ in range(3):
        shutil.rmtree(f"{run}.life", ignore_errors=True)
        die(run, 2, halve_rate)
        copy = run.parent / "copy"
        shutil.copytree(run, copy)
        steps.append(finish(copy, halve_rate).reports[0].step)
        shutil.rmtree(copy)
    assert steps == [STEP, STEP + 1, STEP + 2]


@pytest.mark.parametrize("point", ["catalog.before_commit", "catalog.after_commit", "log.begin", "log.before_commit"])
def test_a_kill_as_the_timeline_begins_costs_no_unit_more(point: str, run: Path) -> None:
    """Wherever it dies, the next process stands where recovery had landed or behind it, with or without the change."""
    steps = set()
    for number in range(1, 7, 1 if is_soak() else 3):
        copy = run.parent / f"copy{number}"
        shutil.copytree(run, copy)

        def begin(copy: Path = copy, number: int = number) -> None:
            failpoints._rules = failpoints._parse(f"{point}=kill@{number}")
            stepped(Attempt(copy), change=halve_rate)

        assert in_child(begin) == -signal.SIGKILL
        found = finish(copy)
        report = found.final_report()
        steps.add(report.step)
        is_changed = found.kept["rates"][-1] != changed(set_nothing).kept["rates"][-1]
        demand_same(found, changed(halve_rate if is_changed else set_nothing))
        assert report.exact is (None if report.recheck == "" else True), report
    assert min(steps) == STEP - 1


def swap_and_swap_back(it: SimpleNamespace) -> None:
    """As an evaluation of averaged weights does it."""
    kept = {name: value.clone() for name, value in it.model.state_dict().items()}
    it.model.load_state_dict({name: torch.zeros_like(value) for name, value in kept.items()})
    it.model.load_state_dict(kept)


def write_the_same(it: SimpleNamespace) -> None:
    swap_and_swap_back(it)
    state = it.optimizer.state
    for parameter in it.model.parameters():
        assert state[parameter] is not None  # a look at the state of a parameter makes an entry
        for value in state[parameter].values():
            value.copy_(value.clone())
    it.optimizer.param_groups[0]["lr"] = float(it.optimizer.param_groups[0]["lr"])


def test_who_sets_what_is_there_changes_nothing(run: Path) -> None:
    found = finish(run, write_the_same)
    report = found.final_report()
    assert (report.recheck, report.exact) == ("equal", True), report
    (note,) = report.notes
    assert note.startswith("state_dict() of the model was read before a loop"), "it is not seen that no file is made of it"
    demand_same(found, changed(set_nothing))


@pytest.mark.parametrize("changes", [True, False])
def test_an_attribute_remembered_after_recover_is_kept_too(changes: bool, tmp_path: Path) -> None:
    """Its value at the crash is restored by `remember`, and what is assigned to it then is a change."""
    run = tmp_path / "run"

    def late(attempt: Attempt, *, changes: bool) -> None:
        model, optimizer, loader = scripts.begin(attempt)
        attempt.start(optimizer)
        state = optimizer.remember(phase=1.0)
        if changes:
            state.phase = 5.0
        for batch in optimizer.batches(loader, until=scripts.TURNS):
            scripts.step(attempt, model, optimizer, batch)
        attempt.keep(phase=state.phase)
        optimizer.close()

    assert in_child(lambda: late(Attempt(run, KILLED_AT), changes=False)) == -signal.SIGKILL
    attempt = Attempt(run)
    late(attempt, changes=changes)
    report = attempt.final_report()
    assert (attempt.kept["phase"], report.recheck) == ((5.0, "") if changes else (1.0, "equal")), report
    assert any("state.phase was changed" in note for note in report.notes) is changes
