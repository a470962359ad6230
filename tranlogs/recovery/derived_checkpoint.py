"""Derived checkpoints: where one can be made from an earlier checkpoint and the log after it, and writing it.

The place is the last boundary of the last sealed segment. A sealed segment is never written again, so a trainer that
continues to write is not disturbed.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ..base.clock import Clock
from ..base.errors import CorruptCheckpoint, CorruptRecord, RecoveryError
from ..catalog import CheckpointRow
from ..catalog.lineage import trace_lineage
from ..checkpoints import Checkpoint, Snapshot, checkpoint_name, write_folder
from ..checkpoints.derived import DerivedCheckpoint, derived_folder
from ..log.reader import SegmentReader
from ..log.record_format import EntryKind, Position
from .history import Link, ScannedSegment, build_history
from .journal_facts import Facts, read_facts
from .recovery_plan import RecoveryPlan, plan_recovery

# Entries of a segment's description that a checkpoint's manifest repeats.
_MANIFEST_KEYS = ("run_id", "rank", "framework", "environment", "parent", "fork_sequence", "fork_step")
_IRRELEVANT_TO_ROUNDING = ("tranlogs", "python", "past")  # entries of the environment


@dataclass(frozen=True, slots=True)
class DerivedTarget:
    """Place at which a derived checkpoint can be made.

    Attributes:
        position: the position of its boundary.
        segment: the sealed segment that holds the boundary.
        about: the description of the run in the checkpoint's manifest.
        steps: the number of steps to redo.
    """

    position: Position
    segment: ScannedSegment
    about: dict[str, Any]
    steps: int


def plan_derived_checkpoint(folder: Path, checkpoint: str | None = None) -> DerivedTarget | None:
    """Return the newest place for a derived checkpoint; None if no sealed log follows the checkpoint to start from.

    Args:
        folder: the folder of the journal.
        checkpoint: the name of the checkpoint to start from; None for the newest one.

    Raises:
        RecoveryError: the derived checkpoint is not known to equal one that the trainer would write itself.
    """
    facts = read_facts(folder)
    rows = [row for row in facts.checkpoints if checkpoint in (None, row.name)]
    if not rows:
        return None
    plan, environment = _plan_replay(folder, facts, rows)
    links = _cut_after_sealed(plan.links)
    if not links:
        return None
    last = links[-1]
    described = _read_description(last.segment)
    _require_same_environment(environment, plan.checkpoint.step, links)
    head = last.location.head
    # On a lineage of several timelines, the checkpoint belongs to that of its segment, like one that the trainer writes.
    position = Position(head.sequence, head.step, head.digest, int(described["timeline"]))
    steps = sum(link.kind == EntryKind.STEP for link in links)
    return DerivedTarget(position, last.segment, {key: described[key] for key in _MANIFEST_KEYS}, steps)


def write_derived_checkpoint(folder: Path, target: DerivedTarget, snapshot: Snapshot, clock: Clock) -> DerivedCheckpoint:
    """Write the folder of a derived checkpoint.

    Args:
        folder: the folder of the journal.
        target: where the checkpoint belongs.
        snapshot: the encoded state at the target.
        clock: gives the time at which the checkpoint was made.

    Raises:
        OSError: the disk is full or fails. Nothing is left on it.
    """
    start, position = clock.monotonic(), target.position
    name = checkpoint_name(position.step, position.timeline, position.sequence)
    place = derived_folder(folder / "checkpoints", name)
    write_snapshot(place, snapshot, position, target.about, clock)
    with Checkpoint(place) as made:
        row = made.row(name)
    segment = target.segment.row
    row = replace(row, seconds=clock.monotonic() - start)
    return DerivedCheckpoint(row, segment.ordinal, segment.segment_id, target.about["run_id"])


def write_snapshot(
    folder: Path, snapshot: Snapshot, position: Position, about: Mapping[str, Any], clock: Clock, *, is_synced: bool = True
) -> None:
    """Write the folder of a checkpoint that belongs at a position. Nothing may change the state meanwhile.

    Args:
        folder: to be written.
        snapshot: the encoded state.
        position: of the boundary to which the state belongs.
        about: the description of the run in the manifest of an earlier checkpoint, or in a segment.
        clock: gives the time at which the checkpoint was made.
        is_synced: False if the checkpoint is of no use after a crash.

    Raises:
        OSError: the disk is full or fails. Nothing is left on it.
    """
    snapshot.order()
    described = {
        **{key: about[key] for key in _MANIFEST_KEYS if key in about},
        "step": position.step,
        "sequence": position.sequence,
        "chain": f"{position.chain:016x}",
        "timeline": position.timeline,
        "created_at": clock.now(),
    }
    write_folder(folder, snapshot, described, is_synced=is_synced)


def _plan_replay(folder: Path, facts: Facts, rows: Sequence[CheckpointRow]) -> tuple[RecoveryPlan, dict[str, Any]]:
    """Return the plan of a recovery from a sound checkpoint, and the environment that the checkpoint records."""
    limits = trace_lineage(facts.timelines, facts.timeline)
    history, broken = build_history(facts.segments, limits), set[str]()
    while True:
        plan = plan_recovery(rows, history, limits, timeline=facts.timeline, broken=broken)
        try:
            with Checkpoint(folder / "checkpoints" / plan.checkpoint.name) as checkpoint:
                return plan, checkpoint.manifest["environment"]
        except CorruptCheckpoint:
            broken.add(plan.checkpoint.name)


def _cut_after_sealed(links: Sequence[Link]) -> list[Link]:
    """Return the links up to the last boundary that lies in a sealed segment."""
    ends = [i for i, link in enumerate(links) if link.kind == EntryKind.BOUNDARY and link.segment.row.state == "sealed"]
    return list(links[: ends[-1] + 1]) if ends else []


def _read_description(segment: ScannedSegment) -> dict[str, Any]:
    """Return the description of the run in the first entry of a segment."""
    try:
        first = next(location for location in segment.locations if location.head.kind == EntryKind.SEGMENT)
        with SegmentReader(segment.path) as reader:
            body = reader.decode(first).body()
        return {"timeline": body["timeline"], **{key: body[key] for key in _MANIFEST_KEYS}}
    except (CorruptRecord, OSError, StopIteration, KeyError, TypeError) as error:
        raise RecoveryError(f"{segment.path}: its first entry, which describes the run, cannot be read ({error})") from None


def _require_same_environment(recorded: dict[str, Any], step: int, links: Sequence[Link]) -> None:
    """Check that all entries were computed in the checkpoint's environment, as far as rounding depends on it.

    Raises:
        RecoveryError: an entry was computed in another environment, whose kernels are not available in this process.
    """
    known = _select_comparable(recorded)
    for segment in {link.segment.row.ordinal: link.segment for link in links}.values():
        now = _select_comparable(_read_description(segment)["environment"])
        if now != known:
            what = sorted(key for key in now.keys() | known.keys() if now.get(key) != known.get(key))
            raise RecoveryError(
                f"the run continued in another environment after its checkpoint of step {step} ({', '.join(what)} differ): "
                "only the trainer itself can write the next checkpoint"
            )


def _select_comparable(environment: dict[str, Any]) -> dict[str, Any]:
    """Return the entries of an environment on which rounding may depend."""
    plain: dict[str, Any] = json.loads(json.dumps(environment))
    return {key: value for key, value in plain.items() if key not in _IRRELEVANT_TO_ROUNDING}
