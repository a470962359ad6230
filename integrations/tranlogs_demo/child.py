"""The training script of the demo, a process of its own: with TranLogs, or in plain torch where the job names no run."""

from __future__ import annotations

import random
import sys
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch.optim.lr_scheduler import OneCycleLR
from torch.utils.data import DataLoader

from tranlogs_torch import LoggedOptimizer

from .job import EventWriter, Job
from .model import build_gpt
from .reference_text import Batch, TextWindows, read_topics, shuffled

_BATCHES_MIN = 12  # however slow the machine is


def train(job: Job, events: EventWriter) -> None:
    """Train, and save all that could differ afterwards."""
    torch.set_num_threads(job.threads)
    random.seed(job.seed)
    np.random.seed(job.seed)
    text = read_topics()
    windows = TextWindows(text, job.config.block)
    model = build_gpt(job.config, len(windows.alphabet), job.seed)
    loader = shuffled(windows, job.batch)
    events.write("built", parameters=model.size, characters=len(text), alphabet=len(windows.alphabet))

    optimizer: torch.optim.Optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.1)
    logged: LoggedOptimizer | None = None
    if job.run is not None:  # keep=1: a demo should not fill the disk
        logged = optimizer = LoggedOptimizer(optimizer, job.run, model, checkpoint_every=job.checkpoint_every, keep=1)
    scheduler = OneCycleLR(optimizer, max_lr=1e-3, total_steps=job.schedule)  # lr and betas change at every step
    if logged is not None:
        logged.track(scheduler=scheduler, loader=loader)
        events.write("recovered", **logged.recover().as_dict())

    losses: list[float] = []
    start = time.monotonic()
    for batch in logged.batches(loader, job.until) if logged is not None else plain_batches(loader, job.until):
        events.batch(batch, losses[-1] if losses else None)
        loss = model.loss(*batch)
        events.phase("backward")
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        events.phase("step")
        optimizer.step()
        events.phase("scheduler")
        scheduler.step()
        optimizer.zero_grad()
        losses.append(loss.item())
        if logged is not None:
            logged.log_scalars(loss=losses[-1])
        events.phase("boundary")
        if job.seconds_max is not None and len(losses) >= _BATCHES_MIN and time.monotonic() - start > job.seconds_max:
            break

    curve = dict(enumerate(losses, 1)) if logged is None else dict(zip(*logged.scalars["loss"], strict=True))
    # A run that was killed after its last batch has nothing left to train: its losses are those of the process before.
    log_bytes = 0 if logged is None else logged.training_run.journal.log_bytes
    report = None if logged is None else logged.report.as_dict()
    events.write("finished", loss=curve[max(curve)], log_bytes=log_bytes, report=report)
    torch.save(
        {
            "weights": model.state_dict(),
            "optimizer": optimizer.state_dict(),
            "scheduler": scheduler.state_dict(),
            "random": _storable(_random_states()),
            "loss": curve,
        },
        job.state,
    )
    if logged is not None:
        logged.close()


def plain_batches(loader: DataLoader[Batch], until: int) -> Iterator[Batch]:
    """Yield batches over as many epochs as it takes."""
    taken = 0
    while taken < until:
        for batch in loader:
            yield batch
            taken += 1
            if taken == until:
                return


def _random_states() -> dict[str, Any]:
    return {"python": random.getstate(), "numpy": np.random.get_state(), "torch": torch.get_rng_state()}


def _storable(value: Any) -> Any:
    """numpy's random state is an array, which `torch.load(weights_only=True)` does not read."""
    if isinstance(value, np.ndarray):
        return torch.from_numpy(value.astype(np.int64))
    if isinstance(value, dict):
        return {key: _storable(v) for key, v in value.items()}
    return tuple(_storable(v) for v in value) if isinstance(value, tuple) else value


if __name__ == "__main__":
    _job = Job.from_json(sys.argv[1])
    train(_job, EventWriter(_job))
