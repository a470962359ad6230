"""What one journal holds of a run that several processes train together: plain facts, with which all of them can plan.

A rank can land on its own boundaries only. What it has redone up to there may come from its own checkpoint or, where the
state is the same on all ranks, from another rank's.

What one number of processes trained is an *era*. It is named by the timeline with which it began (`since`), and a journal may
hold parts of several: a run of four that goes on with two begins an era, and so does one of two that goes on with four.
"""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from ...base.errors import CorruptCheckpoint, CorruptRecord
from ...catalog import CheckpointRow
from ...catalog.lineage import Limits, is_on, lineage
from ...checkpoints import Checkpoint
from ...log.reader import SegmentReader
from ...log.record import EntryKind
from ..facts import Facts, open_for_reading
from ..history import History, Link, build_history
from .timeline_ids import UNKNOWN, Past, past_of


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
        since: the timeline with which the era began.
        copies: of each share: 2 if the journal has the next rank's shares, too, and what is that one's own.
        keeper: the process that sends it to those that cannot read it; -1 for that of its own rank.
        is_sharded: whether parameters were sharded, so that each rank has parts that no other has.
        is_torn: whether the journal's newest timeline was begun and holds nothing.
        past: the ids of the timelines that lead to its end (past.py).
        left: the step at which the rank had no data left, and behind which it has taken none; -1 where it did not say so.
        is_whole: whether its records are no shares, as far as the newest tells, though its ranks share parameters.
        equal: the step at which all ranks that each log everything were last seen to have the same parameters; -1 for never.
    """

    rank: int
    folder: str
    run_id: str
    world: int = 0
    is_shared: bool = False
    timeline: int = 1
    stretches: tuple[Stretch, ...] = ()
    anchors: tuple[Anchor, ...] = ()
    since: int = 1
    copies: int = 1
    keeper: int = -1
    is_sharded: bool = False
    is_torn: bool = False
    past: Past = UNKNOWN
    left: int = -1
    is_whole: bool = False
    equal: int = -1

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
        past = tuple((name, step) for name, step in packed["past"])
        return cls(**{**packed, "stretches": stretches, "anchors": anchors, "past": past})


@dataclass(slots=True)
class LocalLog:
    """What a journal holds of one era: its facts and its chained entries."""

    facts: Facts
    limits: Limits
    history: History
    checkpoints: list[CheckpointRow] = field(default_factory=list)  # of the newest timeline's lineage
    recorded: dict[str, Any] = field(default_factory=dict)  # the environment
    former: Limits = field(default_factory=dict)  # what it goes back to of eras before

    @classmethod
    def read(cls, folder: Path, since: int, ignored: Collection[int] = ()) -> LocalLog:
        """What a journal holds of an era; nothing if it has no part in it."""
        found = read_eras(folder, ignored)
        there = (log for log in found if log.since == since and not log.is_empty)
        return next(there, cls(replace(found[0].facts, segments=[]), {}, History()))

    @classmethod
    def of(cls, facts: Facts, folder: Path, limits: Limits | None = None) -> LocalLog:
        """What facts about a journal say of its newest era; `limits` of its lineage, if a later one has set them."""
        log = cls(facts, limits or lineage(facts.timelines, facts.timeline), History())
        log._fill()
        log.recorded = _environment(folder, [row.name for row in log.checkpoints]) or log._said_by_segments()
        if log.since > 1:
            log.former = {number: limit for number, limit in log.limits.items() if number < log.since}
            log.limits = {number: limit for number, limit in log.limits.items() if number >= log.since}
            log._fill()
        return log

    def _fill(self) -> None:
        self.history = build_history(self.facts.segments, self.limits)
        self.checkpoints = [row for row in self.facts.checkpoints if is_on(row, self.limits)]

    @property
    def since(self) -> int:
        """The timeline with which the era began."""
        return since_of(self.recorded)

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to recover from."""
        return not self.checkpoints and not self.history.runs

    def holding(self, rank: int, folder: Path, run_id: str) -> Holding:
        """What others need to know of it."""
        if self.is_empty:
            return Holding(rank, str(folder.resolve()), run_id, timeline=self.facts.timeline)
        runs = self.history.runs
        stretches = tuple(_stretch(run) for run in runs)
        anchors = tuple(Anchor(row.step, row.name, _nth(runs, row), self._follows(row)) for row in self.checkpoints)
        world = world_of(self.recorded)
        said = self._said_at_end() if world > 1 else {}
        shared = world == 1 or is_shared(self.recorded)
        is_whole = shared and bool(said.get("ddp", {}).get("is_divided")) and self._ends_whole()
        return Holding(rank, str(folder.resolve()), run_id, world, shared, self.facts.timeline, stretches, anchors,
                       since=self.since, copies=copies_of(self.recorded), is_sharded=is_sharded(self.recorded),
                       past=self._past(), left=self._left(said), is_whole=is_whole,
                       equal=int(said.get("equal", -1)))  # fmt: skip

    def _said_at_end(self) -> dict[str, Any]:
        """The body of the newest boundary; empty if it cannot be read."""
        last = self._newest(EntryKind.BOUNDARY)
        return {} if last is None else _body_of(last)

    def _left(self, said: Mapping[str, Any]) -> int:
        """The step at which the rank ran out of data while others went on, if that is its end; else -1."""
        last = self._newest(EntryKind.BOUNDARY)
        return last.step if last is not None and last is self.history.runs[-1][-1] and "left" in said else -1

    def _ends_whole(self) -> bool:
        """Whether its newest record holds all that the step needs."""
        last = self._newest(EntryKind.STEP)
        said = {} if last is None else _body_of(last)
        return bool(said) and "share" not in said

    def _newest(self, kind: EntryKind) -> Link | None:
        """The last entry of a kind, if there is one in what is chained to the end."""
        run = self.history.runs[-1] if self.history.runs else []
        return next((link for link in reversed(run) if link.kind == kind), None)

    def _past(self) -> Past:
        """What the newest timeline with an entry says, which may be newer than the newest checkpoint."""
        newest = max((row.timeline for row in self.checkpoints), default=0)
        return past_of(self._said_by_segments(newest) or self.recorded)

    def _said_by_segments(self, behind: int = 0) -> dict[str, Any]:
        """The environment that the newest segment with an entry tells, of a timeline behind one; empty if there is none."""
        for segment in sorted(self.facts.segments, key=lambda segment: -segment.row.ordinal):
            if segment.row.timeline <= behind:
                continue
            heads = [location for location in segment.locations if location.head.kind == EntryKind.SEGMENT]
            if segment.row.timeline not in self.limits or len(segment.locations) == len(heads):
                continue
            for location in heads:
                with contextlib.suppress(CorruptRecord, OSError), SegmentReader(segment.path) as reader:
                    return dict(reader.decode(location).body()["environment"])
        return {}

    def _follows(self, row: CheckpointRow) -> int:
        links = self.history.after(row.sequence, int(row.chain, 16))
        return next((i for i, run in enumerate(self.history.runs) if links and run[-1] is links[-1]), -1)


def _body_of(link: Link) -> dict[str, Any]:
    """What an entry says; empty if it cannot be read."""
    earlier = [location for location in link.segment.locations if location.head.sequence < link.sequence]
    with contextlib.suppress(CorruptRecord, OSError), SegmentReader(link.segment.path, earlier) as reader:
        return dict(reader.decode(link.location).body())
    return {}


def timelines_in(folder: Path) -> dict[str, list[int]]:
    """The timelines of which a journal holds an entry or a checkpoint, and those that it has only begun."""
    facts = open_for_reading(folder)
    used = {row.timeline for row in facts.checkpoints}
    used |= {segment.row.timeline for segment in facts.segments
             if any(location.head.kind != EntryKind.SEGMENT for location in segment.locations)}  # fmt: skip
    return {"used": sorted(used), "empty": [row.number for row in facts.timelines if row.number not in used]}


def unused(told: Iterable[Mapping[str, Sequence[int]]]) -> frozenset[int]:
    """The timelines behind all others of which no journal holds anything: they were begun, and never were."""
    everywhere = list(told)
    last = max((number for one in everywhere for number in one["used"]), default=1)
    return frozenset(number for one in everywhere for number in one["empty"] if number > last)


def read_eras(folder: Path, ignored: Collection[int] = ()) -> list[LocalLog]:
    """What a journal holds, by era, the newest first; some may be empty. The first one's facts are those of all.

    Args:
        folder: of the journal.
        ignored: timelines that do not count.
    """
    facts = open_for_reading(folder)
    facts = replace(facts, timelines=[row for row in facts.timelines if row.number not in ignored])
    found = [LocalLog.of(facts, folder)]
    while True:
        newest = found[-1]
        before = min(newest.limits) if newest.is_empty else newest.since
        older = [row for row in facts.timelines if row.number in newest.former or (not newest.former and row.number < before)]
        if not older:
            break
        numbers = {row.number for row in older}
        segments = [segment for segment in facts.segments if segment.row.timeline in numbers]
        facts = replace(facts, timelines=older, segments=segments)
        found.append(LocalLog.of(facts, folder, newest.former))
    return found


def holdings_of(logs: Sequence[LocalLog], rank: int, folder: Path, run_id: str,
                ignored: Collection[int] = ()) -> list[Holding]:  # fmt: skip
    """What a journal holds, by era, the newest first; at least one, which may be empty."""
    there = [log for log in logs if not log.is_empty] or logs[:1]
    newest = max([logs[0].facts.timeline, *ignored])
    is_torn = bool(ignored) or (logs[0].is_empty and there[0] is not logs[0])
    return [replace(log.holding(rank, folder, run_id), timeline=newest, is_torn=is_torn) for log in there]


def journals_beside(folder: Path) -> list[tuple[int, Path]]:
    """The journals of a run, by rank; `folder` is that of one of them."""
    found = ((path.name[4:], path) for path in folder.resolve().parent.glob("rank*"))
    return sorted((int(number), path) for number, path in found if number.isdigit() and (path / "log").is_dir())


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
    names = sorted((path.name for path in (folder / "checkpoints").glob("step-*")), key=_by_timeline)
    return _environment(folder, names) or next((log.recorded for log in read_eras(folder) if log.recorded), {})


def _by_timeline(name: str) -> tuple[str, str]:
    """An era that went back has smaller steps than the one before it."""
    step, _, rest = name.removeprefix("step-").partition("-")
    return rest.partition("-")[0], step


def world_of(environment: dict[str, Any]) -> int:
    """How many processes trained together."""
    return int(environment.get("world", 1))


def since_of(environment: dict[str, Any]) -> int:
    """With which timeline so many processes began to train it."""
    return int(environment.get("since", 1))


def is_shared(environment: dict[str, Any]) -> bool:
    """Whether weights and optimizer state were the same on all of them, and records may be shares."""
    return bool(environment.get("ddp", {}).get("is_divided"))


def copies_of(environment: dict[str, Any]) -> int:
    """In how many journals each share lies."""
    return int(environment.get("ddp", {}).get("copies", 1))


def is_of_group(environment: dict[str, Any]) -> bool:
    """Whether several processes trained it with the same weights, now or in an era before."""
    return is_shared(environment) or since_of(environment) > 1


def is_sharded(environment: dict[str, Any]) -> bool:
    """Whether parameters were sharded over them, so that each has a part."""
    return bool(environment.get("sharding"))


def _environment(folder: Path, names: list[str]) -> dict[str, Any]:
    for name in reversed(names):
        with contextlib.suppress(CorruptCheckpoint), Checkpoint(folder / "checkpoints" / name) as checkpoint:
            return dict(checkpoint.manifest["environment"])
    return {}
