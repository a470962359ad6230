"""One step as it was taken while training: its clipping, what a GradScaler had set, no hooks, and taken once.

A step of an optimizer that is not torch's own is also taken a second time as redo would take it. Whether the gradients are all
that a step consumes cannot be read off an optimizer: it may draw random numbers, count on itself, or look at the loss. So at
its first steps, and at each doubling of their number, a twin with the state of before takes the step from the captured
gradients. Where the bits differ, gradients are not enough, and weights are logged.
"""

from __future__ import annotations

import copy
import inspect
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import CodeType
from typing import Any

import torch
from torch.optim import Optimizer
from torch.optim.optimizer import _global_optimizer_post_hooks, _global_optimizer_pre_hooks

from tranlogs.training import ReplayCheck

from ..data.rng import get_rng, set_rng
from ..state.extra_state import is_torchs, own_attributes
from ..tensors.arrays import to_array

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


_PLAIN = (type(None), bool, int, float, complex, str, bytes, torch.dtype)


class StepRehearsal:
    """A check that the gradients of a step are all that its optimizer needs to take the step again.

    Args:
        optimizer: as its constructor left it.

    Attributes:
        is_needed: False for an optimizer of torch's own, whose steps are known.
    """

    def __init__(self, optimizer: Optimizer) -> None:
        self._optimizer = optimizer
        self._made = {name: value for name, value in own_attributes(optimizer).items() if isinstance(value, _PLAIN)}
        self._twin: Optimizer | None = None
        self._check = ReplayCheck()
        self.is_needed = not is_torchs(optimizer)

    def before_step(self) -> str | None:
        """Gradients are there, the step comes: make the twin if one is due; says why none can be made."""
        if not self._check.is_due() or not _has_room(self._optimizer):
            return None
        if hasattr(type(self._optimizer), "__del__"):
            return "it has a finalizer, so it cannot be copied to check whether its steps can be redone from gradients"
        try:
            self._twin = self._twinned()
        except Exception as error:
            return f"it could not be copied to check whether its steps can be redone from gradients ({_words(error)})"
        return None

    def after_step(self, amp: dict[str, Any]) -> str | None:
        """The step is taken: let the twin take it; says what was not as redo would have it."""
        twin, self._twin = self._twin, None
        if twin is None:
            return None
        rng = get_rng()
        try:
            with torch.no_grad(), amp_of(twin, {"amp": amp}), without_hooks(twin):
                twin.step()
        except Exception as error:
            return f"its step needs more than gradients ({_words(error)})"
        finally:
            set_rng(rng)
        if not _is_same(twin, self._optimizer):
            return "the same gradients gave different weights or state when the step was repeated"
        return None

    def forget(self) -> None:
        """The step did not come to its end."""
        self._twin = None

    def _twinned(self) -> Optimizer:
        memo: dict[int, Any] = {}
        twin = copy.deepcopy(self._optimizer, memo)
        own = {name: value for name, value in own_attributes(self._optimizer).items() if name not in self._made}
        twin.__dict__.update(copy.deepcopy(own, memo) | self._made)
        for mine, theirs in zip(_parameters(self._optimizer), _parameters(twin), strict=True):
            if getattr(mine, "grad_dtype", None) not in (None, mine.dtype):
                theirs.grad_dtype = mine.grad_dtype
            theirs.grad = None if mine.grad is None else mine.grad.detach().clone(memory_format=torch.preserve_format)
        return twin


def nested(thing: Any) -> str | None:
    """The attribute under which an optimizer that is not torch's keeps another one."""
    own = {} if is_torchs(thing) else getattr(thing, "__dict__", {})
    return next((name for name, value in own.items() if isinstance(value, Optimizer)), None)


def _parameters(optimizer: Optimizer) -> list[Any]:
    return [p for group in optimizer.param_groups for p in group["params"]]


def _has_room(optimizer: Optimizer) -> bool:
    """Whether a second copy of weights, gradients and state would fit on a GPU."""
    state = (value for own in optimizer.state.values() if isinstance(own, dict) for value in own.values())
    wanted: dict[torch.device, int] = {}
    for tensor in (*_parameters(optimizer), *_parameters(optimizer), *state):
        if isinstance(tensor, torch.Tensor) and tensor.is_cuda:
            wanted[tensor.device] = wanted.get(tensor.device, 0) + 2 * tensor.nbytes
    return all(torch.cuda.mem_get_info(device)[0] > nbytes for device, nbytes in wanted.items())


def _is_same(a: Optimizer, b: Optimizer) -> bool:
    for p, q in zip(_parameters(a), _parameters(b), strict=True):
        mine, theirs = a.state.get(p, {}), b.state.get(q, {})
        if not _is_equal(p, q) or list(mine) != list(theirs):
            return False
        if not all(_is_equal(mine[key], theirs[key]) for key in mine):
            return False
    return True


def _is_equal(a: Any, b: Any) -> bool:
    """Equal to the bit; what is neither a tensor nor plain is left to the fingerprint."""
    if isinstance(a, torch.Tensor) and isinstance(b, torch.Tensor):
        return a.dtype == b.dtype and a.shape == b.shape and bool(_bits(a) == _bits(b))
    return a == b if isinstance(a, _PLAIN) and isinstance(b, _PLAIN) else type(a) is type(b)


def _bits(tensor: torch.Tensor) -> bytes:
    if tensor.layout is torch.sparse_coo:
        return _bits(tensor._indices()) + _bits(tensor._values())
    array: Any = to_array(tensor)
    return bytes(array.data.data)


def _words(error: Exception) -> str:
    return f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else 'no message'}"
