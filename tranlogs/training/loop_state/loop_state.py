"""The namespace that a loop remembers: checked at each assignment, read at each boundary and set by a recovery."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

from ...base.config import GIB, TRACKED_BYTES_MAX
from ...base.errors import UnencodableState, UsageError
from ...base.notes import Note, coded
from ...base.types import AnyArray
from ...encoding import tree
from .number_lists import NumberLists
from .restoring import Restorer
from .storing import SCALARS, FrameworkValues, Given, Storer, Unstorable

_LOST = "It is remembered no longer, and does not come back after a crash"


class LoopState:
    """The namespace of a run that `remember` returns, with the `state_dict` of a tracked object.

    What cannot be stored is refused where it is given. What is found at a boundary, since a container was changed in place, is
    left out from there on and reported: logging goes on with the rest.

    Args:
        framework: knows the framework's values.
        on_doubt: called with a note on what does not come back.

    Attributes:
        namespace: the loop's.
    """

    def __init__(self, framework: FrameworkValues, on_doubt: Callable[[Note], None]) -> None:
        self._framework, self._on_doubt = framework, on_doubt
        self.namespace = Remembered(self._check)
        self._given = Given()
        self._number_lists = NumberLists()
        self._names: set[str] = set()  # of attributes that `remember` was given
        self._lost: dict[str, str] = {}  # what is left out, by path, and why
        self._reported: set[str] = set()

    @property
    def objects(self) -> list[Any]:
        """The objects with a state that the script has given."""
        return list(self._given.objects.values())

    def add(self, values: dict[str, Any]) -> None:
        """Remember attributes with their values in a run that begins.

        Raises:
            UsageError: an attribute is remembered already.
            UnencodableState: a value cannot be stored; the message has its path.
        """
        for name in values:
            if name in self._names:
                raise UsageError(f"remember({name}=...): it is remembered already; assign to the attribute instead")
            if name.startswith("__") or name == "_tranlogs_check":
                raise UsageError(f"remember({name}=...): choose a name without underscores before it")
        given = Given(dict(self._given.objects), dict(self._given.factories))
        storer = Storer(self._framework, given, self._number_lists, takes_objects=True)
        content = vars(self.namespace) | values
        stored = {name: _demanded(storer, name, value) for name, value in sorted(content.items())}
        states, errors = storer.store_states()
        for error in errors:
            raise UnencodableState(error.path, error.value, error.reason)
        tree.encode((stored, states), path="state", adapt=self._framework.adapt, out_of_line=[])
        self._given = given
        self._names |= values.keys()
        vars(self.namespace).update(values)

    def _check(self, name: str, value: Any) -> None:
        if type(value) not in SCALARS:
            _demanded(Storer(self._framework, self._given, self._number_lists), name, value)
        self._lost.pop(f"state.{name}", None)

    def state_dict(self) -> dict[str, Any]:
        """Return the stored form of all attributes, and of the states of the objects in them."""
        storer = Storer(self._framework, self._given, self._number_lists)
        values: dict[str, Any] = {}
        for name, value in sorted(vars(self.namespace).items()):  # whatever the order in which a script gives them
            path = f"state.{name}"
            if path not in self._lost:
                try:
                    values[name] = storer.store(value, path)
                except Unstorable as error:
                    self._lost[path] = str(error)
        states, errors = storer.store_states()
        self._lost |= {error.path: str(error) for error in errors if error.path not in self._lost}
        for text in self._lost.values():
            self._tell(f"{text}. {_LOST}")
        self._number_lists.end_boundary()
        return {"values": values, "objects": states, "lost": dict(self._lost), "given": sorted(self._names)}

    def load_state_dict(self, recorded: dict[str, Any]) -> None:
        """Set the attributes to recorded ones. Others are removed, unless `remember` was given them."""
        restorer, content = Restorer(self._framework, self._given), vars(self.namespace)
        values, self._lost = recorded["values"], dict(recorded["lost"])
        for name in content.keys() - values.keys() - self._names:
            del content[name]
        errors = []
        for name, stored in values.items():
            try:
                content[name] = restorer.restore(content.get(name), stored, f"state.{name}")
            except Unstorable as error:
                errors.append(error)
        errors += restorer.restore_states(recorded["objects"])
        for missing in errors:
            self._tell(f"{missing}: it does not come back")
        for text in self._lost.values():
            self._tell(f"{text}. {_LOST}")

    def names_apart(self, recorded: dict[str, Any]) -> tuple[list[str], list[str]]:
        """Return the attributes that only `remember` is given now, and those that only a recorded state was given."""
        added = [name for name in sorted(self._names - recorded["values"].keys()) if f"state.{name}" not in recorded["lost"]]
        return added, sorted(set(recorded["given"]) - self._names)

    def describe_names_apart(self, recorded: dict[str, Any]) -> list[Note]:
        """Return what it means for them."""
        added, dropped = self.names_apart(recorded)
        texts = [
            *(f"state.{name} is remembered now, but the run has no value of it: it starts as it is" for name in added),
            *(f"state.{name} was given to remember(...) before, and is not now: it has its recorded value" for name in dropped),
        ]
        return coded("not-recovered", texts)

    def _tell(self, text: str) -> None:
        if text not in self._reported:
            self._reported.add(text)
            self._on_doubt(Note("not-recovered", text))


def _demanded(storer: Storer, name: str, value: Any) -> Any:
    try:
        return storer.store(value, f"state.{name}")
    except Unstorable as error:
        raise UnencodableState(error.path, error.value, error.reason) from None


class Remembered:
    """A loop's own state: plain attributes, which have their values of the crash step after `recover()`.

        state = optimizer.remember(best=0.0, x=x, y=y)
        state.best = max(state.best, accuracy)

    A new attribute is remembered from its first assignment on. A copy is a plain namespace that nobody remembers.
    """

    __slots__ = ("__dict__", "__weakref__", "_tranlogs_check")
    _tranlogs_check: Callable[[str, Any], None]

    def __init__(self, check: Callable[[str, Any], None]) -> None:
        object.__setattr__(self, "_tranlogs_check", check)

    def __setattr__(self, name: str, value: Any) -> None:
        self._tranlogs_check(name, value)
        vars(self)[name] = value

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(f"{name!r} is not remembered; give it to remember(...), or assign it first", name=name, obj=self)

    def __delattr__(self, name: str) -> None:
        raise UsageError(f"state.{name} is remembered and cannot be deleted. Assign None to it")

    def __repr__(self) -> str:
        return f"Remembered({', '.join(f'{name}={value!r}' for name, value in vars(self).items())})"

    def __reduce_ex__(self, protocol: Any) -> Any:
        return SimpleNamespace, (), dict(vars(self))


def demand_storable(content: Any, path: str, adapt: tree.Adapt, model_bytes: int) -> None:
    """Refuse a state that cannot be stored.

    Args:
        content: the state.
        path: of it in messages.
        adapt: turns a framework's values into arrays and extensions.
        model_bytes: size of the model. An average of its weights is accepted whatever its size.

    Raises:
        UnencodableState: it holds something that cannot be stored, contains itself, or is huge; the error has its path.
    """
    arrays: list[AnyArray] = []
    tree.encode(content, path=path, adapt=adapt, out_of_line=arrays)
    size, most = sum(array.nbytes for array in arrays), max(TRACKED_BYTES_MAX, 4 * model_bytes)
    if size > most:
        where, largest = max(tree.find_arrays(content, path, adapt), key=lambda item: item[1].nbytes)
        raise UnencodableState(
            path,
            content,
            f"holds {size / GIB:.1f} GiB (of them {largest.nbytes / GIB:.1f} GiB in {where}), which would be written at each "
            f"boundary; {most / GIB:.1f} GiB are accepted. Leave out data that the script can read again, and track their "
            "position",
        )
