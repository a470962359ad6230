"""The places where TranLogs stands between Keras and a training step, and the code of them that the backends share.

Keras computes gradients and applies them in one executable, and there the compiler may fuse the two, so that the update uses
numbers that no log can hold. The tap of a fit splits each step into two executables: Keras's own train step, whose
`optimizer.apply` only hands the gradients out, and one compiled `apply`. The same `apply` runs in redo, on the same bits:
replay is exact by construction. Where the framework can keep the two apart within one call, a step is one call.

The tap of an optimizer serves loops of one's own: `optimizer.apply` logs the gradients and applies them. Where the loop calls
`apply` as a plain Python function, the step is logged there. Where it calls `apply` inside a function that the framework
compiles, a backend puts the logging into that function.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
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


class ApplyWatcher(Protocol):
    """Logs the steps of a loop of one's own, as taps of optimizers call it: `LoopCapture`, which stands above this package."""

    def take(self, name: str, gradients: Gradients) -> None: ...
    def watched(self) -> Sequence[Any]: ...
    def reads(self) -> Sequence[Any]: ...
    def begin_in_graph(self, name: str, variables: Sequence[Any], values: Sequence[Values]) -> None: ...
    def end_in_graph(self, name: str, gradients: Gradients, variables: Sequence[Any], values: Sequence[Values]) -> None: ...
    def saw_random_operations(self, names: Sequence[str]) -> None: ...


class StepWatcher(Protocol):
    """Logs the steps of a fit, as the tap of its model calls it: `StepCapture`, which stands above this package."""

    def is_expected(self) -> bool: ...
    def begin_step(self) -> None: ...
    def drop_step(self) -> None: ...
    def wants_halves(self) -> bool: ...
    def take_gradients(self, gradients: Gradients) -> None: ...
    def take_step(self, gradients: Gradients, values: Sequence[Values]) -> None: ...
    def end_step(self) -> None: ...
    def reads(self) -> Sequence[Any]: ...
    def saw_random_operations(self, names: Sequence[str]) -> None: ...


class OptimizerTap:
    """Replaces `apply` of an optimizer until `release`."""

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


_TWO_FITS = (
    "The log of a fit is that of one optimizer and one way of computing steps. Write two fits, and compile between them: "
    "model.fit(..., epochs=4, callbacks=[callback]), then model.compile(...), then "
    "model.fit(..., initial_epoch=4, epochs=8, callbacks=[callback])"
)


class Tap(ABC):
    """A replacement of a model's train function: each step is watched, and split into gradients and update if asked for.

    It is attached for each fit. What one fit has compiled, the next one uses.
    """

    _watcher: StepWatcher

    def __init__(self, model: Any, splits: bool) -> None:
        self._model, self._splits = model, splits
        self._optimizer = model.optimizer
        self._replaced: list[tuple[Any, str]] = []
        self._one: Any = None  # Keras's function of one step
        self._plain: Any = None  # the function that Keras has made for a fit without us
        self._weights: list[Any] = []
        self._are_trainable: list[bool] = []  # the weights, when the last step was over

    def attach(self, watcher: StepWatcher) -> None:
        """Stand between Keras and the model, and call the watcher at each step."""
        model, self._watcher = self._model, watcher
        self._weights, self._are_trainable = model.weights, []
        if self._splits:
            self._put_between()
        else:
            self._put_around()
        self._plain = model.train_function
        if self._one is None:
            with OneStep(model):
                model.make_train_function(force=True)
            self._one = model.train_function
        model.train_function = self._train_function
        self._replace(model, "compile", self._compile)
        self._replace(model, "make_train_function", self._make_train_function)

    @abstractmethod
    def _put_between(self) -> None:
        """Prepare a split step, before Keras makes the function of one step."""

    def _put_around(self) -> None:  # noqa: B027
        """Prepare a whole step, before Keras makes the function of one step."""

    def _replace(self, owner: Any, name: str, method: Any) -> None:
        """Replace a method of the class by ours on the instance, until `release`."""
        if name in vars(owner):
            raise UsageError(f"{type(owner).__name__}.{name} was set on the instance; TranLogs needs the class's own")
        setattr(owner, name, method)
        self._replaced.append((owner, name))

    def release(self) -> None:
        """Remove the tap, and leave the model as Keras made it."""
        for owner, name in self._replaced:
            vars(owner).pop(name, None)
        self._replaced.clear()
        if self._model.train_function == self._train_function:  # else the model was compiled since
            self._model.train_function = self._plain
        self._plain = None

    def _compile(self, *arguments: Any, **options: Any) -> None:
        """Refuse `model.compile` in a running fit; a fit that an exception has ended is none."""
        if self._is_in_fit():
            raise UsageError(f"model.compile was called while fit runs. {_TWO_FITS}")
        self.release()
        self._model.compile(*arguments, **options)

    def _make_train_function(self, force: bool = False) -> Any:
        """Refuse to make the train function again in a running fit."""
        if force and self._is_in_fit():
            raise UsageError(f"model.make_train_function(force=True) was called while fit runs. {_TWO_FITS}")
        if force:
            self.release()
        return type(self._model).make_train_function(self._model, force)

    def _is_in_fit(self) -> bool:
        from ..keras_internals import is_in_fit  # imports Keras; replay chooses its backend after it has imported this module

        return is_in_fit(self._model)

    def _train_function(self, *arguments: Any) -> Any:
        """Train one batch, or several; `fit` calls this function."""
        if self._watcher.is_expected():
            if self._model.optimizer is not self._optimizer:
                raise UsageError(f"model.optimizer was replaced while fit runs. {_TWO_FITS}")
            self._require_same_trainable()
            found = self._steps(*arguments)
            self._are_trainable = [weight.trainable for weight in self._weights]  # a train_step may set and reset it
            return found
        self._model.make_train_function()  # the watched fit is over
        return self._model.train_function(*arguments)

    def _require_same_trainable(self) -> None:
        """Refuse another `trainable` in a running fit: a compiled step ignores it, and a step that is traced anew does not."""
        for weight, was_trainable in zip(self._weights, self._are_trainable):
            if weight.trainable != was_trainable:
                raise UsageError(f"trainable of {weight.path} became {weight.trainable} while fit runs. {_TWO_FITS}")

    @abstractmethod
    def _steps(self, *arguments: Any) -> Any:
        """Take one step, or as many as an execution has, and call the watcher at each."""


class OneStep:
    """Context in which an execution has one step. Keras reads this number as it makes and traces a train function."""

    def __init__(self, model: Any) -> None:
        self._model = model

    def __enter__(self) -> None:
        self._executions = self._model.steps_per_execution
        self._model.steps_per_execution = 1

    def __exit__(self, *_: object) -> None:
        self._model.steps_per_execution = self._executions


def check_one_update(found: int) -> None:
    """Check that a step updates once, as the log of gradients requires."""
    if found != 1:
        raise UsageError(
            f'train_step updates {found} times; log="gradients" needs exactly one optimizer.apply a step. Use log="weights"'
        )
