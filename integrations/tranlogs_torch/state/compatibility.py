"""Differences between the state that a script has built and the state that its run has recorded, as texts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

import torch

from . import environment

Layouts = dict[str, tuple[str, tuple[int, ...]]]  # by name, dtype and shape


class Grouped(Protocol):
    """Optimizers by name, and the names of the parameters in their groups."""

    @property
    def optimizers(self) -> Mapping[str, torch.optim.Optimizer]:
        """The optimizers of this process."""
        ...

    def group_names(self, which: str) -> list[list[str]]:
        """Return the names of the parameters in each group."""
        ...

    def all_names(self, which: str) -> list[list[str]]:
        """Return the same of the optimizer that has the parameters of all ranks."""
        ...


def mismatches(what: str, mine: Layouts, theirs: Layouts) -> list[str]:
    """Tensors that are not the same, one sentence each; `what` they are ("parameter")."""
    found = [f"{what} {name}: recorded, but not there now" for name in theirs if name not in mine]
    found += [f"{what} {name}: there now, but not recorded" for name in mine if name not in theirs]
    for name in mine:
        if name in theirs and mine[name] != theirs[name]:
            (a, s), (b, t) = theirs[name], mine[name]
            found.append(f"{what} {name}: recorded as {a}{list(s)}, now {b}{list(t)}")
    return found


def optimizer_differences(state: Grouped, recorded: dict[str, Any]) -> list[str]:
    """Optimizers that are not the recorded ones; `recorded` as a checkpoint tells of them."""
    found = []
    for which in sorted(set(recorded) ^ set(state.optimizers)):
        where = "the run has" if which in recorded else "now there is"
        found.append(f"optimizer {which!r}: only {where} it")
    for which in set(recorded) & set(state.optimizers):
        found += _differences(state, which, recorded[which])
    return found


def _differences(state: Grouped, which: str, recorded: dict[str, Any]) -> list[str]:
    found = []
    now = environment.class_name(state.optimizers[which])
    if recorded["class"] != now:
        found.append(f"optimizer {which!r} was a {recorded['class']}, now it is a {now}")
    is_all = "all" in recorded  # the names that all ranks have together
    groups = list(
        zip(
            state.all_names(which) if is_all else state.group_names(which),
            recorded["all" if is_all else "params"],
            strict=False,
        )
    )
    if {name for mine, _ in groups for name in mine} == {name for _, theirs in groups for name in theirs}:
        return found  # if they are grouped otherwise now, the run's groups hold
    for i, (mine, theirs) in enumerate(groups):
        if set(mine) != set(theirs):
            found.append(
                f"optimizer {which!r}: its parameter group {i} holds other parameters ({len(theirs)} recorded, {len(mine)} now)"
            )
    return found


def in_later_groups(state: Grouped, recorded: dict[str, Any]) -> set[str]:
    """Parameters of groups that were added after the recorded ones: the log, or nobody yet, knows them."""
    return {
        name
        for which, about in recorded.items()
        if which in state.optimizers
        for group in state.group_names(which)[len(about["params"]) :]
        for name in group
    }
