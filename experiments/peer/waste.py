"""What failures and saving together cost, from Gemini's T_wasted = t_ckpt + 1/(2f) + t_rtvl (SOSP'23).

t_ckpt   until a save is usable, once it has begun: what is computed meanwhile is lost with the failure, too
1/(2f)   half an interval between saves, in the mean
t_rtvl   until the newest save is back; redoing steps from a log is part of it
"""

from __future__ import annotations

import math
import random
from dataclasses import dataclass
from typing import Any

HOURS = (1, 3, 10, 50)  # between failures of the large job


@dataclass(frozen=True, slots=True)
class Way:
    """A way of saving, in seconds.

    Attributes:
        interval: between saves.
        cost: that a save holds up training.
        usable: until a save is usable (t_ckpt).
        retrieval: until the newest one is back (t_rtvl); starting processes is not in it.
    """

    interval: float
    cost: float
    usable: float
    retrieval: float

    @property
    def saving(self) -> float:
        """Share of time that goes into saving."""
        return self.cost / (self.interval + self.cost)

    def wasted(self) -> float:
        """By a failure, in the mean (T_wasted)."""
        return self.usable + self.interval / 2 + self.retrieval

    def share(self, between_failures: float) -> float:
        """Of all time that does not go into new steps; at most 1."""
        return min(1.0, self.saving + (1 - self.saving) * self.wasted() / between_failures)


def way_of(step: float, every: int, cost: dict[str, Any], load: float, *, logs_steps: bool) -> Way:
    """From what was measured: seconds of a step without saving, its cost at that interval, seconds until a save is back."""
    interval = step if logs_steps else step * every
    extra = max(0.0, cost["mean"] - 1) * interval
    return Way(interval, extra, extra if logs_steps else cost["usable"], load)


def ways_of(peer: dict[str, Any]) -> list[Way]:
    """All intervals of a peer at which nothing wrong ever came back, in one kill at a known step and in those at random ones.

    Where the one kill found nothing saved yet, what another interval took is taken for what loading takes.
    """
    crashes = {every: one for every, one in peer.get("crash", {}).items() if one.get("verdict") == "exact"}
    loads = {every: one["seconds_back"] for every, one in crashes.items() if one["lost"] < one["finished"]}
    ways = []
    for every, cost in peer.get("cost", {}).items():
        verdicts = peer.get("kills", {}).get(every, {}).get("verdicts", {})
        if "error" not in cost and every in crashes and loads and "wrong" not in verdicts:
            load = loads.get(every, max(loads.values()))
            ways.append(way_of(cost["plain_ms"] / 1e3, int(every), cost, load, logs_steps=peer["logs_steps"]))
    return ways


@dataclass(frozen=True, slots=True)
class Large:
    """A job that cannot be run here, as it is assumed to be.

    Attributes:
        parameters, devices: of the model, of the job.
        state_bytes, gradient_bytes: a parameter: bf16 weights, fp32 weights and both moments of Adam; bf16 gradients.
        step: seconds: 4 M tokens at 6 operations a parameter and token, 400 Tflop/s a device.
        store, disk, host, network: bytes a second: the shared store in all; a node's disk, the copy to host memory, and the way
            to another node's memory, for each device.
        optimizer: seconds of its step, which redoing a step takes beside reading.
        restart: seconds until processes run again, whatever saves.
        node_lost: share of failures with which a node's memory and disk are gone (DLRover's report: a quarter).
        days: that are simulated.
    """

    parameters: float = 70e9
    devices: int = 1000
    state_bytes: float = 14
    gradient_bytes: float = 2
    step: float = 6 * 70e9 * 4e6 / (1000 * 400e12)
    store: float = 50e9
    disk: float = 0.5e9
    host: float = 20e9
    network: float = 5e9
    optimizer: float = 0.03
    restart: float = 120
    node_lost: float = 0.25
    days: int = 300

    def ways(self, between_failures: float) -> dict[str, tuple[Way, Way]]:
        """After a process has died; after a node was lost. Intervals are Young's, and no shorter than a save takes."""
        state, gradients = self.state_bytes * self.parameters, self.gradient_bytes * self.parameters / self.devices
        to_store, to_host = state / self.store, state / self.devices / self.host
        to_disk, to_peer = state / self.devices / self.disk, state / self.devices / self.network
        plain = self._interval(to_store, to_store, between_failures)
        behind = self._interval(to_host, to_store, between_failures)
        stored = Way(behind, to_host, to_store, to_store)
        log = gradients / self.host  # each step, to host memory; two nodes write each share to their disks behind
        checkpoint = self._interval(to_host, max(to_disk, 10 * self.step), between_failures)
        redone = checkpoint / self.step / 2 * (gradients / self.disk + self.optimizer)
        logged = Way(self.step, log + to_host * self.step / checkpoint, 2 * gradients / self.disk, to_disk + redone)
        return {
            "full save to the store": (Way(plain, to_store, to_store, to_store),) * 2,
            "the same behind training": (stored, stored),
            "host memory each step, store behind": (Way(self.step, to_host, to_host, to_host), stored),
            "host memory of two nodes each step (Gemini)": (Way(self.step, to_host, to_peer, to_peer),) * 2,
            "TranLogs, gradients on two nodes' disks": (logged, logged),
        }

    def simulate(self, between_failures: float, seed: int) -> dict[str, float]:
        """Share of time lost by each way, under failures that come at random; the same failures for all."""
        lost: dict[str, float] = {}
        for name, ways in self.ways(between_failures).items():
            chance, now, wasted, end = random.Random(seed), 0.0, 0.0, self.days * 86400.0
            while (now := now + chance.expovariate(1 / between_failures)) < end:
                way = ways[chance.random() < self.node_lost]
                wasted += self.restart + way.usable + chance.random() * way.interval + way.retrieval
            saving = ways[0].saving
            lost[name] = min(1.0, saving + (1 - saving) * wasted / end)
        return lost

    def _interval(self, cost: float, least: float, between_failures: float) -> float:
        """Young's, in whole steps."""
        return self.step * max(1, round(max(least, math.sqrt(2 * cost * between_failures)) / self.step))
