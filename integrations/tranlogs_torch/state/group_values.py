"""Hyper-parameters: the values of an optimizer's parameter groups."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import chain
from operator import is_
from typing import Any

from torch.optim import Optimizer

from tranlogs.base.notes import Note, coded
from tranlogs.training import is_same

from .extra_state import frozen

Groups = list[dict[str, Any]]

_NOT_VALUES = ("params", "param_names")


def values_of(optimizer: Optimizer) -> Groups:
    """Return the groups without their parameters. The values are live: schedulers fill tensors in place."""
    return [{key: value for key, value in group.items() if key not in _NOT_VALUES} for group in optimizer.param_groups]


class GivenValues:
    """Plain hyper-parameters that the script has given to the optimizers. The run keeps those with which it began.

    Attributes:
        by_optimizer: the values of each group with which the run began.
        loaded: names of the optimizers that the script has loaded from a file of its own. They are not compared.
    """

    def __init__(self) -> None:
        self.by_optimizer: dict[str, Groups] = {}
        self.loaded: set[str] = set()

    def note(self, groups: Mapping[str, Groups]) -> None:
        """Note the groups' present values as those with which the run began."""
        self.by_optimizer = {which: _plain_values(values) for which, values in groups.items()}

    def compare(self, which: str, recorded: Groups, now: Groups) -> list[Note]:
        """Return where the script now gives other values than when the run began, and keep the recorded ones.

        Args:
            which: name of the optimizer.
            recorded: the values with which the run began.
            now: the groups as the script has built them, unless `note` was called before.
        """
        given = self.by_optimizer.get(which)
        if given is None:
            given = _plain_values(now)
        self.by_optimizer[which] = recorded
        if which in self.loaded:
            return []
        texts = (
            f"optimizer {which!r}: the script gives {key}={value[key]} to parameter group {i}, and gave {was[key]} when the "
            "run began; the run's own value holds (to change it, set it after recover())"
            for i, (was, value) in enumerate(zip(recorded, given, strict=False))
            for key in was.keys() & value.keys()
            if was[key] != value[key]
        )
        return coded("settings-changed", texts)


def _plain_values(groups: Groups) -> Groups:
    return [{key: value for key, value in group.items() if is_plain(value)} for group in groups]


class GroupValues:
    """Copies of an optimizer's hyper-parameters, made again only when one of them was written.

    Values that cannot be changed in place (numbers, strings, tuples of them) are compared by identity, which takes a few
    microseconds. If there is any other value, such as a learning rate in a tensor, all are copied and compared each time.
    """

    def __init__(self, optimizer: Optimizer) -> None:
        self._optimizer = optimizer
        self._seen: list[Any] = []
        self._sizes: list[int] = []
        self._is_immutable = False
        self._values: Groups = []

    def now(self) -> Groups:
        """Return a copy of the values; the previous copy, as the same object, while they are equal to it."""
        groups = self._optimizer.param_groups
        sizes = list(map(len, groups))
        seen = [*chain.from_iterable(groups), *chain.from_iterable(map(dict.values, groups))]
        if self._is_immutable and sizes == self._sizes and (all(map(is_, seen, self._seen)) or self._set_numbers(groups, seen)):
            return self._values
        self._sizes, self._seen = sizes, seen
        live = values_of(self._optimizer)
        self._is_immutable = _are_immutable(chain.from_iterable(map(dict.values, live)))
        values = [{key: frozen(value) for key, value in group.items()} for group in live]
        if not is_same(values, self._values):
            self._values = values
        return self._values

    def _set_numbers(self, groups: Groups, seen: list[Any]) -> bool:
        """Take numbers that were set, by a schedule for instance; return False if anything else has changed."""
        is_changed = False
        for value, before in zip(seen, self._seen, strict=True):
            if value is not before:
                if type(value) is not type(before) or type(value) not in (int, float):
                    return False
                is_changed |= value != before or value == 0  # 0.0 and -0.0 are different bytes
        self._seen = seen
        if is_changed:
            self._values = list(map(dict, self._values))
            for group, copied in zip(groups, self._values, strict=True):
                for key in copied:
                    copied[key] = group[key]
        return True


def _are_immutable(values: Iterable[Any]) -> bool:
    return all(_are_immutable(v) if type(v) is tuple else v is None or type(v) in (str, int, float, bool) for v in values)


def is_plain(value: Any) -> bool:
    """Return True if a value of a group can be recorded as it is."""
    if isinstance(value, tuple):
        return all(map(is_plain, value))
    return value is None or isinstance(value, (bool, int, float, str))
