"""The walk over modules is taken again when their structure changes, and only then."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import nn

from tranlogs_torch.state import naming
from tranlogs_torch.state.auxiliary.rarely_changed_parts import ModuleWalk


@pytest.mark.parametrize("children", [1, 256, 257, 600])
def test_unchanged_modules_are_walked_once(children: int, monkeypatch: pytest.MonkeyPatch) -> None:
    walks = 0
    real = naming.named_buffers

    def counted(modules: dict[str, nn.Module]) -> dict[str, torch.Tensor]:
        nonlocal walks
        walks += 1
        return real(modules)

    monkeypatch.setattr(naming, "named_buffers", counted)
    walk = ModuleWalk({"": nn.Sequential(*[nn.BatchNorm1d(2) for _ in range(children)])})
    for _ in range(5):
        assert len(walk.read()[0]) == 3 * children
        assert len(walk.read()[1][""]) == children + 1
    assert walks == 1


def replaced(model: nn.Sequential) -> None:
    model[1] = nn.BatchNorm1d(3)


def appended(model: nn.Sequential) -> None:
    model.append(nn.BatchNorm1d(2))


def removed(model: nn.Sequential) -> None:
    del model[0]


def registered(model: nn.Sequential) -> None:
    model.register_buffer("count", torch.zeros(1))


def buffer_replaced(model: nn.Sequential) -> None:
    model[0].running_mean = torch.ones(2)


@pytest.mark.parametrize("change", [replaced, appended, removed, registered, buffer_replaced], ids=lambda c: c.__name__)
def test_change_of_the_structure_is_seen(change: Callable[[nn.Sequential], None]) -> None:
    model = nn.Sequential(nn.BatchNorm1d(2), nn.BatchNorm1d(2))
    walk = ModuleWalk({"": model})
    walk.read()[0]
    change(model)
    now = naming.named_buffers({"": model})
    assert walk.read()[0].keys() == now.keys()
    assert all(walk.read()[0][name] is tensor for name, tensor in now.items())
    assert len(walk.read()[1][""]) == len(list(model.modules()))
