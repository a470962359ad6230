"""In the style of peft: a frozen net, two small matrices beside each layer, a warm-up, a file with the adapter alone."""

from __future__ import annotations

import math

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from tests.kills.pytorch import Job
from tests.public.torch.scripts.data import digits
from tests.torch.nets import seed

EPOCHS, RANK = 5, 2


class LoraLinear(nn.Module):
    """A layer that is frozen, and what is learned besides."""

    def __init__(self, base: nn.Linear, alpha: int = 4) -> None:
        super().__init__()
        self.base, self.scaling, self.drop = base.requires_grad_(False), alpha / RANK, nn.Dropout(0.1)
        self.lora_A = nn.Linear(base.in_features, RANK, bias=False)
        self.lora_B = nn.Linear(RANK, base.out_features, bias=False)
        nn.init.kaiming_uniform_(self.lora_A.weight, a=math.sqrt(5))
        nn.init.zeros_(self.lora_B.weight)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self.base(x) + self.lora_B(self.lora_A(self.drop(x))) * self.scaling
        return found


def with_adapters(model: nn.Module) -> nn.Module:
    """Freeze a model, and put an adapter around each linear layer but the last."""
    model.requires_grad_(False)
    for name, child in list(model.named_children())[:-1]:
        if isinstance(child, nn.Linear):
            setattr(model, name, LoraLinear(child))
    list(model.children())[-1].requires_grad_(True)
    return model


def train(job: Job) -> None:
    """Train the adapters and the head of a net; all that is frozen is not trained, and not written."""
    seed()
    train_loader = DataLoader(TensorDataset(*digits(40)), batch_size=8, shuffle=True)
    eval_loader = DataLoader(TensorDataset(*digits(20, first=40)), batch_size=10)
    hidden = [nn.Linear(64, 24), nn.GELU(), nn.LayerNorm(24), nn.Linear(24, 24), nn.GELU()]
    model = with_adapters(nn.Sequential(nn.Flatten(), *hidden, nn.Linear(24, 10)))
    trainable = [p for p in model.parameters() if p.requires_grad]
    job.print(f"trainable params: {sum(p.numel() for p in trainable)} of {sum(p.numel() for p in model.parameters())}")
    optimizer = job.wrap(torch.optim.AdamW(trainable, lr=5e-3), model)
    total = EPOCHS * len(train_loader)
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: min((step + 1) / 4, 1) * (1 - step / total))
    job.start(optimizer, loader=train_loader, scheduler=scheduler)
    for epoch in optimizer.epochs(EPOCHS, train_loader):
        model.train()
        for x, y in epoch:
            loss = nn.functional.cross_entropy(model(x), y)
            loss.backward()
            nn.utils.clip_grad_norm_(trainable, 1.0)
            job.at("batch")
            optimizer.step()
            scheduler.step()
            optimizer.zero_grad()
            job.print(f"loss {loss.item()}, rate {scheduler.get_last_lr()}")
        model.eval()
        right = 0
        for x, y in eval_loader:
            with torch.no_grad():
                right += int((model(x).argmax(-1) == y).sum())
            job.at("evaluation")
        job.print(f"epoch {int(epoch)}: accuracy {right / 20}")
        torch.save({name: p for name, p in model.named_parameters() if p.requires_grad}, job.files / "adapter_model.bin")
        job.at("epoch end")
    job.keep(model=model, optimizer=optimizer, scheduler=scheduler)
    optimizer.close()
