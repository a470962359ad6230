"""Times and their statistics. Arms take turns in one process, block by block, and are compared round by round.

An arm is a callable that does one block of steps and returns the seconds of each step that counts. A round is one block of
each arm. Load that comes and goes falls on all arms of a round alike, so arms are compared round by round.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

Block = Callable[[], list[float]]
Times = dict[str, list[list[float]]]
"""Seconds of steps: by arm, by round."""

PLAIN, MACHINE, AUTO = "plain", "logged, machine", 'as it comes, log="auto"'
FLOOR = "floor: written and hashed, no log"
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
        `median` and `added_ms`: ratio and difference of the medians of two blocks, as the median over the rounds with its
        quartiles, so that load which comes and goes falls out.
        `mean` and `p99`: ratios of the means and of the 99th percentiles of all steps, with the quartiles of a bootstrap
        over the rounds, since what is rare is in few of them.
        `ms`: the arm's median step. `rounds`, `steps`: how many.
    """
    mine, base = ([np.array(block) for block in times[name]] for name in (arm, plain))
    middle, middle_base = (np.array([np.median(block) for block in blocks]) for blocks in (mine, base))
    every = np.concatenate(mine)
    return {
        "median": spread(middle / middle_base),
        "mean": _resampled(mine, base, lambda a, b: np.mean(a) / np.mean(b)),
        "p99": _resampled(mine, base, lambda a, b: np.quantile(a, 0.99) / np.quantile(b, 0.99)),
        "added_ms": spread(1e3 * (middle - middle_base)),
        "ms": float(np.median(every) * 1e3),
        "rounds": len(mine),
        "steps": len(every),
    }


def over(work: list[float], unit: list[float]) -> tuple[float, float, float]:
    """Return the median of `work` over that of `unit`, with the quartiles of a bootstrap over the pairs."""
    mine, base = ([np.array([value]) for value in values] for values in (work, unit))
    return _resampled(mine, base, lambda a, b: np.median(a) / np.median(b))


def seconds(work: Callable[[], object]) -> float:
    """Return how long a call takes."""
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def spread(values: Any) -> tuple[float, float, float]:
    """Return the median and the quartiles of the values themselves."""
    low, middle, high = np.quantile(values, (0.25, 0.5, 0.75))
    return float(middle), float(low), float(high)


def _resampled(mine: list[Any], base: list[Any], statistic: Callable[[Any, Any], Any]) -> tuple[float, float, float]:
    """Return a statistic of all blocks and the quartiles of it where rounds are drawn with replacement."""
    chance = np.random.default_rng(0)

    def of(rounds: Any) -> float:
        return float(statistic(*(np.concatenate([blocks[i] for i in rounds]) for blocks in (mine, base))))

    low, high = np.quantile([of(chance.integers(0, len(mine), len(mine))) for _ in range(_RESAMPLES)], (0.25, 0.75))
    return of(range(len(mine))), float(low), float(high)


def tell(case: str, compared: Mapping[str, Any]) -> None:
    """Print all arms of a case."""
    print(f"  {case}: plain {compared[PLAIN]['ms']:.2f} ms", flush=True)
    for arm, one in compared.items():
        if arm != PLAIN:
            ratios = "  ".join(f"{key} {one[key][0]:.3f} [{one[key][1]:.3f}-{one[key][2]:.3f}]" for key in _RATIOS)
            print(f"    {arm:34s} {ratios}   ({one['rounds']} x {one['steps'] // one['rounds']})", flush=True)


_RATIOS = ("median", "mean", "p99", "added_ms")
