"""A damaged gradient in the log of a PyTorch run: recovery lands before it, whether it is read ahead or not, and says so."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from tests.torch.lab import Attempt, differences, flatten
from tranlogs.log.reader import SegmentReader
from tranlogs.log.scanner import scan
from tranlogs.log.segment_file import parse_segment_name
from tranlogs.recovery import RecoveryReport
from tranlogs_torch.replay import gradient_reader, redo

STEPS, DAMAGED = 20, 13


def train(attempt: Attempt, until: int) -> None:
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(40, 60), torch.nn.Tanh(), torch.nn.Linear(60, 3))
    optimizer = attempt.wrap(torch.optim.AdamW(model.parameters(), lr=0.01), model)
    attempt.start(optimizer)
    attempt.keep(model=model, optimizer=optimizer)
    for _ in optimizer.steps(until, stateless=True):
        model(torch.randn(8, 40)).square().sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    optimizer.close()


def flip_a_bit_of(run: Path, name: str, step: int) -> None:
    for path in sorted((run / "rank0" / "log").glob("*.seg")):
        named = parse_segment_name(path.name)
        assert named is not None
        with SegmentReader(path) as reader:
            for entry in reader.entries(scan(path, named[1])):
                if entry.head.step == step and name in entry.tensor_names():
                    at = entry.location.payload_offset + entry.starts()[entry.slots_of(name)[0]]
                    with open(path, "r+b") as file:
                        file.seek(at)
                        (byte,) = file.read(1)
                        file.seek(at)
                        file.write(bytes([byte ^ 16]))
                    return
    raise AssertionError("nothing was damaged")


def train_in_turns(attempt: Attempt, until: int) -> None:
    """Two optimizers, step by step in turn."""
    torch.manual_seed(0)
    model = torch.nn.ModuleList([torch.nn.Linear(40, 60), torch.nn.Linear(60, 3)])
    inner = [torch.optim.AdamW(layer.parameters(), lr=0.01) for layer in model]
    first = attempt.wrap(inner[0], model)
    second = attempt.add_optimizer(first, inner[1], "second")
    attempt.start(first)
    attempt.keep(model=model, optimizer=inner[0], second=inner[1])
    for _ in first.steps(until, stateless=True):
        model[1](model[0](torch.randn(8, 40)).tanh()).square().sum().backward()
        first.step()
        second.step()
        model.zero_grad()
    first.close()


@pytest.mark.parametrize("tensor", ["0.weight", "1.weight"])
@pytest.mark.parametrize("what", ["gradient", "fingerprint"])
def test_optimizers_in_turns_land_before_what_is_damaged_or_differs(
    tensor: str, what: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Batch 7 has steps 13 and 14, one of each optimizer."""
    run, step = tmp_path / "run", 13 + int(tensor[0])
    train_in_turns(Attempt(run, checkpoint_every=1000), 10)
    if what == "gradient":
        flip_a_bit_of(run, f"grad/{tensor}", step)
    else:
        monkeypatch.setattr(redo._Target, "apply_gradients", otherwise(redo._Target.apply_gradients, tensor, step))
    again, right = Attempt(run), Attempt()
    report = recovered(again)
    if what == "fingerprint":
        assert report.exact is False
        assert any(tensor in note and f"step {step}" in note for note in report.notes)
        return
    train_in_turns(right, 6)
    assert (report.step, report.exact) == (12, True)
    assert any(f"grad/{tensor}" in note and f"step {step}" in note for note in report.notes)
    assert differences(flatten(again.outcome()), flatten(right.outcome())) == []


def recovered(attempt: Attempt) -> RecoveryReport:
    """Come back, and train nothing."""
    train_in_turns(attempt, 0)
    return attempt.reports[0]


def otherwise(apply: Any, tensor: str, at: int) -> Any:
    """Redo one step of a tensor with another result."""

    def done(target: Any, entry: Any, body: Any) -> None:
        apply(target, entry, body)
        if entry.step == at:
            target._state.parameters[tensor].data[0, 0] += 1.0

    return done


@pytest.mark.parametrize("is_ahead", [False, True])
def test_recovery_lands_before_a_damaged_gradient(is_ahead: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = tmp_path / "run"
    train(Attempt(run, checkpoint_every=1000), STEPS)
    flip_a_bit_of(run, "grad/2.weight", DAMAGED)
    monkeypatch.setattr(gradient_reader.os, "sched_getaffinity", lambda pid: range(64))
    monkeypatch.setattr(gradient_reader, "_AHEAD_BYTES_MIN", 0 if is_ahead else 1 << 30)
    again, right = Attempt(run), Attempt()
    train(again, DAMAGED - 1)  # nothing is left to train
    train(right, DAMAGED - 1)
    report = again.reports[0]
    assert (report.step, report.exact) == (DAMAGED - 1, True)
    assert any("grad/2.weight" in note and f"step {DAMAGED}" in note for note in report.notes)
    assert differences(flatten(again.outcome()), flatten(right.outcome())) == []
