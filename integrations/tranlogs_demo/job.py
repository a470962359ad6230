"""The job of a child process of the demo, and its reports to the parent.

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
    """Training of one child process.

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
        """Return the job as text, for the child's command line."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Job:
        """Return the job that `to_json` has written."""
        fields = json.loads(text)
        return cls(**{**fields, "config": GPTConfig(**fields["config"])})

    @property
    def state(self) -> Path:
        """Path of the final state, in the format of `torch.save`."""
        return Path(self.folder, f"{self.name}.pt")

    @property
    def log(self) -> Path:
        """Path of the child's stderr output."""
        return Path(self.folder, f"{self.name}.log")

    @property
    def phase(self) -> Path:
        """Path of a file of one byte: the number of the child's phase."""
        return Path(self.folder, f"{self.name}.phase")


class EventWriter:
    """The child's end of the pipe to its parent."""

    def __init__(self, job: Job) -> None:
        job.phase.write_bytes(b"\0")
        with open(job.phase, "r+b") as file:
            self._map = mmap.mmap(file.fileno(), 1)

    def write(self, kind: str, **fields: Any) -> None:
        """Send an event to the parent."""
        print(json.dumps({"event": kind, **fields}), flush=True)

    def batch(self, tensors: list[torch.Tensor], loss: float | None) -> None:
        """Report the start of a batch: a digest of its content, the time, and the loss of the batch before."""
        digest = xxhash.xxh3_64()
        for tensor in tensors:
            digest.update(tensor.numpy().tobytes())
        self.write("batch", digest=digest.hexdigest(), at=time.monotonic(), loss=loss)
        self.phase("forward")

    def phase(self, name: str) -> None:
        """Mark where in a step the child is."""
        self._map[0] = _NUMBERS[name]


def read_phase(job: Job) -> str:
    """Return the phase in which a child process died."""
    return list(PHASES)[job.phase.read_bytes()[0]]
