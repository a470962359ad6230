"""Make a run's optimizers again from what it recorded: torch's own by name, others only where the user names the class.

A run must execute no code that it names, so a recorded name is looked up in `torch.optim` and nowhere else.
"""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
from torch.optim import Optimizer

from tranlogs.base.errors import UsageError

from ..state.environment import class_name


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
