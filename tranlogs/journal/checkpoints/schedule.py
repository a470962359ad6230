"""Whether a checkpoint is due: the policy's word, on facts since the last one, or the monitor's request."""

from __future__ import annotations

import logging

from ...base.clock import Clock
from ...base.config import CATALOG_SECONDS
from ...base.errors import CorruptCatalog
from ...catalog import Catalog
from ...retention import CheckpointFacts, CheckpointPolicy, EverySteps

_log = logging.getLogger(__name__)

_FALLBACK = EverySteps(500)


class CheckpointSchedule:
    """Counts since the last checkpoint."""

    def __init__(self, policy: CheckpointPolicy, catalog: Catalog, clock: Clock) -> None:
        self._policy, self._catalog, self._clock = policy, catalog, clock
        self._looked_at = 0.0
        self.taken(0, 0)

    def taken(self, step: int, log_bytes: int, seconds_ago: float = 0.0) -> None:
        """A checkpoint was taken at `step`, with `log_bytes` of log written by then."""
        self._step, self._at, self._log_bytes = step, self._clock.monotonic() - seconds_ago, log_bytes

    def is_due(self, step: int, log_bytes: int, replay_seconds_per_step: float, load_seconds: float) -> bool:
        """What the policy says."""
        seconds = self._clock.monotonic() - self._at
        facts = CheckpointFacts(step - self._step, seconds, log_bytes - self._log_bytes, replay_seconds_per_step, load_seconds)
        try:
            return bool(self._policy.is_due(facts))
        except Exception as error:  # the user's own policy must not end the training
            _log.warning("%s: the checkpoint policy failed (%s: %s); from here on there is a checkpoint every %d steps",
                         self._catalog.path, type(error).__name__, error, _FALLBACK.steps)  # fmt: skip
            self._policy = _FALLBACK
            return _FALLBACK.is_due(facts)

    def is_requested(self) -> bool:
        """Whether the monitor asked for a checkpoint since the last one; it is looked for now and then."""
        now = self._clock.monotonic()
        if now - self._looked_at < CATALOG_SECONDS:
            return False
        self._looked_at = now
        try:
            request = self._catalog.read(lambda tables: tables.request("checkpoint"))
        except CorruptCatalog:
            return False
        return bool(request) and request.get("step", 0) > self._step
