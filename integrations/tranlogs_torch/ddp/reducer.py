"""The reducers of DistributedDataParallel: what their sums depend on, and how a fresh one is made to round as the old did.

A reducer packs gradients into buckets in the order of the parameters, and packs them anew, in the order in which they came,
after the first backward pass. A sum over three or more processes rounds by an element's place in its bucket. So a restarted
run would round its first steps otherwise than the run that was not interrupted, unless its reducers are *primed*: a backward
pass of zeros in the recorded order, before the first real one.

Private names of torch that this module uses: `reducer.prepare_for_forward`, `reducer.prepare_for_backward`,
`reducer._rebuild_buckets`, `reducer._delay_all_reduce`, `logger.set_runtime_stats_and_log`, `_get_ddp_logging_data`,
`_static_graph_delay_allreduce_enqueued`, `_comm_hooks`, `_join_config`.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from types import BuiltinFunctionType, CodeType, FunctionType, ModuleType
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from tranlogs.base.errors import UsageError

from ..state.pending_gradients import move_into

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


class Reducer:
    """One DistributedDataParallel module.

    Attributes:
        ddp: the module.
        order: indices of the parameters as the rebuilt buckets hold them; None before they are rebuilt.
        had_views: whether it was primed while gradients lay about that are views of its buckets.
    """

    def __init__(self, ddp: DistributedDataParallel) -> None:
        self.ddp: Any = ddp
        self.order: list[int] | None = None
        self.had_views = False
        ignored = getattr(ddp, "parameters_to_ignore", ())
        named = ddp.module.named_parameters()
        self._parameters = [p for name, p in named if p.requires_grad and name not in ignored]  # as its indices count them
        embeddings = (m for m in ddp.module.modules() if isinstance(m, (nn.Embedding, nn.EmbeddingBag)))
        self._sparse = {id(m.weight) for m in embeddings if m.sparse}

    def ids(self) -> set[int]:
        """Ids of the parameters whose gradients the reducer sums: those that trained when it was made. Empty if unknown."""
        logged = self.ddp._get_ddp_logging_data().get("num_parameter_tensors", len(self._parameters))
        return {id(p) for p in self._parameters} if logged == len(self._parameters) else set()

    def describe(self) -> dict[str, Any]:
        """Return the settings that the sums depend on."""
        ddp = self.ddp
        return {
            "bucket_bytes": int(ddp.bucket_bytes_cap),
            "find_unused_parameters": bool(ddp.find_unused_parameters),
            "static_graph": bool(ddp.static_graph),
            "hooks": [name_of(hook) for hook, _ in self.ddp._comm_hooks],
        }

    @property
    def rebuilds(self) -> bool:
        """True if the buckets change after the first backward pass."""
        return bool(self.ddp.static_graph or not self.ddp.find_unused_parameters)

    def demand_no_join(self) -> None:
        """Refuse `join`, in which ranks run out of data one by one.

        Raises:
            UsageError: the module is in a `join`.
        """
        if self.ddp._join_config.enable:
            raise UsageError(
                "DistributedDataParallel.join() is not logged: ranks that run out of data one by one reach no common step to "
                "resume at. Give all ranks the same number of batches (DistributedSampler does)"
            )

    def find_hook_doubts(self) -> list[str]:
        """Return doubts about communication hooks that may keep a state.

        Raises:
            UsageError: a hook has a state.
        """
        return [doubt for hook, state in self.ddp._comm_hooks if (doubt := describe_hook(hook, state))]

    def note_order(self) -> None:
        """Rebuild the buckets now, if that is due at the next forward pass: their order is then known. All must call it."""
        if self.order is None and self.rebuilds and self.ddp.reducer._rebuild_buckets():
            self.ddp.logger.set_runtime_stats_and_log()

    def read_order(self) -> list[int] | None:
        """Return the order of the rebuilt buckets; None if they are not rebuilt yet."""
        if self.order is None and self.rebuilds:
            listed = self.ddp._get_ddp_logging_data().get("rebuilt_per_bucket_param_indices", "")
            self.order = [int(index) for bucket in listed.split(",") for index in bucket.split()] or None
        return self.order

    def prime(self, order: list[int] | None) -> bool:
        """Bring a fresh reducer to where the recorded one was, after at least one step. All ranks must call it.

        With a static graph the first backward pass only counts, and the second one sets the order. False if the order is
        wanted, and was not recorded.
        """
        reducer, parameters = self.ddp.reducer, self._parameters
        has_views = bool(self.ddp.gradient_as_bucket_view) and any(p.grad is not None for p in parameters)
        self.had_views = has_views
        if self.rebuilds and order is None and not self.ddp.static_graph:
            return False
        if not self.rebuilds and not has_views:
            return True
        indices = list(range(len(parameters))) if order is None else order
        with _set_aside(parameters, has_views=has_views), torch.enable_grad():
            if self.ddp.static_graph:
                self._backward(parameters, indices)
                reducer._delay_all_reduce()
                self.ddp._static_graph_delay_allreduce_enqueued = True
            if order is not None:
                self._backward(parameters, indices)
                reducer._rebuild_buckets()
            if has_views:  # of the buckets as they are now
                self._backward(parameters, indices)
        self.order = order
        return True

    def _backward(self, parameters: list[nn.Parameter], order: Iterable[int]) -> None:
        """Zeros come in an order; all at once where the reducer looks through the graph for what it does not use."""
        zeros = [self._zero(parameters[index]) for index in order if parameters[index].requires_grad]  # none of what is frozen
        self.ddp.reducer.prepare_for_forward()
        if not self.rebuilds:
            whole = torch.stack(zeros).sum()
            self.ddp.reducer.prepare_for_backward([whole])
            whole.backward()
            return
        self.ddp.reducer.prepare_for_backward([])
        for zero in zeros:
            zero.backward()

    def _zero(self, parameter: nn.Parameter) -> torch.Tensor:
        """Return a zero whose gradient is zero, too."""
        used: torch.Tensor = parameter
        if id(parameter) in self._sparse:  # as the reducer expects its gradient to be
            row = torch.zeros(1, dtype=torch.int64, device=parameter.device)
            used = nn.functional.embedding(row, parameter, sparse=True)
        return (used * 0).sum().float().to(self._parameters[0].device)


@contextmanager
def _set_aside(parameters: list[nn.Parameter], *, has_views: bool) -> Iterator[None]:
    """Set gradients and hooks of parameters aside during a dummy backward pass, and restore them afterwards.

    Gradients that were views of buckets are restored as views: the reducer divides a view by the number of processes, and
    multiplies any other gradient by the inverse, which rounds differently.
    """
    gradients = [parameter.grad for parameter in parameters]
    found = (getattr(p, name, None) for p in parameters for name in ("_backward_hooks", "_post_accumulate_grad_hooks"))
    places: list[Any] = [hooks for hooks in found if hooks]
    kept = [dict(hooks) for hooks in places]
    for parameter in parameters:
        parameter.grad = None
    for hooks in places:
        hooks.clear()
    try:
        yield
    finally:
        for hooks, before in zip(places, kept, strict=True):
            hooks.update(before)
        for parameter, gradient in zip(parameters, gradients, strict=True):
            if has_views and gradient is not None and parameter.grad is not None:
                move_into(parameter.grad, gradient)
            else:
                parameter.grad = gradient


def reducers_in(modules: Mapping[str, nn.Module]) -> list[Reducer]:
    """Return the DistributedDataParallel modules among some modules and their parts."""
    found = (m for root in modules.values() for m in root.modules() if isinstance(m, DistributedDataParallel))
    return [Reducer(ddp) for ddp in {id(m): m for m in found}.values()]
