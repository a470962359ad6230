"""Log compaction: when enough sealed log follows a checkpoint, another process derives the next checkpoint from both.

The daemon runs one such process at a time, and publishes the result itself in a short transaction: a process of low priority
that holds the catalog's lock would make the trainer wait. A refusal is logged once, and the journal is tried again when it has
another newest checkpoint. After a failure, the journal is tried again later.
"""

from __future__ import annotations

import json
import logging
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import IO, Any

from tranlogs.base.clock import Clock
from tranlogs.base.errors import TranLogsError, error_text
from tranlogs.catalog import Catalog, CheckpointRow, SegmentRow, TimelineRow
from tranlogs.checkpoints.derived import DerivedCheckpoint, delete_derived, publish
from tranlogs.journal import JournalPaths
from tranlogs.retention.compaction_policy import Compaction, count_sealed_bytes_after
from tranlogs.retention.pruning_plan import Pruning

_log = logging.getLogger(__name__)

_RETRY_SECONDS = 60.0  # doubled with each failure
_DOUBLINGS_MAX = 6
_STDERR_BYTES = 4096  # The end of stderr that is searched for the reason of a failure.


@dataclass(slots=True)
class _Journal:
    """State of a journal's compaction.

    Attributes:
        is_urgent: True if protected data alone exceed the budget.
        refused: name of the checkpoint from which no other one can be derived; "" for none.
        failures: number of failures since the last success.
        next_at: time of the next attempt, in seconds of the monotonic clock.
        reported: reasons of failures and refusals that were logged.
    """

    is_urgent: bool = False
    refused: str = ""
    failures: int = 0
    next_at: float = 0.0
    reported: set[str] = field(default_factory=set)


@dataclass(slots=True)
class _Job:
    """A process that derives a checkpoint."""

    paths: JournalPaths
    anchor: CheckpointRow
    process: subprocess.Popen[bytes]
    stderr: IO[bytes]
    since: float


class Compactor:
    """Decides when to derive a checkpoint, and publishes it. One thread calls it.

    Args:
        settings: the settings of compaction.
        clock: for pauses and time-outs.
    """

    def __init__(self, settings: Compaction, clock: Clock) -> None:
        self._settings, self._clock = settings, clock
        self._journals: dict[Path, _Journal] = {}
        self._job: _Job | None = None
        self._waiting: dict[Path, tuple[JournalPaths, CheckpointRow]] = {}

    @property
    def is_busy(self) -> bool:
        """True if a checkpoint is being derived."""
        return self._job is not None

    def replace_request(
        self,
        folder: Path,
        plan: Pruning,
        segments: Sequence[SegmentRow],
        anchor: CheckpointRow | None,
        timelines: Sequence[TimelineRow],
    ) -> Pruning:
        """Return a pruning plan that requests no checkpoint from the trainer, if one can be derived instead."""
        journal = self._journals.setdefault(folder, _Journal())
        is_possible = anchor is not None and self._may_try(journal, anchor) and not journal.failures
        journal.is_urgent = bool(
            plan.wants_checkpoint and is_possible and anchor and count_sealed_bytes_after(segments, anchor, timelines)
        )
        return replace(plan, wants_checkpoint=False) if journal.is_urgent else plan

    def consider(
        self,
        paths: JournalPaths,
        segments: Sequence[SegmentRow],
        anchor: CheckpointRow | None,
        timelines: Sequence[TimelineRow],
    ) -> None:
        """Start to derive a checkpoint of this journal, if the settings ask for it and no other one is being derived."""
        journal = self._journals.setdefault(paths.folder, _Journal())
        self._waiting.pop(paths.folder, None)
        if anchor is None or not self._may_try(journal, anchor):
            return
        sealed_bytes = count_sealed_bytes_after(segments, anchor, timelines)
        if not self._settings.is_due(sealed_bytes, anchor) and not (journal.is_urgent and sealed_bytes):
            return
        if self._job is None:
            self._begin(paths, anchor)
        else:
            self._waiting[paths.folder] = paths, anchor

    def poll(self) -> None:
        """Publish a checkpoint that is finished; kill a process that takes too long."""
        job = self._job
        if job is None:
            return
        if job.process.poll() is None:
            if self._clock.monotonic() - job.since < self._settings.seconds_max:
                return
            job.process.kill()
        code = job.process.wait()
        self._job = None
        try:
            self._finish(job, code)
        except (TranLogsError, OSError, MemoryError) as error:
            self._note_failure(job.paths, error_text(error))
        finally:
            job.stderr.close()

    def wait(self) -> None:
        """Wait until all checkpoints that are due now have been derived."""
        while (job := self._job) is not None:
            left = self._settings.seconds_max - (self._clock.monotonic() - job.since)
            with suppress(subprocess.TimeoutExpired):
                job.process.wait(max(left, 0.0))
            self.poll()
            if self._waiting and self._job is not job:
                self._begin(*self._waiting.pop(next(iter(self._waiting))))

    def close(self) -> None:
        """Kill the process that derives a checkpoint."""
        self._waiting.clear()
        if self._job is not None:
            self._job.process.kill()
            self._job.process.communicate()
            self._job.stderr.close()
            delete_derived(self._job.paths.checkpoints)
            self._job = None

    def _may_try(self, journal: _Journal, anchor: CheckpointRow) -> bool:
        return journal.refused != anchor.name and self._clock.monotonic() >= journal.next_at

    def _begin(self, paths: JournalPaths, anchor: CheckpointRow) -> None:
        delete_derived(paths.checkpoints)  # A killed monitor may have left one.
        try:
            stderr = tempfile.TemporaryFile()  # noqa: SIM115 - closed when the process has ended
            try:
                process = self._start_process(paths.folder.absolute(), anchor, stderr)
            except BaseException:
                stderr.close()
                raise
        except (OSError, MemoryError) as error:
            self._note_failure(paths, f"no process can be started ({error_text(error)})")
            return
        self._job = _Job(paths, anchor, process, stderr, self._clock.monotonic())

    def _start_process(self, folder: Path, anchor: CheckpointRow, stderr: IO[bytes]) -> subprocess.Popen[bytes]:
        command = [
            sys.executable,
            "-m",
            "tranlogs_monitor.compaction.compaction_process",
            str(os.getpid()),
            str(folder),
            anchor.name,
        ]
        environment = {**os.environ, "CUDA_VISIBLE_DEVICES": ""}  # leave the GPU's memory to the trainer
        if not self._settings.optimizers:
            environment["PYTHONSAFEPATH"] = "1"  # import nothing from the working folder
        return subprocess.Popen(
            [*command, *self._settings.optimizers],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=stderr,
            env=environment,
            start_new_session=True,
        )

    def _finish(self, job: _Job, code: int) -> None:
        assert job.process.stdout is not None
        with job.process.stdout as pipe:
            raw = pipe.read()
        if code != 0:
            self._note_failure(job.paths, _describe_failure(code, job.stderr))
            return
        answer: dict[str, Any] = json.loads(raw)
        if "refused" in answer:
            self._note_refusal(job, answer["refused"])
        elif "derived_checkpoint" in answer:
            self._publish(job, answer["derived_checkpoint"])
        else:  # the trainer has taken a checkpoint meanwhile, or no sealed segment contains a boundary
            self._postpone(self._journals[job.paths.folder])

    def _publish(self, job: _Job, content: dict[str, Any]) -> None:
        derived = DerivedCheckpoint(**{**content, "row": CheckpointRow(**content["row"])})
        folder, journal = job.paths.folder, self._journals[job.paths.folder]
        catalog = Catalog.open(folder, writable=True)
        try:
            why = publish(catalog, job.paths.checkpoints, derived)
        finally:
            catalog.close()
        journal.failures, journal.is_urgent = 0, False
        if why:
            self._postpone(journal)
            _log.info("%s: the checkpoint of step %d derived from the log is not needed: %s", folder, derived.row.step, why)
        else:
            _log.info(
                "%s: derived the checkpoint of step %d from the log (%d bytes, in %.1f s)",
                folder,
                derived.row.step,
                derived.row.nbytes,
                self._clock.monotonic() - job.since,
            )

    def _note_refusal(self, job: _Job, why: str) -> None:
        journal = self._journals[job.paths.folder]
        journal.refused = job.anchor.name
        if why not in journal.reported:
            journal.reported.add(why)
            _log.warning(
                "%s: cannot derive a checkpoint from the log after step %d, so the trainer must take one: %s",
                job.paths.folder,
                job.anchor.step,
                why,
            )

    def _note_failure(self, paths: JournalPaths, why: str) -> None:
        delete_derived(paths.checkpoints)
        journal = self._journals[paths.folder]
        self._postpone(journal)
        journal.failures += 1
        if why not in journal.reported:
            journal.reported.add(why)
            _log.warning("%s: could not derive a checkpoint from the log: %s; trying again later", paths.folder, why)

    def _postpone(self, journal: _Journal) -> None:
        journal.next_at = self._clock.monotonic() + _RETRY_SECONDS * 2 ** min(journal.failures, _DOUBLINGS_MAX)


def _describe_failure(code: int, stderr: IO[bytes]) -> str:
    """Return why a process failed, in words."""
    if code < 0:
        return f"its process was killed by {signal.Signals(-code).name}"
    size = stderr.seek(0, os.SEEK_END)
    stderr.seek(max(0, size - _STDERR_BYTES))
    lines = stderr.read().decode(errors="replace").strip().splitlines()
    return lines[-1] if lines else f"its process ended with exit code {code}"
