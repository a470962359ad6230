"""In the style of the forward-forward example: layers that train by themselves, an optimizer each, no backward pass between."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from tests.kills.pytorch import Job
from tests.public.torch.scripts.data import digits
from tests.torch.nets import seed

UPDATES, CLASSES = 20, 10


class Layer(nn.Linear):
    """A layer with a threshold for the goodness of what it gives."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(nn.functional.linear(x / (x.norm(2, 1, keepdim=True) + 1e-4), self.weight, self.bias))

    def loss(self, positive: torch.Tensor, negative: torch.Tensor, threshold: float = 0.5) -> torch.Tensor:
        good, bad = self(positive).pow(2).mean(1), self(negative).pow(2).mean(1)
        return torch.log(1 + torch.exp(torch.cat([threshold - good, bad - threshold]))).mean()


def labelled(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """Return flat images whose first pixels tell a label."""
    x = x.flatten(1).clone()
    x[:, :CLASSES] = 0.0
    x[torch.arange(len(y)), y] = x.max()
    return x


def predicted(layers: list[Layer], x: torch.Tensor) -> torch.Tensor:
    """Return the label that is the best one for all layers."""
    goodness = []
    with torch.no_grad():
        for label in range(CLASSES):
            hidden, total = labelled(x, torch.full((len(x),), label)), torch.zeros(len(x))
            for layer in layers:
                hidden = layer(hidden)
                total += hidden.pow(2).mean(1)
            goodness.append(total)
    return torch.stack(goodness).argmax(0)


def train(job: Job) -> None:
    """Train all layers with each batch; the wrong labels of all images are drawn between `recover()` and the loop."""
    seed()
    x, y = digits(40)
    loader: DataLoader[Any] = DataLoader(TensorDataset(x, y, torch.arange(40)), batch_size=10, shuffle=True)
    layers = [Layer(64, 16), Layer(16, 12)]
    models = {f"layer{i}": layer for i, layer in enumerate(layers)}
    first = job.wrap(torch.optim.Adam(layers[0].parameters(), lr=0.03), models)
    optimizers = [first, job.add_optimizer(first, torch.optim.Adam(layers[1].parameters(), lr=0.03), "second")]
    job.start(first, loader=loader)
    wrong = (y + torch.randint(1, CLASSES, (40,))) % CLASSES
    for images, labels, numbers in first.batches(loader, until=UPDATES):
        positive, negative = labelled(images, labels), labelled(images, wrong[numbers])
        for i, (layer, optimizer) in enumerate(zip(layers, optimizers, strict=True)):
            optimizer.zero_grad()
            loss = layer.loss(positive, negative)
            loss.backward()
            optimizer.step()
            job.at("between two steps")
            positive, negative = layer(positive).detach(), layer(negative).detach()
            job.print(f"layer {i}: loss {loss.item()}")
        job.at("batch")
    job.print(f"train error: {(predicted(layers, x) != y).float().mean().item()}")
    job.keep(layers=nn.ModuleList(layers), first=optimizers[0], second=optimizers[1], wrong=wrong)
    first.close()
