"""Fingerprints as a GPU computes them, here on the CPU: the numbers are the same wherever the tensors lie."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from tranlogs_torch import LoggedOptimizer
from tranlogs_torch.state.fingerprint import Fingerprint


@pytest.fixture(autouse=True)
def on_device(monkeypatch: pytest.MonkeyPatch) -> None:
    make = Fingerprint.__init__

    def made(self: Fingerprint, *given: object) -> None:
        make(self, *given)  # type: ignore[arg-type]
        self.kind = "device"

    monkeypatch.setattr(Fingerprint, "__init__", made)


def opened(run: Path) -> tuple[torch.nn.Module, LoggedOptimizer]:
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 2))
    return model, LoggedOptimizer(torch.optim.AdamW(model.parameters(), lr=0.1), run, model, checkpoint_every=100)


def train(run: Path, until: int, clamp_at: int = -1) -> torch.nn.Module:
    model, optimizer = opened(run)
    optimizer.recover()
    for number in optimizer.steps(until, stateless=True):
        model(torch.full((3, 8), float(number))).square().sum().backward()
        optimizer.step()
        optimizer.zero_grad()
        if number == clamp_at:
            for parameter in model.parameters():
                parameter.data.clamp_(-0.05, 0.05)
    optimizer.close()
    return model


def test_replay_is_proven_by_digests_of_the_device(tmp_path: Path) -> None:
    right = train(tmp_path / "run", 9, clamp_at=5)
    model, optimizer = opened(tmp_path / "run")
    report = optimizer.recover()
    assert (report.step, report.replayed, report.exact) == (9, 9, True)
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), right.parameters(), strict=True))
    optimizer.close()


def test_a_change_of_the_state_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    train(tmp_path / "run", 6)
    whole = Fingerprint.whole

    def other(self: Fingerprint, kind: str) -> object:
        found = whole(self, kind)
        found[2] ^= 1
        return found

    monkeypatch.setattr(Fingerprint, "whole", other)
    _, optimizer = opened(tmp_path / "run")
    report = optimizer.recover()
    assert (report.exact, report.first_divergent_step) == (False, 1)
    assert any("2.weight" in note for note in report.notes)
    optimizer.close()
