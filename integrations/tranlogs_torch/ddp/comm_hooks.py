"""Communication hooks that keep a state of their own. PowerSGD's is recorded at each boundary, and brought back.

Its largest part, the error that each rank feeds back, is as large as the rank's gradients and another one on each rank; it
cannot be computed again, since it comes from gradients before they were summed. So with error feedback a rank logs as many
bytes a step as one process alone would, or more.

A hook can keep its state elsewhere than in the argument that it is registered with. Only a plain function that reaches nothing
which can change counts as stateless; for any other hook the report has a note that it may have a state.

Names of torch that this module uses: the fields of `PowerSGDState`, and `ddp._comm_hooks`.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from types import BuiltinFunctionType, CodeType, FunctionType, ModuleType
from typing import Any

import torch
import torch.distributed as dist

from tranlogs.base.errors import UsageError

_BROUGHT_BACK = ("powerSGD_hook", "batched_powerSGD_hook")
_REFUSED = {
    "post_localSGD_hook": "post-local SGD, which lets gradients and weights differ between ranks until they are averaged",
}
_SETTINGS = (
    "matrix_approximation_rank",
    "start_powerSGD_iter",
    "min_compression_rate",
    "use_error_feedback",
    "warm_start",
    "orthogonalization_epsilon",
    "batch_tensors_with_same_shape",
)
_COUNTS = ("iter", "total_numel_before_compression", "total_numel_after_compression", "next_stats_report")
_SHARED = ("p_memory_dict", "q_memory_dict")
_CONSTANT = (type(None), bool, int, float, str, bytes, torch.dtype, torch.device, logging.Logger)


class Hook:
    """A communication hook of one DistributedDataParallel module."""

    def __init__(self, hook: Any, state: Any) -> None:
        self.name = str(getattr(hook, "__name__", type(hook).__name__))
        self._hook, self._state = hook, state

    @property
    def is_brought_back(self) -> bool:
        """True if the state of the hook is recovered."""
        return self.name in _BROUGHT_BACK and all(hasattr(self._state, name) for name in (*_SETTINGS, *_COUNTS, *_SHARED))

    def doubt(self) -> str:
        """Return what of the hook is not recovered, as a sentence; "" if all of it is.

        Raises:
            UsageError: the hook makes a log of gradients wrong.
        """
        if self.name in _REFUSED:
            raise UsageError(
                f"the communication hook {self.name} is {_REFUSED[self.name]}, which cannot be recovered. Use another hook, "
                "or none"
            )
        if self.is_brought_back:
            return ""
        if self._state is not None and not isinstance(self._state, dist.ProcessGroup):
            return f"the state of the communication hook {self.name} is not recovered"
        if is_stateless(self._hook):
            return ""
        return (
            f"the communication hook {self.name} may keep state (in an object, a closure, a default or a global variable), "
            "which is not recovered"
        )

    def read(self) -> dict[str, Any] | None:
        """Return the hook's state in a form that can be encoded; None if it is not recovered."""
        if not self.is_brought_back:
            return None
        state = self._state
        found: dict[str, Any] = {"name": self.name, "rng": state.rng.get_state(legacy=True)}
        found |= {name: getattr(state, name) for name in (*_SETTINGS, *_COUNTS)}
        return found | {name: dict(getattr(state, name)) for name in (*_SHARED, "error_dict")}

    def write(self, recorded: dict[str, Any] | None, device: torch.device) -> str:
        """Restore a recorded state; return what cannot be restored, as a sentence."""
        if not self.is_brought_back or recorded is None or recorded["name"] != self.name:
            return "" if recorded is None and not self.is_brought_back else f"the run was recorded without the hook {self.name}"
        state = self._state
        changed = [name for name in _SETTINGS if getattr(state, name) != recorded[name]]
        if changed:
            return (
                f"{changed[0]} of the hook {self.name} was {recorded[changed[0]]} when the run was recorded, so its state is "
                "not recovered"
            )
        state.rng.set_state(recorded["rng"])
        for name in _COUNTS:
            setattr(state, name, recorded[name])
        for name in (*_SHARED, "error_dict"):
            setattr(state, name, {index: tensor.to(device, copy=True) for index, tensor in recorded.get(name, {}).items()})
        if "error_dict" not in recorded:
            return f"the error feedback of the hook {self.name} was lost with this rank's journal and starts from zero"
        return ""


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


def without_errors(body: dict[str, Any]) -> dict[str, Any]:
    """Return a boundary's body without the parts that are too large to be sent to other ranks."""
    if "ddp" not in body:
        return body
    hooks = [[_small(one) for one in hooks] for hooks in body["ddp"].get("hooks", [])]
    return {**body, "ddp": {**body["ddp"], "hooks": hooks}}


def _small(hook: dict[str, Any] | None) -> dict[str, Any] | None:
    return None if hook is None else {name: value for name, value in hook.items() if name != "error_dict"}
