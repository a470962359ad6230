"""The place between a loop of one's own and an optimizer: `optimizer.apply` logs the gradients and applies them.

Where the loop calls `apply` as a plain Python function, the step is logged there. Where it calls `apply` inside a function
that the framework compiles, a backend puts the logging into that function.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from tranlogs.base.errors import UsageError

from .arrays import Values

Gradients = Sequence[Any]  # a backend's own tensors, None where a variable got no gradient


class Updates(Protocol):
    """The updates of one optimizer.

    Attributes:
        is_eager: whether they are computed without a graph.
    """

    is_eager: bool

    def apply(self, gradients: Gradients, reading: Sequence[Any] = ()) -> Sequence[Values]:
        """Compute the update, and return values of variables after it."""
        ...


class ApplyWatcher(Protocol):
    """Receiver of the steps of a loop of one's own, which logs them."""

    def take(self, name: str, gradients: Gradients) -> None:
        """Log the gradients of an optimizer, and apply them."""
        ...

    def watched(self) -> Sequence[Any]:
        """Return the variables that code other than a step may write."""
        ...

    def reads(self) -> Sequence[Any]:
        """Return the variables whose values are needed after a step."""
        ...

    def begin_in_graph(self, name: str, variables: Sequence[Any], values: Sequence[Values]) -> None:
        """Note the start of a step in a compiled function, with the present `values` of the `variables`."""
        ...

    def end_in_graph(self, name: str, gradients: Gradients, variables: Sequence[Any], values: Sequence[Values]) -> None:
        """Log a step in a compiled function: its gradients, and the present `values` of the `variables`."""
        ...

    def note_graph(self, graph: Any) -> None:
        """Look at a function of the loop in which `apply` was called, while it is compiled."""
        ...


class OptimizerTap:
    """Replaces `apply` of an optimizer until `release`.

    Args:
        optimizer: Keras's, built.
        name: of the optimizer in the run.
        watcher: logs the steps.
        updates: of the optimizer.
    """

    def __init__(self, optimizer: Any, name: str, watcher: ApplyWatcher, updates: Updates) -> None:
        if "apply" in vars(optimizer):
            raise UsageError(f"{type(optimizer).__name__}.apply was set on the instance; TranLogs needs the class's own")
        self._optimizer, self._name, self._watcher, self._updates = optimizer, name, watcher, updates
        optimizer.apply = self._replacement()

    def _replacement(self) -> Any:
        return self.apply

    def apply(self, grads: Any, trainable_variables: Any = None) -> None:
        """Stand in for `optimizer.apply`."""
        grads = list(grads)
        if grads:
            self._take(self._in_order(grads, trainable_variables))

    def _take(self, gradients: list[Any]) -> None:
        self._watcher.take(self._name, gradients)

    def _in_order(self, grads: list[Any], trainable_variables: Any) -> list[Any]:
        """Return the gradients in the order in which the optimizer was built."""
        from ..keras_internals import trained_by  # late: what replays a run chooses the backend before Keras is imported

        wanted = trained_by(self._optimizer)
        given = wanted if trainable_variables is None else list(trainable_variables)
        if len(given) != len(grads):
            raise UsageError(f"optimizer {self._name!r}: apply() got {len(grads)} gradients for {len(given)} variables")
        places = {id(_tensor_of(v)): i for i, v in enumerate(wanted)}
        ordered: list[Any] = [None] * len(wanted)
        for gradient, variable in zip(grads, given):
            place = places.get(id(_tensor_of(variable)))
            if place is None:
                raise UsageError(
                    f"optimizer {self._name!r}: apply() got a gradient for {getattr(variable, 'path', variable)!r}, which is "
                    "no trainable variable of the model that was given with this optimizer. Give LoggedOptimizer (or "
                    "add_optimizer) the model that the optimizer trains, or a list of models"
                )
            ordered[place] = gradient
        return ordered

    def release(self) -> None:
        """Give the optimizer its own `apply` back."""
        vars(self._optimizer).pop("apply", None)


def _tensor_of(variable: Any) -> Any:
    """Return what a Keras variable holds: a script may give either."""
    return getattr(variable, "_value", variable)
