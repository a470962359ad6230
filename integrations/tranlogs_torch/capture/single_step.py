"""One step as it was taken while training: its clipping, what a GradScaler had set, no hooks, and taken once."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import CodeType
from typing import Any

import torch
from torch.optim.optimizer import _global_optimizer_post_hooks, _global_optimizer_pre_hooks

_HOOKED_STEP = next(
    (code for code in torch.optim.Optimizer.profile_hook_step.__code__.co_consts if isinstance(code, CodeType)), None
)  # the wrapper that torch puts around the `step` of each class, and that calls the hooks


def clip_again(parameters: list[torch.Tensor], body: dict[str, Any]) -> None:
    """Clip by the logged norm, as `clip_grad_norm_` of torch does it."""
    clip = body.get("clip")
    if clip is not None and parameters:
        norm = clip["norm"].to(parameters[0].device)
        torch.nn.utils.clip_grads_with_norm_(parameters, clip["max_norm"], norm, clip["foreach"])


@contextmanager
def amp_of(optimizer: torch.optim.Optimizer, body: dict[str, Any]) -> Iterator[None]:
    """The attributes that a GradScaler sets on an optimizer that unscales by itself."""
    given = body.get("amp", {})
    where = next((p.device for group in optimizer.param_groups for p in group["params"]), torch.device("cpu"))
    for key, value in given.items():
        setattr(optimizer, key, value.to(where, copy=True))
    try:
        yield
    finally:
        for key in given:
            delattr(optimizer, key)


@contextmanager
def without_hooks(optimizer: torch.optim.Optimizer) -> Iterator[None]:
    """Disable all hooks of an optimizer, global ones included. The log already has what they did to the gradients."""
    places: list[Any] = [
        optimizer._optimizer_step_pre_hooks,
        optimizer._optimizer_step_post_hooks,
        _global_optimizer_pre_hooks,
        _global_optimizer_post_hooks,
    ]
    kept = [dict(hooks) for hooks in places]
    for hooks in places:
        hooks.clear()
    try:
        yield
    finally:
        for hooks, before in zip(places, kept, strict=True):
            hooks.update(before)


def step_of(kind: type[torch.optim.Optimizer]) -> Callable[[Any], Any]:
    """Return the `step` of a class without the wrapper that torch puts around it for hooks and the profiler."""
    step: Callable[[Any], Any] = kind.step
    unwrapped: Callable[[Any], Any] = getattr(step, "__wrapped__", step)
    return unwrapped if getattr(step, "hooked", False) else step


def can_nest(optimizer: torch.optim.Optimizer) -> bool:
    """Return True if `step` may call the `step` of a base class, which has hooks of its own once an optimizer of it exists."""
    steps = {inspect.unwrap(vars(kind)["step"]) for kind in type(optimizer).__mro__ if "step" in vars(kind)}
    return len(steps) > 2  # Its own, and the abstract one. torch wraps what a class inherits, and puts it into the class.


def is_nested(optimizer: torch.optim.Optimizer) -> bool:
    """Whether a hook that runs now was called by a step inside the optimizer's own step."""
    steps, frame = 0, sys._getframe(1)
    while frame is not None and steps < 2:
        if frame.f_code is _HOOKED_STEP:
            arguments = frame.f_locals.get("args", ())
            steps += bool(arguments) and arguments[0] is optimizer
        frame = frame.f_back  # type: ignore[assignment]
    return steps == 2
