"""In the style of the REINFORCE example: one episode a step, a running reward, an environment of our own."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import nn
from torch.distributions import Categorical

from tests.kills.pytorch import Job
from tests.torch.nets import seed

EPISODES, LENGTH = 40, 12


class Corridor:
    """A walk between two walls, pushed by a random wind. It draws from a generator of its own."""

    def __init__(self) -> None:
        self.random, self.place, self.time = np.random.default_rng(5), 0.0, 0

    def reset(self) -> torch.Tensor:
        self.place, self.time = float(self.random.uniform(-1, 1)), 0
        return self.look()

    def look(self) -> torch.Tensor:
        return torch.tensor([self.place, self.time / LENGTH])

    def step(self, action: int) -> tuple[torch.Tensor, float, bool]:
        self.time += 1
        self.place += (0.4 if action else -0.4) + 0.1 * float(self.random.normal())
        return self.look(), -abs(self.place), self.time >= LENGTH or abs(self.place) > 3

    def state_dict(self) -> dict[str, Any]:
        return {"random": self.random.bit_generator.state, "place": self.place, "time": self.time}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.random.bit_generator.state = state["random"]
        self.place, self.time = state["place"], state["time"]


class Running:
    """The reward, averaged over episodes."""

    def __init__(self) -> None:
        self.reward = -10.0

    def state_dict(self) -> dict[str, float]:
        return {"reward": self.reward}

    def load_state_dict(self, state: dict[str, float]) -> None:
        self.reward = state["reward"]


def train(job: Job, *, tracks: bool = True) -> None:
    """Train; with the environment and the running reward tracked, or with neither."""
    seed()
    environment, running = Corridor(), Running()
    policy = nn.Sequential(nn.Linear(2, 8), nn.Dropout(0.1), nn.ReLU(), nn.Linear(8, 2))
    optimizer = job.wrap(torch.optim.Adam(policy.parameters(), lr=1e-2), policy)
    job.start(optimizer, **({"environment": environment, "running": running} if tracks else {}))
    for episode in optimizer.steps(EPISODES, stateless=tracks):
        state, is_over, log_probabilities, rewards = environment.reset(), False, [], []
        while not is_over:
            chances = Categorical(logits=policy(state))
            action = chances.sample()
            log_probabilities.append(chances.log_prob(action))
            state, reward, is_over = environment.step(int(action))
            rewards.append(reward)
        job.at("episode")
        running.reward = 0.05 * sum(rewards) + 0.95 * running.reward
        returns, total = [], 0.0
        for reward in reversed(rewards):
            total = reward + 0.99 * total
            returns.insert(0, total)
        wanted = torch.tensor(returns)
        wanted = (wanted - wanted.mean()) / (wanted.std() + 1e-6)
        optimizer.zero_grad()
        loss = -(torch.stack(log_probabilities) * wanted).sum()
        loss.backward()
        optimizer.step()
        job.at("step")
        job.print(f"episode {episode}: reward {sum(rewards)}, average {running.reward}")
    job.keep(policy=policy, optimizer=optimizer, environment=environment, running=running)
    optimizer.close()
