"""Paired measurement: arms take turns in one process, block by block, and are compared round by round.

An arm is a callable that does one block of steps and returns the seconds of each step that counts. A round is one block of
each arm. Load that comes and goes falls on all arms of a round alike, so ratios between arms are resampled by rounds.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

Block = Callable[[], list[float]]
Times = dict[str, list[list[float]]]
"""Seconds of steps: by arm, by round."""

PLAIN, AGAIN = "plain", "plain again (noise)"
_RESAMPLES = 1000


def take_turns(arms: Mapping[str, Block], rounds: int, *, seconds_max: float, rounds_min: int = 2) -> Times:
    """Let each arm do a block, round after round, until all rounds are done or the time is up.

    Args:
        arms: the arms, in the order of their turns.
        rounds: how many rounds to take at most.
        seconds_max: no round begins after so many seconds ...
        rounds_min: ... once there are so many.
    """
    times: Times = {name: [] for name in arms}
    deadline = time.monotonic() + seconds_max
    for i in range(rounds):
        if i >= rounds_min and time.monotonic() > deadline:
            break
        for name, block in arms.items():
            times[name].append(block())
    return times


def compare(times: Times, arm: str, plain: str = PLAIN) -> dict[str, Any]:
    """Compare an arm with the plain one.

    Returns:
        `median` and `mean` (ratios), `p99` (over the plain p99) and `added_ms` (difference of medians), each as [value, lower
        quartile, upper quartile]: the value is that of all steps, the quartiles are those of a bootstrap over the rounds.
        `ms` is the arm's median step, `plain_p99` the plain p99 over the plain median, `rounds` and `steps` count.
    """
    mine, base = _table(times[arm]), _table(times[plain])
    statistics: dict[str, Callable[[Any, Any], float]] = {
        "median": lambda a, b: np.median(a) / np.median(b),
        "mean": lambda a, b: np.mean(a) / np.mean(b),
        "p99": lambda a, b: np.quantile(a, 0.99) / np.quantile(b, 0.99),
        "added_ms": lambda a, b: 1e3 * (np.median(a) - np.median(b)),
    }
    found: dict[str, Any] = {name: _spread(mine, base, statistic) for name, statistic in statistics.items()}
    return found | {
        "ms": float(np.median(mine) * 1e3),
        "plain_p99": float(np.quantile(base, 0.99) / np.median(base)),
        "rounds": len(mine),
        "steps": mine.size,
    }


def over(work: list[float], unit: list[float], statistic: Callable[[Any], Any] = np.median) -> tuple[float, float, float]:
    """Return a statistic of `work` over the median of `unit`, with the quartiles of a bootstrap over the pairs."""
    found = _spread(np.array(work)[:, None], np.array(unit)[:, None], lambda a, b: statistic(a) / np.median(b))
    return found[0], found[1], found[2]


def spread(values: list[float]) -> tuple[float, float, float]:
    """Return the median and the quartiles of the values themselves."""
    low, middle, high = np.quantile(values, (0.25, 0.5, 0.75))
    return float(middle), float(low), float(high)


def p99(values: Any) -> Any:
    """Return the 99th percentile."""
    return np.quantile(values, 0.99)


def _table(blocks: list[list[float]]) -> Any:
    """One row a block; a fit may have come out a step shorter than another."""
    length = min(map(len, blocks))
    return np.array([block[-length:] for block in blocks])


def _spread(mine: Any, base: Any, statistic: Callable[[Any, Any], Any]) -> list[float]:
    chance = np.random.default_rng(0)
    drawn = []
    for _ in range(_RESAMPLES):
        rounds = chance.integers(0, len(mine), len(mine))
        drawn.append(statistic(mine[rounds], base[rounds]))
    low, high = np.quantile(drawn, (0.25, 0.75))
    return [float(statistic(mine, base)), float(low), float(high)]
