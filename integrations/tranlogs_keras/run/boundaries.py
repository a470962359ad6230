"""Boundaries: where the units of a run are committed.

A boundary is the moment when the loop asks for its next batch. Everything since the last boundary commits as one unit, with
the auxiliary state that is read at the boundary.
"""

from __future__ import annotations

import copy
import logging
import secrets
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import xxhash

from tranlogs.base.errors import DataError
from tranlogs.records import Checkpoint, Snapshot
from tranlogs.training import BoundaryLog, Parts

from ..backends.arrays import flat_bytes
from ..state import rng
from ..state.variables import Look
from .recovery import Recovery
from .run_parts import NewestCheckpoint, RunParts

RNG = "rng."  # names of a boundary's parts for random states begin with it
_log = logging.getLogger("tranlogs")
_NOTHING: dict[str, Any] = {}  # never written to
ReadPlace = Callable[[dict[str, Any], Parts], dict[str, Any]]


class Boundaries:
    """Commits units, and takes checkpoints.

    `read_place` returns what a boundary commits besides the model and random states, `read_for_checkpoint` what the source of
    data keeps in a checkpoint only, and `find_late` the optimizers that were built since it was last called.
    """

    def __init__(
        self,
        parts: RunParts,
        recovery: Recovery,
        *,
        read_place: ReadPlace,
        read_for_checkpoint: Callable[[], dict[str, Any]],
        find_late: Callable[[], list[str]] = list,
    ) -> None:
        self._parts, self._recovery = parts, recovery
        self._read_place, self._read_for_checkpoint = read_place, read_for_checkpoint
        self._find_late = find_late
        self._generators, self._fixed = rng.Generators(parts.backend), Parts()
        self._has_reserved = False
        self._log = BoundaryLog(
            parts.run, parts.journal, parts.rung, recovery.recheck, self._digest_state, parts.steps.remember
        )

    def begin(self, before: NewestCheckpoint | None = None) -> None:
        """Begin a new run, or the next fit of one.

        A checkpoint comes first, unless that at the end of the fit before has the same state.

        `before` is where the fit before ended; None in a new run.
        """
        parts, journal = self._parts, self._parts.journal
        is_same = before is not None and self._continue_from(before)
        journal.start()
        body = self._read(parts.state.look())
        if body is not None and is_same:
            journal.boundary(body, lambda: self._snapshot(body), checkpoint=False)
        elif body is not None:
            journal.checkpoint(self._snapshot(body), wait=True)
        parts.steps.remember()

    def _continue_from(self, before: NewestCheckpoint) -> bool:
        """Continue the log of the fit before; return True if its last checkpoint has the state that is there now."""
        found = before.end
        assert found is not None
        assert found.plan.checkpoint is not None
        position, row = found.position, found.plan.checkpoint
        is_same = row.name == before.path.name and row.sequence == position.sequence and self._is_as_in(before.path)
        if not is_same:  # the chain starts anew: nothing links the two logs but the checkpoint that follows
            position = position._replace(sequence=position.sequence + 1, chain=secrets.randbits(64))
        self._parts.journal.continue_from(
            position,
            new_timeline=found.plan.has_later,
            damaged=found.damaged,
            checkpoint=row if is_same else None,
            log_bytes=found.log_bytes,
        )
        return is_same

    def _is_as_in(self, path: Path) -> bool:
        try:
            with Checkpoint(path) as checkpoint:
                return self._parts.state.is_as_in(checkpoint)
        except DataError as error:
            _log.debug("%s", error)
            return False

    def expect_end(self) -> None:
        """Note that a loop ends with the next boundary: where no tensors are logged, only a checkpoint leads there."""
        if self._log.expect_end():
            self._parts.steps.wants_checkpoint = True

    def leave_loop(self) -> None:
        """Note that a loop was left: a step outside of it would have to be logged from here on."""
        steps = self._parts.steps

        def read() -> dict[str, Any]:  # copies, since training goes on
            return copy.deepcopy(self._read(steps.note_unit(is_end=True)) or {})

        self._log.leave_loop(read, has_steps=steps.steps_since_boundary > 0)

    def log_tensors(self) -> None:
        """Log tensors from the step on that comes now, which lies outside of all loops; see `BoundaryLog.log_tensors`."""

        def commit(behind: dict[str, Any] | None) -> None:
            body = behind or self._read(self._parts.steps.note_unit(is_end=True))
            self._parts.steps.begin_unit()
            if body is not None:
                self._commit(body, None, None)

        self._log.log_tensors(commit, has_steps=self._parts.steps.steps_since_boundary > 0)

    def commit(
        self,
        *,
        is_end: bool,
        wants_checkpoint: bool = False,
        scalars: dict[str, float] | None = None,
        has_script_changes: bool = False,
    ) -> None:
        """Commit the unit since the last boundary.

        At the end of an epoch or of the training (`is_end`) code of all kinds may have written. `scalars` are for `tranlogs
        log`. With `has_script_changes` the script has changed something before its loop, on which the next start builds.
        """
        parts, journal = self._parts, self._parts.journal
        self._log.begin(has_steps=parts.steps.steps_since_boundary > 0)
        wanted = parts.steps.wants_checkpoint or wants_checkpoint
        late = self._find_late()
        if self._log.is_passed_over(is_needed=wanted or bool(late) or has_script_changes):
            parts.steps.begin_unit()
            self._log.end_unit()
            return
        look = parts.steps.note_unit(is_end=is_end)
        parts.steps.begin_unit()
        if not self._has_reserved and journal.step:
            self._has_reserved = True
            journal.checkpoints.expect_snapshot(parts.state.nbytes())
        parts.steps.wants_checkpoint = False
        body = self._read(look)
        if body is None:
            self._recovery.settle_recheck(None)
            return
        if late:
            parts.state.describe()
        parts.steps.wants_checkpoint |= self._commit(body, wanted or None, scalars, has_script_changes=has_script_changes)
        self._log.end_unit()
        if late:  # the log alone cannot be redone by a process in which no step has built them
            journal.wait_checkpoint()
            journal.checkpoint(self._snapshot(body), wait=True)

    def _commit(
        self,
        body: dict[str, Any],
        wants_checkpoint: bool | None,
        scalars: dict[str, float] | None,
        *,
        has_script_changes: bool = False,
        is_last: bool = False,
    ) -> bool:
        """Record a boundary; see `BoundaryLog.commit`."""

        def settle() -> bool:
            is_over = self._recovery.settle_recheck(body["position"], is_last=is_last)
            if (deviation := self._recovery.recheck.deviation) is not None:  # the boundary may be recorded once more
                body["deviation"] = deviation
            return is_over

        return self._log.commit(
            body,
            lambda: self._snapshot(body),
            settle,
            wants_checkpoint=wants_checkpoint,
            scalars=scalars,
            has_script_changes=has_script_changes,
        )

    def _digest_state(self) -> bytes:
        """Return a digest of weights and optimizer state."""
        parts = self._parts
        values = parts.backend.values_of([slot.variable for slot in parts.variables.everything_but_metrics])
        hasher = xxhash.xxh3_64()
        for value in values:
            hasher.update(flat_bytes(value).data)
        return hasher.intdigest().to_bytes(8, "little")

    def commit_end(self, changes: dict[str, Any], scalars: dict[str, float] | None) -> None:
        """Commit the end of the training, with a checkpoint. `changes` replace values of the boundary's body."""
        journal = self._parts.journal
        body = self._read_end(changes)
        if body is None:
            self._recovery.settle_recheck(None)
            return
        journal.wait_checkpoint()  # while one is being written no other is taken, and this one is needed
        is_late = self._commit(body, True, scalars, is_last=True)
        if is_late and (now := self._read_end(changes)) is not None:  # the recorded state was set back
            journal.boundary(now, lambda: self._snapshot(now), scalars=scalars, checkpoint=True)

    def keep_end(self) -> None:
        """Take the checkpoint at the end of a fit that is over, if the process that came to it has published none."""
        if not self._log.has_checkpoint():
            self._parts.journal.start()
            self._parts.journal.checkpoint(self._snapshot(self._recovery.body), wait=True)

    def _read_end(self, changes: dict[str, Any]) -> dict[str, Any] | None:
        self._log.begin(has_steps=self._parts.steps.steps_since_boundary > 0)
        body = self._read(self._parts.steps.note_unit(is_end=True))
        return None if body is None else body | changes

    def _read(self, look: Look) -> dict[str, Any] | None:
        """Return what a boundary commits; None, and logging suspends, where an object of the user's cannot be read."""
        try:
            return self._body(look)
        except Exception as error:  # whatever it is, training goes on
            self._parts.journal.suspend(error)
            return None

    def _body(self, look: Look) -> dict[str, Any]:
        now, fixed = self._generators.read(look.seed), self._fixed
        return {
            "auxiliary": look.auxiliary or fixed.of("auxiliary", _NOTHING),
            "metrics": look.metrics or fixed.of("metrics", _NOTHING),
            "log": fixed.of("log", self._parts.state.log),
            **({"deviation": deviation} if (deviation := self._recovery.recheck.deviation) else {}),
            **self._read_place(now, fixed),
            **fixed.under(RNG, now),
            **self._log.read(),
        }

    def _snapshot(self, body: dict[str, Any]) -> Snapshot:
        return self._parts.state.snapshot(body, self._read_for_checkpoint())


def last_scalars(history: Iterable[tuple[str, list[Any]]]) -> dict[str, float] | None:
    """Return the last value of each curve that ends with a number; None if there is none."""
    found = {name: float(values[-1]) for name, values in history if values and isinstance(values[-1], (int, float))}
    return found or None
