"""Write a replayed state as a folder of torch.distributed.checkpoint, for plain `torch.distributed.checkpoint.load`.

The names are those of `torch.distributed.checkpoint.state_dict.get_state_dict`, so what it makes of a model and its optimizers
is the dict to load into, and `set_state_dict` takes it from there, on any number of processes:

    model.KEY                             the model's state_dict; several models: models.NAME.KEY
    optimizer.state.PARAMETER.SLOT        of all optimizers of the model; several models: optimizers.NAME.state...
    optimizer.param_groups.I.SETTING      with the names of the group's parameters as "params"
    optimizer.param_groups.PARAMETER.SETTING    the same once more, for flatten_optimizer_state_dict=True
    parameters.NAME                       what no model holds
    tracked.NAME...                       state_dicts of what was tracked
    step                                  optimizer updates applied

One process writes it, without a process group.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch.optim import Optimizer

from tranlogs.base.atomic_files import publishing_folder
from tranlogs.base.errors import UsageError
from tranlogs.training import Progress

from ..tensors.equality import demand_equal

Nest = dict[str, Any]


def check_target(path: Path) -> None:
    """Check that a folder can be made at a path.

    Raises:
        UsageError: something is there already.
    """
    if os.path.lexists(path):
        raise UsageError(f"{path}: the folder exists and is not replaced. Delete it, or choose another name")


def write(
    path: Path,
    content: Mapping[str, Any],
    optimizers: Mapping[str, Optimizer],
    names: Mapping[int, str],
    progress: Progress | None = None,
) -> list[str]:
    """Write the folder, all of it or nothing; returns what plain loading has to know.

    Args:
        path: of the folder; it must not be there.
        content: as a .pt file has it.
        optimizers: by name.
        names: of their parameters, by identity.
        progress: called with the bytes that are done.

    Raises:
        UsageError: the format does not hold the state, or something is at `path`.
        DataError: what was written does not read back.
    """
    from torch.distributed.checkpoint.state_dict_loader import load  # takes its time
    from torch.distributed.checkpoint.state_dict_saver import save

    check_target(path)
    nested, notes = _nested(content, optimizers, names)
    nested = _storable(path, nested, "", notes)
    with publishing_folder(path) as temporary, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that there is no process group
        save(nested, checkpoint_id=temporary, no_dist=True)
        found = _empty(nested)
        load(found, checkpoint_id=temporary, no_dist=True)
        demand_equal(path, nested, found, progress)
    return notes


def _nested(
    content: Mapping[str, Any], optimizers: Mapping[str, Optimizer], names: Mapping[int, str]
) -> tuple[Nest, list[str]]:
    nested: Nest = {"step": content["step"], "tranlogs": content["tranlogs"]}
    notes: list[str] = []
    nested |= {key: content[key] for key in ("model", "models", "parameters", "tracked") if content.get(key)}
    if "models" in content:
        made = {}
        for which, optimizer in optimizers.items():
            relative = _relative(optimizer, names, list(content["models"]))
            made[which] = _optimizers_as_one({which: optimizer}, relative, notes)
        nested["optimizers"] = made
    else:
        nested["optimizer"] = _optimizers_as_one(optimizers, names, notes)
    return nested, notes


def _relative(optimizer: Optimizer, names: Mapping[int, str], models: list[str]) -> Mapping[int, str]:
    """Return names within the one model that an optimizer trains; unchanged if it trains several."""
    own = {id(p): names[id(p)] for group in optimizer.param_groups for p in group["params"]}
    for model in models:
        if all(name.startswith(f"{model}.") for name in own.values()):
            return {key: name[len(model) + 1 :] for key, name in own.items()}
    return own


def _optimizers_as_one(optimizers: Mapping[str, Optimizer], names: Mapping[int, str], notes: list[str]) -> Nest:
    """Return the optimizers of a model as `get_state_dict` returns them, in both its forms."""
    state: Nest = {}
    groups: list[Nest] = []
    flat: Nest = {}
    for which, optimizer in optimizers.items():
        if any(not isinstance(key, torch.Tensor) for key in optimizer.state):
            notes.append(f"optimizer {which}: state that belongs to no parameter is left out; .pt stores it")
        without = []
        for group in optimizer.param_groups:
            settings = {key: value for key, value in group.items() if key not in ("params", "param_names")}
            members = [names[id(parameter)] for parameter in group["params"]]
            groups.append({**settings, "params": members})
            for name, parameter in zip(members, group["params"], strict=True):
                if optimizer.state.get(parameter):
                    state[name] = dict(optimizer.state[parameter])
                else:
                    without.append(name)
                flat |= {f"param_groups.{name}.{key}": value for key, value in settings.items()}
        if without and len(without) < sum(len(group["params"]) for group in optimizer.param_groups):
            more = " ..." if len(without) > 3 else ""
            notes.append(
                f"optimizer {which} has no state for {', '.join(without[:3])}{more}, which had no gradient yet. A program "
                "that loads the folder and has such state needs DefaultLoadPlanner(allow_partial_load=True)"
            )
    made: Nest = {"state": state, "param_groups": groups}
    taken = {f"param_groups.{i}.{key}" for i, group in enumerate(groups) for key in group}
    return made | flat if taken.isdisjoint(flat) else made


def _storable(path: Path, value: Any, at: str, notes: list[str]) -> Any:
    """Return a value as the format holds it: dense tensors, and names as keys."""
    if isinstance(value, Mapping):
        if any(not isinstance(key, str) for key in value):
            notes.append(f"{at}: its keys become strings, the only keys of this format; pt stores them unchanged")
        return {str(key): _storable(path, item, f"{at}.{key}" if at else str(key), notes) for key, item in value.items()}
    if isinstance(value, torch.Tensor) and value.layout is not torch.strided:
        raise UsageError(f"{path}: {at} is a sparse tensor, which this format cannot store. Use pt")
    return value


def _empty(value: Any) -> Any:
    """Return the same nest with empty tensors, to be filled by reading."""
    if isinstance(value, Mapping):
        return {key: _empty(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_empty(item) for item in value]
    return torch.empty_like(value) if isinstance(value, torch.Tensor) else None
