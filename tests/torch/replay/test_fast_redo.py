"""How a log is redone fast, to the bits of training: gradients are read ahead, and small parameters are joined."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from tests.support import campaign
from tests.torch.lab import Attempt, differences, flatten, prove_exact
from tests.torch.nets import seed
from tranlogs.log.reader import SegmentReader
from tranlogs.log.scanner import scan
from tranlogs.log.segment_file import parse_segment_name
from tranlogs_torch import LoggedOptimizer
from tranlogs_torch.replay import gradient_reader, joined_step


def read(monkeypatch: pytest.MonkeyPatch, *, ahead: bool) -> None:
    """Let gradients be read ahead, or none of them."""
    monkeypatch.setattr(gradient_reader.os, "sched_getaffinity", lambda pid: range(64))
    monkeypatch.setattr(gradient_reader, "_AHEAD_BYTES_MIN", 0 if ahead else 1 << 30)


def in_turns(attempt: Attempt, *, shared: str, until: int = 12) -> None:
    """Three optimizers: one steps at every batch, one twice at every third, one in the first batches only."""
    seed()
    model = nn.ModuleList([nn.Linear(6, 5), nn.Linear(5, 4), nn.Linear(4, 2)])
    optimizers = [
        torch.optim.AdamW(model[0].parameters(), 1e-2),
        torch.optim.SGD(model[1].parameters(), 1e-2, momentum=0.9),
        torch.optim.RMSprop(model[2].parameters(), 1e-2),
    ]
    if shared == "memory":
        optimizers[1].add_param_group({"params": [nn.Parameter(model[0].bias.data)]})
        model[1].register_parameter("shared", optimizers[1].param_groups[1]["params"][0])
    if shared == "parameter":
        optimizers[1].add_param_group({"params": [model[0].bias]})
    first = attempt.wrap(optimizers[0], model)
    logged = [first, *(attempt.add_optimizer(first, inner, f"number {i}") for i, inner in enumerate(optimizers[1:], 1))]
    attempt.start(first)
    attempt.keep(model=model, **{f"optimizer{i}": optimizer for i, optimizer in enumerate(optimizers)})
    for turn in first.steps(until, stateless=True):
        value = torch.randn(3, 6)
        for layer in model:
            value = torch.tanh(layer(value))
        value.square().sum().backward()
        for p in [p for group in optimizers[1].param_groups for p in group["params"] if p.grad is None]:
            p.grad = torch.randn_like(p)
        first.clip_grad_norm_(0.5)
        for i in [0, *([1, 1] if turn % 3 == 1 else []), *([2] if turn < 4 else [])]:
            logged[i].step()
            attempt.tick()
        model[0].zero_grad()
    first.close()


@pytest.mark.parametrize("shared", ["nothing", "memory", "parameter"])
def test_optimizers_that_step_in_turns_come_back_to_the_bit(
    shared: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where they train the same parameter or memory: then the order of their updates counts."""
    read(monkeypatch, ahead=False)
    last = prove_exact(partial(in_turns, shared=shared), tmp_path / "run", (9,), checkpoint_every=1000)
    read(monkeypatch, ahead=True)
    again = Attempt(tmp_path / "run", recheck=False)  # resumes at the end: nothing is left to train
    in_turns(again, shared=shared)
    assert (again.reports[0].replayed, again.reports[0].exact) == (24, True)
    assert differences(again.outcome(), last.outcome()) == []


@pytest.mark.parametrize(("odd", "is_read_at_once"), campaign.each_once([1, 505], [False, True]))
def test_dtypes_that_put_each_other_out_of_place_come_back_to_the_bit(
    odd: int, is_read_at_once: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An odd number of bfloat16 lies before float32 in each record."""

    def train(attempt: Attempt) -> None:
        seed()
        shapes = [(odd, torch.bfloat16), (90_000, torch.float32), (40, torch.float32), (7, torch.float64)]
        model = torch.nn.ParameterList([torch.randn(count).to(dtype) for count, dtype in shapes])
        optimizer = attempt.wrap(torch.optim.AdamW(model.parameters(), lr=0.01), model)
        attempt.start(optimizer)
        for _ in optimizer.steps(5, stateless=True):
            for parameter in model.parameters():
                parameter.grad = torch.randn_like(parameter)
            optimizer.step()
        attempt.keep(model=model, optimizer=optimizer)
        optimizer.close()

    trained, again = (Attempt(tmp_path / "run", checkpoint_every=1000, recheck=False) for _ in range(2))
    train(trained)
    if not is_read_at_once:
        monkeypatch.setattr(gradient_reader.GradientMemory, "_over", lambda memory, entry: None)
    train(again)
    assert (again.reports[0].replayed, again.reports[0].exact) == (5, True)
    assert differences(again.outcome(), trained.outcome()) == []


# Damage


def flip_a_bit_of(run: Path, name: str, step: int) -> None:
    for path in sorted((run / "rank0" / "log").glob("*.seg")):
        named = parse_segment_name(path.name)
        assert named is not None
        with SegmentReader(path) as reader:
            for entry in reader.records(scan(path, named[1])):
                if entry.head.step == step and name in entry.tensor_names():
                    at = entry.location.payload_offset + entry.starts()[entry.layout.index[name][0]]
                    with open(path, "r+b") as file:
                        file.seek(at)
                        (byte,) = file.read(1)
                        file.seek(at)
                        file.write(bytes([byte ^ 16]))
                    return
    raise AssertionError("nothing was damaged")


@pytest.mark.parametrize(("tensor", "step", "ahead"), [("0.weight", 16, True), ("1.weight", 18, False)])
def test_recovery_lands_before_a_damaged_gradient_and_says_so(
    tensor: str, step: int, ahead: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Turn 7 has the steps 16, of the first optimizer, and 17 and 18, of the second one."""
    read(monkeypatch, ahead=ahead)
    in_turns(Attempt(tmp_path / "run", checkpoint_every=1000), shared="nothing", until=10)
    flip_a_bit_of(tmp_path / "run", f"grad/{tensor}", step)
    again, right = Attempt(tmp_path / "run", recheck=False), Attempt()
    in_turns(again, shared="nothing", until=0)
    in_turns(right, shared="nothing", until=7)
    report = again.reports[0]
    assert (report.step, report.exact) == (15, True)
    assert any(f"grad/{tensor}" in note and f"step {step}" in note for note in report.notes), report.notes
    assert differences(flatten(again.outcome()), flatten(right.outcome())) == []


# Small parameters that are redone as one

STEPS = 24
Make = Callable[[list[nn.Parameter]], torch.optim.Optimizer]


def adamw(parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
    """Two groups; other optimizers are redone so in test_exact_matrix."""
    groups = [{"params": parameters[:3], "lr": 0.01, "weight_decay": 0.1}, {"params": parameters[3:], "lr": 0.03}]
    return torch.optim.AdamW(groups)


class Net(nn.Module):
    """Parameters of sizes that fill no vector register, and one of a single element."""

    def __init__(self, dtype: torch.dtype = torch.float32) -> None:
        super().__init__()
        torch.manual_seed(7)
        sizes = [(3, 11), (11,), (13, 7), (1,), (129,), (17, 3, 2)]
        self.weights = nn.ParameterList([nn.Parameter(torch.randn(size, dtype=dtype)) for size in sizes])

    def forward(self, turn: int, *, without: int | None = None) -> torch.Tensor:
        generator = torch.Generator().manual_seed(turn)
        terms = [
            (p * torch.randn(p.shape, generator=generator).to(p.dtype)).sum() ** 2 / p.numel()
            for i, p in enumerate(self.weights)
            if i != without
        ]
        return torch.stack(terms).sum()


def train(
    run: Path, make: Make, *, clip: bool = False, sometimes: bool = False, dtype: torch.dtype = torch.float32
) -> dict[str, Any]:
    """Train, and end in the middle of the loop; return what was there then."""
    net = Net(dtype)
    optimizer = LoggedOptimizer(make(list(net.weights)), run, net, on_signal=None, checkpoint_every=10**6, recheck=False)
    optimizer.recover()
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 5, 0.7)
    optimizer.track(schedule=schedule)
    for turn in optimizer.steps(10**6, stateless=True):
        if turn == STEPS:
            break
        net(turn, without=4 if sometimes and turn % 7 == 3 else None).backward()
        if clip:
            optimizer.clip_grad_norm_(0.5)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
    optimizer.training_run.close()
    return contents(net, optimizer.inner)


def contents(net: Net, optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    states = [dict(optimizer.state.get(p, {})) for p in net.weights]
    return {"weights": [p.detach() for p in net.weights], "state": states}


def recover(run: Path, make: Make, dtype: torch.dtype = torch.float32) -> tuple[dict[str, Any], Any]:
    """Return what recovery has left in other objects, and its report."""
    net = Net(dtype)
    places = [p.data_ptr() for p in net.weights]
    optimizer = LoggedOptimizer(make(list(net.weights)), run, net, on_signal=None, recheck=False)
    report = optimizer.recover()
    optimizer.training_run.close()
    assert [p.data_ptr() for p in net.weights] == places, "a parameter has lost its memory"
    storages = [value for state in contents(net, optimizer.inner)["state"] for value in state.values()]
    assert len({v.data_ptr() for v in storages if torch.is_tensor(v)}) == sum(map(torch.is_tensor, storages))
    return contents(net, optimizer.inner), report


@pytest.fixture
def joined(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Return a list that gets the number of steps that were redone with joined parameters, one by one."""
    taken: list[int] = []
    step = joined_step.JoinedStep.step

    def counted(self: joined_step.JoinedStep) -> None:
        taken.append(len(taken))
        step(self)

    monkeypatch.setattr(joined_step.JoinedStep, "step", counted)
    return taken


@pytest.mark.parametrize(
    ("how", "steps"),
    [({"clip": True}, STEPS - 1), ({"sometimes": True}, 3), ({"dtype": torch.bfloat16}, STEPS - 1)],  # the last keeps gradients
    ids=["clipped", "a gradient is absent now and then", "bfloat16"],
)
def test_joined_parameters_come_back_to_the_bit(how: dict[str, Any], steps: int, tmp_path: Path, joined: list[int]) -> None:
    trained = train(tmp_path / "run", adamw, **how)
    found, report = recover(tmp_path / "run", adamw, how.get("dtype", torch.float32))
    assert differences(flatten(trained), flatten(found)) == []
    assert (report.replayed, report.first_divergent_step, len(joined)) == (STEPS, None, steps)


@pytest.mark.parametrize("setting", ["foreach", "fused"])
def test_other_kernels_are_not_joined(setting: str, tmp_path: Path, joined: list[int]) -> None:
    def make(parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
        return torch.optim.AdamW(parameters, **{setting: True})

    trained = train(tmp_path / "run", make)
    found, report = recover(tmp_path / "run", make)
    assert differences(flatten(trained), flatten(found)) == []
    assert (report.first_divergent_step, joined) == (None, [])


def test_a_redo_that_differs_is_repeated_without_joining(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trained = train(tmp_path / "run", adamw)
    taken: list[int] = []
    step = joined_step.JoinedStep.step

    def rounds_otherwise(self: joined_step.JoinedStep) -> None:
        taken.append(len(taken))
        step(self)
        if len(taken) == 9:
            self.parameters[0].data[0] += 1e-3

    monkeypatch.setattr(joined_step.JoinedStep, "step", rounds_otherwise)
    found, report = recover(tmp_path / "run", adamw)
    assert differences(flatten(trained), flatten(found)) == []
    assert (report.first_divergent_step, len(taken)) == (None, STEPS - 1)
