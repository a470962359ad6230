"""Log compaction: when enough sealed log lies behind a checkpoint, a process of its own makes the next one from it.

One process at a time for the whole daemon. What it made is published here, in a short transaction at this process's priority:
a niced process that held the catalog's lock would make the trainer wait. A refusal is said once, and tried again when the
newest checkpoint is another one; a failure is tried again later.
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
from tranlogs.retention.budget import Pruning
from tranlogs.retention.compaction import Compaction, sealed_behind

_log = logging.getLogger(__name__)

_RETRY_SECONDS = 60.0  # doubled with each failure ...
_DOUBLINGS_MAX = 6  # ... so often
_STDERR_BYTES = 4096  # of its end, looked at for a reason


@dataclass(slots=True)
class _Journal:
    is_urgent: bool = False  # over its budget with protected data alone
    refused: str = ""  # name of the checkpoint from which none can be made
    failures: int = 0
    next_at: float = 0.0
    said: set[str] = field(default_factory=set)


@dataclass(slots=True)
class _Making:
    paths: JournalPaths
    anchor: CheckpointRow
    process: subprocess.Popen[bytes]
    stderr: IO[bytes]
    since: float


class Compactor:
    """See the module. One thread calls it."""

    def __init__(self, settings: Compaction, clock: Clock) -> None:
        self._settings, self._clock = settings, clock
        self._journals: dict[Path, _Journal] = {}
        self._making: _Making | None = None
        self._waiting: dict[Path, tuple[JournalPaths, CheckpointRow]] = {}

    @property
    def is_busy(self) -> bool:
        """Whether one is being made."""
        return self._making is not None

    def relieve(
        self,
        folder: Path,
        plan: Pruning,
        segments: Sequence[SegmentRow],
        anchor: CheckpointRow | None,
        timelines: Sequence[TimelineRow],
    ) -> Pruning:
        """A pruning plan that does not ask the trainer for a checkpoint, where one can be made here."""
        journal = self._journals.setdefault(folder, _Journal())
        can = anchor is not None and self._may_try(journal, anchor) and not journal.failures
        journal.is_urgent = bool(plan.wants_checkpoint and can and anchor and sealed_behind(segments, anchor, timelines))
        return replace(plan, wants_checkpoint=False) if journal.is_urgent else plan

    def look(
        self,
        paths: JournalPaths,
        segments: Sequence[SegmentRow],
        anchor: CheckpointRow | None,
        timelines: Sequence[TimelineRow],
    ) -> None:
        """Begin with a checkpoint of this journal if that is worth it, and no other one is being made."""
        journal = self._journals.setdefault(paths.folder, _Journal())
        self._waiting.pop(paths.folder, None)
        if anchor is None or not self._may_try(journal, anchor):
            return
        behind = sealed_behind(segments, anchor, timelines)
        if not self._settings.is_worth_it(behind, anchor) and not (journal.is_urgent and behind):
            return
        if self._making is None:
            self._begin(paths, anchor)
        else:
            self._waiting[paths.folder] = paths, anchor

    def poll(self) -> None:
        """Publish what is finished; end what takes too long."""
        making = self._making
        if making is None:
            return
        if making.process.poll() is None:
            if self._clock.monotonic() - making.since < self._settings.seconds_max:
                return
            making.process.kill()
        code = making.process.wait()
        self._making = None
        try:
            self._settle(making, code)
        except (TranLogsError, OSError, MemoryError) as error:
            self._failed(making.paths, error_text(error))
        finally:
            making.stderr.close()

    def wait(self) -> None:
        """Until all that is worth it now has been made."""
        while (making := self._making) is not None:
            left = self._settings.seconds_max - (self._clock.monotonic() - making.since)
            with suppress(subprocess.TimeoutExpired):
                making.process.wait(max(left, 0.0))
            self.poll()
            if self._waiting and self._making is not making:
                self._begin(*self._waiting.pop(next(iter(self._waiting))))

    def close(self) -> None:
        """End what is being made."""
        self._waiting.clear()
        if self._making is not None:
            self._making.process.kill()
            self._making.process.communicate()
            self._making.stderr.close()
            delete_derived(self._making.paths.checkpoints)
            self._making = None

    def _may_try(self, journal: _Journal, anchor: CheckpointRow) -> bool:
        return journal.refused != anchor.name and self._clock.monotonic() >= journal.next_at

    def _begin(self, paths: JournalPaths, anchor: CheckpointRow) -> None:
        delete_derived(paths.checkpoints)  # of a monitor that was killed
        try:
            stderr = tempfile.TemporaryFile()  # noqa: SIM115 - it is closed when the process is settled
            try:
                process = self._started(paths.folder.absolute(), anchor, stderr)
            except BaseException:
                stderr.close()
                raise
        except (OSError, MemoryError) as error:
            self._failed(paths, f"no process can be started for it ({error_text(error)})")
            return
        self._making = _Making(paths, anchor, process, stderr, self._clock.monotonic())

    def _started(self, folder: Path, anchor: CheckpointRow, stderr: IO[bytes]) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", "tranlogs_monitor.compaction.process", str(os.getpid()), str(folder), anchor.name]
        environment = {**os.environ, "CUDA_VISIBLE_DEVICES": ""}  # the trainer's memory there is not touched
        if not self._settings.optimizers:
            environment["PYTHONSAFEPATH"] = "1"  # nothing is imported from the working folder
        return subprocess.Popen(
            [*command, *self._settings.optimizers],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=stderr,
            env=environment,
            start_new_session=True,
        )

    def _settle(self, making: _Making, code: int) -> None:
        assert making.process.stdout is not None
        with making.process.stdout as pipe:
            raw = pipe.read()
        if code != 0:
            self._failed(making.paths, _why(code, making.stderr))
            return
        told: dict[str, Any] = json.loads(raw)
        if "refused" in told:
            self._refused(making, told["refused"])
        elif "shadow" in told:
            self._publish(making, told["shadow"])
        else:  # the trainer has taken one meanwhile, or units are larger than segments
            self._postpone(self._journals[making.paths.folder])

    def _publish(self, making: _Making, made: dict[str, Any]) -> None:
        shadow = DerivedCheckpoint(**{**made, "row": CheckpointRow(**made["row"])})
        folder, journal = making.paths.folder, self._journals[making.paths.folder]
        catalog = Catalog.open(folder, writable=True)
        try:
            why = publish(catalog, making.paths.checkpoints, shadow)
        finally:
            catalog.close()
        journal.failures, journal.is_urgent = 0, False
        if why:
            self._postpone(journal)
            _log.info("%s: a checkpoint of step %d was made from the log for nothing: %s", folder, shadow.row.step, why)
        else:
            _log.info(
                "%s: checkpoint of step %d made from the log (%d bytes, in %.1f s)",
                folder,
                shadow.row.step,
                shadow.row.nbytes,
                self._clock.monotonic() - making.since,
            )

    def _refused(self, making: _Making, why: str) -> None:
        journal = self._journals[making.paths.folder]
        journal.refused = making.anchor.name
        if why not in journal.said:
            journal.said.add(why)
            _log.warning(
                "%s: no checkpoint can be made from the log behind the one of step %d, so the trainer's own are needed: %s",
                making.paths.folder,
                making.anchor.step,
                why,
            )

    def _failed(self, paths: JournalPaths, why: str) -> None:
        delete_derived(paths.checkpoints)
        journal = self._journals[paths.folder]
        self._postpone(journal)
        journal.failures += 1
        if why not in journal.said:
            journal.said.add(why)
            _log.warning("%s: a checkpoint could not be made from the log: %s; it is tried again", paths.folder, why)

    def _postpone(self, journal: _Journal) -> None:
        journal.next_at = self._clock.monotonic() + _RETRY_SECONDS * 2 ** min(journal.failures, _DOUBLINGS_MAX)


def _why(code: int, stderr: IO[bytes]) -> str:
    """Of a process that failed, in words."""
    if code < 0:
        return f"its process was ended by {signal.Signals(-code).name}"
    size = stderr.seek(0, os.SEEK_END)
    stderr.seek(max(0, size - _STDERR_BYTES))
    lines = stderr.read().decode(errors="replace").strip().splitlines()
    return lines[-1] if lines else f"its process ended with {code}"
