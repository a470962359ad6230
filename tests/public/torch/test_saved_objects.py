"""What scripts save of their own (the whole model, the number of an epoch) holds nothing of TranLogs."""

from __future__ import annotations

import copy
import copyreg
import io
import pickle
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from tests.torch.nets import seed
from tranlogs_torch import LoggedOptimizer


class Net(nn.Module):
    """A small model with a hook of the user's own."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(2, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layer(x)  # type: ignore[no-any-return]


def double(module: nn.Module, arguments: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, ...]:
    return (arguments[0] * 2,)


def logged(run: Path, model: nn.Module) -> tuple[LoggedOptimizer, DataLoader[Any]]:
    optimizer = LoggedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1), run, model, segment_bytes=1 << 20)
    loader = DataLoader(TensorDataset(torch.arange(12.0).reshape(6, 2)), batch_size=2)
    optimizer.track(loader=loader).recover()
    return optimizer, loader


def trained(optimizer: LoggedOptimizer, model: nn.Module, batches: Any) -> None:
    for (x,) in batches:
        optimizer.zero_grad()
        model(x).square().mean().backward()
        optimizer.step()


def saved(thing: Any, **options: Any) -> Any:
    file = io.BytesIO()
    torch.save(thing, file)
    assert b"tranlogs" not in file.getvalue()
    file.seek(0)
    return torch.load(file, **options)


def test_a_whole_model_is_saved_and_loads_with_weights_only(tmp_path: Path) -> None:
    seed()
    model = Net()
    model.register_forward_pre_hook(double)
    optimizer, loader = logged(tmp_path / "run", model)
    trained(optimizer, model, loader)
    with torch.serialization.safe_globals([Net, nn.Linear, double]):
        loaded = saved(model, weights_only=True)
    x = torch.ones(1, 2)
    assert torch.equal(loaded(x), model(x))
    assert len(loaded._forward_pre_hooks) == 1
    assert type(loaded._forward_pre_hooks) is type(Net()._forward_pre_hooks)
    optimizer.close()
    assert Net not in copyreg.dispatch_table


@pytest.mark.parametrize(
    "make", [copy.copy, copy.deepcopy, lambda m: pickle.loads(pickle.dumps(m))], ids=["copy", "deepcopy", "pickle"]
)
def test_a_copy_of_the_model_is_a_plain_model(make: Any, tmp_path: Path) -> None:
    """A copy is trained beside: no hook of the run sees it."""
    model = Net()
    optimizer, loader = logged(tmp_path / "run", model)
    for (x,) in optimizer.batches(loader, until=3):
        other = make(model)
        assert not other._forward_pre_hooks
        other(x).sum().backward()
        optimizer.zero_grad()
        model(x).square().mean().backward()
        optimizer.step()
    assert len(model._forward_pre_hooks) == 1
    assert optimizer.watermarks["step"] == 3
    optimizer.close()
    assert not model._forward_pre_hooks


def test_a_model_inside_another_object_is_saved_plain(tmp_path: Path) -> None:
    model = Net()
    optimizer, loader = logged(tmp_path / "run", model)
    trained(optimizer, model, loader)
    loaded = saved({"ema": nn.ModuleList([model]), "epoch": 3}, weights_only=False)
    assert not loaded["ema"][0]._forward_pre_hooks
    optimizer.close()


def test_two_runs_of_one_class_end_one_after_the_other(tmp_path: Path) -> None:
    first, second = Net(), Net()
    one, _ = logged(tmp_path / "one", first)
    two, _ = logged(tmp_path / "two", second)
    one.close()
    assert not copy.deepcopy(second)._forward_pre_hooks
    two.close()
    assert Net not in copyreg.dispatch_table


@pytest.mark.parametrize("weights_only", [False, True])
def test_the_number_of_an_epoch_is_saved_as_an_int(weights_only: bool, tmp_path: Path) -> None:
    model = Net()
    optimizer, loader = logged(tmp_path / "run", model)
    numbers = []
    for epoch in optimizer.epochs(2, loader):
        trained(optimizer, model, epoch)
        loaded = saved({"epoch": epoch, "model": model.state_dict()}, weights_only=weights_only)
        for number in (loaded["epoch"], copy.copy(epoch), copy.deepcopy(epoch), pickle.loads(pickle.dumps(epoch, protocol=0))):
            assert type(number) is int
            assert number == epoch
        numbers.append(loaded["epoch"])
    assert numbers == [0, 1]
    optimizer.close()
