"""Watch of one journal. Each evaluation reads the catalog, values the segments, prunes, and seals the log of a dead trainer."""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial

from tranlogs.base.clock import Clock
from tranlogs.base.quantities import count, format_bytes
from tranlogs.catalog import (
    Catalog,
    CheckpointRow,
    CommonRow,
    Incident,
    MeasuredRow,
    PrunedRow,
    ReopeningCatalog,
    SegmentRow,
    StoreRow,
    Tables,
    TimelineRow,
    Watermarks,
)
from tranlogs.catalog.rows import is_on_lineage
from tranlogs.journal import JournalPaths, Owner, change_catalog, read_owner
from tranlogs.journal.opening import seal_if_abandoned
from tranlogs.journal.paths import is_in_memory
from tranlogs.log.segment_file import unlink_retired
from tranlogs.retention.advice import NO_TENSORS, Advice, advise
from tranlogs.retention.prune import (
    Pruning,
    bytes_on_disk,
    delete_retired,
    is_protected,
    plan_pruning,
    prune,
    trace_newest_lineage,
)
from tranlogs.retention.value_decay import (
    EvaluationRow,
    SegmentValues,
    append_evaluation,
    evaluate,
    read_evaluations,
    read_values,
)

from ..settings import DaemonSettings
from .training_progress import ProgressReader, TrainingProgress
from .verified_checkpoints import Anchors

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class CatalogRows:
    """The rows of a catalog, read in one transaction. Its checkpoints are the published ones.

    `pruned` holds totals of what monitors have pruned. During the incidents, logging was suspended. `store` is None if the
    journal is not shipped. `common` is the newest step of which all ranks have a checkpoint; None for a journal without others.
    `measured` is what the trainers have measured; None if nothing.
    """

    segments: list[SegmentRow]
    checkpoints: list[CheckpointRow]
    timelines: list[TimelineRow]
    marks: Watermarks
    pruned: PrunedRow
    incidents: list[Incident]
    store: StoreRow | None = None
    common: CommonRow | None = None
    measured: MeasuredRow | None = None

    @property
    def shared(self) -> list[CheckpointRow]:
        """The checkpoints that are no newer than what all ranks have."""
        return [row for row in self.checkpoints if self.common is None or row.step <= self.common.step]

    @classmethod
    def read(cls, tables: Tables) -> CatalogRows:
        """Read the rows."""
        return cls(
            tables.rows("segment/", SegmentRow),
            tables.published_checkpoints(),
            tables.rows("timeline/", TimelineRow),
            tables.get("watermarks", Watermarks) or Watermarks(),
            tables.get("pruned", PrunedRow) or PrunedRow(),
            tables.rows("incident/", Incident),
            tables.get("store", StoreRow),
            tables.get("common", CommonRow),
            tables.get("measured", MeasuredRow),
        )


@dataclass(frozen=True, slots=True)
class Evaluation:
    """Result of one evaluation of a journal.

    Attributes:
        at: time of the evaluation, in seconds since 1970.
        rows: rows of the catalog after the evaluation.
        before: rows of the catalog before pruning.
        owner: the trainer, or the last one; None if there was none.
        worth: values of the sealed segments.
        anchor: the newest checkpoint that is known to be intact, and no newer than what all ranks have.
        pruning: what was pruned, or would be in a dry run.
        sealed: number of segments of a dead trainer that were sealed.
        seconds: duration of the evaluation.
        protected: for each sealed segment, by ordinal, whether it is protected.
        budget_bytes: budget of the journal; None if there is none.
        in_memory: True if the journal lies on a tmpfs.
        progress: how far the training is; None if the log holds no boundary yet.
    """

    at: float
    rows: CatalogRows
    owner: Owner | None
    worth: SegmentValues
    anchor: CheckpointRow | None
    pruning: Pruning
    sealed: int = 0
    seconds: float = 0.0
    protected: dict[int, bool] = field(default_factory=dict)
    budget_bytes: int | None = None
    before: CatalogRows | None = None
    in_memory: bool = False
    progress: TrainingProgress | None = None

    def advise(self) -> Advice | None:
        """Return what the run pays for its log and its checkpoints, and would pay; None if it has measured nothing."""
        measured, common = self.rows.measured, self.rows.common
        if measured is None:
            return None
        nbytes = max((row.nbytes for row in self.rows.checkpoints), default=0)
        return advise(measured, nbytes, self.rows.marks.at, world=common.world if common is not None else 1)

    @property
    def redo_step(self) -> int | None:
        """The step behind which the log has no tensors; None if it has those of all steps since the anchor."""
        measured = self.rows.measured
        return self.anchor.step if measured is not None and measured.phase in NO_TENSORS and self.anchor is not None else None

    @property
    def did_nothing(self) -> bool:
        """True if nothing was sealed or pruned."""
        return not (self.sealed or self.pruning.segments or self.pruning.checkpoints)

    @property
    def is_suspended(self) -> bool:
        """True if the trainer has suspended logging."""
        return any(incident.to_step is None for incident in self.rows.incidents)


class JournalWatch:
    """Watches one journal. One thread calls it."""

    def __init__(self, paths: JournalPaths, settings: DaemonSettings, clock: Clock) -> None:
        self.paths, self._settings, self._clock = paths, settings, clock
        self._anchors, self._progress = Anchors(paths.checkpoints), ProgressReader(paths.folder)
        self._catalog = ReopeningCatalog(paths.folder)
        self._make = partial(change_catalog, paths.folder, "prune")
        self._history: list[EvaluationRow] | None = None  # None until the file was read
        self._last_warning = ""
        self._was_alive: bool | None = None
        self._in_memory = is_in_memory(paths.folder)

    def close(self) -> None:
        """Close the catalog."""
        self._catalog.close()

    def evaluate(self) -> Evaluation:
        """Read the catalog, value the segments, prune, and store the evaluation.

        Raises:
            CorruptCatalog, LogUnavailable: the catalog cannot be read or written now.
            OSError: files cannot be deleted.
        """
        start = time.perf_counter()
        catalog, now = self._catalog.current(), self._clock.now()
        owner = read_owner(self.paths.folder)
        sealed = self._seal_abandoned_log(owner)
        rows: CatalogRows = catalog.read(CatalogRows.read)
        self._anchors.forget(rows.checkpoints)
        self._anchors.verify(rows.shared, rows.timelines)
        worth = self._evaluate_worth(rows, now)
        anchor = self._anchors.newest(rows.shared, rows.timelines)
        limits = trace_newest_lineage(rows.checkpoints, rows.timelines)
        protected = {row.ordinal: is_protected(row, anchor, limits) for row in rows.segments if row.state == "sealed"}
        pruning = self._prune(catalog, rows, worth, now, owner)
        is_changed = bool(pruning.segments or pruning.checkpoints) and not self._settings.is_dry_run
        after: CatalogRows = catalog.read(CatalogRows.read) if is_changed else rows
        evaluation = Evaluation(
            now,
            after,
            owner,
            worth,
            anchor,
            pruning,
            sealed,
            time.perf_counter() - start,
            protected,
            self._settings.budget.nbytes,
            rows,
            self._in_memory,
            self._progress.read(),
        )
        if not self._settings.is_dry_run:
            self._keep(evaluation)
        return evaluation

    def _keep(self, evaluation: Evaluation) -> None:
        """Add an evaluation to the monitor's file. If the disk is full, it is kept in memory only."""
        assert self._history is not None
        row = self._row(evaluation)
        try:
            self._history = append_evaluation(self.paths.folder, row, self._history)
        except OSError as error:
            self._history.append(row)
            _log.debug("%s: could not store the evaluation: %s", self.paths.folder, error)

    def _evaluate_worth(self, rows: CatalogRows, now: float) -> SegmentValues:
        limits = trace_newest_lineage(rows.checkpoints, rows.timelines)
        checkpoints = [row for row in rows.checkpoints if is_on_lineage(row, limits)]
        if self._history is None:
            self._history = read_evaluations(self.paths.folder)
        before = read_values(self._history[-1]) if self._history else None
        return evaluate(self._settings.decay, rows.segments, checkpoints, rows.marks, before, now)

    # The log of a dead trainer.

    def _seal_abandoned_log(self, owner: Owner | None) -> int:
        """Seal the segments that a dead trainer left open. They can then be shipped, and pruned after a checkpoint."""
        is_alive = owner is not None and owner.is_alive
        was_alive, self._was_alive = self._was_alive, is_alive
        if is_alive or owner is None or self._settings.is_dry_run:
            return 0
        left = seal_if_abandoned(self.paths)
        if left or was_alive:
            how, level = ("closed it", logging.INFO) if owner.has_closed else ("died without closing it", logging.WARNING)
            _log.log(
                level,
                "%s: process %d on %s %s; sealed %s of its log",
                self.paths.folder,
                owner.pid,
                owner.host,
                how,
                count(left, "segment"),
            )
        return left

    def _is_abandoned(self) -> bool:
        owner = read_owner(self.paths.folder)
        return owner is None or not owner.is_alive

    # Pruning.

    def _is_held(self, tables: Tables) -> bool:
        """Return True if nothing may be pruned: a trainer has recovered, perhaps to an older step, and has not continued yet.

        A hold that outlives its process was taken by one that died while other journals needed this one.
        """
        hold = tables.request("hold")
        return hold is not None and (bool(hold.get("outlives")) or not self._is_abandoned())

    def _prune(self, catalog: Catalog, rows: CatalogRows, worth: SegmentValues, now: float, owner: Owner | None) -> Pruning:
        values, budget, shared = worth.as_dict(), self._settings.budget, {row.name for row in rows.shared}

        def decide(
            segments: Sequence[SegmentRow], checkpoints: Sequence[CheckpointRow], timelines: Sequence[TimelineRow]
        ) -> Pruning:
            anchor = self._anchors.newest([row for row in checkpoints if row.name in shared], timelines)
            return plan_pruning(budget, segments, checkpoints, timelines, values, anchor=anchor, now=now)

        plan = decide(rows.segments, rows.checkpoints, rows.timelines)
        if self._settings.is_dry_run:
            return plan
        if plan.segments or plan.checkpoints or plan.wants_checkpoint:
            plan, change = catalog.read(lambda tables: prune(tables, decide, self._is_held))
            if change and not self._make(change):
                plan = Pruning()  # The trainer has changed what the plan stands on, or is busy: the next evaluation plans anew.
            self._log_pruning(plan, owner)
        elif self._last_warning:
            self._last_warning = ""
            _log.info("%s: within the budget again", self.paths.folder)
        delete_retired(catalog, self.paths.checkpoints, self._make)
        is_short = budget.nbytes is not None and bytes_on_disk(rows.segments, rows.checkpoints) > budget.high * budget.nbytes
        if is_short or owner is None or not owner.is_alive:  # a live trainer recycles them
            unlink_retired(catalog, self.paths.log, self._make)
        return plan

    def _log_pruning(self, plan: Pruning, owner: Owner | None) -> None:
        if plan.segments or plan.checkpoints:
            _log.info(
                "%s: pruned %s and %s: %s of %s are left",
                self.paths.folder,
                count(len(plan.segments), "segment"),
                count(len(plan.checkpoints), "checkpoint"),
                format_bytes(plan.bytes_after),
                format_bytes(plan.bytes_before),
            )
        if not plan.wants_checkpoint:
            self._last_warning = ""
            return
        done = (
            "requested a checkpoint from its trainer"
            if owner is not None and owner.is_alive
            else "no trainer is running to take a checkpoint: raise the budget, or start the trainer again"
        )
        if done != self._last_warning:
            self._last_warning = done
            _log.warning(
                "%s: protected data alone exceed the budget (%s); %s",
                self.paths.folder,
                format_bytes(plan.bytes_after),
                done,
            )

    def _row(self, evaluation: Evaluation) -> EvaluationRow:
        rows, marks, worth = evaluation.rows, evaluation.rows.marks, evaluation.worth
        ordinals = worth.ordinals.tolist()
        return EvaluationRow(
            self._history[-1].number + 1 if self._history else 1,
            evaluation.at,
            marks.committed,
            marks.synced,
            marks.archived,
            marks.persisted,
            sum(row.size for row in rows.segments),
            sum(row.nbytes for row in rows.checkpoints),
            self._settings.budget.nbytes,
            ordinals,
            worth.values.tolist(),
            [ordinal for ordinal in ordinals if evaluation.protected.get(ordinal, True)],
        )
