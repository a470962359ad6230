"""The schedule of checkpoints: a checkpoint is due by the policy, or if a monitor requests one."""

from __future__ import annotations

import logging

from ...base.atomic_files import free_bytes
from ...base.clock import Clock
from ...base.config import CATALOG_SECONDS
from ...base.errors import CatalogUnavailable, CorruptCatalog
from ...catalog import Catalog
from ...retention import CheckpointFacts, CheckpointPolicy, EverySteps
from .recovery_speed import RecoverySpeed

_log = logging.getLogger(__name__)

_FALLBACK = EverySteps(500)


class CheckpointSchedule:
    """A checkpoint policy together with the step, the time and the log size of the last checkpoint.

    Attributes:
        state_bytes: the size of a checkpoint; 0 until it is known.
        companion_steps: steps taken in one unit with a step of another optimizer. They do not count as training steps.
    """

    def __init__(self, policy: CheckpointPolicy, catalog: Catalog, clock: Clock) -> None:
        self._policy, self._catalog, self._clock = policy, catalog, clock
        self._request_read_at = 0.0
        self.companion_steps = 0
        self.state_bytes = 0
        self.note_taken(0, 0)

    def note_taken(self, step: int, log_bytes: int, seconds_ago: float = 0.0) -> None:
        """Record that a checkpoint was taken at `step`, after `log_bytes` of log."""
        self._step, self._at, self._log_bytes = step, self._clock.monotonic() - seconds_ago, log_bytes
        self._companion_steps_before = self.companion_steps
        self._free_bytes = free_bytes(self._catalog.path.parent)

    def note_size(self, nbytes: int) -> None:
        """Record the size of a checkpoint: an expected one, or one that was published. The largest counts."""
        self.state_bytes = max(self.state_bytes, nbytes)

    def is_due(self, step: int, log_bytes: int, speed: RecoverySpeed) -> bool:
        """Return True if the policy wants a checkpoint at `step`, after `log_bytes` of log."""
        redone = step - self._step
        steps = redone - (self.companion_steps - self._companion_steps_before)
        facts = CheckpointFacts(
            steps,
            self._clock.monotonic() - self._at,
            log_bytes - self._log_bytes,
            speed.replay_seconds_per_step * (redone / steps if steps > 0 else 1.0),
            speed.load_seconds,
            self.state_bytes,
            self._free_bytes,
        )
        try:
            return bool(self._policy.is_due(facts))
        except Exception as error:  # An error in a user's policy must not end the training.
            _log.warning(
                "%s: the checkpoint policy failed (%s: %s); from now on a checkpoint is taken every %d steps",
                self._catalog.path,
                type(error).__name__,
                error,
                _FALLBACK.steps,
            )
            self._policy = _FALLBACK
            return _FALLBACK.is_due(facts)

    def is_requested(self) -> bool:
        """Return True if a monitor has requested a checkpoint since the last one.

        The catalog is read at most once in `CATALOG_SECONDS`.
        """
        now = self._clock.monotonic()
        if now - self._request_read_at < CATALOG_SECONDS:
            return False
        self._request_read_at = now
        try:
            request = self._catalog.read(lambda tables: tables.request("checkpoint"))
        except (CorruptCatalog, CatalogUnavailable):
            return False
        return bool(request) and request.get("step", 0) > self._step
