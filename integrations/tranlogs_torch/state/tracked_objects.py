"""Objects of the script with state_dict and load_state_dict, the namespace of `remember(...)`, and torch's values in it."""

from __future__ import annotations

import logging
import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import islice
from typing import Any

import numpy as np
import torch
from torch.utils.data import DataLoader

from tranlogs.base.errors import UnencodableState, UsageError
from tranlogs.base.notes import Note
from tranlogs.records import Fixed, tree
from tranlogs.training import LoopState, Remembered, Unstorable, demand_storable, split_python

from ..data.generators import trackable
from ..data.loader_class import advice_for_other_loader
from ..tensors import arrays
from .compatibility import Settings, describe_scheduler

_log = logging.getLogger("tranlogs")

REMEMBERED = "remember(...)"  # the name under which the loop's namespace is tracked


class TrackedObjects:
    """The tracked objects of a run.

    Args:
        on_doubt: called with what is not recovered, in words, and True if what follows is known to be wrong.

    Attributes:
        objects: by name.
        scalers: the GradScalers among them that are enabled.
        built: the settings with which the script has created the tracked schedulers, by name.
    """

    def __init__(self, on_doubt: Callable[[str, bool], None]) -> None:
        self._on_doubt = on_doubt
        self.objects: dict[str, Any] = {}
        self.scalers: list[torch.amp.GradScaler] = []
        self.built: Settings = {}
        self._base_rates: dict[str, list[Any]] = {}  # of tracked LambdaLRs, as recovery has set them
        self._loop_state: LoopState | None = None
        # Of tracked GradScalers, as they were at the last boundary, or where recovery has landed.
        self._scalers: dict[str, Any] = {}

    def add(self, name: str, thing: Any, recorded: Mapping[str, Any] | None, *, model_bytes: int) -> bool:
        """Track an object; return True if it was given its recorded state.

        Args:
            name: of the object in the run.
            thing: the object.
            recorded: the states on which recovery has landed, by name; None before a recovery, and once training goes on.
            model_bytes: size of the parameters: an object may be as large.

        Raises:
            UsageError: the name is taken, the object has no state_dict and load_state_dict, or its state cannot be stored.
        """
        thing = trackable(thing)
        if name in self.objects and self.objects[name] is not thing:
            raise UsageError(f"track({name}=...): another object is already tracked under this name")
        if not (hasattr(thing, "state_dict") and hasattr(thing, "load_state_dict")):
            if (advice := advice_for_other_loader(thing)) is not None:
                raise UsageError(f"track({name}=...): {advice}")
            raise UsageError(f"track({name}=...): a {type(thing).__name__} has no state_dict and load_state_dict")
        content = thing.state_dict()
        demand_storable(content, f"track[{name!r}]", arrays.adapt, model_bytes)
        is_disabled = isinstance(thing, torch.amp.GradScaler) and not thing.is_enabled()
        if content == {} and not is_disabled:
            _log.warning("track(%s=...): its state_dict is empty, so nothing of it is recovered", name)
        self.objects[name] = thing
        if isinstance(thing, torch.amp.GradScaler) and not is_disabled and thing not in self.scalers:
            self.scalers.append(thing)
        if recorded is None and (settings := describe_scheduler(thing)):
            self.built[name] = settings
        return self.load((name,), recorded or {})

    def describe_loop(self, recorded: Mapping[str, Any]) -> list[Note]:
        """Return which values of the loop the script remembers and a recorded state does not, or the other way round."""
        if self._loop_state is None or REMEMBERED not in recorded:
            return []
        return self._loop_state.describe_names_apart(recorded[REMEMBERED])

    @property
    def is_loop_remembered(self) -> bool:
        """True if the script keeps the state of its loop in `remember(...)`."""
        return REMEMBERED in self.objects

    def remember(self, values: dict[str, Any], recorded: Mapping[str, Any] | None, *, model_bytes: int) -> Remembered:
        """Remember attributes of the loop's namespace, and give them their recorded values (see `add`)."""
        if self._loop_state is None:
            self._loop_state = LoopState(TorchValues(), lambda text: self._on_doubt(text, False))
        self._loop_state.add(values)
        if self.is_loop_remembered:
            self.load((REMEMBERED,), recorded or {})
        else:
            self.add(REMEMBERED, self._loop_state, recorded, model_bytes=model_bytes)
        return self._loop_state.namespace

    def load(self, names: tuple[str, ...], recorded: Mapping[str, Any]) -> bool:
        """Give these objects their recorded states; return True if one of them was recorded."""
        found = [name for name in names if name in recorded and name in self.objects]
        for name in found:
            self._load(name, self.objects[name], recorded[name])
        return bool(found)

    def load_all(self, recorded: Mapping[str, Any]) -> None:
        """Give all objects their recorded states."""
        self.load(tuple(recorded), recorded)

    def _load(self, name: str, thing: Any, content: Any) -> None:
        """Give a tracked object its recorded state. A GradScaler that is disabled has none, and takes none."""
        if isinstance(thing, torch.amp.GradScaler) and thing.is_enabled() != bool(content):
            was, now = ("disabled", "enabled") if thing.is_enabled() else ("enabled", "disabled")
            text = f"the GradScaler {name!r} was {was} and is now {now}. From here on, steps are computed differently"
            self._on_doubt(Note("settings-changed", text), True)
        else:
            thing.load_state_dict(content)
        if hasattr(thing, "lr_lambdas"):
            self._base_rates[name] = list(thing.base_lrs)
        if isinstance(thing, torch.amp.GradScaler):
            self._scalers[name] = thing.state_dict()

    def read(self) -> dict[str, Fixed]:
        """Return the states of all objects at a boundary, by name."""
        states: dict[str, Fixed] = {}
        for name, thing in self.objects.items():
            state = thing.state_dict()
            states[name] = Fixed(state)
            if isinstance(thing, torch.amp.GradScaler):
                self._scalers[name] = state
        return states

    def has_skipped_step(self) -> bool:
        """Return True if a GradScaler has changed since the last boundary: it has taken or skipped its step."""
        return any(self.objects[name].state_dict() != before for name, before in self._scalers.items())

    def drop_unstorable(self) -> None:
        """Stop tracking objects whose state cannot be stored any more, so that logging continues with the rest."""
        for name, thing in list(self.objects.items()):
            try:
                tree.encode(thing.state_dict(), path=f"track[{name!r}]", adapt=arrays.adapt, out_of_line=[])
            except UnencodableState as error:
                del self.objects[name]
                self._scalers.pop(name, None)
                self._on_doubt(f"{name!r} is no longer tracked and is not recovered: {error}", False)

    def name_strangers(self, recorded: Mapping[str, Any]) -> None:
        """Name the objects, and values of the loop, that only the run has, or only the script."""
        for name in recorded.keys() - self.objects.keys():
            self._on_doubt(
                f"the run has the state of {name!r}, but nothing is tracked under that name, so it is not recovered", False
            )
        for name in self.objects.keys() - recorded.keys():
            self._on_doubt(f"{name!r} is tracked, but the run has no state of it, so it starts over", False)
        for text in self.describe_loop(recorded):
            self._on_doubt(text, False)

    def untouched_base_rates(self) -> dict[str, Any]:
        """Return the LambdaLRs whose base rates are those that recovery has set, by name."""
        return {
            name: self.objects[name] for name, base in self._base_rates.items() if list(self.objects[name].base_lrs) == base
        }


_PLAIN = (torch.dtype, torch.device, torch.Size)
_OTHERS = ("torch", "tranlogs_torch")  # whose objects keep no generator of a dataset
_DEPTH = 6  # of containers in a state
_ITEMS_MAX = 64  # of a container that are looked at


class TorchValues:
    """Stores and restores torch's values.

    A tensor of the CPU that requires no gradient is stored as it is, any other as ("tensor", device, requires_grad, tensor).
    A generator is stored as ("torch.Generator", device, state).
    """

    def store(self, value: Any) -> Any:
        """Return the stored form of a value of torch; None for any other value."""
        if isinstance(value, torch.Tensor):
            return _store_tensor(value)
        if type(value) is torch.Generator:
            return "torch.Generator", str(value.device), value.get_state()
        if isinstance(value, DataLoader):
            raise Unstorable("is a DataLoader. Track it, so that its position comes back: optimizer.track(loader=...)")
        return value if type(value) in _PLAIN else None

    def count_bytes(self, value: Any) -> int:
        """Return the size of the tensor that a stored value holds."""
        held = value[-1] if type(value) is tuple else value
        return int(held.nbytes) if isinstance(held, torch.Tensor) and held.layout is torch.strided else 0

    def restore(self, old: Any, stored: Any) -> Any:
        """Return the value of a stored one: a new tensor, or the generator that is there."""
        if isinstance(stored, torch.Tensor):
            return _new(stored, "cpu")
        if type(stored) is tuple and stored[0] == "tensor":
            return _new(stored[3], stored[1]).requires_grad_(stored[2])
        if type(stored) is tuple and stored[0] == "torch.Generator":
            is_alike = type(old) is torch.Generator and str(old.device) == stored[1]
            target = old if is_alike else torch.Generator(stored[1])
            return target.set_state(stored[2].clone())
        if type(stored) in _PLAIN:
            return stored
        raise Unstorable("cannot be read: it was written by another version of TranLogs")

    def adapt(self, value: Any) -> Any:
        """Prepare a stored value for the encoder of trees."""
        return arrays.adapt(value)


def _store_tensor(value: torch.Tensor) -> Any:
    if isinstance(value, torch.nn.Parameter):
        raise Unstorable(
            "is a Parameter. Parameters are recovered with their module: give the module as model=..., or track it"
        )
    if type(value) not in (torch.Tensor, torch.nn.Buffer):
        raise Unstorable(
            f"is a {type(value).__name__}, which cannot be remembered. Give an object with state_dict() to track(...)"
        )
    if value.layout not in (torch.strided, torch.sparse_coo) or value.dtype not in arrays.NAMES:
        raise Unstorable(f"is a tensor of layout {value.layout} and dtype {value.dtype}, which cannot be stored")
    held = value.detach()
    if value.device.type == "cpu" and not value.requires_grad:
        return held
    return "tensor", str(value.device), value.requires_grad, held


def _new(tensor: torch.Tensor, device: str) -> torch.Tensor:
    copy = tensor.clone() if tensor.layout is torch.sparse_coo else tensor.clone(memory_format=torch.preserve_format)
    return copy.to(device)


def is_kept_generator(generator: Any, tracked: Iterable[Any]) -> bool:
    """Return True if a random generator comes back with what is tracked.

    Args:
        generator: of torch, numpy or Python.
        tracked: the tracked objects.
    """
    objects = list(tracked)
    if any(getattr(one, "generator", None) is generator for one in objects):
        return True
    forms = _forms_of(generator)
    return any(_has(one.state_dict(), forms) for one in objects if _may_have(one))


def _may_have(thing: Any) -> bool:
    """Return True for what the script remembers, and for an object of its own: its state is small, as a rule."""
    return isinstance(thing, LoopState) or type(thing).__module__.partition(".")[0] not in _OTHERS


def _forms_of(generator: Any) -> list[Any]:
    """Return the forms in which the state of a generator is written."""
    if isinstance(generator, np.random.Generator):
        return [generator.bit_generator.state]
    if isinstance(generator, np.random.RandomState):
        return [generator.get_state(legacy=False), generator.get_state(legacy=True)]
    if isinstance(generator, random.SystemRandom):
        return []
    if isinstance(generator, random.Random):
        return [generator.getstate()[1], split_python(generator.getstate())]
    return [generator.get_state()]


def _has(found: Any, forms: Sequence[Any], depth: int = _DEPTH) -> bool:
    """Return True if one of the forms stands in a state."""
    if any(_is_equal(found, form) for form in forms):
        return True
    if not depth:
        return False
    values = found.values() if isinstance(found, Mapping) else found if isinstance(found, (list, tuple)) else ()
    return any(_has(value, forms, depth - 1) for value in islice(values, _ITEMS_MAX))


def _is_equal(one: Any, other: Any) -> bool:
    if type(one) is not type(other) and not (isinstance(one, (list, tuple)) and isinstance(other, (list, tuple))):
        return False
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(_is_equal(value, other[key]) for key, value in one.items())
    if isinstance(one, (list, tuple)):
        return len(one) == len(other) and all(map(_is_equal, one, other))
    if isinstance(one, torch.Tensor):
        return torch.equal(one, other)
    return bool(np.array_equal(one, other))
