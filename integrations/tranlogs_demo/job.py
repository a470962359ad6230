"""What a child of the demo is to do, and how it tells what it does.

Events go to its stdout, a line of JSON each: what was written before SIGKILL is in the pipe. Where in a step the child
is stands in a byte of a mapped file, which outlives it and costs the child nothing.
"""

from __future__ import annotations

import json
import mmap
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
import xxhash

from .model import GPTConfig

PHASES = {
    "start": "before its first batch",
    "forward": "in its forward pass",
    "backward": "in its backward pass",
    "step": "in the optimizer's step",
    "scheduler": "after the optimizer's step",
    "boundary": "at its end, when the next batch was asked for",
}
_NUMBERS = {name: number for number, name in enumerate(PHASES)}


@dataclass(frozen=True, slots=True)
class Job:
    """What a child trains.

    Attributes:
        name: of the child; its files are called so.
        folder: of the demo.
        config, batch, until: the model, sequences a batch, batches in all.
        schedule: steps that the learning rate is planned for.
        seconds_max: stop earlier after so many seconds of training; None for never.
        seed: of the first weights and of all random numbers. What is recovered does not depend on it.
        threads: of OpenMP; rounding depends on it.
        run: folder of the run; None trains without TranLogs.
        checkpoint_every: steps.
    """

    name: str
    folder: str
    config: GPTConfig
    batch: int
    until: int
    schedule: int
    seconds_max: float | None
    seed: int
    threads: int
    run: str | None = None
    checkpoint_every: int = 0

    def to_json(self) -> str:
        """For the child's command line."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Job:
        """The inverse of `to_json`."""
        fields = json.loads(text)
        return cls(**{**fields, "config": GPTConfig(**fields["config"])})

    @property
    def state(self) -> Path:
        """The final state, as `torch.save` writes it."""
        return Path(self.folder, f"{self.name}.pt")

    @property
    def log(self) -> Path:
        """What the child wrote to its stderr."""
        return Path(self.folder, f"{self.name}.log")

    @property
    def phase(self) -> Path:
        """One byte: where the child is."""
        return Path(self.folder, f"{self.name}.phase")


class Teller:
    """The child's side."""

    def __init__(self, job: Job) -> None:
        job.phase.write_bytes(b"\0")
        with open(job.phase, "r+b") as file:
            self._map = mmap.mmap(file.fileno(), 1)

    def event(self, kind: str, **fields: Any) -> None:
        """Tell the parent."""
        print(json.dumps({"event": kind, **fields}), flush=True)

    def batch(self, tensors: list[torch.Tensor], loss: float | None) -> None:
        """A batch begins: its content as a digest, the moment, the loss of the one before."""
        digest = xxhash.xxh3_64()
        for tensor in tensors:
            digest.update(tensor.numpy().tobytes())
        self.event("batch", digest=digest.hexdigest(), at=time.monotonic(), loss=loss)
        self.phase("forward")

    def phase(self, name: str) -> None:
        """Mark where in a step the child is."""
        self._map[0] = _NUMBERS[name]


def read_phase(job: Job) -> str:
    """Where a child was when it died."""
    return list(PHASES)[job.phase.read_bytes()[0]]
