"""In the style of modded-nanogpt: a Muon of its own beside AdamW, rates by hand, a scaler that does nothing, accumulation."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader

from tests.kills.pytorch import Job
from tests.public.torch.scripts.data import letters
from tests.torch.nets import seed

STEPS, ACCUMULATED, LENGTH, WIDTH = 14, 2, 8, 8


@torch.no_grad()
def orthogonalize(gradient: torch.Tensor, steps: int = 5) -> torch.Tensor:
    """Return the nearest matrix whose singular values are about one, by a quintic iteration of Newton and Schulz."""
    a, b, c = 3.4445, -4.7750, 2.0315
    x = gradient.bfloat16() / (gradient.norm() + 1e-7)
    x = x.T if gradient.size(0) > gradient.size(1) else x
    for _ in range(steps):
        square = x @ x.T
        x = a * x + (b * square + c * square @ square) @ x
    return (x.T if gradient.size(0) > gradient.size(1) else x).to(gradient.dtype)


class Muon(torch.optim.Optimizer):
    """Momentum whose update is made orthogonal."""

    def __init__(self, params: Iterable[torch.Tensor], lr: float = 0.02, momentum: float = 0.95, nesterov: bool = True) -> None:
        super().__init__(params, {"lr": lr, "momentum": momentum, "nesterov": nesterov})

    @torch.no_grad()
    def step(self) -> None:  # type: ignore[override]  # as scripts write it
        for group in self.param_groups:
            for p in group["params"]:
                state = self.state[p]
                if "momentum_buffer" not in state:
                    state["momentum_buffer"] = torch.zeros_like(p.grad)
                buffer = state["momentum_buffer"]
                buffer.lerp_(p.grad, 1 - group["momentum"])
                update = p.grad.lerp_(buffer, group["momentum"]) if group["nesterov"] else buffer
                p.add_(orthogonalize(update), alpha=-group["lr"] * max(1, p.size(0) / p.size(1)) ** 0.5)


class Block(nn.Module):
    """Attention and a small net, with norms that have no weights."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH, bias=False), nn.Linear(WIDTH, WIDTH, bias=False)
        self.up, self.down = nn.Linear(WIDTH, 2 * WIDTH, bias=False), nn.Linear(2 * WIDTH, WIDTH, bias=False)
        nn.init.zeros_(self.out.weight)
        nn.init.zeros_(self.down.weight)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = self.qkv(F.rms_norm(x, (WIDTH,))).view(*x.shape[:2], 3, 2, WIDTH // 2).permute(2, 0, 3, 1, 4)
        found = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(found.transpose(1, 2).flatten(2))
        return x + self.down(F.relu(self.up(F.rms_norm(x, (WIDTH,)))).square())


class GPT(nn.Module):
    """Two blocks between an embedding and a head."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.blocks = nn.Embedding(96, WIDTH), nn.ModuleList([Block(), Block()])
        self.head = nn.Linear(WIDTH, 96, bias=False)

    def forward(self, text: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        x = self.embed(text)
        for block in self.blocks:
            x = block(x)
        logits = 15 * torch.tanh(self.head(F.rms_norm(x, (WIDTH,))) / 15)
        return F.cross_entropy(logits.flatten(0, 1), target.flatten())


def get_lr(step: int) -> float:
    """Return the share of the first rate: constant, then falling."""
    left = 1 - step / STEPS
    return 1.0 if left >= 0.5 else left / 0.5


def save(job: Job, model: nn.Module, optimizers: list[Any], step: int) -> None:
    """Write all that training needs."""
    content = {"step": step, "model": model.state_dict(), "optimizers": [optimizer.state_dict() for optimizer in optimizers]}
    torch.save(content, job.files / f"state_step{step:06d}.pt")


def train(job: Job) -> None:
    """Train; a validation and a file every few steps, inside the body of the loop."""
    seed()
    text = letters(700)
    pairs = [(text[i : i + LENGTH], text[i + 1 : i + 1 + LENGTH]) for i in range(0, 600, 9)]
    loader = DataLoader(pairs, batch_size=3, shuffle=True, drop_last=True)  # type: ignore[arg-type]  # a list has items
    held = DataLoader([(text[i : i + LENGTH], text[i + 1 : i + 1 + LENGTH]) for i in range(610, 680, 10)], batch_size=7)  # type: ignore[arg-type]
    model = GPT()
    matrices = [p for p in model.blocks.parameters() if p.ndim == 2]
    others = [{"params": model.embed.parameters(), "lr": 0.3}, {"params": model.head.parameters(), "lr": 0.01}]
    adam = job.wrap(torch.optim.AdamW(others, betas=(0.8, 0.95), eps=1e-10, weight_decay=0.0), model)
    muon = job.add_optimizer(adam, Muon(matrices), "muon")
    optimizers, scaler = [adam, muon], torch.amp.GradScaler("cpu", enabled=False)
    for optimizer in optimizers:
        for group in optimizer.param_groups:
            group["initial_lr"] = group["lr"]
    job.start(adam, loader=loader)
    first = job.reports[0].batch if job.reports else 0
    for i, (x, y) in enumerate(adam.batches(loader, until=STEPS * ACCUMULATED), start=first):
        model.train()
        loss = model(x, y) / ACCUMULATED
        scaler.scale(loss).backward()
        job.at("micro batch")
        if (i + 1) % ACCUMULATED:
            continue
        step = i // ACCUMULATED
        for optimizer in optimizers:
            for group in optimizer.param_groups:
                group["lr"] = group["initial_lr"] * get_lr(step)
        for group in muon.param_groups:
            group["momentum"] = 0.85 + 0.1 * min(step / 10, 1)
        for optimizer in optimizers:
            scaler.step(optimizer)
            job.at("between two steps")
        scaler.update()
        for optimizer in optimizers:
            optimizer.zero_grad(set_to_none=True)
        job.print(f"step:{step + 1}/{STEPS} train_loss:{loss.item() * ACCUMULATED}")
        if (step + 1) % 5 == 0 or step + 1 == STEPS:
            model.eval()
            with torch.no_grad():
                job.print(f"step:{step + 1}/{STEPS} val_loss:{sum(model(x, y).item() for x, y in held)}")
            job.at("validation")
            save(job, model, optimizers, step + 1)
    job.keep(model=model, adam=adam, muon=muon)
    adam.close()
