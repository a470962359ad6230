"""When to take checkpoints: policies over simulated failures, for jobs of 1 to 10,000 machines.

    python experiments/policies.py [--quick] [--out FILE]

Failures come at published rates: 6.50 for a thousand machines a day (Meta's RSC-1; Kokolis et al. 2024, arXiv 2410.21680).
Times between them are exponential, or Weibull of shape 0.7, as of LANL's machines (Schroeder and Gibson, DSN 2006): failures
then come in clusters. A policy is told what it costs to take a checkpoint and to redo work, and sees the failures as they come.
None but `best` knows the rate. A job runs for 30 days; waste is the share of its time in which it does no new work.

Work behind the newest checkpoint is computed again (share 1), or redone from a log of gradients (share 0.1; what that log
costs is not part of it). After each recovery a checkpoint is taken. All policies see the same failures.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
from harness import take
from pictures import draw_policies

DAY, HOUR = 86_400.0, 3_600.0
RATE = 6.50 / 1000 / DAY  # failures of a machine a second
SHAPES = {"exponential": 1.0, "Weibull 0.7": 0.7}
SHARES = {"computed again": 1.0, "redone from the log": 0.1}
NODES = (1, 10, 100, 1000, 10_000)
COST, RESTART = 10.0, 120.0  # seconds that a checkpoint takes; from a failure until work goes on, without what is redone
HORIZON = 30 * DAY
_PRIOR = HOUR  # the mean time between failures that is assumed before one was seen
_STEPS = (0.25, 0.5, 1.0, 2.0, 4.0)  # of the policy that learns: factors of an hour's interval
_INTERVAL_MIN = COST  # a checkpoint that costs more than what it saves is taken by nobody


def young_daly(mean_gap: float, share: float) -> float:
    """Return the interval with the least waste: the root of twice cost times mean gap, by the share of work to redo."""
    return max(math.sqrt(2 * COST * mean_gap / share), _INTERVAL_MIN)


class Policy:
    """Chooses the work between two checkpoints, in seconds: a fixed interval."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds

    def interval(self, age: float) -> float:
        """Return it; the last failure, or the beginning, was `age` seconds ago."""
        return self._seconds

    def note_failure(self, gap: float) -> None:
        """Note a failure, so many seconds after the one before."""

    def note_outcome(self, work: float, wasted: float) -> None:
        """Note how much new work was done since the last choice, and how much time was lost."""


class Observed(Policy):
    """Young/Daly with the mean time between failures as observed, an hour before any: `checkpoint_every="auto"`."""

    def __init__(self, share: float) -> None:
        self._share, self._seen, self._failures = share, 0.0, 0

    def interval(self, age: float) -> float:
        return young_daly((_PRIOR + self._seen + age) / (1 + self._failures), self._share)

    def note_failure(self, gap: float) -> None:
        self._seen, self._failures = self._seen + gap, self._failures + 1


class Recent(Observed):
    """The same of the last ten failures only: it follows a rate that changes (after Zhuang et al.)."""

    def __init__(self, share: float) -> None:
        super().__init__(share)
        self._gaps = [_PRIOR]

    def interval(self, age: float) -> float:
        gaps = self._gaps[-10:]
        return young_daly(max(sum(gaps) / len(gaps), (sum(gaps) + age) / (len(gaps) + 1)), self._share)

    def note_failure(self, gap: float) -> None:
        self._gaps.append(gap)


class ByProbability(Recent):
    """Young/Daly with the failure probability of the next second, by a Weibull law fitted to all gaps (after Akber et al.)."""

    def __init__(self, share: float) -> None:
        super().__init__(share)
        self._law = 1.0, _PRIOR

    def interval(self, age: float) -> float:
        shape, scale = self._law
        hazard = shape / scale * (max(age, COST) / scale) ** (shape - 1)
        return young_daly(1 / hazard, self._share)

    def note_failure(self, gap: float) -> None:
        """Fit shape and scale by the mean and the deviation of the logarithms of the gaps."""
        super().note_failure(gap)
        self._law = 1.0, sum(self._gaps) / len(self._gaps)
        if len(self._gaps) >= 6:
            logs = np.log(self._gaps[1:])
            shape = min(max(math.pi / math.sqrt(6) / max(float(logs.std()), 1e-3), 0.3), 3.0)
            self._law = shape, math.exp(float(logs.mean()) + 0.5772 / shape)


class Learning(Policy):
    """Learns which factor of an hour's Young/Daly interval wastes least, trying others now and then (after DACM)."""

    def __init__(self, share: float, chance: np.random.Generator) -> None:
        self._share, self._chance = share, chance
        self._work, self._wasted = np.full(len(_STEPS), HOUR), np.full(len(_STEPS), COST)
        self._choice, self._count = 2, 0

    def interval(self, age: float) -> float:
        self._count += 1
        is_trying = self._chance.random() < max(0.02, 1 / math.sqrt(self._count))
        wasted = self._wasted / (self._work + self._wasted)
        self._choice = int(self._chance.integers(len(_STEPS))) if is_trying else int(wasted.argmin())
        return max(_STEPS[self._choice] * young_daly(_PRIOR, self._share), _INTERVAL_MIN)

    def note_outcome(self, work: float, wasted: float) -> None:
        self._work[self._choice] += work
        self._wasted[self._choice] += wasted


POLICIES: dict[str, Callable[[float, float, np.random.Generator], Policy]] = {
    "best: Young/Daly, mean known": lambda share, mean, chance: Policy(young_daly(mean, share)),
    "every hour": lambda share, mean, chance: Policy(HOUR),
    "every ten minutes": lambda share, mean, chance: Policy(HOUR / 6),
    'observed: checkpoint_every="auto"': lambda share, mean, chance: Observed(share),
    "recent rate (Zhuang)": lambda share, mean, chance: Recent(share),
    "probability (Akber)": lambda share, mean, chance: ByProbability(share),
    "learned (DACM)": lambda share, mean, chance: Learning(share, chance),
}


def simulate(policy: Policy, gaps: np.ndarray[Any, Any], share: float) -> float:
    """Return the share of `HORIZON` that was wasted."""
    failures = iter(gaps)
    now = useful = born = 0.0
    next_failure = next(failures)
    while now < HORIZON:
        wanted = policy.interval(now - born)
        if now + wanted + COST <= next_failure:
            now, useful = now + wanted + COST, useful + wanted
            policy.note_outcome(wanted, COST)
            continue
        work = min(max(next_failure - now, 0.0), wanted)
        started, end = now, next_failure + RESTART + share * work + COST
        now = next_failure
        while True:  # another failure may come before a checkpoint has been taken: the recovery begins anew
            policy.note_failure(now - born)
            born, next_failure = now, now + next(failures)
            if next_failure >= end or next_failure >= HORIZON:
                break
            now, end = next_failure, next_failure + RESTART + share * work + COST
        now, useful = end, useful + work
        policy.note_outcome(work, now - started - work)
    return 1 - min(useful / now, 1.0)


def measure(*, quick: bool) -> dict[str, Any]:
    """Simulate all policies, laws, shares and sizes; the mean of some jobs."""
    jobs, nodes = (1, NODES[2::2]) if quick else (20, NODES)
    found: dict[str, Any] = {}
    for law, shape in SHAPES.items():
        for name, share in SHARES.items():
            wasted = found[f"{law}, {name}"] = {policy: [] for policy in POLICIES}
            for count in nodes:
                mean = 1 / (RATE * count)
                for policy, make in POLICIES.items():
                    runs = []
                    for job in range(jobs):
                        chance = np.random.default_rng([job, count])
                        gaps = chance.weibull(shape, int(3 * HORIZON / mean) + 1000) * mean / math.gamma(1 + 1 / shape)
                        runs.append(simulate(make(share, mean, np.random.default_rng(job)), gaps, share))
                    wasted[policy].append(float(np.mean(runs)))
            print(f"  {law}, {name}: " + ", ".join(f"{key} {max(value):.1%}" for key, value in wasted.items()), flush=True)
    return {"nodes": list(nodes), "jobs": jobs, "cost": COST, "restart": RESTART, "wasted": found}


if __name__ == "__main__":
    take(__doc__, "policies", measure, draw_policies)
