"""Copies of hyper-parameters are made again exactly when a value was written, in place or by another object."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from tranlogs_torch.state.group_values import GroupValues

Write = Callable[[dict[str, Any]], object]


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
        ({"betas": (0.9, 0.99)}, lambda g: g.update(betas=(0.9, 0.95)), {"betas": (0.9, 0.95)}),
        ({"betas": [0.9, 0.99]}, lambda g: g["betas"].__setitem__(0, 0.8), {"betas": [0.8, 0.99]}),
        ({"betas": ([0.9], 0.99)}, lambda g: g["betas"][0].append(1.0), {"betas": ([0.9, 1.0], 0.99)}),
        ({"own": {"a": 1}}, lambda g: g["own"].update(a=2), {"own": {"a": 2}}),
        ({}, lambda g: g.update(added=3), {"added": 3}),
        ({"gone": 3}, lambda g: g.pop("gone"), {}),
        ({"a": 1, "b": 2}, lambda g: g.update(a=2, b=1), {"a": 2, "b": 1}),
    ],
)
def test_what_was_written_is_in_the_next_copy(values: dict[str, Any], write: Write, expected: dict[str, Any]) -> None:
    optimizer = optimizer_with(**values)
    group_values = GroupValues(optimizer)
    before = group_values.now()
    assert group_values.now() is before
    group = optimizer.param_groups[1]
    write(group)
    after = group_values.now()
    assert after is not before
    for key in values.keys() - expected.keys():
        assert key not in after[1]
    for key, value in expected.items():
        assert repr(after[1][key]) == repr(value)
        assert type(after[1][key]) is type(value)
    assert group_values.now() is after


def test_a_learning_rate_in_a_tensor_is_copied() -> None:
    optimizer = optimizer_with(lr=torch.tensor(0.5))
    group_values = GroupValues(optimizer)
    before = group_values.now()
    optimizer.param_groups[1]["lr"].fill_(0.25)
    assert before[1]["lr"].item() == 0.5
    assert group_values.now()[1]["lr"].item() == 0.25


def test_an_added_group_is_in_the_next_copy() -> None:
    optimizer = optimizer_with()
    group_values = GroupValues(optimizer)
    assert len(group_values.now()) == 2
    optimizer.add_param_group({"params": [torch.nn.Parameter(torch.zeros(1))], "lr": 3.0})
    assert [group["lr"] for group in group_values.now()] == [0.1, 0.1, 3.0]


def test_parameters_are_no_values() -> None:
    assert all(not {"params", "param_names"} & group.keys() for group in GroupValues(optimizer_with()).now())
