"""Keras on PyTorch, eager or compiled."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import ml_dtypes
import numpy as np
import torch

from tranlogs.base.types import AnyArray

from ..keras_internals import tensors_of, trained_by
from .arrays import Values, from_array
from .backend import Backend
from .tap import Gradients, Tap, check_one_update

_AS_UINT = {torch.bfloat16: (torch.uint16, ml_dtypes.bfloat16)}


class TorchBackend(Backend):
    """The PyTorch backend of Keras."""

    name = "torch"
    lends_gradients = True  # `.grad` of the variables
    is_eager = True

    def __init__(self) -> None:
        super().__init__()
        self._seen: tuple[list[int], list[int]] = [], []  # of variables as the log has them: see `_look`

    def values_of(self, variables: Sequence[Any]) -> list[Values]:
        return [_host(tensor.detach()) for tensor in tensors_of(variables)]

    def assign(self, variable: Any, values: Values) -> None:
        with torch.no_grad():
            variable.value.copy_(_tensor(values))

    def remember(self, variables: Sequence[Any], values: Sequence[Values] | None = None) -> None:
        self._seen = _look(variables)

    def forget(self) -> None:
        self._seen = [], []

    def changed(self, variables: Sequence[Any], values: Sequence[Values] | None = None) -> list[int]:
        now, seen = _look(variables), self._seen
        if now == seen:
            return []
        if len(seen[0]) != len(variables):
            return list(range(len(variables)))
        return [i for i, (a, b) in enumerate(zip(zip(*seen), zip(*now))) if a != b]

    def make_tap(self, model: Any, splits: bool) -> Tap:
        return TorchTap(model, splits)

    def apply(self, gradients: Gradients, reading: Sequence[Any] = ()) -> list[Values]:
        return TorchUpdates(self._model.optimizer, self.values_of).apply(gradients, reading)

    def updates_of(self, optimizer: Any) -> TorchUpdates:
        return TorchUpdates(optimizer, self.values_of)

    def host_of(self, tensors: Sequence[Any]) -> list[Values]:
        return [_host(tensor.detach()) for tensor in tensors]

    def to_device(self, array: AnyArray, form: tuple[str, str] | None) -> Any:
        from keras.src.backend.torch.core import get_device

        return _tensor(from_array(array)).to(get_device())

    def set_back(self, recorded: dict[str, Any]) -> list[str]:
        threads = recorded.get("threads")
        if not isinstance(threads, int) or threads < 1 or threads == torch.get_num_threads():
            return []
        before = torch.get_num_threads()
        torch.set_num_threads(threads)
        return [f"thread count set back from {before} to the run's {threads}"]

    def describe(self, model: Any) -> dict[str, Any]:
        return {
            "torch": str(torch.__version__),
            "threads": torch.get_num_threads(),
            "devices": sorted({v.value.device.type for v in model.variables}),
            "jit_compile": bool(model.jit_compile),
            "cpu_capability": torch.backends.cpu.get_cpu_capability(),
            "deterministic": torch.are_deterministic_algorithms_enabled(),
        }


class TorchUpdates:
    """The updates of one optimizer; see `Updates`."""

    is_eager = True

    def __init__(self, optimizer: Any, values_of: Callable[[Sequence[Any]], list[Values]]) -> None:
        self._optimizer, self._values_of = optimizer, values_of

    def apply(self, gradients: Gradients, reading: Sequence[Any] = ()) -> list[Values]:
        """Compute the update, and return values of variables after it."""
        optimizer = self._optimizer
        with torch.no_grad():
            type(optimizer).apply(optimizer, list(gradients), trained_by(optimizer))
        return self._values_of(reading)


class TorchTap(Tap):
    """`optimizer.apply` does nothing during the train step; the gradients lie in `.grad`."""

    _updates = 0

    def _put_between(self) -> None:
        """Do nothing. `apply` is replaced step by step, since Keras compiles no step."""

    def _pass(self, grads: Any, trainable_variables: Any = None) -> None:
        self._updates += 1

    def _steps(self, data: Any) -> Any:
        self._watcher.begin_step()
        if not self._splits:
            logs = self._one(data)
            self._watcher.end_step()
            return logs
        self._updates = 0
        self._optimizer.apply = self._pass
        try:
            logs = self._one(data)
        finally:
            del self._optimizer.apply
        check_one_update(self._updates)
        self._watcher.take_gradients([tensor.grad for tensor in tensors_of(trained_by(self._optimizer))])
        return logs


def _look(variables: Sequence[Any]) -> tuple[list[int], list[int]]:
    """Return the addresses of the variables' memory, and the counts of writes that torch has seen."""
    tensors = tensors_of(variables)
    return [tensor.data_ptr() for tensor in tensors], [tensor._version for tensor in tensors]


def _host(tensor: torch.Tensor) -> Values:
    if tensor.device.type != "cpu":
        tensor = tensor.cpu()
    if tensor.dtype in _AS_UINT:
        between, dtype = _AS_UINT[tensor.dtype]
        return np.asarray(tensor.contiguous().view(between).numpy().view(dtype))
    found: Values = tensor.numpy()
    return found


def _tensor(values: Values) -> torch.Tensor:
    if values.dtype == ml_dtypes.bfloat16:
        return torch.from_numpy(np.ascontiguousarray(values).view(np.uint16).copy()).view(torch.bfloat16)
    return torch.from_numpy(np.array(values, copy=True))
