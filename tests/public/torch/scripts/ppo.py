"""In the style of CleanRL's ppo.py: one file, environments with a state of their own, a rollout a turn, an annealed rate."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import nn
from torch.distributions import Categorical

from tests.kills.pytorch import Job
from tests.torch.nets import seed

UPDATES, ENVIRONMENTS, LENGTH, EPOCHS, MINIBATCHES = 14, 3, 8, 2, 2
GAMMA, LAMBDA, CLIP = 0.99, 0.95, 0.2


class Pushed:
    """Carts that are pushed left or right against a wind of their own, until they leave the track or time is over."""

    def __init__(self) -> None:
        self.wind = np.random.default_rng(8)
        self.place, self.speed, self.age = np.zeros(ENVIRONMENTS), np.zeros(ENVIRONMENTS), np.zeros(ENVIRONMENTS, dtype=int)

    def look(self) -> torch.Tensor:
        return torch.tensor(np.stack([self.place, self.speed], axis=1), dtype=torch.float32)

    def step(self, actions: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        self.speed += (actions.numpy() * 2 - 1) * 0.1 + self.wind.normal(size=ENVIRONMENTS) * 0.05
        self.place += self.speed
        self.age += 1
        is_over = (np.abs(self.place) > 1) | (self.age >= 11)
        rewards = 1 - np.abs(self.place)
        self.place[is_over] = self.wind.uniform(-0.1, 0.1, is_over.sum())
        self.speed[is_over], self.age[is_over] = 0, 0
        return self.look(), torch.tensor(rewards, dtype=torch.float32), torch.tensor(is_over, dtype=torch.float32)


class Rollouts:
    """What the script keeps between two updates: environments, the last observation, a count, the episodes' returns."""

    def __init__(self) -> None:
        self.environments = Pushed()
        self.seen, self.done = self.environments.look(), torch.zeros(ENVIRONMENTS)
        self.global_step, self.returns = 0, [0.0] * ENVIRONMENTS

    def state_dict(self) -> dict[str, Any]:
        at = self.environments
        return {
            "carts": [at.place.copy(), at.speed.copy(), at.age.copy()],
            "wind": at.wind.bit_generator.state,
            "last": [self.seen, self.done, self.global_step, list(self.returns)],
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        at = self.environments
        at.place, at.speed, at.age = (np.array(value) for value in state["carts"])
        at.wind.bit_generator.state = state["wind"]
        self.seen, self.done, self.global_step, self.returns = state["last"]


class Agent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.critic = nn.Sequential(nn.Linear(2, 8), nn.Tanh(), nn.Linear(8, 1))
        self.actor = nn.Sequential(nn.Linear(2, 8), nn.Tanh(), nn.Linear(8, 2))

    def act(self, seen: torch.Tensor, action: torch.Tensor | None = None) -> tuple[torch.Tensor, ...]:
        chances = Categorical(logits=self.actor(seen))
        action = chances.sample() if action is None else action
        return action, chances.log_prob(action), chances.entropy(), self.critic(seen).squeeze(-1)


def collect(agent: Agent, rollouts: Rollouts, job: Job) -> list[torch.Tensor]:
    """Return observations, actions, log-probabilities, advantages and returns of one rollout."""
    kept: list[list[torch.Tensor]] = [[], [], [], [], [], []]
    for _ in range(LENGTH):
        with torch.no_grad():
            action, log_probability, _, value = agent.act(rollouts.seen)
        row = (rollouts.seen, action, log_probability, value, rollouts.done)
        rollouts.seen, reward, rollouts.done = rollouts.environments.step(action)
        rollouts.global_step += ENVIRONMENTS
        for values, item in zip(kept, (*row, reward), strict=True):
            values.append(item)
        for which in range(ENVIRONMENTS):
            rollouts.returns[which] += float(reward[which])
            if rollouts.done[which]:
                job.print(f"global_step {rollouts.global_step}: episodic return {rollouts.returns[which]}")
                rollouts.returns[which] = 0.0
    seen, actions, log_probabilities, values, dones, rewards = map(torch.stack, kept)
    advantages, last = torch.zeros_like(rewards), torch.zeros(ENVIRONMENTS)
    with torch.no_grad():
        next_value, next_done = agent.critic(rollouts.seen).squeeze(-1), rollouts.done
    for t in reversed(range(LENGTH)):
        delta = rewards[t] + GAMMA * next_value * (1 - next_done) - values[t]
        last = delta + GAMMA * LAMBDA * (1 - next_done) * last
        advantages[t], next_value, next_done = last, values[t], dones[t]
    return [part.flatten(0, 1) for part in (seen, actions, log_probabilities, advantages, advantages + values)]


def train(job: Job, *, tracks: bool = False) -> None:
    """Train; with what the script keeps between two updates tracked, or not."""
    seed()
    agent, rollouts = Agent(), Rollouts()
    optimizer = job.wrap(torch.optim.Adam(agent.parameters(), lr=0.01, eps=1e-5), agent)
    job.start(optimizer, **({"rollouts": rollouts} if tracks else {}))
    for update in optimizer.steps(UPDATES, stateless=tracks):
        optimizer.param_groups[0]["lr"] = (1 - update / UPDATES) * 0.01
        seen, actions, log_probabilities, advantages, returns = collect(agent, rollouts, job)
        job.at("rollout")
        indices = np.arange(len(seen))
        for _ in range(EPOCHS):
            np.random.shuffle(indices)
            for part in np.array_split(indices, MINIBATCHES):
                _, log_probability, entropy, value = agent.act(seen[part], actions[part])
                ratio = (log_probability - log_probabilities[part]).exp()
                advantage = advantages[part]
                advantage = (advantage - advantage.mean()) / (advantage.std() + 1e-8)
                policy_loss = torch.max(-advantage * ratio, -advantage * ratio.clamp(1 - CLIP, 1 + CLIP)).mean()
                loss = policy_loss - 0.01 * entropy.mean() + 0.25 * (value - returns[part]).square().mean()
                optimizer.zero_grad()
                loss.backward()
                nn.utils.clip_grad_norm_(agent.parameters(), 0.5)
                optimizer.step()
                job.at("minibatch")
        job.print(f"update {update}: loss {loss.item()}")
    job.keep(agent=agent, optimizer=optimizer, rollouts=rollouts)
    optimizer.close()
