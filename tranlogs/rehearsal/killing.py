"""Killing of a script at random moments, until it has come as far as the one that is not killed."""

from __future__ import annotations

import random
from dataclasses import dataclass, field, replace
from itertools import pairwise
from statistics import median

from ..training.rehearsed_process.orders import Orders
from .arms import Arm, Arms
from .processes.process_life import Life
from .verdict import Kill

_START_SHARE = 0.3, 1.0  # of the time to the first unit, when a script is killed while it starts


@dataclass(frozen=True, slots=True)
class Death:
    """A moment at which the script is killed.

    Attributes:
        step: the kill comes after this step.
        after: seconds between.
        rank: rank of the process that dies. The others are killed when it has died.
        in_start: the script is killed once more before that, while it starts: seconds after its start; None if it is not.
    """

    step: int
    after: float
    rank: int
    in_start: float | None = None


@dataclass(slots=True)
class Killed:
    """Outcome of the kills.

    Attributes:
        kills: the kills.
        failure: the life in which the script ended before it had come as far as the twin; None if there is none.
    """

    kills: list[Kill] = field(default_factory=list)
    failure: Life | None = None


def plan_deaths(twin: Life, count: int, dice: random.Random) -> list[Death]:
    """Return the moments of the kills: after random steps before the last one, a random part of a unit later.

    If there are two and more, the script is also killed once while it starts.
    """
    steps = sorted({event["step"] for event in twin.units})[:-1]
    ranks = sorted({event["rank"] for event in twin.of("open")})
    times = [float(event["time"]) for event in twin.units]
    pace = median([later - earlier for earlier, later in pairwise(times)] or [0.0])
    start = max(0.1, twin.seconds - (float(twin.events[-1]["time"]) - times[0]))
    chosen = sorted(dice.sample(steps, min(count, len(steps))))
    deaths = [Death(step, dice.uniform(0, pace), dice.choice(ranks)) for step in chosen]
    if len(deaths) > 1:
        number = dice.randrange(1, len(deaths))
        deaths[number] = replace(deaths[number], in_start=dice.uniform(*_START_SHARE) * start)
    return deaths


def kill_repeatedly(arms: Arms, arm: Arm, orders: Orders, twin: Life, deaths: list[Death]) -> Killed:
    """Kill the script and start it again, until it has come as far as the twin.

    Args:
        arms: lets it live.
        arm: where.
        orders: orders to come as far as the twin.
        twin: the life of the twin.
        deaths: the moments of the kills.
    """
    killed = Killed()
    for death in deaths:
        die = replace(orders, die_at=death.step, die_after=death.after, die_rank=death.rank)
        for seconds in [death.in_start, None] if death.in_start is not None else [None]:
            life = arms.live(arm, die, f"kill {len(killed.kills) + 1}", seconds=seconds)
            if life.ending in ("died", "killed"):
                killed.kills.append(Kill(life.steps, life.seconds, "training" if life.of("unit") else "start"))
            elif life.ending == "end" or (life.ending == "exited" and life.code == 0):
                return killed  # it was faster than the kill
            else:
                killed.failure = life
                return killed
            if life.ending == "died":
                break
    life = arms.live(arm, orders, "last life")
    if life.ending == "exited" and (life.code != 0 or life.steps < twin.steps):
        killed.failure = life
    return killed
