"""In the style of nanoGPT: batches at random places of an array, a learning rate of the script's own, no loader.

The next batch is fetched while the step of the one before is computed, and waits in a variable.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from torch import nn

from tests.public.proof import Job
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
        return nn.functional.cross_entropy(self.head(seen).view(-1, TOKENS), y.view(-1))


class Batches:
    """Batches of an array; the next one lies ready."""

    def __init__(self, data: np.ndarray[Any, Any]) -> None:
        self.data = data
        self.x, self.y = self.fetch()

    def fetch(self) -> tuple[torch.Tensor, torch.Tensor]:
        places = torch.randint(len(self.data) - BLOCK, (BATCH,))
        rows = torch.stack([torch.from_numpy(self.data[int(at) : int(at) + BLOCK + 1].astype(np.int64)) for at in places])
        return rows[:, :-1].contiguous(), rows[:, 1:].contiguous()

    def state_dict(self) -> dict[str, torch.Tensor]:
        return {"x": self.x, "y": self.y}

    def load_state_dict(self, state: dict[str, torch.Tensor]) -> None:
        self.x, self.y = state["x"], state["y"]


def rate(step: int) -> float:
    """Linear warm-up, then a cosine."""
    if step < WARMUP:
        return 0.02 * (step + 1) / WARMUP
    return 0.002 + 0.009 * (1 + math.cos(math.pi * (step - WARMUP) / (STEPS - WARMUP)))


def train(job: Job, *, tracks: bool = False, fetches_in_time: bool = False) -> None:
    """Train; the batch that waits may be tracked, or may be fetched in the turn that uses it."""
    seed()
    data = np.random.default_rng(1).integers(0, TOKENS, 200).astype(np.uint16)
    model = Model()
    decayed = [p for p in model.parameters() if p.dim() >= 2]
    others = [p for p in model.parameters() if p.dim() < 2]
    groups = [{"params": decayed, "weight_decay": 0.1}, {"params": others, "weight_decay": 0.0}]
    optimizer = job.wrap(torch.optim.AdamW(groups, lr=0.02, betas=(0.9, 0.95)), model)
    train_batches, validation = Batches(data[:150]), Batches(data[150:])
    job.start(optimizer, **({"batches": train_batches} if tracks else {}))
    for step in optimizer.steps(STEPS, stateless=fetches_in_time or tracks):
        for group in optimizer.param_groups:
            group["lr"] = rate(step)
        if step % EVALUATED_EVERY == 0:
            model.eval()
            with torch.no_grad():
                loss = sum(float(model(*validation.fetch())) for _ in range(2)) / 2
            model.train()
            job.print(f"step {step}: validation {loss}")
            job.at("evaluated")
        for _ in range(ACCUMULATED):
            if fetches_in_time:
                train_batches.x, train_batches.y = train_batches.fetch()
            loss = model(train_batches.x, train_batches.y) / ACCUMULATED
            if not fetches_in_time:
                train_batches.x, train_batches.y = train_batches.fetch()
            loss.backward()
            job.at("accumulated")
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        job.at("step")
        job.print(f"step {step}: loss {loss.item() * ACCUMULATED}")
    job.keep(model=model, optimizer=optimizer)
    optimizer.close()
