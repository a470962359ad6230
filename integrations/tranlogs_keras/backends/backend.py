"""The interface of Keras's backends to TranLogs: values of variables, updates, gradients, and what distributes a model."""

from __future__ import annotations

import random
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from typing import Any, overload

from tranlogs.base.notes import Note
from tranlogs.base.types import AnyArray, Bytes
from tranlogs.training import ReplayCheck

from .arrays import Values, flat_bytes, to_array
from .tap import ApplyWatcher, Gradients, OptimizerTap, StepWatcher, Tap, Updates

Doubt = Callable[[Note, bool], None]  # is called with what does not come back, and True if the resume is certainly not exact


class HostViews(Sequence[Values]):
    """A framework's arrays as numpy sees them; one is waited for, or brought from its device, when it is asked for."""

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

        `variables` are those given to `remember`; `values` are theirs, if they were just read.
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
        """Make the function that applies gradients of an optimizer in a loop of one's own."""
        raise AssertionError("LoggedOptimizer refuses this backend")

    def tap_optimizer(self, optimizer: Any, name: str, watcher: ApplyWatcher, updates: Updates) -> OptimizerTap:
        """Put a tap between a loop of one's own and an optimizer."""
        return OptimizerTap(optimizer, name, watcher, updates)

    def tap(self, model: Any, watcher: StepWatcher, *, splits: bool) -> None:
        """Watch the model's steps, split into gradients and update, or whole."""
        self.prepare_apply(model)
        if self._known is None or self._known[0] != splits:
            self._known = splits, self.make_tap(model, splits)
        self._tapped = self._known[1]
        self._tapped.attach(watcher)

    @abstractmethod
    def make_tap(self, model: Any, splits: bool) -> Tap:
        """Make the backend's tap."""

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

    def to_host(self, gradient: Any) -> AnyArray:
        """Return a gradient in the form that the log takes."""
        return to_array(self.host_of([gradient])[0])

    def forms_of(self, gradients: Gradients) -> list[Any] | None:
        """Return facts that determine the layout of a record, comparable from step to step; None if a gradient is sparse."""
        return [None if gradient is None else gradient.dtype for gradient in gradients]

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
