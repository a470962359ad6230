"""Survey of a journal: its contents, and the step to which a crash now would go back. The journal's writer is not disturbed.

Only the files that have to be opened are checked; `tranlogs verify` reads every byte. A journal that is being written can look
damaged for a moment, so it is read again before a problem is reported.
"""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from itertools import groupby
from pathlib import Path
from typing import Any

from rich.text import Text

from ...base.config import RECORDS_CHECKED_MAX
from ...base.errors import CorruptCheckpoint, RecoveryError
from ...base.quantities import count, format_bytes, format_seconds
from ...catalog import Watermarks
from ...catalog.rows import is_on_lineage
from ...checkpoints import Checkpoint
from ...journal import Owner, read_owner
from ...journal.paths import is_in_memory
from ...log.record_format import HEAD, unpack_head
from ...recovery.group.journals import get_world, is_of_group, read_environment
from ...recovery.history import ScannedSegment
from ...recovery.journal_facts import Facts, JournalRows, read_log, read_rows
from ...recovery.recovery_plan import RecoveryPlan, has_later_boundary, plan_recovery
from ...retention.advice import Advice, advise
from ...retention.lost_work import LostWork, estimate_lost_work, has_store
from ...retention.value_decay import EvaluationRow, read_newest_first, read_values
from .find_journals import read_consistently

_HEIGHTS = "\u2581\u2582\u2583\u2584\u2585\u2586\u2587\u2588"
_BAR = 24  # characters
_SEGMENTS_MAX = 48
_SEGMENTS_LOOKED_AT_MAX = 1000  # of which length and first head are looked at; more takes noticeable time


@dataclass(slots=True, kw_only=True)
class Survey(JournalRows):
    """Survey of one journal: its rows, of the checkpoints those of published ones, and what follows from them.

    The watermark `committed` is the step that recovery would reach now.

    Attributes:
        folder: the journal's folder.
        at: the time of the survey, in seconds since 1970.
        owner: the process that writes the journal, or the last one; None if there was none.
        monitor: the monitor that watches the journal, or the last one; None if there was none.
        plan: the plan of a recovery now; None if the run is still empty, or nothing in it is intact.
        evaluations: the monitor's evaluations, oldest first, back to the one at which the lowest watermark was committed.
        environment: environment of the newest intact checkpoint.
        problems: what is wrong, one sentence each.
    """

    folder: Path
    at: float
    owner: Owner | None
    monitor: Owner | None
    plan: RecoveryPlan | None = None
    evaluations: list[EvaluationRow] = field(default_factory=list)
    environment: dict[str, Any] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)

    @property
    def log_bytes(self) -> int:
        """The size of the log."""
        return sum(row.used_bytes for row in self.segments if row.state in ("open", "sealed"))

    @property
    def checkpoint_bytes(self) -> int:
        """The size of the checkpoints."""
        return sum(row.nbytes for row in self.checkpoints)

    def count_bytes(self) -> dict[str, int]:
        """Return bytes on disk by purpose."""
        return {
            "log": self.log_bytes,
            "files": sum(row.size for row in self.segments),
            "checkpoints": self.checkpoint_bytes,
            "in_all": _count_disk_bytes(self.folder),
        }

    def advise(self) -> Advice | None:
        """Return what the run pays for its log and its checkpoints, and would pay; None if it has measured nothing."""
        if self.measured is None:
            return None
        nbytes = max((row.nbytes for row in self.checkpoints), default=0)
        return advise(self.measured, nbytes, self.watermarks.at, world=get_world(self.environment))

    @property
    def in_memory(self) -> bool:
        """True if the run lies on a tmpfs."""
        return is_in_memory(self.folder)

    def lost_work(self) -> tuple[LostWork, LostWork, LostWork]:
        """Return what would be lost now if the process, the machine or the site died."""
        history = [(row.at, row.committed) for row in self.evaluations] + [(self.at, self.watermarks.committed)]
        checkpoint_step = self.plan.checkpoint.step if self.plan is not None else 0
        return estimate_lost_work(
            self.watermarks,
            checkpoint_step=checkpoint_step,
            redo_step=self.plan.position.step if self.plan is not None and self.plan.recomputed else None,
            history=history,
            incidents=self.incidents,
            store=self.store,
            in_memory=self.in_memory,
        )

    def as_dict(self) -> dict[str, Any]:
        """Return the survey for JSON output."""
        recovery = None
        if self.plan is not None:
            recovery = {
                "step": self.plan.position.step,
                "checkpoint": self.plan.checkpoint.name,
                "replay_steps": self.plan.position.step - self.plan.checkpoint.step,
                "computed_again": self.plan.end.step - self.plan.position.step,
            }
        return {
            "folder": self.folder,
            "rank": self.run.rank,
            "run_id": self.run.run_id,
            "framework": self.run.framework,
            "created_at": self.run.created_at,
            "timeline": self.timeline,
            "writer": self.owner,
            "watermarks": self.watermarks,
            "recovery": recovery,
            "bytes": self.count_bytes(),
            "checkpoints": self.checkpoints,
            "segments": self.segments,
            "timelines": self.timelines,
            "incidents": self.incidents,
            "environment": self.environment,
            "problems": self.problems,
            "monitor": self.monitor,
            "store": self.store,
            "lost_now": {one.scope: {**asdict(one), "words": one.describe()} for one in self.lost_work()},
            "advice": self.advise(),
            "evaluation": _pack_evaluation(self.evaluations[-1]) if self.evaluations else None,
        }


def _count_disk_bytes(folder: Path) -> int:
    """Return the bytes that all files in a folder occupy on disk: the catalog, too."""
    found = 0
    for path in folder.rglob("*"):
        with suppress(OSError):  # a file that is being deleted
            found += path.lstat().st_blocks * 512
    return found


def _pack_evaluation(row: EvaluationRow) -> dict[str, Any]:
    protected = set(row.protected)
    return {
        "at": row.at,
        "bytes": row.log_bytes + row.checkpoint_bytes,
        "budget_bytes": row.budget_bytes,
        "segments": [
            {"ordinal": ordinal, "value": value, "protected": ordinal in protected}
            for ordinal, value in read_values(row).as_dict().items()
        ],
    }


def survey(folder: Path) -> Survey:
    """Read a journal.

    Raises:
        UnknownFormat: a newer version wrote it.
    """
    return read_consistently(folder, lambda: _survey_journal(folder), lambda found: found.problems)


def _survey_journal(folder: Path) -> Survey:
    rows = read_rows(folder)
    found = Survey(
        rows.run,
        rows.segments,
        rows.published,
        rows.timelines,
        rows.watermarks,
        rows.incidents,
        rows.store,
        measured=rows.measured,
        folder=folder,
        at=time.time(),
        owner=read_owner(folder),
        monitor=read_owner(folder, "monitor"),
    )
    if rows.damage is None:
        found.evaluations = _read_evaluations(folder, rows.watermarks)
    else:
        found.problems += rows.describe_files(folder)
    found.problems += _find_missing_files(found) + _find_damaged_segments(found)
    for incident in found.incidents:
        if incident.to_step is None:
            found.problems.append(f"logging is suspended since step {incident.from_step}: {incident.why}")
    broken, limits = _read_environment(found), rows.limits
    # Segments before the newest intact checkpoint do not affect the step that recovery reaches.
    start = max((row.sequence for row in found.checkpoints if is_on_lineage(row, limits) and row.name not in broken), default=0)
    chosen = {row.ordinal for row in rows.segments if row.state != "sealed" or row.last_sequence > start}
    facts = read_log(folder, rows, chosen, RECORDS_CHECKED_MAX)
    found.problems += facts.notes
    _complete_open_rows(found, facts.segments)
    if not facts.is_empty:
        _set_plan(found, facts, broken)
    return found


def _read_evaluations(folder: Path, marks: Watermarks) -> list[EvaluationRow]:
    lowest = (marks.persisted or marks.archived) if has_store(marks) else marks.synced
    found: list[EvaluationRow] = []
    for row in read_newest_first(folder):
        found.append(row)
        if row.committed <= lowest:
            break
    return found[::-1]


def _find_missing_files(found: Survey) -> list[str]:
    log, checkpoints = found.folder / "log", found.folder / "checkpoints"
    missing = [log / row.file for row in found.segments if row.state in ("open", "sealed") and not (log / row.file).exists()]
    missing += [checkpoints / row.name for row in found.checkpoints if not (checkpoints / row.name).exists()]
    return [f"{path}: the catalog lists it, but it is missing" for path in missing]


def _find_damaged_segments(found: Survey) -> list[str]:
    """Look at the length and the first head of each of the newest segments; `tranlogs verify` reads their bytes."""
    problems = []
    for row in [row for row in found.segments if row.state in ("open", "sealed")][-_SEGMENTS_LOOKED_AT_MAX:]:
        path = found.folder / "log" / row.file
        try:
            with open(path, "rb") as file:
                size, head = os.fstat(file.fileno()).st_size, unpack_head(file.read(HEAD.size))
        except OSError:  # missing: named already
            continue
        if size < row.used_bytes:
            problems.append(f"{path}: expected at least {row.used_bytes} bytes, found {size}: its end is missing")
        elif head is None or f"{head.segment_id:016x}" != row.segment_id:
            problems.append(f"{path}: expected a segment with id {row.segment_id}, found other bytes: it is damaged")
    return problems


def _read_environment(found: Survey) -> set[str]:
    """Open checkpoints from the newest on until one is intact; return the names of the damaged ones."""
    broken: set[str] = set()
    for row in reversed(found.checkpoints):
        try:
            with Checkpoint(found.folder / "checkpoints" / row.name) as checkpoint:
                found.environment = checkpoint.manifest["environment"]
                return broken
        except CorruptCheckpoint as error:
            broken.add(row.name)
            found.problems.append(str(error))
    return broken


def _complete_open_rows(found: Survey, scanned: Sequence[ScannedSegment]) -> None:
    """Add the last record and the bytes in use to the rows of open segments. The catalog does not record them."""
    seen = {segment.row.ordinal: segment for segment in scanned if segment.locations}
    for i, row in enumerate(found.segments):
        if row.state in ("ready", "open") and row.ordinal in seen:
            locations = seen[row.ordinal].locations
            found.segments[i] = replace(
                row,
                state="open",
                timeline=seen[row.ordinal].row.timeline,
                last_sequence=locations[-1].head.sequence,
                base_step=locations[0].head.step,
                last_step=locations[-1].head.step,
                used_bytes=locations[-1].end,
            )


def _set_plan(found: Survey, facts: Facts, broken: set[str]) -> None:
    history, limits = facts.build_history(), facts.rows.limits
    try:
        found.plan = plan_recovery(found.checkpoints, history, limits, broken=broken)
    except RecoveryError as error:
        found.problems.append(str(error))
        return
    end = found.plan.end
    found.watermarks = replace(found.watermarks, committed=end.step, synced=min(found.watermarks.synced, end.step))
    if has_later_boundary(history, [row for row in found.checkpoints if is_on_lineage(row, limits)], end):
        found.problems += history.holes or [f"committed steps after {end.step} cannot be recovered"]


def describe_monitor(found: Survey) -> list[tuple[str, object]]:
    """Return names and values, one line each; none if no monitor has ever watched the journal."""
    rows: list[tuple[str, object]] = []
    last = found.evaluations[-1] if found.evaluations else None
    if found.monitor is not None or last is not None:
        rows.append(("monitor", _describe_process(found, last)))
    if last is not None:
        rows += [("budget", _draw_budget(last)), ("values", _draw_values(last))]
    return rows


def _describe_process(found: Survey, last: EvaluationRow | None) -> str:
    monitor = found.monitor
    who = f"process {monitor.pid} on {monitor.host}" if monitor is not None and monitor.is_alive else "none now"
    return who if last is None else f"{who}; evaluated {format_seconds(max(found.at - last.at, 0.0))} ago"


def _draw_budget(row: EvaluationRow) -> Text | str:
    used = row.log_bytes + row.checkpoint_bytes
    if row.budget_bytes is None:
        return f"{format_bytes(used)}, no budget"
    share = used / row.budget_bytes
    full = round(min(share, 1.0) * _BAR)
    colour = "green" if share <= 1 else "yellow"
    return Text.assemble(
        ("\u2588" * full, colour),
        ("\u2591" * (_BAR - full), "dim"),
        f" {format_bytes(used)} of {format_bytes(row.budget_bytes)} ({100 * share:.0f} %)",
    )


def _draw_values(row: EvaluationRow) -> Text | str:
    """Return a column for each sealed segment, oldest first, as high as its value."""
    protected, values = set(row.protected), read_values(row).as_dict()
    if not values:
        return "no segment is sealed yet"
    shown = list(values.items())[-_SEGMENTS_MAX:]
    text = Text()
    for i, (is_protected, group) in enumerate(groupby(shown, key=lambda pair: pair[0] in protected)):
        text.append("|" if i else "", "dim")
        columns = "".join(_HEIGHTS[round(min(value, 1.0) * (len(_HEIGHTS) - 1))] for _, value in group)
        text.append(columns, "blue" if is_protected else "green")
    many = len(protected)
    return text.append(f" {count(len(values) - many, 'segment')} can be pruned, {many:,} protected (blue)")


@dataclass(frozen=True, slots=True)
class GroupSurvey:
    """Survey of the journals of ranks that train together.

    Attributes:
        world: number of ranks.
        step: the step to which a crash now would go back on all ranks; None if they cannot recover.
        lost: ranks whose journals are missing.
        stopped: ranks whose journals exist and which do not train any more.
        problems: what is wrong, one sentence each.
    """

    world: int
    step: int | None
    lost: list[int]
    stopped: list[int]
    problems: list[str]


def survey_group(folder: Path) -> GroupSurvey | None:
    """Read a journal together with those of the other ranks; return None if one process trained alone."""
    environment = read_environment(folder)
    if get_world(environment) == 1 and not is_of_group(environment):
        return None
    return read_consistently(folder, lambda: _survey_ranks(folder), lambda found: found.problems)


def _survey_ranks(folder: Path) -> GroupSurvey:
    from ...recovery.group.reader import SingleReader  # imports the recovery of groups, which no other status needs

    try:
        reader = SingleReader(folder)
    except RecoveryError as error:
        return GroupSurvey(get_world(read_environment(folder)), None, [], [], [str(error)])
    lost = [summary.rank for summary in reader.generation.summaries if summary.is_empty]
    problems = [f"the journal of rank {rank} is gone" for rank in lost]
    try:
        return GroupSurvey(reader.world, reader.find_newest_step(), lost, reader.stopped_ranks, problems)
    except RecoveryError as error:
        return GroupSurvey(reader.world, None, lost, reader.stopped_ranks, [*problems, str(error)])
