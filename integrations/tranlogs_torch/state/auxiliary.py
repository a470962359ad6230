"""Auxiliary state: all that the next batch needs and that no step computes, read and set at a boundary.

Buffers, schedulers and whatever else is tracked, positions in the data, random numbers, hyper-parameters after the step,
which parameters train and which modules are in training mode, and gradients that wait for a step (pending_gradients.py).
"""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Callable
from typing import Any

import torch
from torch.utils.data import DataLoader

from tranlogs.base.errors import UnencodableState, UsageError
from tranlogs.records import Fixed, tree
from tranlogs.training import UNKNOWN_DATA, FixedCache, LoopState, Remembered, TurnData, demand_storable

from ..data.generators import generators_in, trackable
from ..data.lasting_states import LastingStates
from ..data.other_loaders import advice_for_other_loader
from ..data.position.loader_position import LoaderPosition
from ..data.rng import KeptRng, get_rng, set_rng
from ..tensors import arrays
from ..tensors.loop_values import TorchValues
from ..tensors.placement import local
from .compatibility import Settings, describe_scheduler
from .extra_state import split
from .group_values import GroupValues
from .module_walk import ModuleWalk
from .pending_gradients import Gradients
from .state import TorchState

_log = logging.getLogger("tranlogs")

_REMEMBERED = "remember(...)"  # the name under which the loop's namespace is tracked
_NOTHING = Fixed({})  # an empty part of a boundary: encoded once


class Auxiliary:
    """The auxiliary state of a run.

    Args:
        state: the run's parameters, optimizers and modules.
        on_boundary: called by a loader's position when the loop asks for its next batch.
        on_open: called by a loader's position before an epoch, or the rest of one, is opened.
        on_doubt: told what of the data cannot be brought back, in words, and whether the order is known to be wrong.
        on_loader: called with the position in a loader that is new.
        worker_seeds: for the positions in loaders (data/worker_seeds.py).

    Attributes:
        tracked: what has state_dict and load_state_dict, by name.
        loaders: positions in the data, by name.
        count: turns of loops without a loader.
        built: the settings with which the script has made the tracked schedulers, by name.
        is_carried: True if the loop carries outputs of the model on to the next batch, which are not tracked.
        turns: what the data of these came from at the last boundary; None if that was not in a loop over `steps()`.
        deviation: how a unit that was computed again first differed from its record, and True if it was not by rounding.
    """

    def __init__(
        self,
        state: TorchState,
        on_boundary: Callable[[LoaderPosition], None],
        on_open: Callable[[LoaderPosition], None],
        on_doubt: Callable[[str, bool], None],
        on_loader: Callable[[LoaderPosition], None],
        worker_seeds: str | None,
    ) -> None:
        self._state, self._on_boundary, self._on_open, self._on_doubt = state, on_boundary, on_open, on_doubt
        self._on_loader, self._worker_seeds = on_loader, worker_seeds
        self.gradients = Gradients(state)
        self._orphans: list[str] = []
        self.tracked: dict[str, Any] = {}
        self.built: Settings = {}
        self.loaders: dict[str, LoaderPosition] = {}
        self.count = 0
        self.is_carried = False
        self.turns: TurnData | None = None
        self.deviation: tuple[str, bool] | None = None
        self._landed: dict[str, Any] | None = None  # what recovery landed on, until training goes on
        self._positions: dict[str, Any] = {}  # recorded positions of loaders that nobody has named yet
        self._rng: dict[str, Any] | None = None  # for the first loop that is opened after a recovery
        self._start_rng = _NOTHING  # as the fresh run had it when its `recover()` returned
        self._walk = ModuleWalk(state.modules)
        self._values: dict[str, GroupValues] = {}  # by optimizer
        self._after, self._flags, self._training, self._kept_rng = FixedCache(), FixedCache(), FixedCache(), KeptRng()
        self._lasting: defaultdict[str, LastingStates] = defaultdict(LastingStates)  # by loader
        self._base_rates: dict[str, list[Any]] = {}  # of tracked LambdaLRs, as recovery has set them
        self._loop_state: LoopState | None = None
        self._scalers: dict[str, Any] = {}  # tracked GradScalers as they were at the last boundary

    # What belongs to it

    def track(self, name: str, thing: Any) -> None:
        """Track a loader, or anything with state_dict and load_state_dict; after a recovery, bring it back at once."""
        if isinstance(thing, DataLoader):
            self.loader(thing, name)
            return
        thing = trackable(thing)
        if name in self.tracked and self.tracked[name] is not thing:
            raise UsageError(f"track({name}=...): another object is already tracked under this name")
        if not (hasattr(thing, "state_dict") and hasattr(thing, "load_state_dict")):
            if (advice := advice_for_other_loader(thing)) is not None:
                raise UsageError(f"track({name}=...): {advice}")
            raise UsageError(f"track({name}=...): a {type(thing).__name__} has no state_dict and load_state_dict")
        content = thing.state_dict()
        model_bytes = sum(p.nbytes for p in self._state.parameters.values())
        demand_storable(content, f"track[{name!r}]", arrays.adapt, model_bytes)
        is_disabled = isinstance(thing, torch.amp.GradScaler) and not thing.is_enabled()
        if content == {} and not is_disabled:
            _log.warning("track(%s=...): its state_dict is empty, so nothing of it is recovered", name)
        self.tracked[name] = thing
        if self._landed is None and (settings := describe_scheduler(thing)):
            self.built[name] = settings
        if self._landed is not None and name in self._landed["tracked"]:
            self._load(name, thing, self._landed["tracked"][name])
            self._set_hyper(self._landed)  # making a scheduler writes the groups

    @property
    def is_loop_remembered(self) -> bool:
        """True if the script keeps the state of its loop in `remember(...)`."""
        return _REMEMBERED in self.tracked

    def remember(self, values: dict[str, Any]) -> Remembered:
        """Remember attributes of the loop's namespace; after a recovery, bring them back at once."""
        if self._loop_state is None:
            self._loop_state = LoopState(TorchValues(), lambda text: self._on_doubt(text, False))
        self._loop_state.add(values)
        if _REMEMBERED not in self.tracked:
            self.track(_REMEMBERED, self._loop_state)
        elif self._landed is not None and _REMEMBERED in self._landed["tracked"]:
            self._load(_REMEMBERED, self._loop_state, self._landed["tracked"][_REMEMBERED])
        return self._loop_state.namespace

    def _load(self, name: str, thing: Any, content: Any) -> None:
        """Give a tracked object its recorded state. A GradScaler that is disabled has none, and takes none."""
        if isinstance(thing, torch.amp.GradScaler) and thing.is_enabled() != bool(content):
            was, now = ("disabled", "enabled") if thing.is_enabled() else ("enabled", "disabled")
            self._on_doubt(
                f"the GradScaler {name!r} was {was} and is now {now}. From here on, steps are computed differently", True
            )
        else:
            thing.load_state_dict(content)
        if hasattr(thing, "lr_lambdas"):
            self._base_rates[name] = list(thing.base_lrs)

    def loader(
        self, loader: DataLoader[Any], name: str = "loader", kind: type[LoaderPosition] = LoaderPosition
    ) -> LoaderPosition:
        """The position in a loader; one object a loader. Of another `kind`, its loops are not the script's own ones."""
        for position in self.loaders.values():
            if position.stands_for(loader):
                return position
        if not isinstance(loader, DataLoader):
            raise UsageError(
                advice_for_other_loader(loader)
                or (
                    f"expected a torch.utils.data.DataLoader, got a {type(loader).__name__}; for other sources there is "
                    "steps(until=...)"
                )
            )
        if name in self.loaders:
            name = f"{name}{len(self.loaders)}"
        position = self.loaders[name] = kind(loader, self._on_boundary, self._on_open, self._on_doubt, self._worker_seeds)
        if kind is LoaderPosition:
            self._on_loader(position)
        if name in self._positions:
            position.load_state_dict(self._positions.pop(name))
        return position

    def caveats(self) -> list[str]:
        """Return what is known not to come back of loaders in the middle of an epoch, and of gradients."""
        found = [caveat for position in self.loaders.values() for caveat in position.caveats]
        tracked = {id(getattr(thing, "generator", None)) for thing in self.tracked.values()}
        for name, position in self.loaders.items():
            for path, generator in generators_in(position.loader.dataset, f"{name}.dataset"):
                if position.taken and (position.loader.num_workers or id(generator) not in tracked):
                    found.append(
                        f"{path} is a random generator that belongs to the dataset, and its draws are not recovered. Without "
                        "workers, track it, or let the dataset draw from the global generators"
                    )
        if self._orphans:
            found.append(
                f"gradients of parameters that belong to no optimizer ({self._orphans[0]}, ...) accumulate and are not "
                "recovered. Freeze these parameters with requires_grad_(False)"
            )
        if self.turns == "unknown":
            found.append(UNKNOWN_DATA)
        return found

    @property
    def has_landed(self) -> bool:
        """True after a recovery, until training resumes."""
        return self._landed is not None

    def go_on(self) -> None:
        """Training goes on: what is tracked from here on starts as it is."""
        landed, self._landed, self._rng = self._landed, None, None
        if landed is not None:
            for name in landed["tracked"].keys() - self.tracked.keys():
                self._on_doubt(
                    f"the run has the state of {name!r}, but nothing is tracked under that name, so it is not recovered", False
                )
            for name in self.tracked.keys() - landed["tracked"].keys():
                self._on_doubt(f"{name!r} is tracked, but the run has no state of it, so it starts over", False)

    def open_loop(self) -> None:
        """A loop begins: what ran between `recover()` and here drew random numbers that the uninterrupted run did not."""
        rng, self._rng = self._rng, None
        if rng is not None:
            self.set_positions_back()
            set_rng(rng)

    def pass_loop(self) -> None:
        """A loop had nothing left to give: code behind it draws as it did when the run stood there."""
        if self._rng is not None:
            set_rng(self._rng)

    def set_positions_back(self) -> None:
        """Loaders whose loop has not gone on yet: what else drew from their samplers and generators is undone."""
        for position in self.loaders.values():
            position.set_back()

    def set_entered(self, position: LoaderPosition) -> None:
        """The script's code before a loop is about to run again: it draws what it drew when it first ran."""
        rng = position.entered if position.entered is not None else self._rng
        if rng is not None:
            set_rng(rng)

    @property
    def is_waiting(self) -> bool:
        """True if a recovery ended in the middle of training, and no loop was opened since."""
        return self._rng is not None

    # At a boundary

    def taken(self) -> dict[str, int]:
        """Batches and turns handed out so far, by loader."""
        return {name: position.passed for name, position in self.loaders.items()} | {"": self.count}

    def read(self) -> dict[str, Any]:
        """All of it, now."""
        tracked = {name: thing.state_dict() for name, thing in self.tracked.items()}
        self._scalers = {name: tracked[name] for name in tracked if isinstance(self.tracked[name], torch.amp.GradScaler)}
        flags, waiting = self.gradients.read()
        buffers, training = self._walk.read()
        return {
            "tracked": tracked or _NOTHING,
            "data": {name: self._lasting[name].of(position) for name, position in self.read_data().items()},
            "count": self.count,
            "turns": self.turns,
            "buffers": {name: local(buffer) for name, buffer in buffers.items()} or _NOTHING,
            "extra": self._state.extra.read() or _NOTHING,
            "own": {which: own for which, o in self._state.optimizers.items() if (own := split(o)[0])} or _NOTHING,
            "after": self._after.of_frozen({which: self._values_of(which).now() for which in self._state.optimizers}),
            "flags": self._flags.of(flags),
            "waiting": waiting or _NOTHING,
            "training": self._training.of_frozen(training),
            "rng": self.rng_now(),
            "start_rng": self._start_rng,
            **({"is_carried": True} if self.is_carried else {}),
            **({"deviation": self.deviation} if self.deviation else {}),
            **({"added": self._state.growth.read_added()} if self._state.growth.members else {}),
        }

    def whole(self, body: dict[str, Any]) -> dict[str, Any]:
        """Return the body of a boundary for a checkpoint: with all of the state that grows, in place of what was added."""
        growth = self._state.growth
        return {**body, "added": _NOTHING, "whole": growth.read_whole()} if growth.members else body

    def _values_of(self, which: str) -> GroupValues:
        found = self._values.get(which)
        if found is None:
            found = self._values[which] = GroupValues(self._state.outer(which))
        return found

    def note_start(self) -> None:
        """Keep the random state of a fresh run that begins, for code that runs between `recover()` and the first loop."""
        self._start_rng = Fixed(get_rng())

    def rng_now(self) -> Fixed:
        """The state of all random generators."""
        return self._kept_rng.now()

    def drop_unstorable(self) -> None:
        """Do without what was tracked and cannot be stored any more: logging can go on with the rest."""
        for name, thing in list(self.tracked.items()):
            try:
                tree.encode(thing.state_dict(), path=f"track[{name!r}]", adapt=arrays.adapt, out_of_line=[])
            except UnencodableState as error:
                del self.tracked[name]
                self._on_doubt(f"{name!r} is no longer tracked and is not recovered: {error}", False)

    def read_data(self) -> dict[str, Any]:
        """Positions in the data, by loader."""
        return self._positions | {name: position.state_dict() for name, position in self.loaders.items()}

    def write(self, body: dict[str, Any]) -> None:
        """Set all of it to a recorded boundary's; buffers are the state's to set."""
        self._landed, self._positions = body, dict(body["data"])
        self._start_rng = Fixed(body.get("start_rng", {}))
        self.is_carried, self.deviation = body.get("is_carried", False), body.get("deviation")
        self._state.growth.load_whole(body.get("whole", {}))
        self.count, self.turns = body["count"], body.get("turns")
        for name, position in self.loaders.items():
            if name in self._positions:
                position.load_state_dict(self._positions.pop(name))
        self.set_back(body)

    def set_back(self, body: dict[str, Any]) -> None:
        """The part of `write` that code between batches can change, too."""
        for name, content in body["tracked"].items():
            if name in self.tracked:
                self._load(name, self.tracked[name], content)
        self._set_hyper(body)
        self._orphans = self.gradients.write(body["flags"], body["waiting"])
        for prefix, module in self._state.modules.items():
            parts, modes = list(module.modules()), body["training"].get(prefix, b"")
            if len(parts) == len(modes):
                for part, mode in zip(parts, modes, strict=True):
                    part.training = bool(mode)
        set_rng(body["rng"])

    def reopen(self) -> None:
        """Go on in the middle of training: the next loop that is opened gets the recorded random state.

        Code before that loop draws what it drew in the fresh run. Where no loop is going to be opened (one of the script's
        own that is not tracked, or a rank that has no data left) the recorded state holds from here on.
        """
        landed = self._landed
        self._rng = landed["rng"] if landed is not None else None
        is_opened = landed is not None and not (landed.get("is_implicit") or landed.get("left"))
        if is_opened and self._start_rng.value:
            set_rng(self._start_rng.value)

    def has_skipped_step(self) -> bool:
        """Return True if a tracked GradScaler has changed since the last boundary: it has taken or skipped its step."""
        return any(self.tracked[name].state_dict() != before for name, before in self._scalers.items())

    def changed_hyper(self) -> list[tuple[str, int, str, Any]]:
        """Hyper-parameters that are not what recovery has set: optimizer, number of the group, name, and value."""
        recorded = {} if self._landed is None else self._landed["after"]
        return [
            (which, i, key, now[key])
            for which, groups in recorded.items()
            for i, (was, now) in enumerate(zip(groups, self._state.hyper(which), strict=False))
            for key in was.keys() & now.keys()
            if not _is_equal(was[key], now[key])
        ]

    def find_overruled_rates(self) -> list[str]:
        """Return the learning rates that were set after recovery and that a LambdaLR is going to compute anew."""
        recorded = {} if self._landed is None else self._landed["after"]
        found = []
        for name, base in self._base_rates.items():
            thing = self.tracked[name]
            for which in recorded if list(thing.base_lrs) == base else ():
                if self._state.optimizers[which].param_groups is not thing.optimizer.param_groups:
                    continue
                found += [
                    f"lr of parameter group {i} of optimizer {which!r} was set after recover(), and the tracked {name!r} "
                    f"({type(thing).__name__}) computes it anew from its base_lrs at its next step: set {name}.base_lrs[{i}] "
                    "as well (the rate that its function is multiplied with), or leave both as they are"
                    for i, (was, now) in enumerate(zip(recorded[which], self._state.hyper(which), strict=False))
                    if "lr" in was and "lr" in now and not _is_equal(was["lr"], now["lr"])
                ]
        return found

    def _set_hyper(self, body: dict[str, Any]) -> None:
        for which, groups in body["after"].items():  # a scheduler's load_state_dict does not write them
            self._state.set_hyper(which, groups)


def _is_equal(a: Any, b: Any) -> bool:
    if isinstance(a, torch.Tensor) or isinstance(b, torch.Tensor):
        return bool(torch.as_tensor(a).cpu().equal(torch.as_tensor(b).cpu()))
    return bool(a == b)
