"""The interface of Keras's backends to TranLogs, and the code that the three backends share.

The heart is the *tap*. Keras computes gradients and applies them in one executable, and there the compiler may fuse the
two, so that the update uses numbers that no log can hold. The tap splits each step into two executables: Keras's own train
step, whose `optimizer.apply` only hands the gradients out, and one compiled `apply`. The same `apply` runs in redo, on the
same bits: replay is exact by construction. Where the framework can keep the two apart within one call, a step is one call.
"""

from __future__ import annotations

import random
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol, overload

from tranlogs.base.errors import UsageError
from tranlogs.base.types import AnyArray, Bytes
from tranlogs.training import ReplayCheck

from .arrays import Values, flat_bytes
from .optimizer_tap import ApplyWatcher, Gradients, OptimizerTap, Updates

_TWO_FITS = (
    "The log of a fit is that of one optimizer and one way of computing steps. Write two fits, and compile between them: "
    "model.fit(..., epochs=4, callbacks=[callback]), then model.compile(...), then "
    "model.fit(..., initial_epoch=4, epochs=8, callbacks=[callback])"
)

Doubt = Callable[[str, bool], None]  # a text, and True if the resume is certainly not exact


class HostViews(Sequence[Values]):
    """A framework's arrays as numpy sees them; one is waited for, or brought from its device, when it is asked for.

    Args:
        arrays: of the framework.
        view: gives the values of one.
    """

    def __init__(self, arrays: Sequence[Any], view: Callable[[Any], Values]) -> None:
        self._arrays, self._view = arrays, view

    def __len__(self) -> int:
        return len(self._arrays)

    @overload
    def __getitem__(self, index: int) -> Values: ...
    @overload
    def __getitem__(self, index: slice) -> HostViews: ...
    def __getitem__(self, index: int | slice) -> Values | HostViews:
        return HostViews(self._arrays[index], self._view) if isinstance(index, slice) else self._view(self._arrays[index])

    def __iter__(self) -> Iterator[Values]:
        return map(self._view, self._arrays)


class Watcher(Protocol):
    """Methods that a tap calls at each step."""

    def is_expected(self) -> bool:
        """Return True if the watched fit has handed out a batch. If not, the watched fit has failed and another fit runs; the
        tap is then removed."""
        ...

    def begin_step(self) -> None:
        """Note that a step is about to be computed. Nothing that was written since the last step was written by a step."""
        ...

    def wants_halves(self) -> bool:
        """Return True if gradients and update must be two calls in this step, because the state between them is read."""
        ...

    def reads(self) -> Sequence[Any]:
        """Return the variables whose values a step in one call returns: the same object as long as they are the same."""
        ...

    def take_gradients(self, gradients: Gradients) -> None:
        """Log the gradients, and call `apply`."""
        ...

    def take_step(self, gradients: Gradients, values: Sequence[Values]) -> None:
        """Log a step that was taken in one call: its gradients, and the values of the variables in `reads` after it."""
        ...

    def drop_step(self) -> None:
        """Note that the step which `begin_step` announced was not taken, because the data are at their end."""
        ...

    def end_step(self) -> None:
        """Note that a whole step was taken (`splits=False`)."""
        ...

    def saw_random_operations(self, names: Sequence[str]) -> None:
        """Note that the train step draws random numbers by operations whose state cannot be read."""
        ...


class Backend(ABC):
    """The connection of one fit to a backend. `tap` puts it between Keras and the model, `release` removes it.

    Attributes:
        name: as Keras calls it.
        is_eager: whether a change of an optimizer's plain attribute takes effect at the next step.
        needs_a_step: whether `fit` fails in an epoch that is resumed after its last batch.
        is_prefetching: whether batches are drawn ahead by threads that share the random number generators.
        is_asynchronous: whether `apply` returns before the update is computed, and even before the gradients are.
        combines: whether a step can be taken in one call into the framework.
        lends_gradients: whether what it hands out as gradients is memory that other callbacks can write to.
        sees_inner_writes: whether `changed` finds in the middle of a step what the train step has written.
        watches_values: whether writes are noticed by reading values; a read of many costs as much as a read of one there.
        traced: what the train step had as constants when it was traced, as a digest for boundaries; empty if there is nothing.
        check: decides which updates are repeated, to check the function that applies gradients.
    """

    name: str
    is_eager = False
    needs_a_step = False
    is_prefetching = False
    is_asynchronous = False
    combines = False
    lends_gradients = False
    sees_inner_writes = True
    watches_values = False
    traced = ""

    def __init__(self) -> None:
        self._model: Any = None
        self._tapped: Tap | None = None
        self._known: tuple[bool, Tap] | None = None  # the tap of the fit before, and whether it splits steps
        self.check = ReplayCheck()

    # Values.

    @abstractmethod
    def values_of(self, variables: Sequence[Any]) -> Sequence[Values]:
        """Return the variables' values as numpy arrays: views of memory that the next step may overwrite."""

    def value_of(self, variable: Any) -> Values:
        """Return the value of one variable as a numpy array."""
        return self.values_of([variable])[0]

    @abstractmethod
    def assign(self, variable: Any, values: Values) -> None:
        """Set a variable."""

    def parts_of(self, variable: Any) -> list[Any]:
        """Return a variable's components, one for each replica; the variable itself if there is one replica."""
        return [variable]

    def random_generator(self) -> random.Random | None:
        """Return the generator that seeds the framework's own random operations; None if they have no such generator."""
        return None

    # Writes that no step made.

    @abstractmethod
    def remember(self, variables: Sequence[Any], values: Sequence[Values] | None = None) -> None:
        """Note that the log holds the present values of the variables (`values`, if they were just read)."""

    @abstractmethod
    def forget(self) -> None:
        """Release references that make writes expensive, before variables are written on purpose."""

    @abstractmethod
    def changed(self, variables: Sequence[Any], values: Sequence[Values] | None = None) -> list[int]:
        """Return the indices of variables that were, or may have been, written since `remember`.

        Args:
            variables: those given to `remember`.
            values: their values, if they were just read.
        """

    # What distributes a model, and what its batches look like.

    def strategy_of(self, model: Any) -> Any:
        """Return the strategy that distributes the model over replicas; None if there is none."""
        return None

    def replicas_of(self, model: Any) -> int:
        """Return the number of replicas."""
        return 1

    def specs_of(self, epoch_iterator: Any) -> Any:
        """Return shapes and dtypes of a batch, for a symbolic build; None if `fit` has built everything already."""
        return None

    def trace_step(self, model: Any, epoch_iterator: Any) -> bool:
        """Run `train_step` without computing anything, to make its variables; return False if only a real step makes them."""
        return False

    # Steps.

    def prepare_apply(self, model: Any) -> None:
        """Make the function that applies gradients."""
        self._model = model

    @abstractmethod
    def apply(self, gradients: Gradients, reading: Sequence[Any] = ()) -> Sequence[Values]:
        """Compute the update, with the backend's own tensors, and return the values of some variables after it."""

    def updates_of(self, optimizer: Any) -> Updates:
        """Make the function that applies gradients of an optimizer in a loop of one's own.

        Raises:
            UsageError: the backend's loops are not supported.
        """
        raise UsageError(
            f"loops of one's own are not supported on the Keras backend {self.name!r}, whose optimizers are applied without "
            "state (optimizer.stateless_apply). Train with model.fit and TranLogsCallback, or set KERAS_BACKEND to "
            "tensorflow or torch"
        )

    def tap_optimizer(self, optimizer: Any, name: str, watcher: ApplyWatcher, updates: Updates) -> OptimizerTap:
        """Put a tap between a loop of one's own and an optimizer."""
        return OptimizerTap(optimizer, name, watcher, updates)

    def tap(self, model: Any, watcher: Watcher, *, splits: bool) -> None:
        """Watch the model's steps, split into gradients and update, or whole."""
        self.prepare_apply(model)
        if self._known is None or self._known[0] != splits:
            self._known = splits, self.make_tap(model, splits)
        self._tapped = self._known[1]
        self._tapped.attach(watcher)

    @abstractmethod
    def make_tap(self, model: Any, splits: bool) -> Tap:
        """Make the backend's tap."""

    def expect_trace(self, recorded: str, doubt: Doubt) -> None:  # noqa: B027
        """Compare what the train step has as constants, once it is traced, with what an earlier process recorded.

        Args:
            recorded: `traced` of the boundary at which recovery ended.
            doubt: called with a difference.
        """

    def release(self) -> None:
        """Remove the tap, and leave the model as Keras made it."""
        if self._tapped is not None:
            self._tapped.release()
        self._tapped = None
        self.forget()

    def take_back(self, model: Any) -> None:
        """Let the model hold its variables again, in the middle of a fit, so that what is assigned to them counts."""
        return  # it holds them all the time

    def pass_over(self) -> None:
        """Skip the next step that `fit` asks for (`needs_a_step`)."""
        raise AssertionError("an epoch may be without a step here")

    # Gradients.

    @abstractmethod
    def to_host(self, gradient: Any) -> AnyArray:
        """Return a gradient in the form that the log takes."""

    @abstractmethod
    def forms_of(self, gradients: Gradients) -> list[Any] | None:
        """Return facts that determine the layout of a record, comparable from step to step; None if a gradient is sparse."""

    @abstractmethod
    def dtype_of(self, gradient: Any) -> str:
        """Return numpy's name of the dtype of a gradient."""

    @abstractmethod
    def host_of(self, tensors: Sequence[Any]) -> list[Values]:
        """Return dense gradients as numpy arrays."""

    def bytes_of(self, gradients: Sequence[Any]) -> list[Bytes]:
        """Return the memory of dense gradients, flat."""
        return [flat_bytes(values) for values in self.host_of(gradients)]

    def form_of(self, gradient: Any) -> tuple[str, str] | None:
        """Return the dtypes of the indices and of the shape of a sparse gradient, which `to_host` leaves out; None if dense."""
        return None

    @abstractmethod
    def to_device(self, array: AnyArray, form: tuple[str, str] | None) -> Any:
        """Return a logged gradient in the form that `apply` takes: the inverse of `to_host`."""

    # The environment.

    @abstractmethod
    def describe(self, model: Any) -> dict[str, Any]:
        """Return the settings on which the rounding of a step depends."""

    def set_back(self, recorded: dict[str, Any]) -> list[str]:
        """Restore the recorded settings that can still be set in this process; return what was changed."""
        return []


class Tap(ABC):
    """A replacement of a model's train function: each step is watched, and split into gradients and update if asked for.

    It is attached for each fit. What one fit has compiled, the next one uses.

    Args:
        model: whose `train_function` Keras is to make anew.
        splits: whether gradients are taken out of the step.
    """

    _watcher: Watcher

    def __init__(self, model: Any, splits: bool) -> None:
        self._model, self._splits = model, splits
        self._optimizer = model.optimizer
        self._replaced: list[tuple[Any, str]] = []
        self._one: Any = None  # Keras's function of one step
        self._plain: Any = None  # the function that Keras has made for a fit without us
        self._weights: list[Any] = []
        self._are_trainable: list[bool] = []  # the weights, when the last step was over

    def attach(self, watcher: Watcher) -> None:
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
    """Check that a step updates once, as the log of gradients requires.

    Raises:
        UsageError: the step did not.
    """
    if found != 1:
        raise UsageError(
            f'train_step updates {found} times; log="gradients" needs exactly one optimizer.apply a step. Use log="weights"'
        )
