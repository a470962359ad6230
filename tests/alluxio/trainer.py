"""A training script that knows a digest of its state at each step."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import xxhash
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from tranlogs_torch import LoggedOptimizer

CHECKPOINT_EVERY = 10


class Training:
    """Weights, statistics, dropout, a scheduler, shuffled batches; recovered as soon as it is made.

    Attributes:
        landed: the step that recovery came to; the one before the newest, where the newest is computed again as a proof.
        digests: of the state, by step.
    """

    def __init__(self, run: Path, **options: Any) -> None:
        torch.set_num_threads(1)
        torch.manual_seed(3)
        self.model = nn.Sequential(nn.Linear(6, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Dropout(0.3), nn.Linear(32, 2))
        self.inner = torch.optim.AdamW(self.model.parameters(), lr=0.01)
        self.optimizer = LoggedOptimizer(
            self.inner,
            run,
            self.model,
            log="gradients",
            checkpoint_every=CHECKPOINT_EVERY,
            durability="process",
            segment_bytes=1 << 20,
            **options,
        )
        self.scheduler = torch.optim.lr_scheduler.StepLR(self.optimizer, 7, 0.9)
        data = TensorDataset(torch.randn(52, 6), torch.randn(52, 2))
        self.loader: DataLoader[Any] = DataLoader(data, batch_size=4, shuffle=True)
        self.optimizer.track(scheduler=self.scheduler, loader=self.loader)
        report = self.optimizer.recover()
        assert report.exact is not False, report
        self.landed = report.step
        self._is_resumed = report.step > 0
        self.digests = {self.landed: self._digest()}

    def train(self, until: int, wait: Callable[[], object] = lambda: None) -> Training:
        """Up to a step, and close the run. `wait` is called before each step."""
        for step, (x, y) in enumerate(self.optimizer.batches(self.loader, until=until), self.landed + 1):
            self.optimizer.training_run.journal.wait_checkpoint()  # so that each one is taken where it is due
            wait()
            self.optimizer.zero_grad()
            (self.model(x) - y).square().mean().backward()
            self.optimizer.step()
            self.scheduler.step()
            self.digests[step] = self._digest()
        assert not self._is_resumed or self.optimizer.report.exact is True, self.optimizer.report
        self.optimizer.close()
        return self

    def _digest(self) -> str:
        hasher = xxhash.xxh3_64(repr(self.scheduler.state_dict()).encode())
        for tensor in (*self.model.parameters(), *self.model.buffers()):  # `state_dict()` before the loop would be named
            hasher.update(tensor.detach().numpy().tobytes())
        for state in self.inner.state_dict()["state"].values():
            for name in sorted(state):
                hasher.update(state[name].numpy().tobytes())
        return hasher.hexdigest()


def train_when_told(run: Path, told: Any) -> None:
    """Say "recovered", and train a step for each message."""
    training = Training(run)
    told.send("recovered")
    training.train(10**9, told.recv)
