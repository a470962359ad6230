"""Keras on PyTorch, eager or compiled."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import ml_dtypes
import numpy as np
import torch

from tranlogs.errors import UsageError
from tranlogs.types import AnyArray

from ..adapt import Values, from_array, to_array
from ..private import trained_by
from . import Gradients, Watcher

_AS_UINT = {torch.bfloat16: (torch.uint16, ml_dtypes.bfloat16)}


class TorchBackend:
    """See `Backend`."""

    name = "torch"
    is_eager = True
    needs_a_step = False
    is_prefetching = False

    def __init__(self) -> None:
        self._model: Any = None
        self._tapped: Tap | None = None
        self._seen: list[tuple[int, int]] = []

    # Values.

    def value_of(self, variable: Any) -> Values:
        return _host(variable.value.detach())

    def values_of(self, variables: Sequence[Any]) -> list[Values]:
        return [self.value_of(v) for v in variables]

    def assign(self, variable: Any, values: Values) -> None:
        with torch.no_grad():
            variable.value.copy_(_tensor(values))

    def parts_of(self, variable: Any) -> list[Any]:
        return [variable]

    def remember(self, variables: Sequence[Any], values: list[Values] | None = None) -> None:
        self._seen = _look(variables)

    def forget(self) -> None:
        self._seen = []

    def changed(self, variables: Sequence[Any]) -> list[int]:
        now = _look(variables)
        if len(now) != len(self._seen):
            return list(range(len(now)))
        return [i for i, (a, b) in enumerate(zip(self._seen, now)) if a != b]

    # Steps.

    def strategy_of(self, model: Any) -> Any:
        return None

    def replicas_of(self, model: Any) -> int:
        return 1

    def specs_of(self, epoch_iterator: Any) -> Any:
        return None

    def prepare_apply(self, model: Any) -> None:
        self._model = model

    def tap(self, model: Any, watcher: Watcher, *, splits: bool) -> None:
        self.prepare_apply(model)
        self._tapped = Tap(model, watcher, splits)

    def release(self) -> None:
        if self._tapped is not None:
            self._tapped.release()
        self._tapped = None

    def pass_over(self) -> None:
        raise AssertionError("an epoch may be without a step here")

    def apply(self, gradients: Gradients) -> None:
        optimizer = self._model.optimizer
        with torch.no_grad():
            type(optimizer).apply(optimizer, list(gradients), trained_by(optimizer))

    def to_host(self, gradient: Any) -> AnyArray:
        return to_array(_host(gradient.detach()))

    def form_of(self, gradient: Any) -> tuple[str, str] | None:
        return None

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
            "torch": str(torch.__version__), "threads": torch.get_num_threads(),
            "devices": sorted({v.value.device.type for v in model.variables}), "jit_compile": bool(model.jit_compile),
            "cpu_capability": torch.backends.cpu.get_cpu_capability(),
            "deterministic": torch.are_deterministic_algorithms_enabled(),
        }  # fmt: skip


class Tap:
    """A model's train function, replaced: its steps are split into gradients and update, or whole, and watched."""

    def __init__(self, model: Any, watcher: Watcher, splits: bool) -> None:
        self._model, self._watcher, self._splits = model, watcher, splits
        self._optimizer = model.optimizer
        self._updates = 0
        model.make_train_function(force=True)
        self._one = model.train_function
        model.train_function = self._train_function

    def release(self) -> None:
        """The model is as Keras made it."""
        vars(self._optimizer).pop("apply", None)
        self._model.train_function = None

    def _pass(self, grads: Any, trainable_variables: Any = None) -> None:
        self._updates += 1

    def _train_function(self, data: Any) -> Any:
        if not self._watcher.is_expected():
            self._model.make_train_function()
            return self._model.train_function(data)
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
        if self._updates != 1:
            raise UsageError(f"train_step updates {self._updates} times; log=\"gradients\" needs exactly one optimizer.apply a "
                             'step. Use log="weights"')  # fmt: skip
        self._watcher.take_gradients([v.value.grad for v in trained_by(self._optimizer)])
        return logs


def _look(variables: Sequence[Any]) -> list[tuple[int, int]]:
    return [(v.value.data_ptr(), v.value._version) for v in variables]


def _host(tensor: torch.Tensor) -> Values:
    tensor = tensor.cpu()
    if tensor.dtype in _AS_UINT:
        between, dtype = _AS_UINT[tensor.dtype]
        return np.asarray(tensor.contiguous().view(between).numpy().view(dtype))
    return np.asarray(tensor.numpy())


def _tensor(values: Values) -> torch.Tensor:
    if values.dtype == ml_dtypes.bfloat16:
        return torch.from_numpy(np.ascontiguousarray(values).view(np.uint16).copy()).view(torch.bfloat16)
    return torch.from_numpy(np.array(values, copy=True))
