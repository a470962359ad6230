"""The job that all peers save: a network with dropout and batch statistics, AdamW, a schedule, shuffled batches.

The random numbers are torch's own, so a run is brought back exactly only with them and with the place in the data.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache
from typing import Any

import torch
import xxhash
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

Batch = tuple[Tensor, Tensor]
BATCH = 64  # samples


@cache
def digits() -> TensorDataset:
    """Return handwritten digits, 8 x 8; 22 whole batches of them."""
    from sklearn.datasets import load_digits

    found, count = load_digits(), 22 * BATCH
    return TensorDataset(torch.from_numpy(found.images[:count]).float() / 16, torch.from_numpy(found.target[:count]))


Wrap = Callable[[torch.optim.Optimizer, nn.Module], torch.optim.Optimizer]


class Job:
    """Everything a script builds before its loop.

    Attributes:
        model: 64 numbers in, ten classes out.
        optimizer: AdamW, or what `wrap` makes of it.
        scheduler: stepped with each batch.
        loader: shuffled batches of one epoch, their order from torch's global random state.
    """

    def __init__(self, width: int, wrap: Wrap | None = None) -> None:
        torch.manual_seed(0)
        self.model = nn.Sequential(
            nn.Flatten(),
            nn.Linear(64, width),
            nn.BatchNorm1d(width),
            nn.ReLU(),
            nn.Dropout(0.2),
            nn.Linear(width, width),
            nn.ReLU(),
            nn.Dropout(0.2),
            nn.Linear(width, 10),
        )
        self.inner = torch.optim.AdamW(self.model.parameters(), lr=1e-3)
        self.optimizer = wrap(self.inner, self.model) if wrap else self.inner
        self.scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(self.optimizer, 10_000)
        self.loader: DataLoader[Any] = DataLoader(digits(), BATCH, shuffle=True)

    def step(self, x: Tensor, y: Tensor) -> None:
        """Take a step on a batch."""
        nn.functional.cross_entropy(self.model(x), y).backward()
        self.optimizer.step()
        self.scheduler.step()
        self.optimizer.zero_grad()

    def digest(self, batch: Batch) -> str:
        """Return a digest of all that the rest of the training depends on, with a batch in hand that is about to be trained."""
        found = xxhash.xxh3_64()
        state = [value for p in self.model.parameters() for value in self.inner.state[p].values()]
        for tensor in [*self.model.state_dict().values(), *state, torch.get_rng_state(), *batch]:
            found.update(tensor.detach().contiguous().reshape(-1).view(torch.uint8).numpy().data)
        found.update(repr((self.scheduler.last_epoch, [group["lr"] for group in self.inner.param_groups])).encode())
        return found.hexdigest()


class Position:
    """Batches for ever, and the place among them as a careful script keeps it: what its epoch began with, and how many."""

    def __init__(self, loader: DataLoader[Any]) -> None:
        self._loader, self._taken, self._begun_with = loader, 0, torch.get_rng_state()

    def state_dict(self) -> dict[str, Any]:
        """Return it, with torch's random state as it is now."""
        return {"taken": self._taken, "begun_with": self._begun_with, "random": torch.get_rng_state()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Set it, and torch's random state."""
        self._taken, self._begun_with = state["taken"], state["begun_with"].clone()
        torch.set_rng_state(state["random"].clone())

    def batches(self) -> Iterator[Batch]:
        """Yield batches from this place on."""
        while True:
            now = torch.get_rng_state()
            if self._taken == 0:
                self._begun_with = now
            torch.set_rng_state(self._begun_with)
            batches = iter(self._loader)
            for _ in range(self._taken):
                next(batches)
            if self._taken:
                torch.set_rng_state(now)
            for batch in batches:
                self._taken += 1
                yield batch
            self._taken = 0
