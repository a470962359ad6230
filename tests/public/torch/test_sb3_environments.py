"""The state of environments under Stable-Baselines3: read from one and set in another, it leads to the same future."""

from __future__ import annotations

import copy
import random
from collections import deque
from collections.abc import Callable
from typing import Any, ClassVar

import gymnasium as gym
import numpy as np
import pytest
import torch._dynamo  # noqa: F401  # before TensorFlow, which Stable-Baselines3 imports where TensorBoard is installed
from gymnasium import wrappers
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.vec_env import DummyVecEnv, SubprocVecEnv, VecEnv, VecFrameStack, VecMonitor, VecNormalize

from tests.public.torch.scripts.pole import LENGTH, Pole, SettablePole
from tests.torch.lab import differences, flatten
from tranlogs.base.errors import UsageError
from tranlogs.records import tree
from tranlogs_torch.trainers.stable_baselines3.environments import Environment
from tranlogs_torch.trainers.stable_baselines3.values import Unstorable


class Odd(Pole):
    """It keeps what an environment may keep, and some of it twice."""

    def __init__(self) -> None:
        super().__init__()
        self.dice, self.old_dice, self.recent = random.Random(4), np.random.RandomState(5), deque([1.0], maxlen=3)
        self.map = np.arange(2000.0).reshape(40, 50)
        self.names, self.marks, self.goal = {"a": (1, np.int64(2))}, {3, 4}, gym.spaces.Box(0, 1, (2,), seed=6)
        self.path: list[float] = []
        self.alias = self.path

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.recent.append(self.dice.random() + float(self.old_dice.rand()) + float(self.goal.sample().sum()))
        self.path.append(sum(self.recent))
        self.map[self.time % 40] += len(self.alias)
        found = super().step(action)
        return found[0], float(self.map.sum()), *found[2:]


def wrapped(wrap: Callable[[Any], Any]) -> Callable[[], VecEnv]:
    return lambda: DummyVecEnv([lambda: wrap(gym.make("CartPole-v1"))])


BUILDERS: dict[str, Callable[[], VecEnv]] = {
    **{
        name: lambda name=name: make_vec_env(name, n_envs=2)  # type: ignore[misc]
        for name in ("Acrobot-v1", "Blackjack-v1", "CartPole-v1", "FrozenLake-v1", "MountainCar-v0", "Pendulum-v1", "Taxi-v4")
    },
    "normalized by gymnasium": wrapped(lambda env: wrappers.NormalizeReward(wrappers.NormalizeObservation(env))),
    "stacked by gymnasium": wrapped(lambda env: wrappers.FrameStackObservation(wrappers.DelayObservation(env, 2), 3)),
    "sticky": wrapped(lambda env: wrappers.StickyAction(env, 0.3)),
    "vectorized": lambda: VecFrameStack(VecNormalize(VecMonitor(DummyVecEnv([Pole] * 3))), 2),
    "own methods": lambda: make_vec_env(SettablePole),
    "odd": lambda: make_vec_env(Odd),
}


def future(venv: VecEnv, steps: int) -> list[Any]:
    """Take random steps: observations, rewards and ends of episodes."""
    found = []
    for _ in range(steps):
        *step, infos = venv.step(np.array([venv.action_space.sample() for _ in range(venv.num_envs)]))
        found.append([*copy.deepcopy(step), [{**info.get("episode", {}), "t": 0} for info in infos]])
    return found


@pytest.mark.parametrize("name", BUILDERS)
def test_a_state_that_is_set_has_the_same_future(name: str) -> None:
    first, second = BUILDERS[name](), BUILDERS[name]()
    for number, venv in enumerate((first, second)):
        venv.seed(number)
        venv.action_space.seed(number)
        venv.reset()
        future(venv, 5 + 9 * number)
    environment, other = Environment(first, "it"), Environment(second, "it")
    future(first, LENGTH)
    state = tree.decode(tree.encode(environment.read()))
    lists = {key: list(getattr(*place)) for key, place in environment.lists.items()}
    expected = future(first, 2 * LENGTH)
    for again in (environment, other, other):
        again.write(state)
        assert again.find_doubts(state) == []
        for key, place in again.lists.items():
            getattr(*place)[:] = lists[key]
        found = future(first if again is environment else second, 2 * LENGTH)
        assert not differences(flatten(found), flatten(expected))


class Mapped(Pole):
    """It makes a large map by itself."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        self.map = np.random.default_rng(seed).random(5000)


def test_a_large_table_that_is_built_otherwise_is_named() -> None:
    first, same, other = (Environment(make_vec_env(lambda seed=seed: Mapped(seed)), "it") for seed in (1, 1, 2))
    state = first.read()
    assert len(tree.encode(state)) < 5000
    assert same.find_doubts(state) == []
    assert other.find_doubts(state) == ["it: Mapped.map differs from when the run began and is too large to be stored"]


class Viewed(Pole):
    """Its arrays lie in one another, or are the same, or are not any more."""

    def __init__(self) -> None:
        super().__init__()
        self.grid = np.arange(12.0).reshape(3, 4)
        self.row, self.best = self.grid[1], self.grid

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.row[:] += 1
        if self.time == 3:
            self.best = self.grid.copy()
        return super().step(action)


def test_arrays_that_share_memory_still_do_or_are_named() -> None:
    first, second = DummyVecEnv([Viewed]), DummyVecEnv([Viewed])
    for venv in (first, second):
        venv.reset()
    environment, other = Environment(first, "it"), Environment(second, "it")
    env: Any = second.envs[0]
    for steps in (2, 5):  # all three share memory, then two
        future(first, steps)
        state = tree.decode(tree.encode(environment.read()))
        other.write(state)
        assert other.find_doubts(state) == []
        source: Any = first.envs[0]
        assert [(env.grid - source.grid).any(), (env.best - source.best).any(), (env.row - source.row).any()] == [False] * 3
        assert [env.best is env.grid, env.row.base is env.grid] == [source.best is source.grid, source.row.base is source.grid]
    source.late = source.place[:2]
    state = tree.decode(tree.encode(environment.read()))
    other.write(state)
    assert other.find_doubts(state) == ["it: Viewed: place and late shared memory, which is not recovered"]


class Players(Pole):
    """One of several arrays has a name of its own, another one in each episode."""

    def __init__(self) -> None:
        super().__init__()
        self.players = [np.zeros(2) for _ in range(3)]
        self.active = self.players[0]


def test_an_array_within_a_container_that_is_another_one_is_named() -> None:
    first, second = DummyVecEnv([Players]), DummyVecEnv([Players])
    environment, other = Environment(first, "it"), Environment(second, "it")
    state = tree.decode(tree.encode(environment.read()))
    other.write(state)
    assert other.find_doubts(state) == []
    source: Any = first.envs[0]
    source.active = source.players[2]
    state = tree.decode(tree.encode(environment.read()))
    other.write(state)
    named = [doubt.partition(" are the same object")[0] for doubt in other.find_doubts(state)]
    assert named == ["it: Players: active and players[0]", "it: Players: active and players[2]"]


class Shared(Pole):
    """Its class keeps what its episodes have seen."""

    seen: ClassVar[list[int]] = []


def test_a_class_that_keeps_state_is_named_when_it_changes() -> None:
    environment = Environment(DummyVecEnv([Shared]), "it")
    environment.read()
    Shared.seen.append(1)
    with pytest.raises(Unstorable, match="an attribute of its class has changed"):
        environment.read()


class Slotted(Pole):
    __slots__ = ("count",)


class Holding(Pole):
    """It holds a function."""

    def __init__(self, function: Any) -> None:
        super().__init__()
        self.function = function


def _around(rng: random.Random) -> Callable[[], float]:
    return lambda: rng.random()


@pytest.mark.parametrize(
    "function", [random.Random(3).random, np.random.default_rng(3).normal, _around(random.Random(3)), deque([1]).pop]
)
def test_a_function_with_a_state_is_refused(function: Any) -> None:
    with pytest.raises(UsageError, match=r"Holding.function is a function with a state"):
        Environment(DummyVecEnv([lambda: Holding(function)]), "it")
    Environment(DummyVecEnv([lambda: Holding(np.sin)]), "it").read()


def test_slots_are_refused() -> None:
    with pytest.raises(UsageError, match="Slotted has __slots__"):
        Environment(DummyVecEnv([Slotted]), "it")


def test_other_wrappers_are_refused() -> None:
    state = Environment(make_vec_env(Pole), "it").read()
    with pytest.raises(UsageError, match="wrappers differ"):
        Environment(VecNormalize(make_vec_env(Pole)), "it").write(state)


def test_environments_of_other_processes_are_refused() -> None:
    venv = object.__new__(SubprocVecEnv)  # none is started: nobody asks it for anything
    with pytest.raises(UsageError, match=r"the evaluation is a SubprocVecEnv.*Use a DummyVecEnv"):
        Environment(venv, "the evaluation")


def test_a_record_names_kinds_of_generators_and_no_functions_of_numpy() -> None:
    from tranlogs_torch.trainers.stable_baselines3.restored_values import restored

    generator = np.random.Generator(np.random.Philox(3))
    again = restored(None, ("generator", generator.bit_generator.state))
    assert again.random() == generator.random()
    with pytest.raises(UsageError, match="kind 'seed' cannot be restored; supported are MT19937, PCG64"):
        restored(None, ("generator", {"bit_generator": "seed"}))
