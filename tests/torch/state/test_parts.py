"""Parts of a boundary are read again only where they changed; digests on a device; when a state is sampled."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from tests.torch.lab import Attempt, differences
from tests.torch.nets import seed
from tests.torch.scripts import simple
from tranlogs.training import fingerprint
from tranlogs_torch.data.generators import trackable
from tranlogs_torch.state import naming
from tranlogs_torch.state.fingerprint import Fingerprint
from tranlogs_torch.state.group_values import GroupValues
from tranlogs_torch.state.rarely_changed_parts import ModuleWalk
from tranlogs_torch.state.tracked_objects import is_kept_generator


def optimizer_with(**values: Any) -> torch.optim.Optimizer:
    """An optimizer of two groups, the second of which has these values."""
    first, second = torch.nn.Parameter(torch.zeros(2)), torch.nn.Parameter(torch.zeros(3))
    return torch.optim.SGD([{"params": [first]}, {"params": [second], **values}], lr=0.1)


@pytest.mark.parametrize(
    ("values", "write", "expected"),
    [
        ({"lr": 0.5}, lambda g: g.update(lr=0.25), {"lr": 0.25}),
        ({"lr": 1}, lambda g: g.update(lr=1.0), {"lr": 1.0}),
        ({"lr": 0.0}, lambda g: g.update(lr=-0.0), {"lr": -0.0}),
        ({"lr": torch.tensor(0.5)}, lambda g: g["lr"].fill_(0.25), {"lr": torch.tensor(0.25)}),
        ({"betas": (0.9, 0.99)}, lambda g: g.update(betas=(0.9, 0.95)), {"betas": (0.9, 0.95)}),
        ({"betas": [0.9, 0.99]}, lambda g: g["betas"].__setitem__(0, 0.8), {"betas": [0.8, 0.99]}),
        ({"betas": ([0.9], 0.99)}, lambda g: g["betas"][0].append(1.0), {"betas": ([0.9, 1.0], 0.99)}),
        ({"own": {"a": 1}}, lambda g: g["own"].update(a=2), {"own": {"a": 2}}),
        ({}, lambda g: g.update(added=3), {"added": 3}),
        ({"gone": 3}, lambda g: g.pop("gone"), {}),
        ({"a": 1, "b": 2}, lambda g: g.update(a=2, b=1), {"a": 2, "b": 1}),
    ],
)
def test_hyper_parameters_that_were_written_are_in_the_next_copy(
    values: dict[str, Any], write: Callable[[dict[str, Any]], object], expected: dict[str, Any]
) -> None:
    optimizer = optimizer_with(**values)
    group_values = GroupValues(optimizer)
    before = group_values.now()
    was = repr(before)
    assert isinstance(values.get("lr"), torch.Tensor) or group_values.now() is before
    write(optimizer.param_groups[1])
    after = group_values.now()
    assert after is not before
    assert repr(before) == was
    assert not {"params", "param_names", *(values.keys() - expected.keys())} & after[1].keys()
    assert repr({key: after[1][key] for key in expected}) == repr(expected)
    optimizer.add_param_group({"params": [torch.nn.Parameter(torch.zeros(1))], "lr": 3.0})
    assert [len(group_values.now()), group_values.now()[2]["lr"]] == [3, 3.0]


@pytest.mark.parametrize(
    "change",
    [
        lambda model: model.__setitem__(1, nn.BatchNorm1d(3)),
        lambda model: model.append(nn.BatchNorm1d(2)),
        lambda model: model.__delitem__(0),
        lambda model: model.register_buffer("count", torch.zeros(1)),
        lambda model: setattr(model[0], "running_mean", torch.ones(2)),
    ],
    ids=["replaced", "appended", "removed", "registered", "buffer replaced"],
)
def test_change_of_the_structure_is_seen(change: Callable[[nn.Sequential], object]) -> None:
    model = nn.Sequential(nn.BatchNorm1d(2), nn.BatchNorm1d(2))
    walk = ModuleWalk({"": model})
    walk.read()
    change(model)
    now = naming.named_buffers({"": model})
    assert walk.read()[0].keys() == now.keys()
    assert all(walk.read()[0][name] is tensor for name, tensor in now.items())
    assert len(walk.read()[1][""]) == len(list(model.modules()))


MADE: dict[str, tuple[Callable[[], Any], Callable[[Any], Any]]] = {
    "numpy.Generator": (lambda: np.random.default_rng(3), lambda one: one.bit_generator.state),
    "numpy.RandomState": (lambda: np.random.RandomState(3), lambda one: one.get_state()),
    "numpy.RandomState as a dict": (lambda: np.random.RandomState(3), lambda one: one.get_state(legacy=False)),
    "random.Random": (lambda: random.Random(3), lambda one: one.getstate()),
    "random.Random as a list": (lambda: random.Random(3), lambda one: {"a": list(one.getstate()[1])}),
    "torch.Generator": (lambda: torch.Generator().manual_seed(3), lambda one: one.get_state()),
}


@pytest.mark.parametrize("name", MADE)
def test_a_generator_s_state_within_another_one_is_found(name: str) -> None:
    make, read = MADE[name]
    generator, other = make(), make()
    if isinstance(other, torch.Generator):
        torch.rand(3, generator=other)
    else:
        other.random() if isinstance(other, random.Random) else other.normal(size=700)
    kept = SimpleNamespace(state_dict=lambda: {"n": 1, "parts": [0.5, {"rng": read(generator)}]})
    lost = SimpleNamespace(state_dict=lambda: {"n": 1, "parts": [0.5, {"rng": read(other)}]})
    assert is_kept_generator(generator, [lost, kept])
    assert not is_kept_generator(generator, [lost])
    assert is_kept_generator(generator, [lost, trackable(generator)])
    assert not is_kept_generator(generator, [trackable(other)])


# Fingerprints as a GPU computes them, here on the CPU: the numbers are the same wherever the tensors lie.


def trained(run: Path, clamp_at: int = -1) -> Attempt:
    seed()
    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 2))

    def clamp(number: int, optimizer: Any) -> None:
        if number == clamp_at:
            for parameter in model.parameters():
                parameter.data.clamp_(-0.05, 0.05)

    attempt = Attempt(run, checkpoint_every=100, recheck=False)
    simple(attempt, model, torch.optim.AdamW(model.parameters(), lr=0.1), width=8, change=clamp)
    return attempt


@pytest.mark.parametrize("is_told", [False, True])
def test_replay_is_proven_by_digests_of_the_device(is_told: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And a change of the state is told."""
    make, whole = Fingerprint.__init__, Fingerprint.whole

    def made(self: Fingerprint, *given: object) -> None:
        make(self, *given)  # type: ignore[arg-type]
        self.kind = "device"

    def other(self: Fingerprint, kind: str) -> Any:
        found = whole(self, kind)
        found[2] ^= 1
        return found

    monkeypatch.setattr(Fingerprint, "__init__", made)
    right = trained(tmp_path / "run", clamp_at=5)
    if is_told:
        monkeypatch.setattr(Fingerprint, "whole", other)
    again = trained(tmp_path / "run")
    report = again.reports[0]
    assert (report.step, report.replayed, report.exact) == (9, 9, not is_told)
    assert differences(again.outcome(), right.outcome()) == []
    if is_told:
        assert report.first_divergent_step == 1
        assert any("2.weight" in note for note in report.notes)


ROWS_OF_1_MIB = (1 << 20) // (4 * 64)


@pytest.mark.parametrize(("rows", "exact"), [(ROWS_OF_1_MIB, True), (ROWS_OF_1_MIB + 1, None)])
def test_only_a_state_above_the_limit_is_sampled(
    rows: int, exact: bool | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A small state is compared in full, however long a digest seems to take, so that its recovery is proven."""

    def script(attempt: Attempt) -> None:
        """Train some rows of a table: a step logs far less than a quarter of it."""
        seed()
        table = torch.nn.Embedding(rows, 64, sparse=True)
        optimizer = attempt.wrap(torch.optim.SGD(table.parameters(), 0.1), table)
        attempt.start(optimizer)
        for turn in optimizer.steps(40, stateless=True):
            table(torch.tensor([turn, 0])).square().sum().backward()
            optimizer.step()
            optimizer.zero_grad()
        optimizer.close()

    monkeypatch.setattr(fingerprint, "BUDGET", 0)  # no digest is fast enough
    monkeypatch.setattr(fingerprint, "_FREE_SECONDS", 0)
    options: dict[str, Any] = {"log": "gradients", "checkpoint_every": 1000, "recheck": False}
    first, last = (Attempt(tmp_path / "run", **options) for _ in range(2))
    script(first)
    script(last)
    report = last.reports[0]
    assert report.exact is exact, report
    assert any("rotating sample" in note for note in report.notes) is (exact is None)
