"""What failures and saving together cost, from Gemini's T_wasted = t_ckpt + 1/(2f) + t_rtvl (SOSP'23).

t_ckpt   until a save is usable, once it has begun: what is computed meanwhile is lost with the failure, too
1/(2f)   half an interval between saves, in the mean
t_rtvl   until the newest save is back; redoing steps from a log is part of it
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


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
