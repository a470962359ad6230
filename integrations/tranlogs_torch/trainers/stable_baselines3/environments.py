"""The state of environments: of each wrapper, of the environment inside, and of their spaces' random numbers.

An environment, or a wrapper, that has `state_dict` and `load_state_dict`, or `get_state` and `set_state`, is asked for its
state. Of all others the state is their attributes, and these have to be such that can be stored.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import gymnasium as gym
from stable_baselines3.common.monitor import Monitor
from stable_baselines3.common.vec_env import DummyVecEnv, VecEnv, VecEnvWrapper, VecMonitor

from tranlogs.base.errors import UnencodableState, UsageError
from tranlogs.records import tree

from ...tensors import arrays
from .restored_values import restore_attributes, restored
from .shared_objects import class_values, nested_twins, shared_arrays
from .values import Table, Unstorable, stored, stored_attributes, tables

_METHODS = (("state_dict", "load_state_dict"), ("get_state", "set_state"))
_GIVEN = {"env", "venv", "envs", "class_attributes", "spec", "metadata", "render_mode", "action_space", "observation_space"}
_GIVEN |= {"reset_infos", "_seeds", "_options"}  # of a VecEnv: used up by the reset, or shown only
_GIVEN |= {"_action_space", "_observation_space", "_metadata", "_cached_spec", "_saved_kwargs"}
_LISTS = ("rewards", "episode_returns", "episode_lengths", "episode_times")  # of a Monitor: they grow
_OF_MONITOR = {"t_start", "results_writer", *_LISTS}  # times and the file are those of this process


class Environment:
    """An environment, mostly a vectorized one, with all that it is made of.

    Args:
        venv: the environment.
        name: of it in messages.

    Attributes:
        lists: owners and names of attributes that are lists which grow, by name.

    Raises:
        UsageError: its state cannot be stored; the message names what cannot.
    """

    def __init__(self, venv: VecEnv | gym.Env[Any, Any], name: str) -> None:
        self._layers = [_Layer(layer, f"{name}: {place}{type(layer).__name__}") for place, layer in _layers_of(venv, name)]
        self.lists = {
            f"{name}.{number}.{kept}": (layer.owner, kept)
            for number, layer in enumerate(self._layers)
            if isinstance(layer.owner, Monitor)
            for kept in _LISTS
        }
        for layer in self._layers:
            layer.check()

    def read(self) -> list[Any]:
        """Return the state.

        Raises:
            Unstorable: it cannot be stored any more.
        """
        return [layer.read() for layer in self._layers]

    def write(self, recorded: list[Any]) -> None:
        """Set the state.

        Raises:
            UsageError: it has other wrappers than when the state was read.
        """
        if len(recorded) != len(self._layers):
            raise UsageError("the environment's wrappers differ from those that were recorded. Build the environment as before")
        for layer, state in zip(self._layers, recorded, strict=True):
            layer.write(state)

    def find_doubts(self, recorded: list[Any]) -> list[str]:
        """Return what of a recorded state `write` did not set, one sentence each."""
        return [doubt for layer, state in zip(self._layers, recorded, strict=False) for doubt in layer.find_doubts(state)]


def _layers_of(venv: Any, name: str) -> Iterator[tuple[str, Any]]:
    """Yield wrappers and environments from the outside to the inside, with the place of each in messages."""
    layer: Any = venv
    while isinstance(layer, VecEnvWrapper):
        yield "", layer
        layer = layer.venv
    if not isinstance(layer, (DummyVecEnv, gym.Env)):
        raise UsageError(
            f"{name} is a {type(layer).__name__}, whose environments run in other processes or are hidden, so their state "
            "cannot be stored. Use a DummyVecEnv (the default of make_vec_env)"
        )
    envs = layer.envs if isinstance(layer, DummyVecEnv) else [layer]
    for number, env in enumerate(envs):
        place = f"environment {number}, " if len(envs) > 1 else ""
        yield place, env
        while isinstance(env, gym.Wrapper):
            env = env.env
            yield place, env


def _refusal(error: Exception) -> UsageError:
    return UsageError(
        f"{error}: the state of the environment cannot be stored, so a resume would not be exact. Give the class state_dict() "
        "and load_state_dict(state), or get_state() and set_state(state), of plain values, numpy arrays and random states "
        "(generator.bit_generator.state)"
    )


class _Layer:
    """A wrapper or an environment.

    Args:
        owner: the object.
        path: of it in messages.
    """

    def __init__(self, owner: Any, path: str) -> None:
        self.owner, self._path = owner, path
        self._methods = next(
            (pair for pair in _METHODS if all(callable(getattr(type(owner), name, None)) for name in pair)), None
        )
        skipped = set(_GIVEN)
        if isinstance(owner, Monitor):
            skipped |= _OF_MONITOR
        if isinstance(owner, VecMonitor):
            skipped |= {"t_start", "results_writer"}
        self._class_values: int | None = None  # when it was checked
        self._skipped, self._built = frozenset(skipped), {} if self._methods else self._tables()

    def check(self) -> None:
        try:
            tree.encode(self.read(), path=self._path, adapt=arrays.adapt)
        except (Unstorable, UnencodableState) as error:
            raise _refusal(error) from None

    def read(self) -> dict[str, Any]:
        owner, path = self.owner, self._path
        spaces = [stored(space, path) for space in self._spaces()]
        if self._methods is None:
            self._check_class()
            attributes = stored_attributes(owner, path, self._skipped, self._built)
            shared, twins = shared_arrays(owner, self._skipped), nested_twins(owner, self._skipped)
            return {"attributes": attributes, "shared": shared, "twins": twins, "spaces": spaces}
        state = stored(getattr(owner, self._methods[0])(), f"{path}.{self._methods[0]}()")
        generator = stored(vars(owner).get("_np_random"), path)  # gymnasium's, which a state of the user's may leave out
        return {"state": state, "generator": generator, "spaces": spaces}

    def _check_class(self) -> None:
        found = class_values(self.owner, self._path)
        if self._class_values is None:
            self._class_values = found
        if found != self._class_values:
            raise Unstorable(f"{self._path}: an attribute of its class has changed, which no object's state contains")

    def write(self, state: dict[str, Any]) -> None:
        for space, recorded in zip(self._spaces(), state["spaces"], strict=True):
            restored(space, recorded)
        if self._methods is None:
            restore_attributes(self.owner, state["attributes"], self._skipped)
            return
        if state["generator"] is not None:
            self.owner._np_random = restored(vars(self.owner).get("_np_random"), state["generator"])
        getattr(self.owner, self._methods[1])(restored(None, state["state"]))

    def _tables(self) -> dict[str, Table]:
        try:
            return tables(self.owner, self._path)
        except Unstorable as error:
            raise _refusal(error) from None

    def find_doubts(self, state: dict[str, Any]) -> list[str]:
        found = [
            f"{self._path}.{name} differs from when the run began and is too large to be stored"
            for name, value in state.get("attributes", {}).items()
            if isinstance(value, tuple) and value[0] == "table" and value[1] != self._digest(name)
        ]
        shared = [] if self._methods is not None else shared_arrays(self.owner, self._skipped)
        lost = [pair for pair in state.get("shared", ()) if pair not in shared]
        twins = set(nested_twins(self.owner, self._skipped)) ^ set(state["twins"]) if "twins" in state else set()
        found += [
            (f"{self._path}: {pair} are the same object before or after the crash, but not both") for pair in sorted(twins)
        ]
        return found + [f"{self._path}: {pair} shared memory, which is not recovered" for pair in lost]

    def _digest(self, name: str) -> int | None:
        return self._built[name].digest if name in self._built else None

    def _spaces(self) -> list[Any]:
        found = vars(self.owner)
        names = ("action_space", "observation_space", "_action_space", "_observation_space")
        return [found[name] for name in names if found.get(name) is not None]
