"""Communication hooks: one with a state of its own is refused, since the state cannot be recovered.

A hook can keep its state elsewhere than in the argument that it is registered with. Only a plain function that reaches nothing
which can change counts as stateless; for any other hook the report has a note that it may have a state.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from types import BuiltinFunctionType, CodeType, FunctionType, ModuleType
from typing import Any

import torch
import torch.distributed as dist

from tranlogs.base.errors import UsageError

_CONSTANT = (type(None), bool, int, float, str, bytes, torch.dtype, torch.device, logging.Logger)


def name_of(hook: Any) -> str:
    """Return the name of a communication hook."""
    return str(getattr(hook, "__name__", type(hook).__name__))


def describe_hook(hook: Any, state: Any) -> str:
    """Return that a communication hook may keep a state, as a sentence; "" if it keeps none.

    Args:
        hook: the hook as it was registered.
        state: the argument that it was registered with.

    Raises:
        UsageError: it has a state.
    """
    name = name_of(hook)
    if state is not None and not isinstance(state, dist.ProcessGroup):
        raise UsageError(
            f"the communication hook {name} has a state ({type(state).__name__}), which differs between ranks and is not "
            "recovered. Use a hook without one, such as torch.distributed.algorithms.ddp_comm_hooks.default_hooks."
            "bf16_compress_hook, or none"
        )
    if is_stateless(hook):
        return ""
    return (
        f"the communication hook {name} may keep state (in an object, a closure, a default or a global variable), which is not "
        "recovered"
    )


def is_stateless(hook: Any, depth: int = 3) -> bool:
    """Return True for a plain function that can keep nothing from one call to the next.

    Args:
        hook: the hook as it was registered.
        depth: the number of functions that may lie in the closures of one another.
    """
    if not isinstance(hook, FunctionType) or vars(hook) or not depth:
        return False
    kept = [*(hook.__defaults__ or ()), *(hook.__kwdefaults__ or {}).values()]
    kept += [hook.__globals__[name] for name in _names(hook.__code__) if name in hook.__globals__]
    kept = [value for value in kept if not isinstance(value, (ModuleType, type, FunctionType, BuiltinFunctionType))]
    try:
        enclosed = [cell.cell_contents for cell in hook.__closure__ or ()]
    except ValueError:  # not filled yet
        return False
    constant = (*_CONSTANT, dist.ProcessGroup)
    return all(isinstance(value, constant) for value in kept) and all(
        isinstance(value, constant) or is_stateless(value, depth - 1) for value in enclosed
    )


def _names(code: CodeType) -> Iterator[str]:
    """Yield the names of globals and attributes that a function, or a function within it, uses."""
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _names(constant)
