"""What saving costs: a training that saves and one that does not take turns in one process; and what that makes of failures."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from peer.adapters import PEERS, Adapter
from peer.lives import descendants

_BLOCK = 10  # steps of a turn; the first is not counted


def measure_cost(peer: str, folder: Path, width: int, every: int, blocks: int) -> dict[str, Any]:
    """Return ratios over no saving, and bytes; in a process of its own.

    Saves, and the checkpoints of a peer that logs each step, fall into the middle of a turn, so that the steps behind one bear
    what is still being written; at the end of a turn that is waited for, and not counted.
    """
    place = folder / f"{folder.name}-saved"  # a name of its own: shared memory goes by it
    (folder / "plain").mkdir(parents=True)
    place.mkdir()
    plain, saved = Adapter(width, folder / "plain", every), PEERS[peer].adapter(width, place, every)
    turns = {plain: _steps(plain, False), saved: _steps(saved, not PEERS[peer].logs_steps)}
    times: dict[Adapter, list[float]] = {plain: [], saved: []}
    for adapter, turn in turns.items():
        for _ in range(1 + _BLOCK // 2):  # multiples of a turn's length fall into its middle
            next(turn)
        adapter.wait()
    before = _written_bytes()
    for _ in range(blocks):
        for adapter, turn in turns.items():
            times[adapter] += [next(turn) for _ in range(_BLOCK)][1:]
            adapter.wait()
    written = _written_bytes() - before
    usable = 0.0 if PEERS[peer].logs_steps else float(np.median([saved.seconds_until_usable(10**6 + i) for i in range(3)]))
    saved.close()
    return {
        "written_per_step": written / (blocks * _BLOCK),
        "usable": usable,
        "plain_ms": 1e3 * float(np.median(times[plain])),
        "mean": float(np.mean(times[saved]) / np.mean(times[plain])),
        "p99": float(np.percentile(times[saved], 99) / np.median(times[plain])),
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
        adapter.job.step(*batch)
        step += 1
        if saves and step % adapter.every == 0:
            adapter.save(step)
        batch = next(batches)
        taken = time.perf_counter() - begun


def _written_bytes() -> int:
    """Return what this process and its helpers have had written to a disk, or are going to: pages that they made dirty."""
    total = 0
    for pid in [os.getpid(), *descendants(os.getpid())]:
        with suppress(OSError):
            lines = Path(f"/proc/{pid}/io").read_text().splitlines()
            total += next(int(line.split()[1]) for line in lines if line.startswith("write_bytes"))
    return total


# What failures and saving together cost.


@dataclass(frozen=True, slots=True)
class Way:
    """A way of saving, in seconds; a failure costs Gemini's T_wasted = t_ckpt + 1/(2f) + t_rtvl (SOSP'23)."""

    interval: float  # between saves
    cost: float  # that a save holds up training
    usable: float  # t_ckpt, until a save is usable: what is computed meanwhile is lost with the failure, too
    retrieval: float  # t_rtvl, until the newest one is back: redoing steps is part of it; starting processes is not

    def share(self, between_failures: float) -> float:
        """Return the share of all time that does not go into new steps; at most 1."""
        saving = self.cost / (self.interval + self.cost)
        wasted = self.usable + self.interval / 2 + self.retrieval
        return min(1.0, saving + (1 - saving) * wasted / between_failures)


def ways_of(peer: dict[str, Any]) -> list[Way]:
    """Return all intervals of a peer at which nothing wrong came back, in one kill at a known step and in those at random ones.

    Where the one kill found nothing saved yet, what another interval took is taken for what loading takes.
    """
    crashes = {every: one for every, one in peer.get("crash", {}).items() if one.get("verdict") == "exact"}
    loads = {every: one["seconds_back"] for every, one in crashes.items() if one["lost"] < one["finished"]}
    ways = []
    for every, cost in peer.get("cost", {}).items():
        verdicts = peer.get("kills", {}).get(every, {}).get("verdicts", {})
        if every in crashes and loads and "wrong" not in verdicts:
            interval = cost["plain_ms"] / 1e3 * (1 if peer["logs_steps"] else int(every))
            extra = max(0.0, cost["mean"] - 1) * interval
            usable = extra if peer["logs_steps"] else cost["usable"]
            ways.append(Way(interval, extra, usable, loads.get(every, max(loads.values()))))
    return ways
