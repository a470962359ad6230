"""Actor and critic. Run it, kill it (Ctrl-C, kill -9), run it again: it goes on at the episode where it stopped.

    python examples/actor_critic.py

The environment has a state and random numbers of its own, and the running reward decides when training ends. `remember` keeps
both: an environment comes back by `get_state` and `set_state`, which return and take plain values.
"""

import numpy as np
import torch
from torch import nn
from torch.distributions import Categorical
from torch.nn import functional as F

from tranlogs_torch import LoggedOptimizer

EPISODES = 500
LENGTH, GAMMA, LOGGED_EVERY = 30, 0.97, 20


class Boat:
    """Keeps to the middle of a river. The wind, which turns slowly, blows on from one episode to the next."""

    def __init__(self) -> None:
        self.random, self.wind = np.random.default_rng(7), 0.0
        self.place = self.speed = 0.0

    def reset(self) -> torch.Tensor:
        self.place, self.speed = float(self.random.uniform(-1, 1)), 0.0
        return self.look()

    def look(self) -> torch.Tensor:
        return torch.tensor([self.place, self.speed, self.wind])

    def step(self, action: int) -> tuple[torch.Tensor, float, bool]:
        self.wind = 0.95 * self.wind + 0.05 * float(self.random.normal())
        self.speed = 0.8 * self.speed + (0.15 if action else -0.15) + self.wind
        self.place += self.speed
        return self.look(), 1.0 - abs(self.place), abs(self.place) > 2

    def get_state(self) -> dict[str, object]:
        return {"random": self.random, "wind": self.wind, "place": self.place, "speed": self.speed}

    def set_state(self, found: dict[str, object]) -> None:
        vars(self).update(found)


class Policy(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body, self.actor, self.critic = nn.Linear(3, 64), nn.Linear(64, 2), nn.Linear(64, 1)

    def forward(self, seen: torch.Tensor) -> tuple[Categorical, torch.Tensor]:
        found = F.relu(self.body(seen))
        return Categorical(logits=self.actor(found)), self.critic(found)


torch.manual_seed(3)
model = Policy()
optimizer = LoggedOptimizer(torch.optim.Adam(model.parameters(), lr=3e-3), run="runs/actor-critic", model=model)
state = optimizer.remember(boat=Boat(), running_reward=0.0)
print(optimizer.recover(), flush=True)

for episode in optimizer.steps(until=EPISODES, stateless=True):  # all that an episode depends on is remembered
    seen, chosen, values, rewards = state.boat.reset(), [], [], []
    for _ in range(LENGTH):
        chances, value = model(seen)
        action = chances.sample()
        chosen.append(chances.log_prob(action))
        values.append(value)
        seen, reward, is_over = state.boat.step(int(action))
        rewards.append(reward)
        if is_over:
            break
    state.running_reward += 0.05 * (sum(rewards) - state.running_reward)

    returns: list[float] = []
    for reward in reversed(rewards):
        returns.insert(0, reward + GAMMA * (returns[0] if returns else 0.0))
    wanted, found = torch.tensor(returns), torch.cat(values)
    loss = -(torch.stack(chosen) * (wanted - found.detach())).sum() + F.smooth_l1_loss(found, wanted, reduction="sum")
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if episode % LOGGED_EVERY == 0:
        print(f"episode {episode}: reward {sum(rewards):.3f}, on average {state.running_reward:.4f}", flush=True)
optimizer.close()
print(f"done: average reward {state.running_reward:.4f}, however often it was killed")
