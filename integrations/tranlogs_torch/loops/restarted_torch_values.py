"""Variables of the script's loops that start over at each start: which values and objects of PyTorch count."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import torch

from tranlogs.training import LibraryObject, LoopState, RecoveryReport, UnkeptVariables

from ..data.position.epoch import Epoch
from ..state import naming
from .run_parts import RunParts

_METHODS = ("__getitem__", "__getitems__", "__iter__")  # that a loader calls
_DEPTH_MAX = 4  # of datasets within each other
_OF_TORCH = ("torch", "tranlogs_torch")


def make_unkept_variables(parts: RunParts) -> UnkeptVariables:
    """Return what names the variables that a run does not keep."""

    def is_value(value: Any) -> bool:
        """Return True for a tensor that is no parameter and no buffer."""
        if not isinstance(value, torch.Tensor) or isinstance(value, torch.nn.Parameter):
            return False
        kept = [*naming.named_parameters(parts.modules).values(), *naming.named_buffers(parts.modules).values()]
        kept += [p for hooks in parts.hooks.values() for p in hooks.parameters()]
        return not any(value is one for one in kept)

    def is_kept(value: Any) -> bool:
        """Return True for what is tracked, and for the optimizer, the report and an epoch, which follow the run."""
        if isinstance(value, (RecoveryReport, torch.optim.Optimizer, Epoch)):
            return True
        tracked = list(parts.auxiliary.tracked.values())
        tracked += [thing for state in tracked if isinstance(state, LoopState) for thing in state.objects]
        kept = [*tracked, *(position.loader for position in parts.auxiliary.loaders.values())]
        return any(value is one for one in kept)

    return UnkeptVariables(parts.report, is_value, is_kept, partial(find_datasets, parts))


def find_datasets(parts: RunParts) -> list[LibraryObject]:
    """Return the datasets of the loaders that have no workers, with what they wrap."""
    saved = dict[str, Any]()
    for thing in parts.auxiliary.tracked.values():
        state = None if _is_of_torch(thing) else thing.state_dict()
        if isinstance(state, dict):
            saved |= {key: value for key, value in state.items() if isinstance(key, str)}
    found = []
    for name, position in parts.auxiliary.loaders.items():
        loader = position.loader
        for path, dataset in [] if loader.num_workers else _datasets_in(loader.dataset, ".dataset"):
            values = vars(dataset) if hasattr(dataset, "__dict__") else {}
            kept = frozenset(key for key, value in values.items() if _is_number(value) and saved.get(key) == value)
            found.append(LibraryObject(dataset, _METHODS, loader, path, name, kept))
    return found


def _datasets_in(dataset: Any, path: str) -> Iterator[tuple[str, Any]]:
    """Yield a dataset with the datasets that it wraps."""
    for _ in range(_DEPTH_MAX):
        if dataset is None:
            return
        yield path, dataset
        for at, one in enumerate(list(getattr(dataset, "datasets", None) or ())[:_DEPTH_MAX]):
            yield f"{path}.datasets[{at}]", one
        dataset, path = getattr(dataset, "dataset", None), f"{path}.dataset"


def _is_of_torch(thing: Any) -> bool:
    return isinstance(thing, (LoopState, torch.nn.Module)) or type(thing).__module__.partition(".")[0] in _OF_TORCH


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)
