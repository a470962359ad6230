"""A loop in the style of nanoGPT. Run it, kill it (Ctrl-C, kill -9), run it again: it goes on at the step where it stopped.

    python examples/nanogpt_style.py

There is no loader: a batch is cut out of an array at random places, and the next one is cut out while the step of the one
before is computed. So it waits in a variable when the process dies. `remember` keeps it, and the best loss.
"""

import math
from pydoc_data.topics import topics

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F

from tranlogs_torch import LoggedOptimizer

STEPS = 600
EVALUATED_EVERY, ACCUMULATED, WARMUP = 50, 2, 20
BLOCK, BATCH, WIDTH, HEADS = 48, 12, 64, 4

torch.manual_seed(1337)
data = np.frombuffer("".join(topics.values()).encode("ascii", "replace"), np.uint8)
train_data, val_data = data[:-40_000], data[-40_000:]


def get_batch(data: np.ndarray) -> tuple[torch.Tensor, torch.Tensor]:
    places = torch.randint(len(data) - BLOCK, (BATCH,))
    rows = torch.stack([torch.from_numpy(data[i : i + BLOCK + 1].astype(np.int64)) for i in places])
    return rows[:, :-1].contiguous(), rows[:, 1:].contiguous()


def get_lr(step: int) -> float:
    if step < WARMUP:
        return 3e-3 * (step + 1) / WARMUP
    return 3e-4 + 2.7e-3 * 0.5 * (1 + math.cos(math.pi * (step - WARMUP) / (STEPS - WARMUP)))


class GPT(nn.Module):
    """One block of causal attention over bytes."""

    def __init__(self) -> None:
        super().__init__()
        self.token, self.place = nn.Embedding(128, WIDTH), nn.Embedding(BLOCK, WIDTH)
        self.before, self.attention, self.after = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 3 * WIDTH), nn.LayerNorm(WIDTH)
        self.mlp = nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH), nn.Dropout(0.1))
        self.head = nn.Linear(WIDTH, 128, bias=False)

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        seen = self.token(x) + self.place(torch.arange(BLOCK))
        parts = self.attention(self.before(seen)).unflatten(2, (3, HEADS, -1)).permute(2, 0, 3, 1, 4)
        seen = seen + F.scaled_dot_product_attention(*parts, is_causal=True).transpose(1, 2).flatten(2)
        seen = seen + self.mlp(self.after(seen))
        return F.cross_entropy(self.head(seen).flatten(0, 1), y.flatten())


@torch.no_grad()
def estimate_loss() -> float:
    model.eval()
    losses = [model(*get_batch(val_data)).item() for _ in range(5)]
    model.train()
    return sum(losses) / len(losses)


model = GPT()
optimizer = LoggedOptimizer(torch.optim.AdamW(model.parameters(), lr=3e-3), run="runs/nanogpt-style", model=model)
x, y = get_batch(train_data)  # the first batch
state = optimizer.remember(x=x, y=y, best_val_loss=math.inf)
print(optimizer.recover(), flush=True)

for step in optimizer.steps(until=STEPS, stateless=True):  # all that a turn depends on is remembered
    for group in optimizer.param_groups:
        group["lr"] = get_lr(step)
    if step % EVALUATED_EVERY == 0:
        loss = estimate_loss()
        state.best_val_loss = min(state.best_val_loss, loss)
        print(f"step {step}: validation loss {loss:.4f}, best {state.best_val_loss:.4f}", flush=True)
    for _ in range(ACCUMULATED):
        loss = model(state.x, state.y) / ACCUMULATED
        state.x, state.y = get_batch(train_data)  # waits for the next turn
        loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
optimizer.close()
print(f"done: best validation loss {state.best_val_loss:.4f}, however often it was killed")
