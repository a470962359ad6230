"""Kills of all kinds, mixed: runs that live many lives, each ended at a fault point or at any moment, by a trainer that may be
wound back, fork, lose its disk for a while or its clock, under a monitor that prunes and ships, and dies as often. Now and
then the whole machine is lost, and the run comes back from the store. And runs on a disk that fills up and empties meanwhile.
"""

from __future__ import annotations

import itertools
import random
import shutil
import signal
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from tests.crash import tally
from tests.crash.toy_trainers import SIZES, Outcome, Trainers, state_sum
from tests.monitor.monitors import Monitors
from tests.shipping.ships import marks, objects_named, ship
from tests.support import campaign, disks
from tests.support.toy import ToyState
from tests.support.verify import verify_run
from tranlogs.base.config import MIB
from tranlogs.base.errors import CorruptObject, NotARun
from tranlogs.base.failpoints import POINTS
from tranlogs.catalog import Catalog
from tranlogs.catalog.rows import is_on_lineage, trace_lineage
from tranlogs.shipping import pull
from tranlogs.stores.local import LocalStore
from tranlogs.verify import Problem

pytestmark = pytest.mark.crash

SEED, KILLS = campaign.seed(), campaign.rounds(100)
LIVES = 14
PLACES = {  # where a trainer is killed -> the fault points there
    "in a step or at a boundary": [
        "log.begin",
        "log.write",
        "log.before_commit",
        "log.after_commit",
        "boundary.before",
        "boundary.after",
    ],
    "while the log is synced, rolled or sealed": ["log.sync", "log.roll", "log.seal"],
    "while a segment is prepared or recycled": ["log.prepare", "log.recycle"],
    "while a checkpoint is taken": [point for point in POINTS if point.startswith("checkpoint.") and "delete" not in point],
    "while it prunes": ["log.retire", "log.unlink", "checkpoint.delete"],
    "while the catalog is written": ["catalog.before_commit", "catalog.after_commit"],
    "during recovery": ["recovery.restored", "recovery.replayed"],
}
OFTEN = {
    "log.begin": 60,
    "log.write": 90,
    "log.before_commit": 60,
    "log.after_commit": 60,
    "boundary.before": 20,
    "boundary.after": 20,
    "log.sync": 15,
    "catalog.before_commit": 25,
    "catalog.after_commit": 25,
}
IN_MONITOR = (
    "log.retire",
    "log.unlink",
    "checkpoint.delete",
    "catalog.before_commit",
    "catalog.after_commit",
    "ship.sent",
    "ship.manifest",
    "ship.published",
    "ship.marks",
)
ERRORS = (
    "log.begin",
    "log.write",
    "log.before_commit",
    "log.sync",
    "log.seal",
    "log.prepare",
    "log.recycle",
    "catalog.before_commit",
    "checkpoint.state",
    "checkpoint.publish",
)


SUSPENDED = "logging suspended by an error, in a run that is killed"

# Where a run may be that is wound back, killed, and brought back from a store.


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


@pytest.fixture(scope="module")
def trainers() -> Iterator[Trainers]:
    with closing(Trainers(compares=False)) as made:
        yield made


class Run:
    """One run and what is known of it.

    Attributes:
        kills, rewinds, forks: of trainers, so far.
        full: how often logging was suspended, or had to make room on the disk.
        lines: where it may be.
        story: what happened, for whoever looks for a loss.
    """

    def __init__(
        self, folder: Path, chance: random.Random, trainers: Trainers, monitors: Monitors | None, fault: str = SUSPENDED
    ) -> None:
        self.run, self.store = folder / "runs" / "run", folder / "store"
        self.run.parent.mkdir()
        self._chance, self._trainers, self._monitors, self._fault = chance, trainers, monitors, fault
        self._is_watched = monitors is not None and chance.random() < 0.6
        self._ships = monitors is not None and chance.random() < 0.6
        self._writer = chance.choice(["direct", "thread"])
        self.lines, self.story = [Line()], list[str]()
        self.kills = self.rewinds = self.forks = self.full = 0
        self._was_moved = False
        self._faults: set[str] = set()  # since the last recovery

    def live(self, **more: Any) -> None:
        """One life of a trainer; with `more` of its job, a disk that fills up, it is not wound back, and fails nowhere else."""
        chance, rewind, factor = self._chance, None, 1.0
        if self._is_watched:
            self._watch()
        is_known = len(self.lines) == 1 and self.lines[0].step > 0 and not more
        if is_known and chance.random() < 0.3 and (lowest := min(checkpoints(self.run), default=0)) < self.lines[0].step:
            rewind, factor = chance.randrange(lowest, self.lines[0].step), chance.uniform(0.5, 2.0)
        place, point = chance.choice([*([] if more else PLACES), *["at any moment"] * 3, "not at all"]), ""
        if place in PLACES:
            point = chance.choice(PLACES[place])
            point = f"{point}=kill@{chance.randrange(1, OFTEN.get(point, 5) + 1)}"
        errors = ""
        if chance.random() < 0.25 and not more:
            failing = chance.choice([name for name in ERRORS if not point.startswith(name)])
            errors = f"{failing}={chance.choice(['eio', 'enospc'])}@{chance.randrange(1, 8)}{chance.choice(['', '+'])}"
        moment = None
        if place == "at any moment":
            lines = chance.choice([0, 0, 1, 2, 3, 5, 8])
            moment = (lines, chance.random() * (0.03 if lines == 0 else 0.005))
        jumps = chance.randrange(10**6) if errors or chance.random() < 0.2 else None
        if chance.random() < 0.3:
            more["forks"] = chance.randrange(10**6)
        step = max(line.step for line in self.lines)
        outcome = self._trainers.run(
            self.run,
            kill_after=moment,
            until=step + 14,
            failpoints=point,
            errors=errors,
            jumps=jumps,
            rewind=rewind,
            factor=factor,
            writer=self._writer,
            keep=chance.randrange(1, 4),
            every=chance.choice([4, 6, 1000]),
            by_time=jumps is not None and chance.random() < 0.5,
            durability=chance.choice(["process", "machine"]),
            settles=chance.random() < 0.4,
            **more,
        )
        self.story.append(f"killed {place} {point} {moment}, errors {errors!r}, jumps {jumps}, rewind {rewind}: {outcome}")
        self._judge(outcome, rewind, factor, place)
        if self._is_watched:
            self._end_watch()

    def _judge(self, outcome: Outcome, rewind: int | None, factor: float, place: str) -> None:
        assert outcome.status in (0, -signal.SIGKILL), f"the trainer ended with {outcome.status}"
        assert set(outcome.forked) <= {0}, f"its children ended with {outcome.forked}: what they do to the journal is in vain"
        if outcome.forked:
            self.forks += 1
            self._note("forks of a trainer that is killed, its children beside it")
        if outcome.refused:
            assert "is not covered" in outcome.refused, outcome.refused
            assert rewind not in checkpoints(self.run), outcome.refused
        if outcome.recovered is not None:
            for fault in self._faults:
                tally.note(fault, 0, seconds=outcome.seconds)
            self._faults.clear()
            found = after(self.lines, outcome, rewind, factor)
            assert found, f"it came back to step {outcome.recovered} of timeline {outcome.timeline}, but was at {self.lines}"
            self.lines = found
        if outcome.was_suspended or outcome.has_made_room:
            self.full += 1
            self._note(self._fault)
        if rewind is not None and outcome.recovered is not None:
            self.rewinds += 1
            self._note("a rewind, in a run that is killed")
        if outcome.was_killed:
            self.kills += 1
            before = outcome.recovered is None and place == "at any moment"
            self._note(f"SIGKILL of a trainer {'at any moment of opening and recovery' if before else place}")

    def _note(self, fault: str) -> None:
        tally.note(fault)
        self._faults.add(fault)

    def _watch(self) -> None:
        point = self._chance.choice(["", f"{self._chance.choice(IN_MONITOR)}=kill@{self._chance.randrange(1, 6)}"])
        self.story.append(f"a monitor: {point}")
        assert self._monitors is not None
        self._monitors.start(
            self.run.parent,
            self._chance.choice([3, 6, 12]) * MIB,
            failpoints=point,
            store=self.store if self._ships else None,
        )

    def _end_watch(self) -> None:
        if self._chance.random() < 0.5:
            signal.sigtimedwait([], self._chance.random() * 0.1)  # alone with what the trainer left
        assert self._monitors is not None
        self._monitors.kill()
        self._note("SIGKILL of a monitor that prunes or ships")

    def lose_machine(self) -> None:
        """All that is here is gone; what the store has comes back, as far as the catalog said."""
        if not self._ships or not (self.run / "rank0/catalog.lmdb").exists():
            return
        least = marks(self.run).archived
        elsewhere = self.run.with_name("elsewhere")
        elsewhere.mkdir()
        try:
            found = pull(LocalStore(self.store), "run/rank0", elsewhere / "rank0")
        except (NotARun, CorruptObject):  # the latter where the store has no checkpoint yet that leads to the newest timeline
            assert least == 0, f"step {least} was archived, and the store has nothing"
            shutil.rmtree(elsewhere)
            return
        assert found.step >= least, f"step {least} was archived, and step {found.step} came back: {found.notes}"
        shutil.rmtree(self.run)
        elsewhere.rename(self.run)
        self._was_moved = True
        self.lines = [one for line in self.lines for one in line.ancestors(found.step)]
        self.story.append(f"pulled: {found}")
        self._note("the machine lost, and the run pulled from its store")

    def end(self) -> None:
        """Nobody dies any more: all is there, and it goes on; so it is on another machine."""
        for _ in range(2):
            until = max(line.step for line in self.lines) + 3
            outcome = self._trainers.run(self.run, until=until, writer=self._writer, keep=9)
            self.story.append(f"at the end: {outcome}")
            self._judge(outcome, None, 1.0, "")
            assert outcome.committed >= until
        assert [str(found) for found in verify_run(self.run) if isinstance(found, Problem)] == []
        if self._ships:
            store = LocalStore(self.store)
            ship(self.run, store)
            if not self._was_moved:  # what a lost machine has sent stays for the hour in which it might come back
                assert set(store.names("run/rank0/objects")) == objects_named(store, "run/rank0"), "something is left over"
            (now,) = self.lines
            least = now.step
            assert marks(self.run).archived == least
            self.lose_machine()
            self.lines = [now]  # all of it was sent: no timeline that was left counts any more
            outcome = self._trainers.run(self.run, until=0, writer=self._writer, keep=9)
            self._judge(outcome, None, 1.0, "")
            assert outcome.recovered == least


@pytest.mark.timeout(3600)
def test_kills_of_all_kinds_lose_nothing(trainers: Trainers, monitors: Monitors, memory_path: Path) -> None:
    kills = rewinds = forks = 0
    for seed in itertools.count(SEED):
        folder = memory_path / f"seed{seed}"
        folder.mkdir()
        run = Run(folder, random.Random(seed), trainers, monitors)
        try:
            for _ in range(LIVES):
                run.live()
                if run._chance.random() < 0.1:
                    run.lose_machine()
            run.end()
        except BaseException:
            tally.note("SIGKILLs of all kinds in one run", 0, losses=1)
            print(f"repeat with TRANLOGS_SEED={seed}", *run.story, sep="\n  ")
            raise
        kills, rewinds, forks = kills + run.kills, rewinds + run.rewinds, forks + run.forks
        shutil.rmtree(folder)
        if kills >= KILLS and rewinds and forks:
            return


@contextmanager
def small_disk(kind: str, folder: Path) -> Iterator[Path]:
    """A disk of 48 MiB."""
    size, point = 48 * MIB, folder / "disk"
    made = (
        disks.memory_disk(point, size) if kind == "tmpfs" else disks.mounted(disks.make_ext4(folder / "disk.img", size), point)
    )
    with made:
        yield point


def empty(disk: Path) -> None:
    for ballast in disk.glob("ballast-*"):
        ballast.unlink()


@pytest.mark.sampled(1)
@pytest.mark.disks
@pytest.mark.parametrize("seed", campaign.seeds(1), ids=str)
@pytest.mark.parametrize("kind", ["tmpfs", "ext4"])
def test_a_disk_that_fills_up_loses_nothing(trainers: Trainers, memory_path: Path, kind: str, seed: int) -> None:
    chance = random.Random(seed)
    with small_disk(kind, memory_path) as disk:
        run = Run(disk, chance, trainers, None, f"disk full ({kind}) in a run that is killed")
        for life in range(80):
            if life > 8 and run.full:
                break
            if chance.random() < 0.4:
                empty(disk)
            elif life and chance.random() < 0.4:  # a run that is not there yet is refused on a full disk
                disks.fill(disk, leave=chance.choice([0, 4096, chance.randrange(3 * MIB)]))
            fills, empties = chance.randrange(2, 20), chance.randrange(10, 60)

            def meanwhile(lines: int, fills: int = fills, empties: int = empties) -> None:
                if lines == fills:
                    disks.fill(disk)
                elif lines == empties:
                    empty(disk)

            run.live(meanwhile=meanwhile, ticks=True)
        empty(disk)
        run.end()
        print(f"repeat with TRANLOGS_SEED={seed}", *run.story, sep="\n  ")
        assert run.full
