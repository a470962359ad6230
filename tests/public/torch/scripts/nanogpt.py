"""In the style of nanoGPT: batches at random places of an array, a learning rate of the script's own, no loader.

The next batch is fetched while the step of the one before is computed, and waits in a variable.
"""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from torch import nn

from tests.kills.pytorch import Job
from tests.torch.nets import seed

STEPS, BLOCK, BATCH, WIDTH, TOKENS = 24, 6, 4, 8, 11
ACCUMULATED, WARMUP, EVALUATED_EVERY = 2, 4, 8


class Model(nn.Module):
    """One block of causal attention."""

    def __init__(self) -> None:
        super().__init__()
        self.token, self.place = nn.Embedding(TOKENS, WIDTH), nn.Embedding(BLOCK, WIDTH)
        self.attention, self.norm = nn.Linear(WIDTH, 3 * WIDTH), nn.LayerNorm(WIDTH)
        self.drop, self.head = nn.Dropout(0.1), nn.Linear(WIDTH, TOKENS, bias=False)
        self.head.weight = self.token.weight

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        seen = self.token(x) + self.place(torch.arange(BLOCK))
        q, k, v = self.attention(self.norm(seen)).split(WIDTH, dim=2)
        seen = seen + self.drop(nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True))
        return nn.functional.cross_entropy(self.head(seen).view(-1, TOKENS), y.reshape(-1))


def get_batch(data: np.ndarray[Any, Any]) -> tuple[torch.Tensor, torch.Tensor]:
    """Return a batch of random places of an array, and what follows."""
    places = torch.randint(len(data) - BLOCK, (BATCH,))
    rows = torch.stack([torch.from_numpy(data[int(at) : int(at) + BLOCK + 1].astype(np.int64)) for at in places])
    return rows[:, :-1], rows[:, 1:]


def rate(step: int) -> float:
    """Linear warm-up, then a cosine."""
    if step < WARMUP:
        return 0.02 * (step + 1) / WARMUP
    return 0.002 + 0.009 * (1 + math.cos(math.pi * (step - WARMUP) / (STEPS - WARMUP)))


def train(job: Job, *, remembers: bool = False, fetches_in_time: bool = False) -> None:
    """Train; the batch that waits may be remembered, or may be fetched in the turn that uses it."""
    seed()
    data = np.random.default_rng(1).integers(0, TOKENS, 200).astype(np.uint16)
    model = Model()
    decayed = [p for p in model.parameters() if p.dim() >= 2]
    others = [p for p in model.parameters() if p.dim() < 2]
    groups = [{"params": decayed, "weight_decay": 0.1}, {"params": others, "weight_decay": 0.0}]
    optimizer = job.wrap(torch.optim.AdamW(groups, lr=0.02, betas=(0.9, 0.95)), model)
    x, y = get_batch(data[:150])
    state = (optimizer.remember if remembers else SimpleNamespace)(x=x, y=y, best=math.inf)
    job.start(optimizer)
    for step in optimizer.steps(STEPS, stateless=fetches_in_time or remembers):
        for group in optimizer.param_groups:
            group["lr"] = rate(step)
        if step % EVALUATED_EVERY == 0:
            model.eval()
            with torch.no_grad():
                loss = sum(float(model(*get_batch(data[150:]))) for _ in range(2)) / 2
            model.train()
            state.best = min(state.best, loss)
            job.print(f"step {step}: validation {loss}, best {state.best}")
            job.at("evaluated")
        for _ in range(ACCUMULATED):
            if fetches_in_time:
                state.x, state.y = get_batch(data[:150])
            loss = model(state.x, state.y) / ACCUMULATED
            if not fetches_in_time:
                state.x, state.y = get_batch(data[:150])
            loss.backward()
            job.at("accumulated")
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        job.at("step")
        job.print(f"step {step}: loss {loss.item() * ACCUMULATED}")
    job.keep(model=model, optimizer=optimizer)
    optimizer.close()
