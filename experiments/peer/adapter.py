"""What an adapter is: how one system saves the job, and brings it back."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from torch import nn
from torch.optim import Optimizer

from peer.job import BATCH, Batch, Job, Position

KEEP = 2  # saves that stay where a system leaves that to its user


class Adapter:
    """Base of those that save a state when they are told to; this one saves nothing.

    Everything a careful user of such a system hands to it is in `state`: weights, optimizer, schedule, torch's random numbers
    and the place in the data.
    """

    kinds = ("save",)  # of files that `newest` names
    steps_ahead = 5  # trained before costs are measured

    def __init__(self, width: int, folder: Path, every: int, batch: int = BATCH) -> None:
        self.folder, self.every = folder, every
        self.job = Job(width, self.wrap, batch)
        self.position = Position(self.job.loader)
        self.step = 0

    def wrap(self, optimizer: Optimizer, model: nn.Module) -> Optimizer:
        """The optimizer that the loop uses."""
        return optimizer

    def open(self) -> int:
        """Start whatever it needs, and bring back the newest save; the step that is done then."""
        return 0

    def batches(self, until: int) -> Iterator[Batch]:
        """Those that are to be trained, from there on."""
        return self.position.batches()

    def save(self, step: int) -> None:
        """Save the state after so many steps; it may still be being written."""

    def wait(self) -> None:
        """Until what was saved is there."""

    def close(self) -> None:
        """The training is over."""

    @staticmethod
    def newest(folder: Path) -> list[Path]:
        """The file of each kind that holds the numbers saved last, for one who damages it; empty if there is none on disk."""
        return []

    # For those that keep dictionaries.

    def state(self, step: int) -> dict[str, Any]:
        """All of it."""
        job = self.job
        return {
            "step": step,
            "model": job.model.state_dict(),
            "optimizer": job.optimizer.state_dict(),
            "scheduler": job.scheduler.state_dict(),
            "position": self.position.state_dict(),
        }

    def set_state(self, state: dict[str, Any]) -> int:
        """Set all of it; the step that it is of."""
        job = self.job
        job.model.load_state_dict(state["model"])
        job.optimizer.load_state_dict(state["optimizer"])
        job.scheduler.load_state_dict(state["scheduler"])
        self.position.load_state_dict(state["position"])
        return int(state["step"])


def saves(folder: Path, complete: str = "") -> list[Path]:
    """What lies there by the name step-NUMBER, oldest first; only folders that hold the file `complete`, if one is named."""
    found = [path for path in folder.glob("step-*") if path.suffix != ".tmp" and (not complete or (path / complete).exists())]
    return sorted(found, key=lambda path: int(path.stem.removeprefix("step-")))


def keep_newest(folder: Path, complete: str = "") -> None:
    """Delete complete saves but the newest ones."""
    for path in saves(folder, complete)[:-KEEP]:
        shutil.rmtree(path) if path.is_dir() else path.unlink()


def largest(files: list[Path]) -> list[Path]:
    """The largest of them, if there are any."""
    return sorted((path for path in files if path.is_file()), key=lambda path: path.stat().st_size)[-1:]
