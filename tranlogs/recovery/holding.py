"""What one journal holds of a run that several processes train together: plain facts, with which all of them can plan.

A rank can land on its own boundaries only. What it has redone up to there may come from its own checkpoint or, where the
state is the same on all ranks, from another rank's.
"""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from ..catalog import CheckpointRow
from ..checkpoint import Checkpoint
from ..codec.entry import EntryKind
from ..errors import CorruptCheckpoint, CorruptRecord
from ..lineage import Limits, is_on, lineage
from ..wal.reader import SegmentReader
from .facts import Facts, open_for_reading
from .history import History, Link, build_history


@dataclass(frozen=True, slots=True)
class Stretch:
    """Entries that are chained without a hole: the records of steps `after` + 1 to `last`, and the boundaries among them.

    `landings` has the number of boundaries by step. That of the run's beginning is among them where nothing was pruned.
    """

    after: int
    last: int
    landings: dict[int, int]


@dataclass(frozen=True, slots=True)
class Anchor:
    """A checkpoint.

    Attributes:
        step: of the checkpoint.
        name: of its folder.
        nth: which of the boundaries at that step it was taken at, from 1; 0 if the log does not have them any more.
        stretch: the stretch that goes on after it; -1 if nothing does.
    """

    step: int
    name: str
    nth: int
    stretch: int


@dataclass(frozen=True, slots=True)
class Holding:
    """See the module.

    Attributes:
        rank: of the process.
        folder: of its journal.
        run_id: of its journal.
        world: processes that trained together, as its newest checkpoint says; 0 if the journal holds nothing.
        is_shared: whether parameters and optimizer state were the same on all ranks, and records may be shares.
        timeline: the newest one.
        stretches: of its log.
        anchors: its checkpoints.
    """

    rank: int
    folder: str
    run_id: str
    world: int = 0
    is_shared: bool = False
    timeline: int = 1
    stretches: tuple[Stretch, ...] = ()
    anchors: tuple[Anchor, ...] = ()

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to recover from: a fresh run, or a journal that was lost."""
        return not self.anchors and not self.stretches

    @property
    def has_stepped(self) -> bool:
        """Whether any step was taken."""
        return any(anchor.step for anchor in self.anchors) or any(stretch.last for stretch in self.stretches)

    def landings(self) -> set[int]:
        """Steps on which it can land."""
        return {step for stretch in self.stretches for step in stretch.landings} | {anchor.step for anchor in self.anchors}

    def count(self, step: int) -> int | None:
        """How many boundaries it has at a step; None where only a checkpoint tells of it."""
        return max((stretch.landings[step] for stretch in self.stretches if step in stretch.landings), default=None)

    def packed(self) -> dict[str, Any]:
        """Plain values, to be sent."""
        found = asdict(self)
        for stretch in found["stretches"]:
            stretch["landings"] = list(stretch["landings"].items())
        return found

    @classmethod
    def unpacked(cls, packed: dict[str, Any]) -> Holding:
        """The inverse of `packed`."""
        stretches = tuple(Stretch(s["after"], s["last"], dict(s["landings"])) for s in packed["stretches"])
        anchors = tuple(Anchor(**anchor) for anchor in packed["anchors"])
        return cls(**{**packed, "stretches": stretches, "anchors": anchors})


@dataclass(slots=True)
class LocalLog:
    """A journal's facts and its chained entries."""

    facts: Facts
    limits: Limits
    history: History
    checkpoints: list[CheckpointRow] = field(default_factory=list)  # of the newest timeline's lineage

    @classmethod
    def read(cls, folder: Path) -> LocalLog:
        """Read a journal, as for a recovery."""
        facts = open_for_reading(folder)
        limits = lineage(facts.timelines, facts.timeline)
        rows = [row for row in facts.checkpoints if is_on(row, limits)]
        return cls(facts, limits, build_history(facts.segments, limits), rows)

    def holding(self, rank: int, folder: Path, run_id: str) -> Holding:
        """What others need to know of it."""
        if not self.checkpoints and not self.history.runs:
            return Holding(rank, str(folder.resolve()), run_id)
        environment = _environment(folder, [row.name for row in self.checkpoints]) or self.environment()
        runs = self.history.runs
        stretches = tuple(_stretch(run) for run in runs)
        anchors = tuple(Anchor(row.step, row.name, _nth(runs, row), self._follows(row)) for row in self.checkpoints)
        return Holding(rank, str(folder.resolve()), run_id, world_of(environment), is_shared(environment), self.facts.timeline,
                       stretches, anchors)  # fmt: skip

    def environment(self) -> dict[str, Any]:
        """What the segments say of it; empty if there are none."""
        for segment in reversed(self.facts.segments):
            for location in segment.locations:
                if location.head.kind == EntryKind.SEGMENT:
                    with contextlib.suppress(CorruptRecord, OSError), SegmentReader(segment.path) as reader:
                        return dict(reader.decode(location).body()["environment"])
        return {}

    def _follows(self, row: CheckpointRow) -> int:
        links = self.history.after(row.sequence, int(row.chain, 16))
        return next((i for i, run in enumerate(self.history.runs) if links and run[-1] is links[-1]), -1)


def boundaries(run: Collection[Link]) -> Iterator[tuple[int, Link]]:
    """Places and links of the boundaries in a run of entries."""
    return ((i, link) for i, link in enumerate(run) if link.kind == EntryKind.BOUNDARY)


def _stretch(run: list[Link]) -> Stretch:
    steps = [link.step for link in run if link.kind == EntryKind.STEP]
    landings: dict[int, int] = {0: 0} if run[0].sequence == 1 else {}
    for _, link in boundaries(run):
        landings[link.step] = landings.get(link.step, 0) + 1
    after = steps[0] - 1 if steps else run[0].step
    return Stretch(after, steps[-1] if steps else after, landings)


def _nth(runs: list[list[Link]], row: CheckpointRow) -> int:
    """Which of the boundaries at its step a checkpoint was taken at."""
    for run in runs:
        if any(link.sequence == row.sequence for _, link in boundaries(run)):
            return sum(link.step == row.step and link.sequence <= row.sequence for _, link in boundaries(run))
    return 0


def recorded_environment(folder: Path) -> dict[str, Any]:
    """What the newest checkpoint that can be opened says of the environment, or else the log; empty if there is nothing."""
    names = sorted(path.name for path in (folder / "checkpoints").glob("step-*"))
    return _environment(folder, names) or LocalLog.read(folder).environment()


def world_of(environment: dict[str, Any]) -> int:
    """How many processes trained together."""
    return int(environment.get("world", 1))


def is_shared(environment: dict[str, Any]) -> bool:
    """Whether weights and optimizer state were the same on all of them, and records may be shares."""
    return bool(environment.get("ddp", {}).get("is_divided"))


def _environment(folder: Path, names: list[str]) -> dict[str, Any]:
    for name in reversed(names):
        with contextlib.suppress(CorruptCheckpoint), Checkpoint(folder / "checkpoints" / name) as checkpoint:
            return dict(checkpoint.manifest["environment"])
    return {}
