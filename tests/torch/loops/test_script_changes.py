"""What the script changes between `recover()` and its loop holds, also if the newest unit was to be computed again."""

from __future__ import annotations

import shutil
import signal
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from tests.support.verify import verify_run
from tests.torch.lab import Attempt, differences, in_child
from tests.torch.loops import scripts
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


CHANGES = {
    "modes": (freeze, ["training mode of module 1", "requires_grad of 0.weight"]),
    "all together": (set_many, ["weight_decay of parameter group 0", "state.phase", "base_lrs", "buffer 1.running_mean"]),
}


@pytest.fixture(scope="module")
def killed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that was killed amid its loop."""
    run = tmp_path_factory.mktemp("killed") / "run"
    assert in_child(lambda: script(Attempt(run, KILLED_AT))) == -signal.SIGKILL
    return run


def resume(run: Path, to: Path, change: Change, **options: Any) -> Attempt:
    shutil.copytree(run, to)
    attempt = Attempt(to, **options)
    script(attempt, change=change)
    return attempt


@pytest.mark.parametrize("what", CHANGES)
def test_it_holds_as_without_a_recheck(what: str, killed: Path, tmp_path: Path) -> None:
    change, named = CHANGES[what]
    found = resume(killed, tmp_path / "on", change)
    wanted = resume(killed, tmp_path / "off", change, recheck=False)
    report = found.final_report()
    assert (report.recheck, report.exact, report.step) == ("", None, STEP), report
    assert differences(found.outcome(), wanted.outcome()) == []
    for name in named:
        assert any(name in note and "was changed between recover()" in note for note in report.notes), report.notes


def halve_rate(it: SimpleNamespace) -> None:
    it.optimizer.param_groups[0]["lr"] *= 0.5


def draw(it: SimpleNamespace) -> None:
    torch.rand(1, generator=it.generator)


def clear_momentum(it: SimpleNamespace) -> None:
    for state in it.optimizer.state.values():
        state["exp_avg"].zero_()


def set_half_rate(it: SimpleNamespace) -> None:
    it.optimizer.param_groups[0]["lr"] = 0.005  # 0.01 where recovery lands


def change_nothing(it: SimpleNamespace) -> None:
    """The generator is where the unit, too, has left it: one draw further."""


def write_row(it: SimpleNamespace) -> None:
    with torch.no_grad():
        it.model[0].weight[0].zero_()


def write_past_the_counter(it: SimpleNamespace) -> None:
    it.model[4].weight.data[0, 3] = 0.5


def write_moment(it: SimpleNamespace) -> None:
    next(iter(it.optimizer.state.values()))["exp_avg"].data[0] = 1.0


# What a script does at the step where recovery lands, the same at the newest step, and how it is named.
DERIVED = {
    "a rate": (halve_rate, set_half_rate, "lr of parameter group 0 of optimizer 'main' (it was 0.01, then 0.001)"),
    "a generator": (draw, change_nothing, "the tracked 'generator'"),
    "a row": (write_row, write_row, "weight 0.weight"),
    "one weight": (write_past_the_counter, write_past_the_counter, "weight 4.weight"),
    "some moments": (write_moment, write_moment, "the state of optimizer 'main'"),
}


@pytest.fixture(scope="module")
def killed_stepped(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that was killed after a scheduler had lowered the rate in its last step."""
    run = tmp_path_factory.mktemp("killed") / "run"
    assert in_child(lambda: script(Attempt(run, KILLED_AT), make=make_stepped)) == -signal.SIGKILL
    return run


@pytest.mark.parametrize("what", DERIVED)
def test_a_value_that_the_unit_changes_too_is_the_scripts_and_no_step_is_lost(
    what: str, killed_stepped: Path, tmp_path: Path
) -> None:
    change, at_the_end, named = DERIVED[what]
    make = partial(script, make=make_stepped)
    folders = tmp_path / "on", tmp_path / "off"
    for folder in folders:
        shutil.copytree(killed_stepped, folder)
    found, wanted = Attempt(folders[0]), Attempt(folders[1], recheck=False)
    make(found, change=change)
    make(wanted, change=at_the_end)
    report = found.final_report()
    assert (report.recheck, report.exact, report.step) == ("", None, STEP), report
    start = f"the script has changed {named} where recover() has landed"
    assert any(note.startswith(start) and "give recheck=False" in note for note in report.notes), report.notes
    assert differences(found.outcome(), wanted.outcome()) == []


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


def test_who_sets_what_is_there_changes_nothing(killed_stepped: Path, tmp_path: Path) -> None:
    wanted = Attempt()
    script(wanted, make=make_stepped)
    shutil.copytree(killed_stepped, tmp_path / "run")
    found = Attempt(tmp_path / "run")
    script(found, change=write_the_same, make=make_stepped)
    report = found.final_report()
    assert (report.recheck, report.exact) == ("equal", True), report
    (note,) = report.notes
    assert note.startswith("state_dict() of the model was read before a loop"), "it is not seen that no file is made of it"
    assert found.kept.pop("rates") == wanted.kept.pop("rates")[STEP - 1 :]
    assert differences(found.outcome(), wanted.outcome()) == []


def test_a_kill_right_behind_a_change_is_no_difference(killed_stepped: Path, tmp_path: Path) -> None:
    """The log has the change in that unit, and a script that does not make it again cannot compute the unit again."""
    run = tmp_path / "run"
    shutil.copytree(killed_stepped, run)
    assert in_child(lambda: script(Attempt(run, 2), change=clear_momentum, make=make_stepped)) == -signal.SIGKILL
    found = Attempt(run)
    script(found, make=make_stepped)
    report = found.final_report()
    assert (report.recheck, report.exact, report.step) == ("", None, STEP + 1), report
    why = "no unit is computed again, because the script had changed weights, hyper-parameters or other state before its loop"
    assert any(note.startswith(why) for note in report.notes), report.notes
    assert [finding for finding in verify_run(run) if isinstance(finding, Problem)] == []


def test_what_was_changed_beside_a_scheduler_is_there_after_another_crash(tmp_path: Path) -> None:
    start = partial(script, make=make_stepped)
    run, off = tmp_path / "run", tmp_path / "off"
    assert in_child(lambda: start(Attempt(run, KILLED_AT))) == -signal.SIGKILL
    shutil.copytree(run, off)
    for folder, change, options in ((run, halve_rate, {}), (off, set_half_rate, {"recheck": False})):
        attempt = Attempt(folder, 4, **options)
        assert in_child(lambda attempt=attempt, change=change: start(attempt, change=change)) == -signal.SIGKILL
    found, wanted = Attempt(run), Attempt(off, recheck=False)
    start(found)
    start(wanted)
    report = found.final_report()
    assert (report.recheck, report.exact, report.step) == ("equal", True, STEP + 2), report
    rates = found.kept.pop("rates")
    assert rates[1:] == wanted.kept.pop("rates"), "the first is of the unit that was computed again"
    assert differences(found.outcome(), wanted.outcome()) == []


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
