"""Progress of an algorithm: counters, observations, environments, callbacks, and values that are not logged yet."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

import gymnasium as gym
from stable_baselines3.common.callbacks import BaseCallback, EvalCallback, ProgressBarCallback
from stable_baselines3.common.vec_env import VecEnv

from tranlogs.records import Fixed

from . import sb3_internals
from .environments import Environment
from .experience import Lists
from .restored_values import restored
from .shared_objects import class_values
from .values import NO_LIMIT, Unstorable, is_constant, is_scalar, stored

START, ROLLOUT, END = "start", "rollout", "end"  # of training, of a rollout, of training: where a boundary lies

_OF_PROCESS = {"start_time", "_num_timesteps_at_start"}
_KEPT = ("_last_obs", "_last_original_obs", "_last_episode_starts", "action_noise")
_RECENT = ("ep_info_buffer", "ep_success_buffer")  # of episodes
_NOT_STATE = {"model", "parent", "locals", "globals", "verbose"}  # of a callback
_EVALUATIONS = ("evaluations_results", "evaluations_timesteps", "evaluations_length", "evaluations_successes")
_LOGGED = ("name_to_value", "name_to_count", "name_to_excluded")


class Learning:
    """Tracked with the run (see the module), and set back as a whole.

    Args:
        model: the algorithm.
        root: the callback that `learn` calls.
        own: TranLogs' callback.
        total: timesteps to be trained.

    Attributes:
        place: where the boundary lies that is being read, or that was loaded.
        is_loaded: whether a boundary was loaded.

    Raises:
        UsageError: the state of an environment cannot be stored.
    """

    def __init__(self, model: Any, root: BaseCallback, own: BaseCallback, total: int) -> None:
        self._model, self._own, self._total = model, own, total
        self._callbacks = [one for one in sb3_internals.callbacks_in(root) if not isinstance(one, ProgressBarCallback)]
        self._class_values = [_read_class(one) for one in self._callbacks]
        self._given = _read_scalars(model)
        self._carried: set[str] = set()
        self._recent = {name: _Recent() for name in _RECENT}
        self._environments = {"the training environment": Environment(model.env, "the training environment")}
        self._find_other_environments()
        self._loaded: dict[str, Any] | None = None
        self.place = START

    def _find_other_environments(self) -> None:
        """Environments of callbacks: an evaluation goes on with the random numbers of the one before."""
        seen = {id(self._model.env)}
        for number, callback in enumerate(self._callbacks):
            for attribute, value in vars(callback).items():
                if isinstance(value, (VecEnv, gym.Env)) and id(value) not in seen and attribute != "training_env":
                    seen.add(id(value))
                    name = f"{type(callback).__name__}.{attribute}" + (f" of callback {number}" if number else "")
                    self._environments[name] = Environment(value, name)

    @property
    def lists(self) -> Lists:
        """Owners and names of attributes that are lists which grow, by name."""
        found = {name: place for one in self._environments.values() for name, place in one.lists.items()}
        for number, callback in enumerate(self._callbacks):
            if isinstance(callback, EvalCallback):
                found |= {f"callback {number}.{name}": (callback, name) for name in _EVALUATIONS}
        return found

    @property
    def is_loaded(self) -> bool:
        """True if a boundary was loaded."""
        return self._loaded is not None

    @property
    def timesteps(self) -> int:
        """Timesteps that were trained where the loaded boundary lies."""
        return 0 if self._loaded is None else int(self._loaded["timesteps"])

    @property
    def is_stopped(self) -> bool:
        """True if a callback had stopped the training that was loaded before all timesteps were trained."""
        return self._loaded is not None and self.place == END and self.timesteps < self._loaded["total"]

    @property
    def is_finished(self) -> bool:
        """True if nothing is left of the training that was loaded."""
        return self.is_stopped or (self.place == END and self.timesteps >= self._total)

    def state_dict(self) -> dict[str, Any]:
        """Return the progress as it is now."""
        model, lost = self._model, list[str]()
        scalars = {
            name: value
            for name, value in _read_scalars(model).items()
            if name in self._carried or name not in self._given or value != self._given[name]
        }
        environments = {name: _read_or_name(lost, f"the state of {name}", one.read) for name, one in self._environments.items()}
        for one, before in zip(self._callbacks, self._class_values, strict=True):
            if _read_class(one) != before:
                lost.append(f"an attribute of the class {type(one).__name__} has changed, which no object's state contains")
        return {
            "place": self.place,
            "timesteps": model.num_timesteps,
            "total": self._total,
            "scalars": scalars,
            "kept": {name: _read_or_name(lost, name, partial(_read_kept, model, name)) for name in _KEPT},
            "recent": {
                name: _read_or_name(lost, name, partial(self._recent[name].read, getattr(model, name))) for name in _RECENT
            },
            "environments": environments,
            "callbacks": [[type(one).__name__, self._read_callback(one, lost)] for one in self._callbacks],
            "logged": {name: _loggable(getattr(model.logger, name, {})) for name in _LOGGED},
            "lost": lost,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Keep a boundary, to be set by `set_back`."""
        self._loaded, self.place = state, state["place"]

    def set_back(self) -> None:
        """Set what was loaded. Code that runs between the recovery and the place of the boundary may have changed it."""
        if self._loaded is None:
            return
        model, state = self._model, self._loaded
        for name, value in state["scalars"].items():
            setattr(model, name, value)
        self._carried = set(state["scalars"])
        for name, recorded in (*state["kept"].items(), *state["recent"].items()):
            if recorded is not None:
                setattr(model, name, restored(getattr(model, name, None), recorded))
        for name, recorded in state["environments"].items():
            if name in self._environments and recorded is not None:
                self._environments[name].write(recorded)
        for (kind, recorded), callback in zip(state["callbacks"], self._callbacks, strict=False):
            if kind == type(callback).__name__:
                _write_callback(callback, recorded)
        for name in _LOGGED:
            found = getattr(model.logger, name)
            found.clear()
            found.update({key: restored(None, value) for key, value in state["logged"][name].items()})
        model._num_timesteps_at_start = model.num_timesteps  # the rate that is logged is that of this process

    def find_doubts(self) -> list[str]:
        """Return what of the loaded boundary does not come back, one sentence each."""
        state = self._loaded
        if state is None:
            return []
        found = [f"{what}: not recovered" for what in state["lost"]]
        now = [type(one).__name__ for one in self._callbacks]
        if now != [name for name, _ in state["callbacks"]]:
            found.append(f"the callbacks differ from those that were recorded ({', '.join(now)})")
        if state["environments"].keys() != self._environments.keys():
            found.append("the environments of callbacks differ from those that were recorded")
        for name, recorded in state["environments"].items():
            if name in self._environments:
                found += self._environments[name].find_doubts(recorded or [])
        kind = type(self._model)
        if kind not in (*sb3_internals.ON_POLICY, *sb3_internals.OFF_POLICY):
            found.append(
                f"the algorithm is a subclass, {kind.__name__}: of the attributes that it adds, only numbers and strings are "
                "recovered"
            )
        return found

    def _read_callback(self, callback: BaseCallback, lost: list[str]) -> dict[str, Any]:
        kind = type(callback).__name__
        attributes: dict[str, Any] = {"n_calls": callback.n_calls, "num_timesteps": callback.num_timesteps}
        if callback is self._own:
            return {"attributes": attributes, "state": None}
        if _has_methods(callback):
            state = _read_or_name(lost, f"{kind}.state_dict()", lambda: stored(callback.state_dict(), kind))
            return {"attributes": attributes, "state": state}
        for name, value in vars(callback).items():
            is_list = isinstance(callback, EvalCallback) and name in _EVALUATIONS
            if name in _NOT_STATE or is_list or is_constant(value) or _is_other_state(value):
                continue
            try:
                attributes[name] = stored(value, f"{kind}.{name}")
            except Unstorable as error:
                lost.append(f"{error}, which cannot be stored")
        return {"attributes": attributes, "state": None}


def _write_callback(callback: BaseCallback, recorded: dict[str, Any]) -> None:
    for name, value in recorded["attributes"].items():
        setattr(callback, name, restored(getattr(callback, name, None), value))
    if recorded["state"] is not None and _has_methods(callback):
        callback.load_state_dict(restored(None, recorded["state"]))


def _read_class(callback: BaseCallback) -> int | None:
    try:
        return class_values(callback, type(callback).__name__)
    except Unstorable:
        return None


def _has_methods(callback: BaseCallback) -> bool:
    return hasattr(callback, "state_dict") and hasattr(callback, "load_state_dict")


class _Recent:
    """A deque of the infos of the last episodes. Each of them is encoded once."""

    def __init__(self) -> None:
        self._items: list[tuple[Any, Fixed]] = []

    def read(self, found: deque[Any] | None) -> Any:
        if found is None:
            return None
        known = {id(item): fixed for item, fixed in self._items}
        self._items = [(item, known.get(id(item)) or Fixed(stored(item, "an episode"))) for item in found]
        return "deque", found.maxlen, [fixed for _, fixed in self._items]


def _read_kept(model: Any, name: str) -> Any:
    return stored(getattr(model, name, None), name, NO_LIMIT)


def _read_scalars(model: Any) -> dict[str, Any]:
    return {name: value for name, value in vars(model).items() if is_scalar(value) and name not in _OF_PROCESS}


def _is_other_state(value: Any) -> bool:
    """Return True for callbacks and environments, whose state is read by itself."""
    members = value if isinstance(value, (list, tuple)) and value else [value]
    return all(isinstance(member, (BaseCallback, VecEnv, gym.Env)) for member in members)


def _loggable(found: dict[str, Any]) -> dict[str, Any]:
    """Return what was recorded and has yet to be written, without figures, videos and the like."""
    return {key: stored(value, key) for key, value in found.items() if is_scalar(value) or isinstance(value, tuple)}


def _read_or_name(lost: list[str], name: str, read: Callable[[], Any]) -> Any:
    """Return a state; None if it cannot be stored, which is named."""
    try:
        return read()
    except Unstorable as error:
        lost.append(f"{name} cannot be stored ({error})")
        return None


def names(things: Iterable[type]) -> str:
    """Return the names of classes, for a message."""
    return ", ".join(thing.__name__ for thing in things)
