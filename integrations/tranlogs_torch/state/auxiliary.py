"""Auxiliary state: all that the next batch needs and that no step computes, read and set at a boundary.

Buffers, schedulers and whatever else is tracked, positions in the data, random numbers, hyper-parameters after the step,
which parameters train and which modules are in training mode, and gradients that wait for a step (pending_gradients.py).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch.utils.data import DataLoader

from tranlogs.base.notes import Note, coded
from tranlogs.records import Fixed
from tranlogs.training import UNKNOWN_DATA, Face, LoopSequence, Remembered, TurnData

from ..data.loader_position import LoaderPosition
from ..data.rng import KeptRng, get_rng, set_rng
from .compatibility import Settings
from .extra_state import is_torchs, split
from .loader_positions import LoaderPositions
from .optimizer_states import write_hyper
from .pending_gradients import Gradients
from .rarely_changed_parts import Buffers, HyperParameters, ModuleWalk
from .state import TorchState
from .tracked_objects import TrackedObjects, is_kept_generator

_NOTHING = Fixed({})  # an empty part of a boundary: encoded once


class Auxiliary:
    """The auxiliary state of a run.

    Args:
        state: the run's parameters, optimizers and modules.
        positions: in the data.
        on_doubt: called with what of the tracked objects cannot be recovered, in words, and True if what follows is known to be
            wrong.

    Attributes:
        scalers: tracked GradScalers that are enabled.
        gradients: those that wait for a step.
        count: turns of loops without a loader.
        sequence: the loops that the script has entered.
        turns: what the data of these came from at the last boundary; None if that was not in a loop over `steps()`.
        is_outside: True if recovery has landed after a step that was taken outside of all loops.
        has_script_changes: True if the script has changed something before its loop, in the unit that is running.
        deviation: how a unit that was computed again first differed from its record, and True if it was not by rounding.
    """

    def __init__(self, state: TorchState, positions: LoaderPositions, on_doubt: Callable[[str, bool], None]) -> None:
        self._state, self._positions = state, positions
        self._tracked = TrackedObjects(on_doubt)
        self.scalers = self._tracked.scalers
        self._hyper, self._walk, self._rng_now = HyperParameters(state.named.group_values), ModuleWalk(state.modules), KeptRng()
        self._buffers, self._flags, self._training = Buffers({}), Fixed(b""), Fixed({})
        self.gradients = Gradients(state)
        self._orphans: list[str] = []
        self.count = 0
        self.sequence = LoopSequence()
        self._loop = (self.sequence.current, _NOTHING)  # as the last boundary has it
        self.turns: TurnData | None = None
        self.deviation: tuple[str, bool] | None = None
        self.is_outside = self.has_script_changes = False
        self._landed: dict[str, Any] | None = None  # what recovery landed on, until training goes on
        self._rng: dict[str, Any] | None = None  # for the first loop that is opened after a recovery
        self._start_rng = _NOTHING  # as the fresh run had it when its `recover()` returned

    # What belongs to it

    @property
    def tracked(self) -> dict[str, Any]:
        """Tracked objects, by name."""
        return self._tracked.objects

    @property
    def built(self) -> Settings:
        """The settings with which the script has created the tracked schedulers, by name."""
        return self._tracked.built

    @property
    def loaders(self) -> dict[str, LoaderPosition]:
        """Positions in the data, by loader."""
        return self._positions.by_name

    def track(self, name: str, thing: Any) -> None:
        """Track a loader, or anything with state_dict and load_state_dict; after a recovery, restore it at once."""
        if isinstance(thing, DataLoader):
            self.loader(thing, name)
        elif self._tracked.add(name, thing, self._landed_states(), model_bytes=self._model_bytes()):
            assert self._landed is not None
            self._set_hyper(self._landed)  # making a scheduler writes the groups

    @property
    def is_loop_remembered(self) -> bool:
        """True if the script keeps the state of its own loop in `remember(...)`. A position in a loader is no part of that."""
        return self._tracked.is_loop_remembered and not self.has_loaders

    @property
    def has_loaders(self) -> bool:
        """True if the run has a position in a loader, which comes back in loops of `LoggedOptimizer` alone."""
        return self._positions.has_any

    def remember(self, values: dict[str, Any]) -> Remembered:
        """Remember attributes of the loop's namespace; after a recovery, restore them at once."""
        return self._tracked.remember(values, self._landed_states(), model_bytes=self._model_bytes())

    def _landed_states(self) -> dict[str, Any] | None:
        return None if self._landed is None else self._landed["tracked"]

    def _model_bytes(self) -> int:
        return sum(p.nbytes for p in self._state.parameters.values())

    def loader(
        self, loader: DataLoader[Any], name: str = "loader", kind: type[LoaderPosition] = LoaderPosition
    ) -> LoaderPosition:
        """Return the position in a loader; a loader has one. Of another `kind`, it is iterated over by a trainer."""
        return self._positions.of(loader, name, kind)

    def caveats(self, face: Face) -> list[Note]:
        """Return what is known not to come back of loaders in the middle of an epoch, of gradients and of the loop's values."""
        positions = self._positions.caveats(lambda generator: is_kept_generator(generator, self.tracked.values()), face)
        found = coded("not-recovered", positions)
        if self._orphans:
            text = f"parameters that belong to no optimizer ({self._orphans[0]}, ...) have gradients at the end of a batch"
            line = "Unless the script uses these, freeze the parameters with requires_grad_(False)"
            found.append(Note("not-recovered", f"{text}, which are not recovered", line))
        if self.turns == "unknown":
            found.append(UNKNOWN_DATA)
        return found + (self._tracked.describe_loop(self._landed["tracked"]) if self._landed is not None else [])

    @property
    def has_landed(self) -> bool:
        """True after a recovery, until training resumes."""
        return self._landed is not None

    def go_on(self) -> Mapping[str, Any] | None:
        """Note that recovery has ended. Objects that are tracked from here on keep their present state.

        Returns:
            The states of tracked objects at which recovery has landed; None if training was going on already.
        """
        landed, self._landed, self._rng = self._landed, None, None
        if landed is None:
            return None
        tracked: dict[str, Any] = landed["tracked"]
        self._tracked.name_strangers(tracked)
        return tracked

    def open_loop(self) -> None:
        """Restore random states as a loop begins, since code after `recover()` may have drawn numbers."""
        rng, self._rng = self._rng, None
        if rng is not None:
            self.set_positions_back()
            set_rng(rng)

    def wait(self) -> None:
        """Wait for the loop in which the run stands after it was set back: that one gets the random state of now."""
        self._rng = self.rng_now().value

    def pass_loop(self) -> None:
        """Restore random states after a loop that had nothing left: code after it draws as it did at that place of the run."""
        if self._rng is not None:
            set_rng(self._rng)

    def set_positions_back(self) -> None:
        """Undo draws by other code from the samplers and generators of loaders whose loop has not resumed yet."""
        self._positions.set_back()

    def set_entered(self, position: LoaderPosition) -> None:
        """Restore random states before the script's code before a loop runs again: it draws what it drew when it first ran."""
        rng = position.entered if position.entered is not None else self._rng
        if rng is not None:
            set_rng(rng)

    @property
    def is_waiting(self) -> bool:
        """True if a recovery ended in the middle of training, and no loop was opened since."""
        return self._rng is not None

    # The loop that runs

    def name_of(self, position: LoaderPosition | None) -> str:
        """Return the name of a loader; "" for None."""
        return next((name for name, one in self.loaders.items() if one is position), "")

    def begin_loop(self, position: LoaderPosition | None) -> dict[str, int]:
        """Begin a new loop with the first batch of an epoch; return the counters of the run."""
        for one in self.loaders.values():
            one.end_left_iteration()
        epochs = {} if position is None else {"epoch": position.epoch, "taken": position.taken}
        return epochs | {"turn": self.count}

    # At a boundary

    def taken(self) -> dict[str, int]:
        """Return the numbers of batches and turns handed out so far, by loader."""
        return self._positions.passed() | {"": self.count}

    def read(self) -> dict[str, Any]:
        """Return the auxiliary state as it is now."""
        flags, waiting = self.gradients.read()
        if flags != self._flags.value:
            self._flags = Fixed(flags)
        named, training = self._walk.read()
        if named is not self._buffers.named:
            self._buffers = Buffers(named)
        if training is not self._training.value:
            self._training = Fixed(training)
        own: dict[str, Any] = {}
        for which, optimizer in self._state.named.optimizers.items():
            if not is_torchs(optimizer) and (attributes := split(optimizer)[0]):
                own[which] = attributes
        return {
            "tracked": self._tracked.read() or _NOTHING,
            "data": self._positions.read_lasting() or _NOTHING,
            "count": self.count,
            "loop": self._read_loop(),
            "turns": self.turns,
            "buffers": self._buffers.read() if named else _NOTHING,
            "extra": self._state.extra.read() or _NOTHING,
            "own": own or _NOTHING,
            "after": self._hyper.read(),
            "flags": self._flags,
            "waiting": waiting or _NOTHING,
            "training": self._training,
            "rng": self._rng_now.now(),
            "start_rng": self._start_rng,
            **({"deviation": self.deviation} if self.deviation else {}),
            **({"script_changes": True} if self.has_script_changes else {}),
        }

    def _read_loop(self) -> Fixed:
        now = self.sequence.read()
        if now is not self._loop[0]:
            self._loop = now, Fixed(now.as_body()) if now.count else _NOTHING
        return self._loop[1]

    def note_start(self) -> None:
        """Keep the random state of a fresh run that begins, for code that runs between `recover()` and the first loop."""
        self._start_rng = Fixed(get_rng())

    def rng_now(self) -> Fixed:
        """Return the state of all random generators."""
        return self._rng_now.now()

    def drop_unstorable(self) -> None:
        """Do without what was tracked and cannot be stored any more: logging can go on with the rest."""
        self._tracked.drop_unstorable()

    def read_data(self) -> dict[str, Any]:
        """Positions in the data, by loader."""
        return self._positions.read()

    def write(self, body: dict[str, Any]) -> None:
        """Set all of it to a recorded boundary's; buffers are the state's to set."""
        self._landed = body
        self._start_rng = Fixed(body.get("start_rng", {}))
        self.deviation, self.is_outside = body.get("deviation"), bool(body.get("is_implicit"))
        self.count, self.turns = body["count"], body.get("turns")
        self.sequence.land(body.get("loop"))
        self._positions.write(body["data"])
        if self.sequence.is_over:
            self._positions.stop()
        self.set_back(body)

    def set_back(self, body: dict[str, Any]) -> None:
        """Restore the part of `write` that code between batches can change, too."""
        self._tracked.load_all(body["tracked"])
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
        if landed is not None and not self.is_outside and self._start_rng.value:
            set_rng(self._start_rng.value)

    def has_skipped_step(self) -> bool:
        """Return True if a tracked GradScaler has changed since the last boundary: it has taken or skipped its step."""
        return self._tracked.has_skipped_step()

    @property
    def landed_hyper(self) -> dict[str, Any]:
        """The hyper-parameters that recovery has set, by optimizer."""
        return {} if self._landed is None else self._landed["after"]

    def changed_hyper(self) -> list[tuple[str, int, str, Any]]:
        """Hyper-parameters that are not what recovery has set: optimizer, number of the group, name, and value."""
        recorded = self.landed_hyper
        return [
            (which, i, key, now[key])
            for which, groups in recorded.items()
            for i, (was, now) in enumerate(zip(groups, self._state.named.hyper(which), strict=False))
            for key in now
            if key not in was or not _is_equal(was[key], now[key])
        ]

    def find_overruled_rates(self) -> list[str]:
        """Return the learning rates that were set after recovery and that a LambdaLR is going to compute anew."""
        recorded, found = self.landed_hyper, []
        for name, thing in self._tracked.untouched_base_rates().items():
            for which in recorded:
                if self._state.optimizers[which].param_groups is not thing.optimizer.param_groups:
                    continue
                found += [
                    f"lr of parameter group {i} of optimizer {which!r} was set after recover(), and the tracked {name!r} "
                    f"({type(thing).__name__}) computes it anew from its base_lrs at its next step: set {name}.base_lrs[{i}] "
                    "as well (the rate that its function is multiplied with), or leave both as they are"
                    for i, (was, now) in enumerate(zip(recorded[which], self._state.named.hyper(which), strict=False))
                    if "lr" in was and "lr" in now and not _is_equal(was["lr"], now["lr"])
                ]
        return found

    def _set_hyper(self, body: dict[str, Any]) -> None:
        for which, groups in body["after"].items():  # a scheduler's load_state_dict does not write them
            write_hyper(self._state.named, which, groups)


def _is_equal(a: Any, b: Any) -> bool:
    if isinstance(a, torch.Tensor) or isinstance(b, torch.Tensor):
        return bool(torch.as_tensor(a).cpu().equal(torch.as_tensor(b).cpu()))
    return bool(a == b)
