"""Writes to parameters and optimizer state that no step made are noticed wherever they happen; replay stays exact."""

from __future__ import annotations

import signal
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from tests.torch.lab import Attempt, copied, differences, in_child, prove_exact, uninterrupted
from tests.torch.nets import seed
from tranlogs_torch.state import state_watch
from tranlogs_torch.state.fingerprint import Fingerprint
from tranlogs_torch.state.state_watch import StateWatch

Write = Callable[[nn.Module, Any], None]


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(6, 70), nn.Linear(70, 3)
        self.frozen = nn.Parameter(torch.ones(5), requires_grad=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.second(torch.tanh(self.first(x))) * self.frozen.sum()


def states(optimizer: Any) -> list[dict[str, Any]]:
    return [optimizer.state[p] for group in optimizer.param_groups for p in group["params"] if p in optimizer.state]


def in_place(model: nn.Module, optimizer: Any) -> None:
    with torch.no_grad():
        model.first.weight.mul_(0.9)


def data_clamp(model: nn.Module, optimizer: Any) -> None:
    for p in model.parameters():
        p.data.clamp_(-0.05, 0.05)


def one_number(model: nn.Module, optimizer: Any) -> None:
    model.first.weight.data[3, 2] += 0.25


def data_replaced(model: nn.Module, optimizer: Any) -> None:
    model.first.weight.data = torch.full_like(model.first.weight, 0.01)


def data_replaced_twice(model: nn.Module, optimizer: Any) -> None:
    before = model.first.weight.data
    model.first.weight.data = torch.zeros_like(before)
    before.mul_(0.5)
    model.first.weight.data = before


def initialised(model: nn.Module, optimizer: Any) -> None:
    nn.init.kaiming_normal_(model.second.weight)


def loaded(model: nn.Module, optimizer: Any) -> None:
    model.load_state_dict({name: tensor * 0.8 for name, tensor in model.state_dict().items()})


def numpy_alias(model: nn.Module, optimizer: Any) -> None:
    model.second.weight.detach().numpy()[:] += 0.125


def storage(model: nn.Module, optimizer: Any) -> None:
    model.second.bias.untyped_storage().fill_(0)


def frozen(model: nn.Module, optimizer: Any) -> None:
    model.frozen.data.mul_(0.5)


def state_zeroed(model: nn.Module, optimizer: Any) -> None:
    for state in states(optimizer):
        state["exp_avg"].zero_()


def state_zeroed_by_data(model: nn.Module, optimizer: Any) -> None:
    for state in states(optimizer)[:1]:
        state["exp_avg_sq"].data.zero_()


def state_by_numpy(model: nn.Module, optimizer: Any) -> None:
    for state in states(optimizer)[1:2]:
        state["exp_avg"].numpy()[:] = 0.5


def state_replaced(model: nn.Module, optimizer: Any) -> None:
    for state in states(optimizer):
        state["exp_avg"] = torch.zeros_like(state["exp_avg"])


def state_step(model: nn.Module, optimizer: Any) -> None:
    for state in states(optimizer):
        state["step"].fill_(1)


def state_cleared(model: nn.Module, optimizer: Any) -> None:
    optimizer.state.clear()


def state_of_one_removed(model: nn.Module, optimizer: Any) -> None:
    optimizer.state.pop(model.second.bias, None)


def state_loaded(model: nn.Module, optimizer: Any) -> None:
    content = copied(optimizer.state_dict())
    for state in content["state"].values():
        state["exp_avg"] *= 0.5
    optimizer.load_state_dict(content)


def moved_between_groups(model: nn.Module, optimizer: Any) -> None:
    first, second = optimizer.param_groups
    first["params"].append(second["params"].pop())


WRITES: list[Write] = [
    in_place,
    data_clamp,
    one_number,
    data_replaced,
    data_replaced_twice,
    initialised,
    loaded,
    numpy_alias,
    storage,
    frozen,
    state_zeroed,
    state_zeroed_by_data,
    state_by_numpy,
    state_replaced,
    state_step,
    state_cleared,
    state_of_one_removed,
    state_loaded,
    moved_between_groups,
]
PLACES = ("before forward", "before step", "after step", "between epochs", "after clipping")


def training(attempt: Attempt, *, write: Write, place: str, batches: tuple[int, ...] = (2, 4), **options: Any) -> None:
    """Writes in these batches (or between epochs)."""
    seed()
    model = Net()
    data = torch.utils.data.TensorDataset(torch.randn(16, 6))
    loader = torch.utils.data.DataLoader(data, batch_size=4, shuffle=True)
    groups = [{"params": model.first.parameters()}, {"params": model.second.parameters(), "lr": 0.02}]
    optimizer = attempt.wrap(torch.optim.AdamW(groups, lr=0.01, **(options or {"fused": True})), model)
    attempt.start(optimizer, loader=loader)
    number = optimizer.report.batch if attempt.run is not None else 0
    for _ in optimizer.epochs(2, loader):
        for (x,) in _:
            here = place if number in batches else ""
            number += 1
            if here == "before forward":
                write(model, optimizer)
            model(x).square().mean().backward()
            attempt.tick()
            if here == "before step":
                write(model, optimizer)
            optimizer.clip_grad_norm_(0.05)
            if here == "after clipping":
                write(model, optimizer)
            optimizer.step()
            if here == "after step":
                write(model, optimizer)
            optimizer.zero_grad()
            attempt.tick()
        if place == "between epochs":
            write(model, optimizer)
    attempt.keep(model=model, optimizer=optimizer)
    optimizer.close()


def prove_noticed(script: Callable[[Attempt], None], run: Path, **options: Any) -> None:
    """Log a whole run; the unlogged one, the logged one and the one redone from the log are equal."""
    right, trained, again = uninterrupted(script), Attempt(run, checkpoint_every=1000, **options), Attempt(run, **options)
    script(trained)
    assert differences(trained.outcome(), right.outcome()) == []
    script(again)
    assert again.reports[0].replayed == 8
    assert again.reports[0].exact is (None if "fingerprint" in options else True)
    assert differences(again.outcome(), right.outcome()) == []


@pytest.mark.sampled(29)
@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("write", WRITES, ids=lambda write: write.__name__)
def test_write_is_noticed(write: Write, place: str, tmp_path: Path) -> None:
    prove_noticed(partial(training, write=write, place=place), tmp_path / "run")


STATE_WRITES = [write for write in WRITES if write.__name__.startswith("state")]


@pytest.mark.sampled(10)
@pytest.mark.parametrize("place", ["before forward", "before step", "after step", "after clipping"])
@pytest.mark.parametrize("write", STATE_WRITES, ids=lambda write: write.__name__)
def test_write_to_the_state_of_a_steady_optimizer_is_noticed(
    write: Write, place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Steps that raise each version by the same number are followed by a check, and not preceded by one."""
    left_out = []
    changed = StateWatch.changed

    def noted(watch: StateWatch, **options: Any) -> bool:
        found = changed(watch, **options)
        left_out.append(watch._is_left_out)
        return found

    monkeypatch.setattr(state_watch, "FIRST_UNITS", 2)
    monkeypatch.setattr(StateWatch, "changed", noted)
    prove_noticed(partial(training, write=write, place=place, batches=(5, 6)), tmp_path / "run")
    assert any(left_out)


@pytest.mark.parametrize("options", [{"fingerprint": "sample"}, {"log": "weights"}, {"writer": "thread"}], ids=str)
@pytest.mark.parametrize("write", [in_place, data_clamp, data_replaced, frozen, state_zeroed_by_data, state_cleared])
def test_write_is_noticed_in_every_way_of_logging(write: Write, options: dict[str, Any], tmp_path: Path) -> None:
    prove_noticed(partial(training, write=write, place="after step"), tmp_path / "run", **options)


@pytest.mark.parametrize("write", [data_clamp, state_loaded])
def test_write_in_the_batch_of_the_crash_happens_again(write: Write, tmp_path: Path) -> None:
    for place in ("before forward", "after step"):
        run = tmp_path / place.replace(" ", "-")
        prove_exact(partial(training, write=write, place=place, foreach=True), run, (5, 4))


def test_a_square_weight_that_is_transposed_comes_back_transposed(tmp_path: Path) -> None:
    """Its memory, and the bytes there, are the same as before."""

    def script(attempt: Attempt) -> None:
        seed()
        model = nn.Linear(4, 4)
        optimizer = attempt.wrap(torch.optim.SGD(model.parameters(), 0.1), model)
        attempt.start(optimizer)
        attempt.keep(model=model, optimizer=optimizer)
        for turn in optimizer.steps(9, stateless=True):
            model(torch.randn(2, 4)).square().sum().backward()
            optimizer.step()
            optimizer.zero_grad()
            if turn == 4:
                model.weight.data = model.weight.data.t()
            attempt.tick()
        attempt.keep(stride=model.weight.stride())
        optimizer.close()

    prove_exact(script, tmp_path / "run", (6, 2), checkpoint_every=1000)
    prove_exact(script, tmp_path / "checkpoints", (7, 2), checkpoint_every=1)  # no record behind the checkpoint


def test_a_weight_that_was_laid_out_otherwise_comes_back_so_from_a_checkpoint_alone(tmp_path: Path) -> None:
    """A convolution is moved to channels_last in the middle of the run; the optimizer's state follows its memory."""
    recovered: list[tuple[int, ...]] = []

    def script(attempt: Attempt) -> None:
        seed()
        model = nn.Conv2d(3, 4, 3)
        optimizer = attempt.wrap(torch.optim.SGD(model.parameters(), 0.01, momentum=0.9), model)
        attempt.start(optimizer)
        attempt.keep(model=model, optimizer=optimizer)
        recovered.append(model.weight.stride())
        for turn in optimizer.steps(9, stateless=True):
            if turn == 3:
                model.to(memory_format=torch.channels_last)
                optimizer.state[model.weight]["momentum_buffer"] = torch.zeros_like(model.weight)
            model(torch.randn(2, 3, 5, 5)).square().sum().backward()
            optimizer.step()
            optimizer.zero_grad()
            attempt.tick()
        attempt.keep(stride=model.weight.stride())
        optimizer.close()

    last = prove_exact(script, tmp_path / "run", (7, 2), checkpoint_every=1)
    assert recovered[-1] == last.kept["stride"] == (27, 1, 9, 3)


def test_write_after_the_last_step_is_in_the_log(tmp_path: Path) -> None:
    def script(attempt: Attempt) -> None:
        training(attempt, write=data_clamp, place="between epochs")

    run = tmp_path / "run"
    script(Attempt(run, checkpoint_every=1000))
    again = Attempt(run)
    script(again)
    assert again.kept["model"].first.weight.abs().max() <= 0.05


def test_write_that_escapes_is_found_and_named_by_replay(tmp_path: Path) -> None:
    """One number of a large state tensor, past its version counter."""

    def script(attempt: Attempt) -> None:
        seed()
        model = nn.Linear(300, 300)
        optimizer = attempt.wrap(torch.optim.Adam(model.parameters(), lr=0.01), model)
        attempt.start(optimizer)
        for number in optimizer.steps(6):
            model(torch.ones(2, 300)).square().sum().backward()
            optimizer.step()
            optimizer.zero_grad()
            if number == 2:
                optimizer.state[model.weight]["exp_avg"].data[1, 1] = 1e3
            attempt.tick()

    run = tmp_path / "run"
    assert in_child(lambda: script(Attempt(run, 6, checkpoint_every=1000))) == -signal.SIGKILL
    again = Attempt(run)
    script(again)
    (report,) = again.reports
    assert report.exact is False
    assert report.first_divergent_step == 4
    assert any("step 4 is the first redone step that differs, in weight" in note for note in report.notes)


def test_sample_visits_every_byte_in_time() -> None:
    parameter = nn.Parameter(torch.zeros(1000))
    fingerprint = Fingerprint([parameter], "sample")
    before = [fingerprint.digests(step)[0] for step in range(70)]
    parameter.data[617] = 1.0
    assert [fingerprint.digests(step)[0] for step in range(70)] != before


def test_budget_is_decided_by_undisturbed_steps() -> None:
    """A look that the scheduler interrupted must not switch full digests off."""
    fingerprint = Fingerprint([torch.zeros(300_000)])
    for seconds in [0.001] * 40:
        fingerprint.digests(1)
        fingerprint._look_seconds.append(5.0)
        fingerprint.fit_budget(seconds)
    assert fingerprint.kind == "full"
    for _ in range(40):
        fingerprint._look_seconds.append(5.0)
        fingerprint.fit_budget(0.001)
    assert fingerprint.kind == "sample"


@pytest.mark.parametrize(("logged", "kind"), [(300_000, "full"), (299_999, "sample")])
def test_steps_that_log_much_are_verified_in_full_however_long_that_takes(logged: int, kind: str) -> None:
    fingerprint = Fingerprint([torch.zeros(300_000)])
    fingerprint.note_logged(logged)
    fingerprint.note_logged(3)  # a step that has logged less decides nothing
    for _ in range(40):
        fingerprint._look_seconds.append(5.0)
        fingerprint.fit_budget(0.001)
    assert fingerprint.kind == kind


def test_digests_of_a_tensor_in_another_layout_follow_its_memory() -> None:
    image = nn.Parameter(torch.arange(48.0).reshape(2, 3, 4, 2).to(memory_format=torch.channels_last))
    for mode in ("full", "sample"):
        fingerprint = Fingerprint([image], mode)
        before = fingerprint.digests(1)
        image.data[1, 2, 3, 1] += 1
        assert (fingerprint.digests(1) != before).all()


def test_watch_tells_a_new_tensor_from_one_that_took_its_place() -> None:
    parameter = nn.Parameter(torch.zeros(4))
    optimizer = torch.optim.SGD([parameter], lr=0.1, momentum=0.9)
    parameter.grad = torch.ones(4)
    optimizer.step()
    watch = StateWatch(optimizer)
    watch.remember()
    assert not watch.changed()
    for _ in range(3):  # an id may be used again, the contents are equal
        optimizer.state[parameter]["momentum_buffer"] = optimizer.state[parameter]["momentum_buffer"].clone()
    assert watch.changed()


def test_watch_notices_a_write_past_the_counter_to_any_state_tensor() -> None:
    """More tensors than are sampled in turn."""
    model = nn.Sequential(*[nn.Linear(8, 8) for _ in range(20)])
    optimizer = torch.optim.Adam(model.parameters())
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter)
    optimizer.step()
    for parameter in model.parameters():
        for key in ("exp_avg", "exp_avg_sq"):
            watch, tensor = StateWatch(optimizer), optimizer.state[parameter][key]
            watch.remember()
            before = tensor.clone()
            tensor.data.zero_()
            assert watch.changed(), key
            tensor.data.copy_(before)
            watch.remember()
            assert not watch.changed()


def test_watch_of_much_state_reads_all_of_it_now_and_then(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(state_watch, "_FREE_SECONDS", 0.0)
    parameters = [nn.Parameter(torch.zeros(4)) for _ in range(200)]
    optimizer = torch.optim.SGD(parameters, lr=0.1, momentum=0.9)
    for parameter in parameters:
        parameter.grad = torch.ones(4)
    optimizer.step()
    watch, last = StateWatch(optimizer), optimizer.state[parameters[-1]]["momentum_buffer"]
    for _ in range(33):
        watch.remember()
        assert not watch.changed()
    noticed = 0
    for _ in range(32):
        watch.remember()
        last.data.add_(1.0)
        noticed += watch.changed()
        last.data.sub_(1.0)
    assert noticed >= 1
    for _ in range(100):  # once such a write was found all is read at every look
        watch.remember()
        last.data.add_(1.0)
        assert watch.changed()
