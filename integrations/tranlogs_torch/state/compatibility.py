"""Differences between the state that a script has built and the state that its run has recorded, as texts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import nn
from torch.optim.lr_scheduler import LRScheduler

from tranlogs.base.notes import Note, coded

from . import environment
from .named_tensors import NamedTensors

Settings = dict[str, dict[str, Any]]
_PROGRESS = ("last_epoch", "base_lrs", "verbose")  # of a scheduler; what begins with _ is, too
Layouts = dict[str, tuple[str, tuple[int, ...]]]  # by name, dtype and shape


def mismatches(what: str, mine: Layouts, theirs: Layouts) -> list[str]:
    """Return the differences between tensors, one sentence each; `what` is their kind ("parameter")."""
    found = [f"{what} {name}: recorded, but absent from the script" for name in theirs if name not in mine]
    found += [f"{what} {name}: in the script, but not recorded" for name in mine if name not in theirs]
    for name in mine:
        if name in theirs and mine[name] != theirs[name]:
            (a, s), (b, t) = theirs[name], mine[name]
            found.append(f"{what} {name}: recorded as {a}{list(s)}, now {b}{list(t)}")
    return found


def optimizer_differences(named: NamedTensors, recorded: dict[str, Any]) -> list[str]:
    """Return the differences from the recorded optimizers, one sentence each; `recorded` is from a checkpoint."""
    found = []
    for which in sorted(set(recorded) ^ set(named.optimizers)):
        where = "the run has" if which in recorded else "now there is"
        found.append(f"optimizer {which!r}: only {where} it")
    for which in set(recorded) & set(named.optimizers):
        found += _differences(named, which, recorded[which])
    return found


def _differences(named: NamedTensors, which: str, recorded: dict[str, Any]) -> list[str]:
    found = []
    now = environment.class_name(named.optimizers[which])
    if recorded["class"] != now:
        found.append(f"optimizer {which!r} was a {recorded['class']} and is now a {now}")
    groups = list(zip(named.group_names(which), recorded["params"], strict=False))
    if {name for mine, _ in groups for name in mine} == {name for _, theirs in groups for name in theirs}:
        return found  # if they are grouped otherwise now, the run's groups hold
    for i, (mine, theirs) in enumerate(groups):
        if set(mine) != set(theirs):
            found.append(
                f"optimizer {which!r}: its parameter group {i} has different parameters ({len(theirs)} recorded, {len(mine)} "
                "now)"
            )
    return found


def in_later_groups(named: NamedTensors, recorded: dict[str, Any]) -> set[str]:
    """Return the parameters of groups that were added after the recorded ones. The checkpoint does not hold them."""
    return {
        name
        for which, about in recorded.items()
        if which in named.optimizers
        for group in named.group_names(which)[len(about["params"]) :]
        for name in group
    }


# Settings that the log does not hold and that decide what is trained (Dropout's p, a scheduler's T_max). They are recorded with
# the run's environment.


def describe_modules(modules: Mapping[str, nn.Module]) -> dict[str, str]:
    """Return the settings of torch's own modules without parameters, by path: those of others are in the shapes, mostly."""
    return {
        prefix + path: f"{type(module).__name__}({module.extra_repr()})"
        for prefix, root in modules.items()
        for path, module in root.named_modules()
        if type(module).__module__.startswith("torch.nn.modules.") and next(module.parameters(), None) is None
    }


def describe_scheduler(thing: Any) -> dict[str, Any]:
    """Return the arguments with which a script has made a scheduler; nothing for other objects, and for nested schedulers."""
    if not isinstance(thing, LRScheduler):
        return {}
    return {
        name: value
        for name, value in thing.state_dict().items()
        if not name.startswith("_") and name not in _PROGRESS and type(value) in (bool, int, float, str)
    }


def compare_modules(recorded: Mapping[str, Any], now: Mapping[str, Any]) -> list[Note]:
    """Return the modules whose settings are not what they were, one sentence each."""
    texts = (
        f"the script has changed: {path} was {recorded[path]}, now it is {now[path]}. What is trained from here on is another "
        "model"
        for path in recorded.keys() & now.keys()
        if recorded[path] != now[path]
    )
    return coded("model-changed", texts)


def compare_schedulers(recorded: Settings, now: Settings) -> list[Note]:
    """Return the settings with which the script makes a scheduler and that are not the run's, one sentence each."""
    texts = (
        f"the script has changed: {key} of the tracked {name!r} was {recorded[name][key]!r}, now it is {now[name][key]!r}; the "
        "run's own value holds (to change it, set it after recover())"
        for name in recorded.keys() & now.keys()
        for key in recorded[name].keys() & now[name].keys()
        if recorded[name][key] != now[name][key]
    )
    return coded("settings-changed", texts)
