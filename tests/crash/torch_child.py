"""A child process that trains a loop of tests/torch/scripts.py under a log, and says which batch it begins."""

from __future__ import annotations

import time
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch
import xxhash

from tests.support import campaign
from tests.torch import scripts
from tests.torch.lab import Attempt

KILLS = campaign.rounds(30)
BATCHES = 10 * KILLS
_EPOCH = 11  # batches
_PAUSE_SECONDS = 0.1


def weights(attempt: Attempt, **length: int) -> None:
    """After-images instead of gradients."""
    attempt.options["log"] = "weights"
    scripts.validating(attempt, **length)


# By name: the loop, its length, and how many begun batches may be lost besides the one that was running.
LOOPS: dict[str, tuple[Any, dict[str, int], int]] = {
    "validation": (scripts.validating, {"batches": BATCHES}, 0),
    "accumulation": (scripts.accumulating, {"batches": BATCHES}, 2),
    "code per epoch": (scripts.per_epoch, {"epochs": max(3, BATCHES // _EPOCH)}, 0),
    "without a loader": (scripts.without_loader, {"batches": BATCHES}, 0),
    "several optimizers": (scripts.adversarial, {"batches": BATCHES}, 0),
    "weights": (weights, {"batches": BATCHES}, 0),
    "own loop": (scripts.own_loop, {"batches": BATCHES}, 1),
}


class Told(Attempt):
    """Sends the number of each batch as it begins; behind so many it takes its time, should its killer be late."""

    def __init__(self, pipe: Connection, run: Path | None, hurries_for: int, **options: Any) -> None:
        super().__init__(run, **options)
        self._pipe, self._hurries_for = pipe, hurries_for

    def start(self, optimizer: Any, /, **tracked: Any) -> None:
        super().start(optimizer, **tracked)
        self._pipe.send(("recovered", self.reports[0] if self.reports else None))

    def say(self, number: int) -> None:
        self._pipe.send(("batch", number))
        self._hurries_for -= 1
        if self._hurries_for < 0:
            time.sleep(_PAUSE_SECONDS)


def train(pipe: Connection, name: str, run: Path | None, options: dict[str, Any], hurries_for: int) -> None:
    """Train a loop to its end, and send digests of all that it made."""
    torch.set_num_threads(1)
    script, length, _ = LOOPS[name]
    attempt = Told(pipe, run, hurries_for, **options)
    script(attempt, **length)
    outcome = {path: xxhash.xxh3_64_intdigest(repr(leaf).encode()) for path, leaf in attempt.outcome().items()}
    pipe.send(("done", (outcome, attempt.seen)))
