"""What TranLogs needs of Keras's backend, and what the three have in common.

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

from .arrays import Values, flat_bytes
from .optimizer_tap import ApplyWatcher, Gradients, OptimizerTap, Updates

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
    """What a tap calls at each step."""

    def is_expected(self) -> bool:
        """Whether the fit that is watched has handed out a batch; else another one runs, after this one has failed: the tap
        is taken away now."""
        ...

    def begin_step(self) -> None:
        """A step is about to be computed: what has been written since the last one was not written by a step."""
        ...

    def wants_halves(self) -> bool:
        """Whether this step must be taken in two calls, because what lies between gradients and update is to be looked at."""
        ...

    def reads(self) -> Sequence[Any]:
        """The variables whose values a step taken in one call returns. The same object as long as they are the same."""
        ...

    def take_gradients(self, gradients: Gradients) -> None:
        """The gradients are there: log them, and call `apply`."""
        ...

    def take_step(self, gradients: Gradients, values: Sequence[Values]) -> None:
        """The step was taken in one call, which gave the gradients and, of the variables in `reads`, the values behind it."""
        ...

    def drop_step(self) -> None:
        """The step that `begin_step` announced was not taken: the data are at their end."""
        ...

    def end_step(self) -> None:
        """A whole step was taken (`splits=False`)."""
        ...

    def saw_random_operations(self, names: Sequence[str]) -> None:
        """The train step draws random numbers by operations whose state nobody can read."""
        ...


class Backend(ABC):
    """One fit's dealings with a backend. `tap` puts it between Keras and the model, `release` takes it away.

    Attributes:
        name: as Keras calls it.
        is_eager: whether a change of an optimizer's plain attribute takes effect at the next step.
        needs_a_step: whether `fit` fails in an epoch that is resumed after its last batch.
        is_prefetching: whether batches are drawn ahead by threads that share the random number generators.
        is_asynchronous: whether `apply` returns before the update is computed, and even before the gradients are.
        combines: whether a step can be taken in one call into the framework.
        lends_gradients: whether what it hands out as gradients is memory that other callbacks can write to.
        sees_inner_writes: whether `changed` tells in the middle of a step what the train step has written.
        watches_values: whether writes are noticed by reading values; a read of many costs as much as a read of one there.
        traced: what the train step had as constants when it was traced, as a digest for boundaries; empty if there is nothing.
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

    # Values.

    @abstractmethod
    def values_of(self, variables: Sequence[Any]) -> Sequence[Values]:
        """The variables' values as numpy sees them: views of memory that the next step may overwrite."""

    def value_of(self, variable: Any) -> Values:
        """The same of one."""
        return self.values_of([variable])[0]

    @abstractmethod
    def assign(self, variable: Any, values: Values) -> None:
        """Set a variable."""

    def parts_of(self, variable: Any) -> list[Any]:
        """A variable's components, one a replica; itself where there is one."""
        return [variable]

    def random_generator(self) -> random.Random | None:
        """The generator that seeds the framework's own random operations, where they take their seeds from one."""
        return None

    # Writes that no step made.

    @abstractmethod
    def remember(self, variables: Sequence[Any], values: Sequence[Values] | None = None) -> None:
        """The variables are as the log has them; `values`, where they were just read."""

    @abstractmethod
    def forget(self) -> None:
        """They are about to be written on purpose: hold nothing that makes that dearer."""

    @abstractmethod
    def changed(self, variables: Sequence[Any], values: Sequence[Values] | None = None) -> list[int]:
        """Indices of variables that were, or may have been, written since `remember`; `values`, where they were just read."""

    # What distributes a model, and what its batches look like.

    def strategy_of(self, model: Any) -> Any:
        """What distributes the model over replicas, if anything does."""
        return None

    def replicas_of(self, model: Any) -> int:
        """How many there are."""
        return 1

    def specs_of(self, epoch_iterator: Any) -> Any:
        """Shapes and dtypes of a batch, for a symbolic build; None where `fit` has built everything already."""
        return None

    def trace_step(self, model: Any, epoch_iterator: Any) -> bool:
        """Run `train_step` without computing anything, to make what it makes; False where only a real step tells."""
        return False

    # Steps.

    def prepare_apply(self, model: Any) -> None:
        """Make the function that applies gradients."""
        self._model = model

    @abstractmethod
    def apply(self, gradients: Gradients, reading: Sequence[Any] = ()) -> Sequence[Values]:
        """The update, with the backend's own tensors; gives the values of some variables after it."""

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
        """Stand between a loop of one's own and an optimizer."""
        return OptimizerTap(optimizer, name, watcher, updates)

    def tap(self, model: Any, watcher: Watcher, *, splits: bool) -> None:
        """Watch the model's steps, split into gradients and update, or whole."""
        self.prepare_apply(model)
        self._tapped = self.make_tap(model, watcher, splits)

    @abstractmethod
    def make_tap(self, model: Any, watcher: Watcher, splits: bool) -> Tap:
        """The backend's own."""

    def expect_trace(self, recorded: str, doubt: Doubt) -> None:  # noqa: B027
        """Compare what the train step has as constants, once it is traced, with what an earlier process recorded.

        Args:
            recorded: `traced` of the boundary at which recovery ended.
            doubt: is told of a difference.
        """

    def release(self) -> None:
        """The model is as Keras made it."""
        if self._tapped is not None:
            self._tapped.release()
        self._tapped = None
        self.forget()

    def take_back(self, model: Any) -> None:
        """Let the model hold its variables again, in the middle of a fit, so that what is assigned to them counts."""
        return  # it holds them all the time

    def pass_over(self) -> None:
        """The next step that `fit` asks for is none (`needs_a_step`)."""
        raise AssertionError("an epoch may be without a step here")

    # Gradients.

    @abstractmethod
    def to_host(self, gradient: Any) -> AnyArray:
        """A gradient as the log takes it."""

    @abstractmethod
    def forms_of(self, gradients: Gradients) -> list[Any] | None:
        """What the layout of a record depends on, comparable from step to step; None where some gradients are sparse."""

    @abstractmethod
    def dtype_of(self, gradient: Any) -> str:
        """As numpy calls it."""

    @abstractmethod
    def host_of(self, tensors: Sequence[Any]) -> list[Values]:
        """Dense gradients as numpy sees them."""

    def bytes_of(self, gradients: Sequence[Any]) -> list[Bytes]:
        """The memory of dense gradients, flat."""
        return [flat_bytes(values) for values in self.host_of(gradients)]

    def form_of(self, gradient: Any) -> tuple[str, str] | None:
        """What `to_host` does not tell of a sparse gradient: the dtypes of its indices and of its shape."""
        return None

    @abstractmethod
    def to_device(self, array: AnyArray, form: tuple[str, str] | None) -> Any:
        """The inverse: what `apply` takes."""

    # The environment.

    @abstractmethod
    def describe(self, model: Any) -> dict[str, Any]:
        """What the rounding of a step depends on."""

    def set_back(self, recorded: dict[str, Any]) -> list[str]:
        """Set what can still be set in this process to what the run had; says what was changed."""
        return []


class Tap(ABC):
    """A model's train function, replaced: its steps are split into gradients and update, or whole, and watched.

    Args:
        model: whose `train_function` Keras is to make anew.
        watcher: is told of each step.
        splits: whether gradients are taken out of the step.
    """

    def __init__(self, model: Any, watcher: Watcher, splits: bool) -> None:
        self._model, self._watcher, self._splits = model, watcher, splits
        self._optimizer = model.optimizer
        self._replaced: list[tuple[Any, str]] = []
        if splits:
            self._put_between()
        else:
            self._put_around()
        with OneStep(model):
            model.make_train_function(force=True)
        self._one = model.train_function
        model.train_function = self._train_function

    @abstractmethod
    def _put_between(self) -> None:
        """Before Keras makes the function of one step, which is to be split."""

    def _put_around(self) -> None:  # noqa: B027
        """Before Keras makes the function of one step, which stays whole."""

    def _replace(self, owner: Any, name: str, method: Any) -> None:
        """A method of ours in place of the class's own, until `release`."""
        if name in vars(owner):
            raise UsageError(f"{type(owner).__name__}.{name} was set on the instance; TranLogs needs the class's own")
        setattr(owner, name, method)
        self._replaced.append((owner, name))

    def release(self) -> None:
        """The model is as Keras made it."""
        for owner, name in self._replaced:
            vars(owner).pop(name, None)
        self._model.train_function = None

    def _train_function(self, *arguments: Any) -> Any:
        """What `fit` calls for each batch, or for several."""
        if self._watcher.is_expected():
            return self._steps(*arguments)
        self._model.make_train_function()  # we are gone
        return self._model.train_function(*arguments)

    @abstractmethod
    def _steps(self, *arguments: Any) -> Any:
        """Take one step, or as many as an execution has, and tell the watcher of each."""


class OneStep:
    """One step an execution, while it lasts: Keras reads the number while it makes and traces a train function."""

    def __init__(self, model: Any) -> None:
        self._model = model

    def __enter__(self) -> None:
        self._executions = self._model.steps_per_execution
        self._model.steps_per_execution = 1

    def __exit__(self, *_: object) -> None:
        self._model.steps_per_execution = self._executions


def check_one_update(found: int) -> None:
    """Gradients are logged of steps that update once.

    Raises:
        UsageError: this one did not.
    """
    if found != 1:
        raise UsageError(
            f'train_step updates {found} times; log="gradients" needs exactly one optimizer.apply a step. Use log="weights"'
        )
