"""Hooks on the user's module, which see its forward passes and who reads its state. A copy of the module does without them."""

from __future__ import annotations

import contextlib
import copyreg
from collections import Counter, OrderedDict
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.utils.hooks import RemovableHandle

_hooked: Counter[type[nn.Module]] = Counter()  # hooked modules by class


class ForwardHook:
    """A forward pre-hook of one module.

    `copy`, `pickle` and `torch.save` look a class up in the dispatch table of `copyreg` before they ask the object how it is
    reduced. While a module is hooked, its class has an entry there, which leaves the hook out.

    Args:
        module: the user's.
        call: called before each training forward pass, but not while it is traced for compilation.
    """

    def __init__(self, module: nn.Module, call: Callable[[], None]) -> None:
        self._module, self._call, self._kind = module, call, type(module)
        self._handle: RemovableHandle | None = None
        self.install()

    def __call__(self, module: nn.Module, arguments: Any) -> None:
        if not torch.compiler.is_compiling() and module.training and torch.is_grad_enabled():
            self._call()

    def install(self) -> None:
        """Put the hook before all others of the module, unless it is there."""
        if self._handle is not None:
            return
        self._handle, self._kind = self._module.register_forward_pre_hook(self, prepend=True), type(self._module)
        if copyreg.dispatch_table.setdefault(self._kind, _reduce_without_hook) is _reduce_without_hook:
            _hooked[self._kind] += 1

    def remove(self) -> None:
        """Take the hook off the module, unless it is off. Without a hook torch calls the module by a shorter way."""
        if self._handle is None:
            return
        self._handle.remove()
        self._handle, kind = None, self._kind  # the class of a module may be swapped meanwhile
        if kind in _hooked:
            _hooked[kind] -= 1
            if not _hooked[kind]:
                del _hooked[kind], copyreg.dispatch_table[kind]

    def __reduce__(self) -> Any:  # reached where a class has an entry of its own in the dispatch table
        return _nothing()


class ReadHook:
    """A hook on a module's `state_dict()`. In a copy of the module, or its pickle, it does nothing.

    Args:
        call: called each time.
    """

    def __init__(self, call: Callable[[], None]) -> None:
        self._call = call

    def __call__(self, *_: object) -> None:
        self._call()

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
    hooks = state.get("_forward_pre_hooks", {})
    mine = {key for key, hook in hooks.items() if type(hook) is ForwardHook}
    if mine:
        kept["_forward_pre_hooks"] = OrderedDict((key, hook) for key, hook in hooks.items() if key not in mine)
    return (*reduced[:2], {**state, **kept}, *reduced[3:])
