"""What a toy run may be after it was wound back, killed, and brought back from a store: the timelines, and their states."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path

from tests.crash.toy_trainers import SIZES, Outcome, state_sum
from tests.support.toy import ToyState
from tranlogs.catalog import Catalog
from tranlogs.catalog.lineage import is_on_lineage, trace_lineage


@dataclass(frozen=True)
class Fork:
    """Where a timeline left its parent, and what its learning rate was multiplied with."""

    parent: int
    step: int
    factor: float


Forks = dict[int, Fork]


def expected(forks: Forks, timeline: int, step: int) -> int:
    """The state that a run has which did the same without dying."""
    way: dict[int, float] = {}
    limit = step
    while timeline in forks:
        fork = forks[timeline]
        if fork.step < limit:
            way[fork.step] = fork.factor
        limit = min(limit, fork.step)
        timeline = fork.parent
    state = ToyState(SIZES)
    for number in range(1, step + 1):
        state.lr *= way.get(number - 1, 1.0)
        state.take_step(number)
    return state_sum(state)


def checkpoints(run: Path) -> set[int]:
    """The steps of the checkpoints that the run can be wound back to."""
    catalog = Catalog.open(run / "rank0")
    try:
        limits = trace_lineage(catalog.timelines(), max(row.number for row in catalog.timelines()))
        return {row.step for row in catalog.checkpoints() if is_on_lineage(row, limits)}
    finally:
        catalog.close()


@dataclass(frozen=True)
class Line:
    """A place where the run may be: at a step of a timeline, or behind it."""

    timeline: int = 1
    step: int = 0
    forks: Forks = field(default_factory=dict)

    def landed(self, timeline: int, step: int, state: int) -> Line | None:
        """The same after a recovery to a step, if it can have come from here."""
        if timeline != self.timeline or step < self.step or state != expected(self.forks, timeline, step):
            return None
        fork = self.forks.get(timeline)
        if fork is None or step > fork.step:
            return replace(self, step=step)
        return replace(self, step=step, forks=self.forks | {timeline: replace(fork, factor=1.0)})  # its first step is yet to be

    def ancestors(self, least: int) -> list[Line]:
        """Itself and the timelines that led to it, each from a step on: what a store may hold."""
        found, timeline = [replace(self, step=least)], self.timeline
        while timeline in self.forks:
            timeline = self.forks[timeline].parent
            found.append(replace(self, timeline=timeline, step=least))
        return found


def distinct(lines: list[Line]) -> list[Line]:
    """Each place once, with the forks that led to it: those that lead elsewhere are of timelines that it is not on."""
    found: list[Line] = []
    for line in lines:
        way, timeline = Forks(), line.timeline
        while timeline in line.forks:
            way[timeline] = line.forks[timeline]
            timeline = way[timeline].parent
        if (bare := replace(line, forks=way)) not in found:
            found.append(bare)
    return found


def after(lines: list[Line], outcome: Outcome, rewind: int | None, factor: float) -> list[Line]:
    """Where a run may be that was at one of `lines`, after a life that recovered; none if that cannot be."""
    assert outcome.recovered is not None
    if rewind is None:
        landed = [line.landed(outcome.timeline, outcome.recovered, outcome.state) for line in lines]
        return distinct([replace(line, step=max(line.step, outcome.committed)) for line in landed if line is not None])
    (line,) = lines
    if outcome.recovered != rewind or outcome.state != expected(line.forks, line.timeline, rewind):
        return []
    begun = Line(
        outcome.timeline, max(rewind, outcome.committed), line.forks | {outcome.timeline: Fork(line.timeline, rewind, factor)}
    )
    return [begun] if outcome.committed > rewind else [line, begun]
