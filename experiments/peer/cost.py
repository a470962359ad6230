"""What saving costs a training step: a training that saves and one that does not take turns in one process."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from peer.adapters import Adapter
from peer.processes import descendants, written_bytes
from peer.registry import PEERS

_BLOCK = 10  # steps of a turn; the first is not counted


def measure(peer: str, folder: Path, width: int, every: int, blocks: int) -> dict[str, Any]:
    """Ratios over no saving, and bytes; in a process of its own.

    Saves, and the checkpoints of a peer that logs each step, fall into the middle of a turn, so that the steps behind one bear
    what is still being written; at the end of a turn that is waited for, and not counted.
    """
    place = folder / f"{folder.name}-saved"  # a name of its own: shared memory goes by it
    (folder / "plain").mkdir(parents=True)
    place.mkdir()
    plain, saved = PEERS["none"].adapter(width, folder / "plain", every), PEERS[peer].adapter(width, place, every)
    turns = {plain: _steps(plain, False), saved: _steps(saved, not PEERS[peer].logs_steps)}
    times: dict[Adapter, list[float]] = {plain: [], saved: []}
    for adapter, turn in turns.items():
        assert adapter.steps_ahead % _BLOCK == _BLOCK // 2, "multiples of a turn's length are to fall into its middle"
        for _ in range(1 + adapter.steps_ahead):
            next(turn)
        adapter.wait()
    top = os.getpid()
    before = written_bytes([top, *descendants(top)])
    for _ in range(blocks):
        for adapter, turn in turns.items():
            times[adapter] += [next(turn) for _ in range(_BLOCK)][1:]
            adapter.wait()
    written = written_bytes([top, *descendants(top)]) - before
    usable = 0.0 if PEERS[peer].logs_steps else float(np.median([_seconds_until_usable(saved, 10**6 + i) for i in range(3)]))
    saved.close()
    one, other = times[saved], times[plain]
    return {
        "written_per_step": written / (blocks * _BLOCK),
        "usable": usable,
        "steps": len(one),
        "plain_ms": 1e3 * float(np.median(other)),
        "mean": float(np.mean(one) / np.mean(other)),
        "median": float(np.median(one) / np.median(other)),
        "p99": float(np.percentile(one, 99) / np.median(other)),
        "p99_plain": float(np.percentile(other, 99) / np.median(other)),
    }


def _steps(adapter: Adapter, saves: bool) -> Iterator[float]:
    """The first item comes when it is open; each after that is what a step took, with the wish for the batch after it."""
    step = adapter.open()
    batches = adapter.batches(1_000_000)
    batch = next(batches)
    taken = 0.0
    while True:
        yield taken
        begun = time.perf_counter()
        adapter.job.backward(*batch)
        adapter.job.update()
        step += 1
        if saves and step % adapter.every == 0:
            adapter.save(step)
        batch = next(batches)
        taken = time.perf_counter() - begun


def _seconds_until_usable(adapter: Adapter, step: int) -> float:
    """From its beginning until a save is there."""
    begun = time.perf_counter()
    adapter.save(step)
    adapter.wait()
    return time.perf_counter() - begun
