"""A run's state, rebuilt from its checkpoint and log alone, without the script that trained it.

Parameters are made as the checkpoint describes them, optimizers from torch's own classes; what follows is the recovery
of a live run, so the bits are the same. Only what code alone can make is missing: the model itself, and what was
tracked; their states are here as plain values.

A run must execute no code that it names, so the recorded name of an optimizer is looked up in `torch.optim` and nowhere else;
other classes are used only where the user names them.
"""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from tranlogs.base.errors import UsageError
from tranlogs.base.notes import Note, coded
from tranlogs.base.types import AnyArray, Array
from tranlogs.records import Checkpoint, Snapshot
from tranlogs.training import Recovered, ScalarHistory

from ..elastic.shard_loading import RecoverableState
from ..sharding.shards import array_of, put_place
from ..state import environment
from ..state.environment import class_name
from ..tensors.arrays import Place, adapt, from_array, make_array, make_extension, to_array


class RecordedState(RecoverableState):
    """The state that a checkpoint describes. `restore` builds it from that description.

    Attributes:
        keys: for each model, the keys of its state dict and the tensor that each stands for.
        meta: what the checkpoint holds besides its tensors.
        body: the auxiliary state of the boundary that was landed on, with all buffers.
    """

    def __init__(self, classes: OptimizerClasses) -> None:
        super().__init__({}, {}, self._keep)
        self._classes = classes
        self.keys: dict[str, dict[str, str]] = {}
        self.meta: dict[str, Any] = {}
        self.body: dict[str, Any] = {}

    @property
    def notes(self) -> list[Note]:
        """Notes of the recovery."""
        return coded("environment", self.redone.notes)

    def former_state(self) -> RecordedState:
        """Return another state of the same optimizers' classes, to be restored."""
        return RecordedState(self._classes)

    def describe_replay(self) -> dict[str, Any]:
        """Return facts about the state that the redone records show and no checkpoint holds, as plain values."""
        redone = self.redone
        return {"kinds": sorted(redone.kinds), "stale": sorted(redone.stale), "notes": list(map(str, redone.notes))}

    def derive(self, recovered: Recovered) -> Snapshot:
        """Return the encoded snapshot that the training script would have taken where its log was redone to.

        Tensors come from the replay, auxiliary state from the boundary's record, and what a script alone knows (names in the
        models' state dicts, hyper-parameters as first given) from the checkpoint before.
        """
        before, body = self.meta, recovered.body
        tensors: dict[str, AnyArray] = {f"param/{name}": array_of(p, p) for name, p in self.parameters.items()}
        tensors |= {f"buffer/{name}": to_array(b) for name, b in body["buffers"].items()}
        optimizers: dict[str, Any] = {}
        for which, about in before["optimizers"].items():
            held, rest = self.state_tensors(which)
            tensors |= {name: array for name, array in held if array is not None}
            optimizers[which] = {
                "class": about["class"],
                "groups": body["after"][which],
                "params": self.named.group_names(which),
                "state": rest,
                "given": self.given.by_optimizer[which],
            }
        curves = ScalarHistory()
        curves.unpack(self.body.get("scalars", before["boundary"].get("scalars", {})))
        curves.extend(recovered.scalars)
        boundary = {**body, "scalars": curves.pack()}
        made = Snapshot(
            tensors, {"optimizers": optimizers, "modules": before["modules"], "boundary": boundary, "born": before["born"]}
        )
        made.encode(adapt)
        return made

    def compare_environment(self) -> list[Note]:
        """Return the differences between the recorded environment and this process's."""
        return environment.compare(self.redone.environment, environment.describe(self.optimizers))

    def differences(self, checkpoint: Checkpoint) -> list[str]:
        return []  # nothing is built before the checkpoint is read

    def restore(self, checkpoint: Checkpoint) -> None:
        meta = self.meta = checkpoint.meta(make_array=make_array, make_extension=make_extension)
        device = _device_of(checkpoint.manifest["environment"])
        parameters = {name[6:]: _parameter(checkpoint.read(name), device) for name in checkpoint.names("param/")}
        self.keys = meta.get("modules", {})
        self.named.optimizers = {
            which: make_optimizer(self._classes.find(which, about["class"]), about["groups"], about["params"], parameters)
            for which, about in meta["optimizers"].items()
        }
        self.named.use(parameters)
        super().restore(checkpoint)

    def _compare_given(self, which: str, recorded: list[dict[str, Any]]) -> None:
        """Keep the recorded values: no script gives others."""
        self.given.by_optimizer[which] = recorded

    def set_state(self, which: str, rest: dict[str, Any], read: Callable[[str, str], AnyArray | None]) -> None:
        """Set an optimizer's state as recorded; state of a device that this machine lacks goes to the CPU."""
        here = {
            name: [(key, value, device and _usable(device)) for key, value, device in items] for name, items in rest.items()
        }
        super().set_state(which, here, read)

    def make_parameter(self, name: str, array: AnyArray) -> torch.Tensor:
        return _parameter(array, _device_of(self.redone.environment))

    def _keep(self, body: dict[str, Any]) -> None:
        self.body = body


def _parameter(array: AnyArray, device: str) -> torch.Tensor:
    values = from_array(array).to(device)
    made = nn.Parameter(values, requires_grad=values.is_floating_point() or values.is_complex())
    if isinstance(array, Array) and array.piece is not None and array.whole is not None:
        put_place(made, Place(array.whole, array.piece))
    return made


def _device_of(recorded: dict[str, Any]) -> str:
    """Return the device that held all parameters, if this machine has it; else the CPU."""
    devices = recorded.get("devices", ())
    return _usable(devices[0]) if len(devices) == 1 else "cpu"


def _usable(device: str) -> str:
    try:
        return device if device == "cpu" or torch.get_device_module(device).is_available() else "cpu"
    except RuntimeError:
        return "cpu"


class OptimizerClasses:
    """Finds the class of a recorded optimizer.

    Args:
        given: what the user named: "module:Class", or "NAME=module:Class" for the optimizer NAME of the run.

    Raises:
        UsageError: a class cannot be imported, or is no optimizer.
    """

    def __init__(self, given: Sequence[str] = ()) -> None:
        self._by_name: dict[str, type[Optimizer]] = {}
        self._others: dict[str, type[Optimizer]] = {}
        self._built: dict[str, type[Optimizer]] = {}
        for spec in given:
            name, equals, rest = spec.rpartition("=")
            kind = _imported(rest)
            if equals:
                self._by_name[name] = kind
            else:
                self._others[kind.__qualname__] = kind

    @classmethod
    def of(cls, optimizers: Iterable[Optimizer]) -> OptimizerClasses:
        """Return the classes of optimizers that a script has built."""
        found = cls()
        found._built = {class_name(optimizer): type(optimizer) for optimizer in optimizers}
        return found

    def find(self, which: str, recorded: str) -> type[Optimizer]:
        """Return the class of the optimizer `which`, recorded under the name `recorded`.

        Raises:
            UsageError: it is not torch's own and the user did not name it.
        """
        module, _, name = recorded.rpartition(".")
        found = self._by_name.get(which) or self._built.get(recorded) or _of_torch(module, name) or self._others.get(name)
        if found is None:
            raise UsageError(
                f"optimizer {which!r} is a {recorded}, which is not in torch.optim. If you trust its class, name it: "
                f"--optimizer {module}:{name}"
            )
        return found


def make_optimizer(
    kind: type[Optimizer],
    groups: Sequence[Mapping[str, Any]],
    names: Sequence[Sequence[str]],
    parameters: Mapping[str, torch.Tensor],
) -> Optimizer:
    """Make an optimizer with the recorded parameter groups.

    Raises:
        UsageError: the class cannot be made from them.
    """
    accepted = inspect.signature(kind.__init__).parameters
    defaults = {key: value for key, value in groups[0].items() if key in accepted}
    filled = [{**group, "params": [parameters[name] for name in held]} for group, held in zip(groups, names, strict=True)]
    try:
        return kind(filled, **defaults)
    except Exception as error:
        raise UsageError(
            f"{kind.__module__}.{kind.__qualname__} cannot be created from the recorded groups: {error}"
        ) from error


def _of_torch(module: str, name: str) -> type[Optimizer] | None:
    kind = getattr(torch.optim, name, None)
    is_torch = module == "torch.optim" or module.startswith("torch.optim.")
    return kind if is_torch and isinstance(kind, type) and issubclass(kind, Optimizer) else None


def _imported(spec: str) -> type[Optimizer]:
    module, colon, name = spec.partition(":")
    if not (module and colon and name):
        raise UsageError(f"optimizer class {spec!r}: expected module:Class")
    try:
        kind = getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError) as error:
        raise UsageError(f"optimizer class {spec!r} cannot be imported: {error}") from None
    if not (isinstance(kind, type) and issubclass(kind, Optimizer)):
        raise UsageError(f"{spec!r} is no torch.optim.Optimizer")
    return kind


class LiveState(RecoverableState):
    """The state of a run in the process that trains it."""

    def former_state(self) -> RecordedState:
        """Return a state for what another process recorded, with the optimizers' classes that the script uses."""
        return RecordedState(OptimizerClasses.of(self.optimizers.values()))
