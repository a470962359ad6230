"""The hooks on the user's module that see its forward passes. A copy of the module, or its pickle, does not have them."""

from __future__ import annotations

import contextlib
import copyreg
from collections import Counter, OrderedDict
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from .carried_outputs import CarriedOutputs

_hooked: Counter[type[nn.Module]] = Counter()  # hooked modules by class


class ForwardHook:
    """A forward pre-hook and a forward hook of one module.

    `copy`, `pickle` and `torch.save` look a class up in the dispatch table of `copyreg` before they ask the object how it is
    reduced. While a module is hooked, its class has an entry there, which leaves the hook out.

    Args:
        module: the user's.
        call: called with the module before each forward pass, but not while it is traced for compilation. It returns True for a
            pass of training.
        carried: sees what goes into the first passes of training, and what comes out.
    """

    def __init__(self, module: nn.Module, call: Callable[[nn.Module], bool], carried: CarriedOutputs) -> None:
        self._call, self._kind, self._carried = call, type(module), carried
        self._handle = module.register_forward_pre_hook(self, with_kwargs=True)
        self._handle_after = module.register_forward_hook(_AfterHook(carried), with_kwargs=True)
        if copyreg.dispatch_table.setdefault(self._kind, _reduce_without_hook) is _reduce_without_hook:
            _hooked[self._kind] += 1

    def __call__(self, module: nn.Module, arguments: Any, keywords: Any) -> None:
        if not torch.compiler.is_compiling() and self._call(module) and not self._carried.is_over:
            self._carried.before([arguments, keywords])

    def release(self) -> None:
        """Take the hooks off the module. Calling it again does nothing."""
        kind, self._kind = self._kind, nn.Module
        self._handle.remove()
        self._handle_after.remove()
        if kind in _hooked:
            _hooked[kind] -= 1
            if not _hooked[kind]:
                del _hooked[kind], copyreg.dispatch_table[kind]

    def __reduce__(self) -> Any:  # reached where a class has an entry of its own in the dispatch table
        return _nothing()


class _AfterHook:
    def __init__(self, carried: CarriedOutputs) -> None:
        self._carried = carried

    def __call__(self, module: nn.Module, arguments: Any, keywords: Any, outputs: Any) -> None:
        is_watched = not torch.compiler.is_compiling() and not self._carried.is_over
        if is_watched and module.training and torch.is_grad_enabled():
            self._carried.after([arguments, keywords], outputs)

    def __reduce__(self) -> Any:
        return _nothing()


def _nothing() -> Any:
    """Return how a function is pickled that takes what a hook takes, and does nothing; unpickling needs no TranLogs."""
    return getattr, (contextlib.nullcontext(), "__exit__")


def _reduce_without_hook(module: nn.Module) -> Any:
    reduced = module.__reduce_ex__(4)
    if isinstance(reduced, str) or len(reduced) < 3 or not isinstance(reduced[2], dict):
        return reduced
    state: dict[str, Any] = reduced[2]
    kept: dict[str, Any] = {}
    for name in ("_forward_pre_hooks", "_forward_hooks"):
        hooks = state.get(name, {})
        mine = {key for key, hook in hooks.items() if type(hook) in (ForwardHook, _AfterHook)}
        for held in (name, f"{name}_with_kwargs") if mine else ():
            kept[held] = OrderedDict((key, value) for key, value in state[held].items() if key not in mine)
    return (*reduced[:2], {**state, **kept}, *reduced[3:])
