"""In the style of the actor-critic example: one net with two heads, one episode a turn, a running reward that ends training."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import torch
from torch import nn
from torch.distributions import Categorical
from torch.nn import functional as F

from tests.kills.pytorch import Job
from tests.public.torch.scripts.reinforce import LENGTH, Corridor
from tests.torch.nets import seed

EPISODES = 30


class Policy(nn.Module):
    """Chances of the actions, and the value of a state."""

    def __init__(self) -> None:
        super().__init__()
        self.affine, self.action_head, self.value_head = nn.Linear(2, 8), nn.Linear(8, 2), nn.Linear(8, 1)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        x = F.relu(self.affine(x))
        return F.softmax(self.action_head(x), dim=-1), self.value_head(x)


def finish_episode(optimizer: Any, saved: list[tuple[torch.Tensor, torch.Tensor]], rewards: list[float]) -> None:
    """Take a step with the losses of the actor and of the critic."""
    returns: list[float] = []
    for reward in reversed(rewards):
        returns.insert(0, reward + 0.99 * (returns[0] if returns else 0.0))
    wanted = torch.tensor(returns)
    wanted = (wanted - wanted.mean()) / (wanted.std() + 1e-6)
    losses = [
        -log_probability * (target - value.item()) + F.smooth_l1_loss(value, target.view(1))
        for (log_probability, value), target in zip(saved, wanted, strict=True)
    ]
    optimizer.zero_grad()
    torch.stack(losses).sum().backward()
    optimizer.step()


def train(job: Job, *, remembers: bool = False) -> None:
    """Train; with the environment and the running reward remembered, or with neither."""
    seed()
    model = Policy()
    optimizer = job.wrap(torch.optim.Adam(model.parameters(), lr=3e-2), model)
    loop = (optimizer.remember if remembers else SimpleNamespace)(environment=Corridor(), reward=-10.0)
    job.start(optimizer)
    for i_episode in optimizer.steps(EPISODES, stateless=remembers):
        state, saved, rewards = loop.environment.reset(), [], []
        for _ in range(LENGTH):
            chances, value = model(state)
            action = Categorical(chances).sample()
            saved.append((Categorical(chances).log_prob(action), value))
            state, reward, is_over = loop.environment.step(int(action))
            rewards.append(reward)
            if is_over:
                break
        job.at("episode")
        loop.reward = 0.05 * sum(rewards) + 0.95 * loop.reward
        finish_episode(optimizer, saved, rewards)
        job.at("step")
        if i_episode % 5 == 0:
            job.print(f"Episode {i_episode}\tLast reward: {sum(rewards)}\tAverage reward: {loop.reward}")
    job.keep(model=model, optimizer=optimizer, loop=loop)
    optimizer.close()
