"""An environment of our own, with the physics of a pole on a cart, a random wind, and a state that can be set."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np

LENGTH = 30  # steps of an episode at most


class Pole(gym.Env[Any, Any]):
    """A pole that falls, on a cart that is pushed to one side or the other.

    Args:
        is_continuous: whether the action is a force, not a side.
    """

    def __init__(self, *, is_continuous: bool = False) -> None:
        high = np.array([5.0, 10.0, 1.0, 10.0], np.float32)
        self.observation_space = gym.spaces.Box(-high, high)
        self.action_space = gym.spaces.Box(-1.0, 1.0, (1,)) if is_continuous else gym.spaces.Discrete(2)
        self.place = np.zeros(4)
        self.wind, self.time = 0.0, 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.place, self.wind, self.time = self.np_random.uniform(-0.05, 0.05, 4), 0.0, 0
        return self.look(), {}

    def look(self) -> Any:
        return self.place.astype(np.float32)

    def look_inside(self) -> list[Any]:
        return [self.place, self.wind, self.time]

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        push = float(np.asarray(action).reshape(-1)[0])
        push = push if isinstance(self.action_space, gym.spaces.Box) else 2 * push - 1
        self.wind = 0.9 * self.wind + 0.1 * float(self.np_random.normal())
        _, speed, angle, turn = self.place
        force, gravity = 10 * (push + self.wind), 9.8
        lever = (force + 0.05 * turn**2 * np.sin(angle)) / 1.1
        spin = (gravity * np.sin(angle) - np.cos(angle) * lever) / (0.5 * (4 / 3 - 0.1 * np.cos(angle) ** 2 / 1.1))
        pull = lever - 0.05 * spin * np.cos(angle) / 1.1
        self.place = self.place + 0.02 * np.array([speed, pull, turn, spin])
        self.time += 1
        is_down = bool(abs(self.place[0]) > 2.4 or abs(self.place[2]) > 0.21)
        return self.look(), 1.0 - abs(float(angle)), is_down, self.time >= LENGTH, {}


class SettablePole(Pole):
    """The same, with something that no attribute shows, and with methods for its state."""

    def __init__(self, *, is_continuous: bool = False) -> None:
        super().__init__(is_continuous=is_continuous)
        self.hidden = iter([])  # nobody can store an iterator

    def get_state(self) -> dict[str, Any]:
        return {"place": self.place, "wind": self.wind, "time": self.time}

    def set_state(self, state: dict[str, Any]) -> None:
        self.place, self.wind, self.time = state["place"], state["wind"], state["time"]
