"""Convert an optimizer's state from a source to what `load_state_dict` of the optimizer that was built expects.

Sources refer to parameters by number (torch) or by name (torch.distributed.checkpoint, in two forms; .safetensors files of
`tranlogs export`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch.optim import Optimizer

_NO_SETTINGS = ("params", "param_names")
_OF_SCHEDULERS = frozenset(["initial_lr", "max_lr", "min_lr", "swa_lr", "max_momentum", "base_momentum", "name"])
_SHAPED = frozenset(
    [
        "exp_avg",
        "exp_avg_sq",
        "max_exp_avg_sq",
        "momentum_buffer",
        "square_avg",
        "grad_avg",
        "sum",
        "ax",
        "acc_delta",
        "exp_inf",
        "prev",
        "step_size",
    ]
)

StateDict = dict[str, Any]


class Unfit(ValueError):
    """The state does not fit this optimizer. The text is the reason."""


def fitted(
    source: Mapping[str, Any], optimizer: Optimizer, names: Sequence[Sequence[str]], reading: Mapping[str, str]
) -> StateDict:
    """Return the state dict to load.

    Args:
        source: the state in the source.
        optimizer: the optimizer that was built.
        names: names of its parameters, by group.
        reading: the optimizer's names of parameters by the source's.

    Raises:
        Unfit: the state does not fit.
    """
    groups = source.get("param_groups")
    is_numbered = isinstance(groups, list) and all(_is_numbered(group) for group in groups)
    made = _numbered(source, names) if is_numbered else _named(source, optimizer, names, reading)
    _demand_same_kind(made, optimizer)
    _demand_shapes(made, optimizer, names)
    return made


def _is_numbered(group: Mapping[str, Any]) -> bool:
    return "param_names" not in group and all(isinstance(one, int) for one in group.get("params", ()))


def _numbered(source: Mapping[str, Any], names: Sequence[Sequence[str]]) -> StateDict:
    theirs = [len(group["params"]) for group in source["param_groups"]]
    mine = [len(group) for group in names]
    if theirs != mine:
        raise Unfit(
            f"the source has parameter groups of {_listing(theirs)} parameters, the script has groups of {_listing(mine)}"
        )
    return {"state": dict(source.get("state", {})), "param_groups": source["param_groups"]}


def _named(
    source: Mapping[str, Any], optimizer: Optimizer, names: Sequence[Sequence[str]], reading: Mapping[str, str]
) -> StateDict:
    settings, slots = _by_name(source)
    settings = {reading.get(name, name): value for name, value in settings.items()}
    slots = {reading.get(name, name): value for name, value in slots.items()}
    numbers = {name: i for i, name in enumerate(name for group in names for name in group)}
    if unknown := sorted((settings.keys() | slots.keys()) - numbers.keys()):
        raise Unfit(f"it contains {unknown[0]!r}, which this optimizer does not train")
    if settings and (absent := sorted(numbers.keys() - settings.keys())):
        raise Unfit(f"it lacks {absent[0]!r}")
    groups = []
    for held, group in zip(names, optimizer.param_groups, strict=True):
        found = [settings[name] for name in held] if settings else [_settings(group)]
        if any(one != found[0] for one in found):
            raise Unfit(f"{held[0]!r} has settings in the source that differ from those of other parameters in its group")
        groups.append({**found[0], "params": [numbers[name] for name in held]})
    return {"state": {numbers[name]: value for name, value in slots.items()}, "param_groups": groups}


def _by_name(source: Mapping[str, Any]) -> tuple[dict[str, StateDict], dict[str, StateDict]]:
    """Return the settings and the state of each parameter, by its name in the source."""
    settings: dict[str, StateDict] = {}
    slots: dict[str, StateDict] = {}
    groups = source.get("param_groups", ())
    numbered: dict[Any, str] = {}
    for group in groups if isinstance(groups, list) else ():
        members = group.get("param_names", group.get("params", ()))
        numbered |= dict(zip(group.get("params", ()), members, strict=True))
        settings |= {str(name): _settings(group) for name in members}
    state = source.get("state", {})
    for key, value in state.items() if isinstance(state, Mapping) else ():
        slots[numbered.get(key, str(key))] = dict(value)
    for key, value in source.items():
        for kind, where in (("param_groups.", settings), ("state.", slots)):
            if key.startswith(kind):
                name, _, setting = key.removeprefix(kind).rpartition(".")
                where.setdefault(name, {})[setting] = value
    return settings, slots


def _settings(group: Mapping[str, Any]) -> StateDict:
    return {key: value for key, value in group.items() if key not in _NO_SETTINGS}


def _demand_same_kind(made: StateDict, optimizer: Optimizer) -> None:
    """Refuse the state of another kind of optimizer: torch would load SGD's into AdamW, and fail at the first step."""
    for group in made["param_groups"]:
        strange = sorted(group.keys() - optimizer.param_groups[0].keys() - _OF_SCHEDULERS - set(_NO_SETTINGS))
        absent = sorted(optimizer.defaults.keys() - group.keys())
        if strange and absent:
            raise Unfit(
                f"it is not the state of a {type(optimizer).__name__}: it has {_listing(strange)} and lacks {_listing(absent)}"
            )


def _demand_shapes(made: StateDict, optimizer: Optimizer, names: Sequence[Sequence[str]]) -> None:
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    flat = [name for group in names for name in group]
    for number, slots in made["state"].items():
        if not isinstance(number, int) or not 0 <= number < len(flat):
            raise Unfit(f"it has state for parameter {number!r}, but there are only {len(flat)} parameters")
        for slot, value in slots.items():
            if slot in _SHAPED and isinstance(value, torch.Tensor) and value.shape != parameters[number].shape:
                raise Unfit(
                    f"{slot} of {flat[number]} has shape {list(value.shape)}, but the parameter has shape "
                    f"{list(parameters[number].shape)}"
                )


def _listing(values: Sequence[object]) -> str:
    return ", ".join(map(str, values[:8])) + (" ..." if len(values) > 8 else "")
