"""Which communication hooks are taken for ones without a state."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, quantization_hooks

from tranlogs.base.errors import UsageError
from tranlogs_torch.ddp.reducer import describe_hook

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
