"""What TranLogs needs of Keras's backend, one module each for TensorFlow, PyTorch and JAX.

The heart is the *tap*. Keras computes gradients and applies them in one executable, and there the compiler may fuse the
two, so that the update uses numbers that no log can hold. The tap splits each step into two executables: Keras's own train
step, whose `optimizer.apply` only hands the gradients out, and one compiled `apply`. The same `apply` runs in redo, on the
same bits: replay is exact by construction.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any, Protocol

from tranlogs.errors import UsageError
from tranlogs.types import AnyArray

from ..adapt import Values

Gradients = Sequence[Any]  # a backend's own tensors, None where a variable got no gradient


class Watcher(Protocol):
    """What a tap calls at each step."""

    def is_expected(self) -> bool:
        """Whether the fit that is watched has handed out a batch; else another one runs, after this one has failed: the tap
        is taken away now."""
        ...

    def begin_step(self) -> None:
        """A step is about to be computed: what has been written since the last one was not written by a step."""
        ...

    def take_gradients(self, gradients: Gradients) -> None:
        """The gradients are there: log them, and call `apply`."""
        ...

    def end_step(self) -> None:
        """A whole step was taken (`wrap`)."""
        ...


class Backend(Protocol):
    """One fit's dealings with a backend. `tap` puts it between Keras and the model, `release` takes it away.

    Attributes:
        name: as Keras calls it.
        is_eager: whether a change of an optimizer's plain attribute takes effect at the next step.
        needs_a_step: whether `fit` fails in an epoch that is resumed after its last batch.
        is_prefetching: whether batches are drawn ahead by threads that share the random number generators.
    """

    name: str
    is_eager: bool
    needs_a_step: bool
    is_prefetching: bool

    def value_of(self, variable: Any) -> Values:
        """A variable's value as numpy sees it: a view of memory that the next step may overwrite."""
        ...

    def values_of(self, variables: Sequence[Any]) -> list[Values]:
        """The same of many at once."""
        ...

    def assign(self, variable: Any, values: Values) -> None:
        """Set a variable."""
        ...

    def parts_of(self, variable: Any) -> list[Any]:
        """A variable's components, one a replica; itself where there is one."""
        ...

    def strategy_of(self, model: Any) -> Any:
        """What distributes the model over replicas, if anything does."""
        ...

    def replicas_of(self, model: Any) -> int:
        """How many there are."""
        ...

    def specs_of(self, epoch_iterator: Any) -> Any:
        """Shapes and dtypes of a batch, for a symbolic build; None where `fit` has built everything already."""
        ...

    def prepare_apply(self, model: Any) -> None:
        """Make the function that applies gradients."""
        ...

    def tap(self, model: Any, watcher: Watcher, *, splits: bool) -> None:
        """Watch the model's steps, split into gradients and update, or whole."""
        ...

    def apply(self, gradients: Gradients) -> None:
        """The update, with the backend's own tensors."""
        ...

    def pass_over(self) -> None:
        """The next step that `fit` asks for is none."""
        ...

    def to_host(self, gradient: Any) -> AnyArray:
        """A gradient as the log takes it."""
        ...

    def form_of(self, gradient: Any) -> tuple[str, str] | None:
        """What `to_host` does not tell of a sparse gradient: the dtypes of its indices and of its shape."""
        ...

    def to_device(self, array: AnyArray, form: tuple[str, str] | None) -> Any:
        """The inverse: what `apply` takes."""
        ...

    def changed(self, variables: Sequence[Any]) -> list[int]:
        """Indices of variables that were, or may have been, written since `remember`."""
        ...

    def remember(self, variables: Sequence[Any], values: list[Values] | None = None) -> None:
        """The variables are as the log has them; `values`, where they were just read."""
        ...

    def forget(self) -> None:
        """They are about to be written on purpose: hold nothing that makes that dearer."""
        ...

    def describe(self, model: Any) -> dict[str, Any]:
        """What the rounding of a step depends on."""
        ...

    def set_back(self, recorded: dict[str, Any]) -> list[str]:
        """Set what can still be set in this process to what the run had; says what was changed."""
        ...

    def release(self) -> None:
        """The model is as Keras made it."""
        ...


def backend_name() -> str:
    """The backend that Keras runs on."""
    import keras

    return str(keras.backend.backend())


def make_backend() -> Backend:
    """Of the Keras that is imported.

    Raises:
        UsageError: TranLogs has nothing for it.
    """
    name = backend_name()
    if name == "tensorflow":
        from .tensorflow import TensorFlowBackend

        return TensorFlowBackend()
    if name == "torch":
        from .torch import TorchBackend

        return TorchBackend()
    if name == "jax":
        from .jax import JaxBackend

        return JaxBackend()
    raise UsageError(f"the Keras backend {name!r} is not supported: use tensorflow, torch or jax (KERAS_BACKEND)")


def choose_backend(name: str) -> None:
    """Make Keras run on a backend, before it is imported; for processes that replay a run without its script.

    Raises:
        UsageError: Keras runs on another one already.
    """
    import sys

    if "keras" not in sys.modules:
        os.environ["KERAS_BACKEND"] = name
    if backend_name() != name:
        raise UsageError(
            f"the run was trained with Keras on {name}, and Keras runs on {backend_name()} here: set KERAS_BACKEND={name}"
        )
