"""What a script has changed of weights and optimizer states since a recovery: by element, and bit for bit."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from tranlogs_torch.loops.recovery import landed_tensors
from tranlogs_torch.loops.recovery.landed_tensors import LandedTensors, apply_tensor_changes

Tensor = torch.Tensor


def make_state() -> Any:
    """Half of a weight and of its moment are zero, as behind units of a network that are never active."""
    weight = torch.nn.Parameter(torch.arange(12.0).reshape(4, 3) * (torch.arange(4) % 2)[:, None])
    optimizer = torch.optim.Adam([weight, torch.nn.Parameter(torch.ones(2))])
    optimizer.state[weight] = {"exp_avg": weight.detach() * 2, "step": torch.tensor(7.0), "note": [1, 2]}
    return SimpleNamespace(parameters={"w": weight}, optimizers={"main": optimizer})


def take_step(state: Any) -> None:
    """What the newest unit does."""
    for value in (state.parameters["w"].data, moment(state), kept(state)["step"]):
        value.add_(1)


def kept(state: Any) -> dict[str, Any]:
    found: dict[str, Any] = state.optimizers["main"].state[state.parameters["w"]]
    return found


def moment(state: Any) -> Tensor:
    found: Tensor = kept(state)["exp_avg"]
    return found


def set_row(state: Any) -> None:
    state.parameters["w"].data[1] = -1.0


def zero(state: Any) -> None:
    moment(state).zero_()


def negate_zeros(state: Any) -> None:
    state.parameters["w"].data[0].neg_()


def add_key(state: Any) -> None:
    kept(state)["more"] = torch.ones(1)


def remove_key(state: Any) -> None:
    del kept(state)["note"]


def fill(state: Any) -> None:
    state.parameters["w"].data.copy_(torch.arange(12.0).reshape(4, 3) + 0.5)


CHANGES: list[Callable[[Any], None]] = [set_row, zero, negate_zeros, add_key, remove_key, fill]


@pytest.mark.parametrize("change", CHANGES, ids=lambda change: change.__name__)
def test_a_change_holds_in_a_newer_state(change: Callable[[Any], None]) -> None:
    state, wanted = make_state(), make_state()
    landed = LandedTensors(state)
    change(state)
    changes = landed.find_changes()
    newer = make_state()
    for one in (newer, wanted):
        take_step(one)
    landed._state = newer
    moved = landed.find_moved(changes)
    apply_tensor_changes(changes, newer)
    if change is negate_zeros:  # the row is 1 by then: what was set there is -0.0
        wanted.parameters["w"].data[0] = -0.0
    else:
        change(wanted)
    assert torch.equal(newer.parameters["w"], wanted.parameters["w"])
    assert [str(value) for value in kept(newer).items()] == [str(value) for value in kept(wanted).items()]
    assert bool(moved) is (change not in (add_key, remove_key))


@pytest.mark.parametrize("copied_bytes", [1 << 30, 0])
def test_what_is_there_already_is_no_change(copied_bytes: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(landed_tensors, "_COPIED_BYTES_MAX", copied_bytes)
    state = make_state()
    landed = LandedTensors(state)
    state.parameters["w"].data.copy_(state.parameters["w"].data.clone())
    kept(state)["note"] = [1, 2]
    assert state.optimizers["main"].state[state.optimizers["main"].param_groups[0]["params"][1]] == {}
    assert landed.find_changes() == []
    set_row(state)
    assert [change.text for change in landed.find_changes()] == ["weight w"]
