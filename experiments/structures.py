"""Models of several structures, small enough to train a step in a fraction of a second on a processor."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tranlogs_demo.training import GPT, GPTConfig

Loss = Callable[[], Tensor]
"""The loss over a batch that is drawn anew at each call."""

_CLASSES, _ALPHABET = 10, 64


class LSTM(nn.Module):
    """Two layers over characters."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.character = nn.Embedding(_ALPHABET, width)
        self.cells = nn.LSTM(width, width, num_layers=2, batch_first=True)
        self.head = nn.Linear(width, _ALPHABET)

    def forward(self, text: Tensor) -> Tensor:
        """Scores of the next character at each place."""
        scores: Tensor = self.head(self.cells(self.character(text))[0])
        return scores


def mlp() -> tuple[nn.Module, Loss]:
    model = nn.Sequential(nn.Linear(784, 512), nn.ReLU(), nn.Linear(512, 256), nn.ReLU(), nn.Linear(256, _CLASSES))
    return model, lambda: F.cross_entropy(model(torch.randn(512, 784)), torch.randint(0, _CLASSES, (512,)))


def cnn() -> tuple[nn.Module, Loss]:
    layers: list[nn.Module] = []
    for before, after in ((3, 32), (32, 64), (64, 128), (128, 256)):
        layers += [nn.Conv2d(before, after, 3, padding=1), nn.BatchNorm2d(after), nn.ReLU(), nn.MaxPool2d(2)]
    model = nn.Sequential(*layers, nn.Flatten(), nn.Linear(4 * 256, _CLASSES))
    return model, lambda: F.cross_entropy(model(torch.randn(16, 3, 32, 32)), torch.randint(0, _CLASSES, (16,)))


def gpt() -> tuple[nn.Module, Loss]:
    model = GPT(GPTConfig(layers=4, heads=4, width=128, block=64), _ALPHABET)
    return model, lambda: model.loss(*_text(4, 64))


def lstm() -> tuple[nn.Module, Loss]:
    model = LSTM(192)

    def loss() -> Tensor:
        text, following = _text(8, 64)
        return F.cross_entropy(model(text).flatten(0, 1), following.flatten())

    return model, loss


STRUCTURES: dict[str, Callable[[], tuple[nn.Module, Loss]]] = {"MLP": mlp, "CNN": cnn, "GPT": gpt, "LSTM": lstm}


def made(structure: str) -> tuple[nn.Module, Loss]:
    """A model with the weights that it always begins with, and its loss."""
    torch.manual_seed(0)
    return STRUCTURES[structure]()


def _text(batch: int, length: int) -> Any:
    characters = torch.randint(0, _ALPHABET, (batch, length + 1))
    return characters[:, :-1], characters[:, 1:]
