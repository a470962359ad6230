"""What each rank logs of the gradients that DistributedDataParallel sums, and what may sum them."""

from __future__ import annotations

import random
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, quantization_hooks

from tranlogs.base.errors import UsageError
from tranlogs.base.types import Array
from tranlogs_torch.ddp.gradient_ranges import digest, portions
from tranlogs_torch.ddp.reducer import describe_hook
from tranlogs_torch.tensors.arrays import from_array, to_array


def gradients() -> list[tuple[str, torch.Tensor]]:
    """Of all kinds."""
    torch.manual_seed(0)
    sparse = torch.sparse_coo_tensor(torch.tensor([[1, 3]]), torch.randn(2, 4), (6, 4), check_invariants=True)
    return [
        ("row", torch.randn(7, 5)),
        ("last", torch.randn(2, 3, 4, 5).to(memory_format=torch.channels_last)),
        ("transposed", torch.randn(6, 3).t()),
        ("empty", torch.zeros(0, 4)),
        ("scalar", torch.randn(())),
        ("sparse", sparse),
        ("half", torch.randn(9).to(torch.bfloat16)),
        ("expanded", torch.randn(3, 1).expand(3, 4)),
        ("one", torch.randn(1, 8)),
    ]


@pytest.mark.parametrize("world", [1, 2, 3, 4, 7, 50])
def test_portions_of_all_ranks_make_every_gradient_whole(world: int) -> None:
    named = gradients()
    parts = [portions(named, rank, world) for rank in range(world)]
    for name, gradient in named:
        found = [portion for part in parts for portion in part if portion.name == name]
        if gradient.is_sparse or gradient.numel() == 0:
            assert len(found) == 1
            assert found[0].tensor is gradient
            continue
        whole = to_array(gradient)
        assert isinstance(whole, Array)
        at, data = 0, []
        for portion in found:
            content = portion.placed(to_array(portion.tensor))
            assert isinstance(content, Array)
            assert content.piece is not None
            assert content.piece.offset == (at,)
            assert (content.whole, content.strides) == (whole.shape, whole.strides)
            at += content.piece.length[0]
            data.append(content.data)
        joined = from_array(Array(whole.dtype, whole.shape, np.concatenate(data), whole.strides))
        assert joined.stride() == from_array(whole).stride()
        assert torch.equal(joined, gradient)


def test_shares_are_equal_whatever_the_parameters_are() -> None:
    chance = random.Random(3)
    named = [(str(i), torch.zeros(chance.choice([1, 10, 1000, 40_000]))) for i in range(60)]
    sizes = [sum(portion.tensor.numel() for portion in portions(named, rank, 5)) for rank in range(5)]
    assert max(sizes) - min(sizes) <= 1
    assert sum(sizes) == sum(gradient.numel() for _, gradient in named)


def test_digest_tells_values_names_and_layouts_apart() -> None:
    values = torch.arange(12.0).reshape(3, 4)
    found = {
        digest([("a", values)]),
        digest([("b", values)]),
        digest([("a", values.reshape(4, 3))]),
        digest([("a", values.t().contiguous().t())]),
        digest([("a", values + 1)]),
        digest([("a", values.double())]),
    }
    assert len(found) == 6
    assert digest([("a", values)]) == digest([("a", values.clone())])


SCALE = 64
ERRORS: dict[int, torch.Tensor] = {}


def scaled(state: Any, bucket: Any) -> Any:
    return bucket.buffer() / SCALE


def with_global(state: Any, bucket: Any) -> Any:
    return bucket.future().then(lambda future: ERRORS.setdefault(bucket.index(), future.value()))


def with_default(state: Any, bucket: Any, errors: dict[int, Any] = {}) -> Any:  # noqa: B006
    return errors.setdefault(bucket.index(), bucket.buffer())


def with_attribute(state: Any, bucket: Any) -> Any:
    return bucket.buffer()


with_attribute.error = None  # type: ignore[attr-defined]


class Feedback:
    def hook(self, state: Any, bucket: Any) -> Any:
        return bucket.buffer()

    __call__ = hook


def with_closure() -> Callable[..., Any]:
    errors: dict[int, Any] = {}
    return lambda state, bucket: errors.setdefault(bucket.index(), bucket.buffer())


@pytest.mark.parametrize(
    "hook",
    [
        default_hooks.allreduce_hook,
        default_hooks.fp16_compress_hook,
        default_hooks.bf16_compress_hook,
        default_hooks.fp16_compress_wrapper(default_hooks.allreduce_hook),
        quantization_hooks.quantization_pertensor_hook,
        quantization_hooks.quantization_perchannel_hook,
        scaled,
    ],
)
def test_plain_functions_pass(hook: Callable[..., Any]) -> None:
    assert describe_hook(hook, None) == ""


@pytest.mark.parametrize(
    "hook",
    [
        Feedback().hook,
        Feedback(),
        with_closure(),
        default_hooks.fp16_compress_wrapper(Feedback().hook),
        partial(scaled, None),
        with_global,
        with_default,
        with_attribute,
    ],
)
def test_what_can_keep_a_state_is_said(hook: Callable[..., Any]) -> None:
    assert "may keep state" in describe_hook(hook, None)
    with pytest.raises(UsageError, match=r"the communication hook .+ has a state \(object\)"):
        describe_hook(hook, object())
