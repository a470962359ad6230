"""Where a shadow checkpoint can be made, and writing it: a checkpoint that follows from one before it and the log between.

The place is the last boundary of the last sealed segment: what is there is never written again, and a trainer that writes on
is not looked at.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ..base.clock import Clock
from ..base.errors import CorruptCheckpoint, CorruptRecord, RecoveryError
from ..catalog import CheckpointRow
from ..catalog.lineage import lineage
from ..checkpoints import Checkpoint, Snapshot, SnapshotPool, checkpoint_name, write_folder
from ..checkpoints.derived import DerivedCheckpoint, derived_folder
from ..log.reader import SegmentReader
from ..log.record import EntryKind, Position
from .facts import Facts, open_for_reading
from .history import Link, ScannedSegment, build_history
from .plan import Plan, plan_recovery

_SAYS = ("run_id", "rank", "framework", "environment", "parent", "fork_sequence", "fork_step")  # of the run, by both
_ROUNDS_NOTHING = ("tranlogs", "python", "past")  # entries of the environment


@dataclass(frozen=True, slots=True)
class ShadowTarget:
    """Where a shadow checkpoint goes.

    Attributes:
        position: of the boundary.
        segment: that holds it, sealed.
        about: what the manifest says of the run.
        steps: to be redone.
    """

    position: Position
    segment: ScannedSegment
    about: dict[str, Any]
    steps: int


def plan_shadow(folder: Path, checkpoint: str | None = None) -> ShadowTarget | None:
    """The newest place of a journal; None where no sealed log lies behind the checkpoint.

    Args:
        folder: the journal's.
        checkpoint: name of the one to start from; None for the newest.

    Raises:
        RecoveryError: one cannot be made there that is known to be the same as the trainer's own.
    """
    facts = open_for_reading(folder)
    rows = [row for row in facts.checkpoints if checkpoint in (None, row.name)]
    if not rows:
        return None
    plan, environment = _planned(folder, facts, rows)
    links = _sealed_part(plan.links)
    if not links:
        return None
    last = links[-1]
    described = _described(last.segment)
    _demand_one_environment(environment, plan.checkpoint.step, links)
    head = last.location.head
    # Of a lineage of several timelines the checkpoint belongs to that of its segment, as the trainer's own would.
    position = Position(head.sequence, head.step, head.digest, int(described["timeline"]))
    steps = sum(link.kind == EntryKind.STEP for link in links)
    return ShadowTarget(position, last.segment, {key: described[key] for key in _SAYS}, steps)


def write_shadow(folder: Path, target: ShadowTarget, snapshot: Snapshot, clock: Clock) -> DerivedCheckpoint:
    """Write the shadow's folder.

    Args:
        folder: the journal's.
        target: where it goes.
        snapshot: encoded; the state at the target.
        clock: for the time of its making.

    Raises:
        OSError: the disk is full or fails; nothing is left.
    """
    start, position = clock.monotonic(), target.position
    name = checkpoint_name(position.step, position.timeline, position.sequence)
    about = {
        **target.about, "step": position.step, "sequence": position.sequence, "chain": f"{position.chain:016x}",
        "timeline": position.timeline, "created_at": clock.now(),
    }  # fmt: skip
    SnapshotPool().hold(snapshot)
    place = derived_folder(folder / "checkpoints", name)
    write_folder(place, snapshot, about)
    with Checkpoint(place) as made:
        row = made.row(name)
    segment = target.segment.row
    row = replace(row, seconds=clock.monotonic() - start)
    return DerivedCheckpoint(row, segment.ordinal, segment.segment_id, target.about["run_id"])


def _planned(folder: Path, facts: Facts, rows: Sequence[CheckpointRow]) -> tuple[Plan, dict[str, Any]]:
    """The plan of a recovery, and the environment of the checkpoint that it starts from; damaged ones are passed over."""
    limits = lineage(facts.timelines, facts.timeline)
    history, broken = build_history(facts.segments, limits), set[str]()
    while True:
        plan = plan_recovery(rows, history, limits, timeline=facts.timeline, broken=broken)
        try:
            with Checkpoint(folder / "checkpoints" / plan.checkpoint.name) as checkpoint:
                return plan, checkpoint.manifest["environment"]
        except CorruptCheckpoint:
            broken.add(plan.checkpoint.name)


def _sealed_part(links: Sequence[Link]) -> list[Link]:
    """Up to the last boundary that lies in a sealed segment."""
    ends = [i for i, link in enumerate(links) if link.kind == EntryKind.BOUNDARY and link.segment.row.state == "sealed"]
    return list(links[: ends[-1] + 1]) if ends else []


def _described(segment: ScannedSegment) -> dict[str, Any]:
    """What a segment says of the run."""
    try:
        first = next(location for location in segment.locations if location.head.kind == EntryKind.SEGMENT)
        with SegmentReader(segment.path) as reader:
            body = reader.decode(first).body()
        return {"timeline": body["timeline"], **{key: body[key] for key in _SAYS}}
    except (CorruptRecord, OSError, StopIteration, KeyError, TypeError) as error:
        raise RecoveryError(f"{segment.path}: its first entry, which describes the run, cannot be read ({error})") from None


def _demand_one_environment(recorded: dict[str, Any], step: int, links: Sequence[Link]) -> None:
    """All that is redone was computed in one environment, as far as rounding goes: another one's kernels are not at hand."""
    known = _comparable(recorded)
    for segment in {link.segment.row.ordinal: link.segment for link in links}.values():
        now = _comparable(_described(segment)["environment"])
        if now != known:
            what = sorted(key for key in now.keys() | known.keys() if now.get(key) != known.get(key))
            raise RecoveryError(f"the run went on in another environment after its checkpoint of step {step} "
                                f"({', '.join(what)}): a checkpoint of the trainer's own is needed")  # fmt: skip


def _comparable(environment: dict[str, Any]) -> dict[str, Any]:
    plain: dict[str, Any] = json.loads(json.dumps(environment))
    return {key: value for key, value in plain.items() if key not in _ROUNDS_NOTHING}
