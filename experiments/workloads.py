"""Four models on real data that comes with packages: handwritten digits (scikit-learn) and Python's language reference.

All of them give scores of classes: of a digit, or of the next character at each place of a text.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, Dataset, Subset, TensorDataset

from tranlogs_demo.training import GPT, GPT_SMALL, GPT_TINY, TextWindows, read_topics

NAMES = ("MLP", "CNN", "GPT", "LSTM")
_BLOCK = 64  # characters of a text
_HELD_TEXTS = 128  # enough to tell qualities apart, and read in a moment


@dataclass(frozen=True, slots=True)
class Workload:
    """A model and what it learns from."""

    name: str  # one of NAMES
    build: Callable[[], nn.Module]  # the first weights depend on torch's global random state alone
    samples: Dataset[Any]  # to train on
    held: tuple[Tensor, Tensor]  # samples and classes that it is never trained on
    batch: int  # samples in one

    def model(self, seed: int) -> nn.Module:
        """A fresh model; all random numbers that follow depend on the seed, too."""
        torch.manual_seed(seed)
        return self.build()

    def loader(self) -> DataLoader[Any]:
        """Shuffled batches of one epoch; their order comes from torch's global random state."""
        return DataLoader(self.samples, self.batch, shuffle=True, drop_last=True)

    def stream(self) -> Iterator[list[Tensor]]:
        """Batches for ever."""
        loader = self.loader()
        while True:
            yield from loader

    def quality(self, model: nn.Module) -> dict[str, float]:
        """Mean loss (nats) and accuracy on what was held back; it draws no random numbers."""
        samples, classes = self.held
        model.eval()
        with torch.no_grad():
            scores = model(samples)
        model.train()
        accuracy = (scores.argmax(-1) == classes).double().mean()
        return {"loss": loss_of(scores, classes).item(), "accuracy": accuracy.item()}


def loss_of(scores: Tensor, classes: Tensor) -> Tensor:
    """Mean cross entropy."""
    return F.cross_entropy(scores.flatten(0, -2), classes.flatten())


def optimizer_of(model: nn.Module) -> torch.optim.Optimizer:
    """The optimizer of all of them."""
    return torch.optim.AdamW(model.parameters(), lr=1e-3)


def workload(name: str, *, small: bool) -> Workload:
    """One of NAMES; `small` takes smaller models of all but the CNN."""
    if name in ("MLP", "CNN"):
        return _digits(name, partial(mlp, 256 if small else 1024) if name == "MLP" else cnn)
    windows = TextWindows(read_topics(), _BLOCK)
    alphabet = len(windows.alphabet)
    if name == "GPT":
        return _text(name, partial(GPT, GPT_TINY if small else GPT_SMALL, alphabet), windows)
    return _text(name, partial(LSTM, alphabet, *((96, 1) if small else (256, 2))), windows)


def _digits(name: str, build: Callable[[], nn.Module]) -> Workload:
    from sklearn.datasets import load_digits

    found = load_digits()
    images, classes = torch.from_numpy(found.images).float() / 16, torch.from_numpy(found.target)
    is_held = torch.arange(len(images)) % 5 == 4
    train = TensorDataset(images[~is_held], classes[~is_held])
    return Workload(name, build, train, (images[is_held], classes[is_held]), batch=64)


def _text(name: str, build: Callable[[], nn.Module], windows: TextWindows) -> Workload:
    """The last tenth of the text is held back."""
    cut = len(windows) * 9 // 10
    texts, following = zip(*(windows[i] for i in range(cut, cut + _HELD_TEXTS)), strict=True)
    held = torch.stack(texts), torch.stack(following)
    return Workload(name, build, Subset(windows, range(cut)), held, batch=16)


def mlp(width: int) -> nn.Module:
    """1.1 M parameters where it is 1,024 wide."""
    wide = [nn.Linear(64, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU()]
    return nn.Sequential(nn.Flatten(), *wide, nn.Linear(width, 10))


def cnn() -> nn.Module:
    """0.1 M parameters, with batch statistics and dropout."""

    def layer(before: int, after: int) -> list[nn.Module]:
        return [nn.Conv2d(before, after, 3, padding=1), nn.BatchNorm2d(after), nn.ReLU()]

    return nn.Sequential(
        nn.Unflatten(1, (1, 8)),
        *layer(1, 32),
        *layer(32, 64),
        nn.MaxPool2d(2),
        *layer(64, 64),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(256, 256),
        nn.ReLU(),
        nn.Dropout(0.2),
        nn.Linear(256, 10),
    )


class LSTM(nn.Module):
    """Characters, recurrent layers, scores of the next character."""

    def __init__(self, alphabet: int, width: int, layers: int) -> None:
        super().__init__()
        self.character = nn.Embedding(alphabet, width)
        self.recurrent = nn.LSTM(width, width, layers, batch_first=True)
        self.head = nn.Linear(width, alphabet)

    def forward(self, text: Tensor) -> Tensor:
        """Scores of the next character at each place: (batch, length) -> (batch, length, alphabet)."""
        states, _ = self.recurrent(self.character(text))
        scores: Tensor = self.head(states)
        return scores
