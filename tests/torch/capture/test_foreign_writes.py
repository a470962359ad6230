"""Writes to parameters and optimizer state that no step made are noticed wherever they happen; replay stays exact."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from tests.torch.lab import Attempt, differences, prove_exact, uninterrupted
from tests.torch.nets import seed
from tests.torch.scripts import simple
from tranlogs_torch.state import state_watch
from tranlogs_torch.state.fingerprint import Fingerprint
from tranlogs_torch.state.state_watch import StateWatch

Write = Callable[[Any, Any], object]


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


def data_replaced_twice(model: nn.Module, optimizer: Any) -> None:
    before = model.first.weight.data
    model.first.weight.data = torch.zeros_like(before)
    before.mul_(0.5)
    model.first.weight.data = before


def state_replaced(model: nn.Module, optimizer: Any) -> None:
    for state in states(optimizer):
        state["exp_avg"] = torch.zeros_like(state["exp_avg"])


def state_loaded(model: nn.Module, optimizer: Any) -> None:
    content = copy.deepcopy(optimizer.state_dict())
    for state in content["state"].values():
        state["exp_avg"] *= 0.5
    optimizer.load_state_dict(content)


WRITES: dict[str, Write] = {
    "in place": in_place,
    "data clamped": lambda m, o: [p.data.clamp_(-0.05, 0.05) for p in m.parameters()],
    "one number": lambda m, o: m.first.weight.data[3, 2].add_(0.25),
    "data replaced": lambda m, o: setattr(m.first.weight, "data", torch.full_like(m.first.weight, 0.01)),
    "data replaced twice": data_replaced_twice,
    "initialised": lambda m, o: nn.init.kaiming_normal_(m.second.weight),
    "loaded": lambda m, o: m.load_state_dict({name: tensor * 0.8 for name, tensor in m.state_dict().items()}),
    "numpy alias": lambda m, o: m.second.weight.detach().numpy().__iadd__(np.float32(0.125)),
    "storage": lambda m, o: m.second.bias.untyped_storage().fill_(0),
    "frozen": lambda m, o: m.frozen.data.mul_(0.5),
    "state zeroed": lambda m, o: [state["exp_avg"].zero_() for state in states(o)],
    "state zeroed by data": lambda m, o: [state["exp_avg_sq"].data.zero_() for state in states(o)[:1]],
    "state by numpy": lambda m, o: [state["exp_avg"].numpy().fill(0.5) for state in states(o)[1:2]],
    "state replaced": state_replaced,
    "state step": lambda m, o: [state["step"].fill_(1) for state in states(o)],
    "state cleared": lambda m, o: o.state.clear(),
    "state of one removed": lambda m, o: o.state.pop(m.second.bias, None),
    "state loaded": state_loaded,
    "moved between groups": lambda m, o: o.param_groups[0]["params"].append(o.param_groups[1]["params"].pop()),
}
PLACES = ("before forward", "before step", "after step", "between epochs", "after clipping")


def training(attempt: Attempt, *, writes: Sequence[str], place: str, **options: Any) -> None:
    """Each epoch of two batches has one of these writes in its second batch, or behind it; the last epoch has none."""
    seed()
    model = Net()
    data = torch.utils.data.TensorDataset(torch.randn(8, 6))
    loader = torch.utils.data.DataLoader(data, batch_size=4, shuffle=True)
    groups = [{"params": model.first.parameters()}, {"params": model.second.parameters(), "lr": 0.02}]
    optimizer = attempt.wrap(torch.optim.AdamW(groups, lr=0.01, **(options or {"fused": True})), model)
    attempt.start(optimizer, loader=loader)
    for epoch in optimizer.epochs(len(writes) + 1, loader):

        def at(here: str, epoch: int = int(epoch)) -> None:
            if here == place and epoch < len(writes) and writes[epoch]:
                WRITES[writes[epoch]](model, optimizer)

        for i, (x,) in epoch.enumerate():
            if i == 1:
                at("before forward")
            model(x).square().mean().backward()
            attempt.tick()
            if i == 1:
                at("before step")
            optimizer.clip_grad_norm_(0.05)
            if i == 1:
                at("after clipping")
            optimizer.step()
            if i == 1:
                at("after step")
            optimizer.zero_grad()
            attempt.tick()
        at("between epochs")
    attempt.keep(model=model, optimizer=optimizer)
    optimizer.close()


def prove_noticed(writes: Sequence[str], place: str, run: Path, **options: Any) -> None:
    """Log a whole run; the unlogged one, the logged one and the one redone from the log are equal."""
    script = partial(training, writes=writes, place=place)
    right = uninterrupted(script)
    options = {"log": "gradients"} | options
    trained, again = (Attempt(run, checkpoint_every=1000, recheck=False, **options) for _ in range(2))
    script(trained)
    assert differences(trained.outcome(), right.outcome()) == []
    script(again)
    assert again.reports[0].replayed == 2 * (len(writes) + 1)
    assert again.reports[0].exact is (None if "fingerprint" in options else True)
    assert differences(again.outcome(), right.outcome()) == []


@pytest.mark.parametrize("place", PLACES)
def test_each_write_is_noticed(place: str, tmp_path: Path) -> None:
    """One after the other; what is found makes later looks closer, so that each place begins with another one."""
    first = 4 * PLACES.index(place)
    prove_noticed([*WRITES][first:] + [*WRITES][:first], place, tmp_path / "run")


STATE_WRITES = [write for write in WRITES if write.startswith("state")]


@pytest.mark.sampled(4)
@pytest.mark.parametrize("place", ["before forward", "before step", "after step", "after clipping"])
@pytest.mark.parametrize("write", STATE_WRITES)
def test_write_to_the_state_of_a_steady_optimizer_is_noticed(
    write: str, place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
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
    prove_noticed(["", "", write, write], place, tmp_path / "run")
    assert any(left_out)


@pytest.mark.parametrize("options", [{"fingerprint": "sample"}, {"log": "weights"}, {"writer": "thread"}], ids=str)
def test_write_is_noticed_in_every_way_of_logging(options: dict[str, Any], tmp_path: Path) -> None:
    writes = ["data clamped", "in place", "data replaced", "frozen", "state zeroed by data", "state cleared"]
    prove_noticed(writes, "after step", tmp_path / "run", **options)


@pytest.mark.parametrize("every", [1000, 1], ids=["from the log", "from a checkpoint"])
def test_a_square_weight_that_is_transposed_comes_back_transposed(every: int, tmp_path: Path) -> None:
    """Its memory, and the bytes there, are the same as before."""

    def script(attempt: Attempt) -> None:
        seed()
        model = nn.Linear(4, 4)

        def transpose(number: int, optimizer: Any) -> None:
            if number == 5:
                model.weight.data = model.weight.data.t()

        simple(attempt, model, torch.optim.SGD(model.parameters(), 0.1), width=4, change=transpose)
        attempt.keep(stride=model.weight.stride())

    prove_exact(script, tmp_path / "run", (8, 2), checkpoint_every=every)


def test_a_weight_that_was_laid_out_otherwise_comes_back_so_from_a_checkpoint_alone(tmp_path: Path) -> None:
    """A convolution is moved to channels_last in the middle of the run; the optimizer's state follows its memory."""
    recovered: list[tuple[int, ...]] = []

    def script(attempt: Attempt) -> None:
        seed()
        convolution = nn.Conv2d(3, 4, 3)
        model = nn.Sequential(nn.Unflatten(1, (3, 5, 5)), convolution)

        def lay_out(number: int, optimizer: Any) -> None:
            recovered.append(convolution.weight.stride())
            if number == 3:
                model.to(memory_format=torch.channels_last)
                optimizer.state[convolution.weight]["momentum_buffer"] = torch.zeros_like(convolution.weight)

        inner = torch.optim.SGD(model.parameters(), 0.01, momentum=0.9)
        simple(attempt, model, inner, width=75, change=lay_out)
        attempt.keep(stride=convolution.weight.stride())

    last = prove_exact(script, tmp_path / "run", (8,), checkpoint_every=1)
    assert recovered[-1] == last.kept["stride"] == (27, 1, 9, 3)


def test_write_that_escapes_is_found_and_named_by_replay(tmp_path: Path) -> None:
    """One number of a large state tensor, past its version counter."""

    def script(attempt: Attempt) -> None:
        seed()
        model = nn.Linear(300, 300)

        def write(number: int, optimizer: Any) -> None:
            if number == 3:
                optimizer.state[model.weight]["exp_avg"].data[1, 1] = 1e3

        simple(attempt, model, torch.optim.Adam(model.parameters(), lr=0.01), turns=6, width=300, change=write)

    first, again = (Attempt(tmp_path / "run", checkpoint_every=1000, recheck=False) for _ in range(2))
    script(first)
    script(again)
    (report,) = again.reports
    assert (report.exact, report.first_divergent_step) == (False, 4)
    assert any("step 4 is the first redone step that differs, in weight" in note for note in report.notes)


# The digests and the watch


@pytest.mark.parametrize("mode", ["full", "sample"])
def test_digests_follow_the_memory_and_a_sample_visits_every_byte_in_time(mode: str) -> None:
    image = nn.Parameter(torch.arange(960.0).reshape(40, 3, 4, 2).to(memory_format=torch.channels_last))
    fingerprint = Fingerprint([image], mode)
    before = [fingerprint.digests(step)[0] for step in range(70)]
    image.data[17, 2, 3, 1] += 1
    assert [fingerprint.digests(step)[0] for step in range(70)] != before


def stepped(model: nn.Module, kind: type[torch.optim.Optimizer], **options: Any) -> Any:
    optimizer = kind(model.parameters(), **options)
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter)
    optimizer.step()
    return optimizer


def test_watch_notices_a_write_past_the_counter_to_any_state_tensor() -> None:
    """More tensors than are sampled in turn; and a tensor that took the place of an equal one, with its id."""
    model = nn.Sequential(*[nn.Linear(8, 8) for _ in range(20)])
    optimizer = stepped(model, torch.optim.Adam)
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
    for _ in range(3):
        optimizer.state[parameter]["exp_avg"] = optimizer.state[parameter]["exp_avg"].clone()
    assert watch.changed()


def test_watch_of_much_state_reads_all_of_it_now_and_then(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(state_watch, "_FREE_SECONDS", 0.0)
    model = nn.ParameterList([nn.Parameter(torch.zeros(4)) for _ in range(200)])
    optimizer = stepped(model, torch.optim.SGD, lr=0.1, momentum=0.9)
    watch, last = StateWatch(optimizer), optimizer.state[model[199]]["momentum_buffer"]
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
